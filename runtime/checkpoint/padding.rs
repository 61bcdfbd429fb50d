//! Padding belongs to the mesh and not to the model. A state that was padded to divide over the mesh is stored without padding, so the run
//! can be resumed on any other mesh.

use super::raw_view::RawTensor;
use bytes::Bytes;
use ir::{State, Type, ViewStep};

/// Returns the type of a state without padding; `None` if a dim is unbound.
pub fn unpadded_type(state: &State) -> Option<Type> {
    let (_, sizes) = ir::view::padding(&state.view, &state.ty.sizes()?);
    Some(Type::of(state.ty.dtype, &sizes))
}

/// Returns whether a state is padded.
pub(super) fn is_padded(state: &State) -> bool {
    matches!(state.view.last(), Some(ViewStep::Pad { .. }))
}

/// Removes the padding from a state's value, for the disk. `None` if the value does not have the state's size.
pub(super) fn remove(state: &State, value: Bytes) -> Option<Bytes> {
    let (padding, _) = ir::view::padding(&state.view, &[]);
    let mut tensor = RawTensor::new(state.ty.dtype, state.ty.sizes()?, value)?;
    for step in padding.iter().rev() {
        let ViewStep::Pad { dim, after } = step else { continue };
        let length = tensor.sizes.get(*dim as usize)?.checked_sub(*after)?;
        tensor = tensor.view(&[ViewStep::Slice { dim: *dim, start: 0, length }])?;
    }
    Some(tensor.bytes)
}

/// Adds the padding to a state's value from the disk. `None` if the value does not have the state's size without padding.
pub(super) fn add(state: &State, value: Bytes) -> Option<Bytes> {
    let (padding, sizes) = ir::view::padding(&state.view, &state.ty.sizes()?);
    Some(RawTensor::new(state.ty.dtype, sizes, value)?.view(padding)?.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{DType, Initializer, Module, Role};

    #[test]
    fn padding_goes_and_comes_back() {
        let mut module = Module::new("padded");
        let id = module.add_state("w", Type::of(DType::U8, &[3, 4]), Role::Parameter, Initializer::Zeros);
        let state = &mut module.states[id];
        state.view.push(ViewStep::Pad { dim: 0, after: 1 });
        state.view.push(ViewStep::Pad { dim: 1, after: 2 });
        let state = &module.states[id];
        assert_eq!(unpadded_type(state), Some(Type::of(DType::U8, &[2, 2])));
        let value = Bytes::from_static(&[1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]);
        let stored = remove(state, value.clone()).unwrap();
        assert_eq!(stored, [1, 2, 3, 4][..]);
        assert_eq!(add(state, stored), Some(value.clone()));
        assert_eq!(add(state, value.slice(..3)), None);
        assert_eq!(remove(state, value.slice(..4)), None);
    }
}
