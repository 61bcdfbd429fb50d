//! The values of states before step 0, as bytes: what `ir::interp::initial_states` has as numbers.

use super::StateBytes;
use super::raw_view::RawTensor;
use bytes::Bytes;
use ir::interp::Missing;
use ir::{DataId, Diagnostic, Initializer, Module, State, Tensor, random};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::BTreeSet;

/// Elements drawn at once: enough to be quick, few enough that their f64 take no memory to speak of.
const DRAWN: usize = 1 << 16;
/// The deviation of what is drawn in place of weights that are not here.
const DEVIATION: f64 = 0.02;
/// The most names listed in a message.
const LISTED: usize = 8;

/// The value of every state before step 0: what `given` has of it (weights of the user's), else what its initializer
/// says. Data of the file goes through the state's view, and is not copied where the view is empty.
///
/// # Errors
/// Weights that are not here, all of them in one message, unless `missing` says to draw them; a value of `given`, or a
/// view, that does not fit its state's type.
pub fn initial_states(
    module: &Module,
    seed: u64,
    missing: Missing,
    mut given: StateBytes,
) -> Result<StateBytes, Diagnostic> {
    check_weights(module, missing, &given)?;
    let mut values = StateBytes::new();
    for state in module.states.values() {
        let value = match (given.remove(&state.name), data(state)) {
            (Some(bytes), _) => bytes,
            (None, Some(row)) if module.data[row].bytes().is_none() => drawn(state, seed, DEVIATION)?,
            (None, _) => initial_value(module, state, seed, &values)?,
        };
        check_size(state, &value)?;
        values.insert(state.name.clone(), value);
    }
    Ok(values)
}

/// Refuses a module whose weights are neither here, nor in `given`, nor drawn: what [`initial_states`] begins with, for
/// callers that allocate before it. A model without its weights may be larger than this machine.
///
/// # Errors
/// A value of `given` that does not fit; weights that are not here, all of them in one message.
pub fn check_weights(module: &Module, missing: Missing, given: &StateBytes) -> Result<(), Diagnostic> {
    for state in module.states.values() {
        given.get(&state.name).map_or(Ok(()), |value| check_size(state, value))?;
    }
    let absent = absent(module, missing, given);
    if absent.is_empty() { Ok(()) } else { Err(not_here(module, absent)) }
}

fn check_size(state: &State, value: &Bytes) -> Result<(), Diagnostic> {
    let (name, ty, found) = (&state.name, &state.ty, value.len());
    match ty.bytes() {
        Some(expected) if expected == found as u64 => Ok(()),
        Some(expected) => Err(Diagnostic::new(format!(
            "the value of state `{name}` has {found} bytes, and {ty} needs {expected}"
        ))),
        None => Err(Diagnostic::new(format!("state `{name}` has dims that are unbound or too large: {ty}"))),
    }
}

/// The names of tensors of the file that states need and that are neither here nor drawn.
fn absent<'m>(module: &'m Module, missing: Missing, given: &StateBytes) -> BTreeSet<&'m str> {
    let needed = module.states.values().filter(|state| {
        let is_drawn = missing == Missing::Draw && state.ty.dtype.is_float();
        !is_drawn && !given.contains_key(&state.name)
    });
    let rows = needed.filter_map(data).map(|row| &module.data[row]);
    rows.filter(|row| row.bytes().is_none()).map(|row| row.name.as_str()).collect()
}

/// The row of the data table that the initial value is cut out of.
fn data(state: &State) -> Option<DataId> {
    if let Initializer::Data(row) = state.initializer { Some(row) } else { None }
}

fn not_here(module: &Module, absent: BTreeSet<&str>) -> Diagnostic {
    let names: Vec<String> = absent.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = absent.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Diagnostic::new(format!("the weights of {}{more} are missing", names.join(", ")))
        .at(module.name.clone())
        .note("the model's file does not contain these weights; give them with --weights FILE.safetensors")
        .note("or start from scratch with --init gpt2, kaiming or normal:std=0.02")
}

