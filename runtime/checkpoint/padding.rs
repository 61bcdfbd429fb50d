//! Padding, which is of the mesh and not of the model: a state that was made to divide over the mesh lies on disk
//! without what was added, so that a run goes on on any other.

use super::raw_view::RawTensor;
use bytes::Bytes;
use ir::{State, Type, ViewStep};

/// The type of a state without padding; `None` while a dim is unbound.
pub fn unpadded_type(state: &State) -> Option<Type> {
    let (_, sizes) = ir::view::padding(&state.view, &state.ty.sizes()?);
    Some(Type::of(state.ty.dtype, &sizes))
}

/// Whether a state is padded.
pub(super) fn is_padded(state: &State) -> bool {
    matches!(state.view.last(), Some(ViewStep::Pad { .. }))
}

/// The value on disk of a state's value. `None` if it does not have the state's size.
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

/// The state's value of a value on disk. `None` if that does not have the size of the state without padding.
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