fn initial_value(
    module: &Module,
    state: &State,
    seed: u64,
    earlier: &StateBytes,
) -> Result<Bytes, Diagnostic> {
    let dtype = state.ty.dtype;
    Ok(match state.initializer {
        Initializer::Zeros => vec![0; (state.ty.bytes().unwrap_or(0)) as usize].into(),
        Initializer::Splat(bits) | Initializer::Fill { value: bits, .. } => {
            let element = Tensor::splat(dtype, Vec::new(), f64::from_bits(bits)).to_bytes();
            padded(state, |count| element.repeat(count).into())?
        }
        Initializer::Normal { std, .. } if dtype.is_float() => drawn(state, seed, f64::from_bits(std))?,
        Initializer::Normal { .. } => {
            return Err(Diagnostic::new(format!(
                "random initial values for state `{}` of type {} cannot be drawn",
                state.name, state.ty
            )));
        }
        Initializer::CopyOf(other) => {
            let other = &module.states[other];
            match earlier.get(&other.name) {
                Some(bytes) => copy(state, other, bytes)?,
                None => {
                    let message =
                        format!("state `{}` copies `{}`, which is defined later", state.name, other.name);
                    return Err(Diagnostic::new(message));
                }
            }
        }
        Initializer::Data(row) => from_data(module, state, row)?,
    })
}

fn copy(state: &State, other: &State, bytes: &Bytes) -> Result<Bytes, Diagnostic> {
    let sizes = other.ty.sizes().unwrap_or_default();
    let tensor = RawTensor::new(other.ty.dtype, sizes, bytes.clone());
    let cast = tensor.and_then(|tensor| tensor.cast(state.ty.dtype));
    let message = || {
        format!(
            "state `{}` of type {} cannot be a copy of `{}` of type {}",
            state.name, state.ty, other.name, other.ty
        )
    };
    Ok(cast.ok_or_else(|| Diagnostic::new(message()))?.bytes)
}

fn from_data(module: &Module, state: &State, row: DataId) -> Result<Bytes, Diagnostic> {
    let data = &module.data[row];
    let (bytes, sizes) = (data.bytes().cloned().unwrap_or_default(), data.ty.sizes().unwrap_or_default());
    let found = bytes.len();
    let tensor = RawTensor::new(data.ty.dtype, sizes, bytes).ok_or_else(|| {
        Diagnostic::new(format!("tensor `{}` is {}, but it has {found} bytes", data.name, data.ty))
    })?;
    let viewed = tensor.view(&state.view).and_then(|viewed| viewed.cast(state.ty.dtype));
    let fits = viewed.filter(|viewed| state.ty.sizes().is_some_and(|sizes| sizes == viewed.sizes));
    let message = || {
        let view = ir::text::view_text(&state.view);
        format!(
            "state `{}` of {} cannot be cut out of `{}`, {}, by {view}",
            state.name, state.ty, data.name, data.ty
        )
    };
    Ok(fits.ok_or_else(|| Diagnostic::new(message()))?.bytes)
}

/// So many elements as a state has before it is padded, and its padding.
fn padded(state: &State, elements: impl Fn(usize) -> Bytes) -> Result<Bytes, Diagnostic> {
    let (padding, sizes) = ir::view::padding(&state.view, &state.ty.sizes().unwrap_or_default());
    let bytes = elements(sizes.iter().product::<u64>() as usize);
    let tensor = RawTensor::new(state.ty.dtype, sizes, bytes).and_then(|tensor| tensor.view(padding));
    let misfit = || Diagnostic::new(format!("the padding of state `{}` does not fit", state.name));
    tensor.map(|tensor| tensor.bytes).ok_or_else(misfit)
}

fn drawn(state: &State, seed: u64, deviation: f64) -> Result<Bytes, Diagnostic> {
    padded(state, |count| normal(state, count, seed, deviation))
}

/// Normal numbers of a deviation, drawn by (seed, name, element).
fn normal(state: &State, count: usize, seed: u64, deviation: f64) -> Bytes {
    let stream = random::stream(&state.name);
    let chunk = |chunk: usize| {
        let elements = chunk * DRAWN..count.min((chunk + 1) * DRAWN);
        let numbers: Vec<f64> =
            elements.map(|i| deviation * random::normal(seed, stream, i as u64)).collect();
        Tensor::float(state.ty.dtype, vec![numbers.len()], numbers).to_bytes()
    };
    let chunks: Vec<Vec<u8>> = (0..count.div_ceil(DRAWN)).into_par_iter().map(chunk).collect();
    chunks.concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Blob, DType, Data, Role, StateId, Type, ViewStep};
    use smallvec::smallvec;

    /// Every kind of initializer, every kind of view.
    fn module() -> Module {
        let mut module = Module::new("kinds");
        let tensor = Tensor::float(DType::F32, vec![4, 6], (0..24).map(|i| f64::from(i) * 0.1).collect());
        let blob = Blob::File(Some(tensor.to_bytes().into()));
        let row = module.add_data(Data { name: "file.weight".into(), ty: tensor.ty(), blob, claim: None });
        let mut add = |name: &str, dtype: DType, sizes: &[u64], initializer: Initializer| {
            module.add_state(name, Type::of(dtype, sizes), Role::Parameter, initializer)
        };
        add("whole", DType::F32, &[4, 6], Initializer::Data(row));
        let cut = add("cut", DType::F32, &[3, 4], Initializer::Data(row));
        let half = add("half", DType::F16, &[24], Initializer::Data(row));
        add("zeros", DType::F64, &[2, 2], Initializer::Zeros);
        add("splat", DType::BF16, &[3], Initializer::Splat(0.3f64.to_bits()));
        add("fill", DType::F32, &[3], Initializer::Fill { value: 1.5f64.to_bits(), data: row });
        add("counter", DType::I64, &[], Initializer::Splat(7.0f64.to_bits()));
        add("copy", DType::F16, &[3, 4], Initializer::CopyOf(cut));
        add("normal", DType::F32, &[5, 3], Initializer::Normal { std: 0.5f64.to_bits(), data: Some(row) });
        module.states[cut].view =
            smallvec![ViewStep::Transpose(smallvec![1, 0]), ViewStep::Slice { dim: 0, start: 1, length: 3 }];
        module.states[half].view = smallvec![ViewStep::Reshape(smallvec![24]), ViewStep::Cast(DType::F16)];
        module
    }

    fn interpreted(module: &Module, seed: u64, missing: Missing) -> StateBytes {
        let values = ir::interp::initial_states(module, seed, missing).unwrap();
        let bytes = |(id, tensor): (StateId, Tensor)| {
            (module.states[id].name.clone(), Bytes::from(tensor.to_bytes()))
        };
        values.into_iter().map(bytes).collect()
    }

    fn without_weights() -> Module {
        let mut module = module();
        module.data.values_mut().for_each(|data| data.blob = Blob::File(None));
        module
    }

    #[test]
    fn they_are_the_interpreters_rounded_to_their_types() {
        let module = module();
        let values = initial_states(&module, 3, Missing::Refuse, StateBytes::new()).unwrap();
        assert_eq!(values, interpreted(&module, 3, Missing::Refuse));
        let other = initial_states(&module, 4, Missing::Refuse, StateBytes::new()).unwrap();
        assert_ne!(values["normal"], other["normal"]);
    }

    #[test]
    fn random_programs_start_as_the_interpreter_starts_them() {
        for seed in 0..30 {
            let module = ir::testing::program(seed, DType::F32, 12);
            let values = initial_states(&module, seed, Missing::Refuse, StateBytes::new()).unwrap();
            assert_eq!(values, interpreted(&module, seed, Missing::Refuse));
        }
    }

    #[test]
    fn bytes_of_the_file_are_not_copied() {
        let module = module();
        let values = initial_states(&module, 3, Missing::Refuse, StateBytes::new()).unwrap();
        let file = module.data.values().next().unwrap().bytes().unwrap();
        assert_eq!(values["whole"].as_ptr(), file.as_ptr());
    }

    #[test]
    fn absent_weights_are_refused_with_what_to_do_or_drawn() {
        let module = without_weights();
        let error = initial_states(&module, 3, Missing::Refuse, StateBytes::new()).unwrap_err().to_string();
        assert!(error.starts_with("the weights of `file.weight` are missing"), "{error}");
        assert!(error.contains("--weights FILE.safetensors") && error.contains("--init"), "{error}");
    }

    #[test]
    fn given_values_come_before_the_files_and_are_copied_from() {
        let module = without_weights();
        let given: StateBytes = [("whole", 96), ("cut", 48), ("half", 48)]
            .map(|(name, size)| (name.to_owned(), Bytes::from(vec![1; size])))
            .into();
        let values = initial_states(&module, 3, Missing::Refuse, given).unwrap();
        assert_eq!(values["whole"], vec![1; 96]);
        let number = f32::from_le_bytes([1; 4]);
        assert_eq!(values["copy"], half::f16::from_f32(number).to_le_bytes().repeat(12));
        let short: StateBytes = [("whole", 95), ("cut", 48), ("half", 48)]
            .map(|(name, size)| (name.to_owned(), Bytes::from(vec![1; size])))
            .into();
        let error = initial_states(&module, 3, Missing::Refuse, short).unwrap_err().to_string();
        assert!(error.contains("`whole` has 95 bytes, and f32[4, 6] needs 96"), "{error}");
    }
}
