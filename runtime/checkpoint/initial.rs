//! The values of states before step 0, as bytes; `ir::interp::initial_states` has them as numbers.

use super::StateBytes;
use super::raw_view::{self, RawTensor};
use bytes::Bytes;
use comm::block::{self, Block};
use files::Checksum;
use ir::interp::Missing;
use ir::{DType, DataId, Diagnostic, Initializer, Module, State, StateId, Tensor, Type, random};
use program::layout::Sizes;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::BTreeSet;

/// The number of elements drawn at once: enough to be fast, and few enough that their f64 take little memory.
const DRAWN: usize = 1 << 16;
/// The standard deviation of numbers drawn in place of missing weights.
const DEVIATION: f64 = 0.02;
/// The largest number of samples of a tensor in a checksum of samples, and the bytes of one sample.
const SAMPLES: usize = 64;
const SAMPLE: usize = 4096;
/// The largest number of names listed in a message.
const LISTED: usize = 8;

/// Returns the value of every state before step 0: the value in `given` (weights of the user's), or else the value of its initializer.
///
/// # Errors
/// Those of [`InitialValues::new`] and of [`InitialValues::value`].
pub fn initial_states(
    module: &Module,
    seed: u64,
    missing: Missing,
    given: StateBytes,
) -> Result<StateBytes, Diagnostic> {
    let values = InitialValues::new(module, seed, missing, given)?;
    let states = module.states.values();
    states.map(|state| Ok((state.name.clone(), values.value(state)?))).collect()
}

/// The values of states before step 0, made on demand: a whole value, or only a block of it.
#[derive(Clone, Debug)]
pub struct InitialValues<'m> {
    module: &'m Module,
    seed: u64,
    given: StateBytes,
}

impl<'m> InitialValues<'m> {
    /// Prepares the values of a module's states. Values in `given` replace those of initializers.
    ///
    /// # Errors
    /// Weights are missing (one message lists all) and `missing` does not say to draw them; a value in `given` does not fit its state's
    /// type.
    pub fn new(
        module: &'m Module,
        seed: u64,
        missing: Missing,
        given: StateBytes,
    ) -> Result<Self, Diagnostic> {
        check_weights(module, missing, &given)?;
        Ok(Self { module, seed, given })
    }

    /// Returns the value of a state. Data of the file goes through the state's view, and is not copied if the view is empty.
    ///
    /// # Errors
    /// Those of [`Self::block`].
    pub fn value(&self, state: &State) -> Result<Bytes, Diagnostic> {
        let sizes = state.ty.sizes().ok_or_else(|| unbound(state))?;
        self.block(state, &vec![0; sizes.len()], &sizes)
    }

    /// Returns the elements of a state's value from index `start` on, `sizes` elements along each dim. Drawn elements have the same values
    /// as in the whole.
    ///
    /// # Errors
    /// A view does not fit its state's type; a state is a copy of a later one; dims are unbound.
    pub fn block(&self, state: &State, start: &[u64], sizes: &[u64]) -> Result<Bytes, Diagnostic> {
        let dtype = state.ty.dtype;
        if let Some(given) = self.given.get(&state.name) {
            let whole = RawTensor::new(dtype, state.ty.sizes().unwrap_or_default(), given.clone());
            let block = whole.and_then(|whole| whole.block(&[], start, sizes));
            return block.map(|block| block.bytes).ok_or_else(|| unbound(state));
        }
        match state.initializer {
            Initializer::Zeros => {
                Ok(vec![0; (sizes.iter().product::<u64>() * dtype.bytes()) as usize].into())
            }
            Initializer::Splat(bits) | Initializer::Fill { value: bits, .. } => {
                let element = Tensor::splat(dtype, Vec::new(), f64::from_bits(bits)).to_bytes();
                let made = |_: &[u64], _: &[u64], sizes: &[u64]| {
                    element.repeat(sizes.iter().product::<u64>() as usize)
                };
                padded(state, start, sizes, made)
            }
            Initializer::Normal { std, .. } if dtype.is_float() => {
                self.drawn(state, f64::from_bits(std), start, sizes)
            }
            Initializer::Normal { .. } => Err(Diagnostic::new(format!(
                "random initial values for state `{}` of type {} cannot be drawn",
                state.name, state.ty
            ))),
            Initializer::CopyOf(other) => self.copy(state, other, start, sizes),
            Initializer::Data(row) | Initializer::Noisy { data: row, .. }
                if self.module.data[row].bytes().is_none() =>
            {
                self.drawn(state, DEVIATION, start, sizes)
            }
            Initializer::Data(row) => self.of_data(state, row, start, sizes),
            Initializer::Noisy { std, data } => {
                let noise = self.drawn(state, f64::from_bits(std), start, sizes)?;
                added(dtype, self.of_data(state, data, start, sizes)?, noise)
            }
        }
    }

    /// Does the same as [`Self::block`] for the state of that name; `None` if there is none.
    pub fn block_of(&self, name: &str, start: &[u64], sizes: &[u64]) -> Result<Option<Bytes>, Diagnostic> {
        let state = self.module.states.values().find(|state| state.name == name);
        state.map(|state| self.block(state, start, sizes)).transpose()
    }

    /// Returns a checksum of the sources of the values, in hexadecimal digits: the seed, and samples of the file's tensors and of the given
    /// ones. Every byte of a tensor of up to 256 KiB is a sample.
    pub fn sampled_checksum(&self) -> String {
        let of_file = self.module.data.values().filter_map(|data| Some((&data.name, data.bytes()?)));
        let mut sum = Checksum::default();
        sum.add(&self.seed.to_le_bytes());
        for (name, bytes) in of_file.chain(&self.given) {
            sum.add(format!("{name} {}\n", bytes.len()).as_bytes());
            let step = bytes.len().div_ceil(SAMPLES).max(SAMPLE);
            let samples = bytes.chunks(step).map(|chunk| &chunk[..chunk.len().min(SAMPLE)]);
            samples.for_each(|sample| sum.add(sample));
        }
        sum.to_string()
    }

    fn copy(&self, state: &State, other: StateId, start: &[u64], sizes: &[u64]) -> Result<Bytes, Diagnostic> {
        let source = &self.module.states[other];
        let is_earlier = self
            .module
            .states
            .iter()
            .take_while(|(_, other)| other.name != state.name)
            .any(|(id, _)| id == other);
        if !is_earlier {
            let message = format!("state `{}` copies `{}`, which is defined later", state.name, source.name);
            return Err(Diagnostic::new(message));
        }
        let misfit = || {
            Diagnostic::new(format!(
                "state `{}` of type {} cannot be a copy of `{}` of type {}",
                state.name, state.ty, source.name, source.ty
            ))
        };
        if source.ty.sizes() != state.ty.sizes() {
            return Err(misfit());
        }
        let block = self.block(source, start, sizes)?;
        let block = RawTensor::new(source.ty.dtype, sizes.to_vec(), block);
        let cast = block.and_then(|block| block.cast(state.ty.dtype));
        cast.map(|cast| cast.bytes).ok_or_else(misfit)
    }

    fn of_data(&self, state: &State, row: DataId, start: &[u64], sizes: &[u64]) -> Result<Bytes, Diagnostic> {
        let data = &self.module.data[row];
        let bytes = data.bytes().cloned().unwrap_or_default();
        let (found, whole) = (bytes.len(), data.ty.sizes().unwrap_or_default());
        let tensor = RawTensor::new(data.ty.dtype, whole, bytes).ok_or_else(|| {
            Diagnostic::new(format!("tensor `{}` is {}, but it has {found} bytes", data.name, data.ty))
        })?;
        let fits = ir::view::sizes(&state.view, &tensor.sizes) == state.ty.sizes();
        let block = tensor.block(&state.view, start, sizes).filter(|_| fits);
        let block = block.and_then(|block| block.cast(state.ty.dtype));
        let misfit = || {
            let view = ir::text::view_text(&state.view);
            Diagnostic::new(format!(
                "state `{}` of {} cannot be cut out of `{}`, {}, by {view}",
                state.name, state.ty, data.name, data.ty
            ))
        };
        block.map(|block| block.bytes).ok_or_else(misfit)
    }

    /// Returns normal numbers with this standard deviation, drawn by (seed, name, element).
    fn drawn(
        &self,
        state: &State,
        deviation: f64,
        start: &[u64],
        sizes: &[u64],
    ) -> Result<Bytes, Diagnostic> {
        let (dtype, stream) = (state.ty.dtype, random::stream(&state.name));
        let numbers = |first: usize, count: usize| {
            let number = |element| deviation * random::normal(self.seed, stream, element as u64);
            Tensor::float(dtype, vec![count], (first..first + count).map(number).collect()).to_bytes()
        };
        padded(state, start, sizes, |whole, start, sizes| {
            let mut bytes = vec![0; (sizes.iter().product::<u64>() * dtype.bytes()) as usize];
            let mut pieces = vec![];
            let mut rest = &mut bytes[..];
            for_pieces(whole, start, sizes, |first, count| {
                let (piece, after) = std::mem::take(&mut rest).split_at_mut(count * dtype.bytes() as usize);
                pieces.push((first, count, piece));
                rest = after;
            });
            pieces
                .into_par_iter()
                .for_each(|(first, count, piece)| piece.copy_from_slice(&numbers(first, count)));
            bytes
        })
    }
}

/// Adds elements of a float type.
fn added(dtype: DType, x: Bytes, y: Bytes) -> Result<Bytes, Diagnostic> {
    let ty = Type::of(dtype, &[x.len() as u64 / dtype.bytes()]);
    let [x, y] = [x, y].map(|bytes| Tensor::from_bytes(&ty, &bytes));
    let (Some(x), Some(y)) = (x, y) else {
        return Err(Diagnostic::new(format!("noise cannot be added to elements of type {dtype}")));
    };
    let sum = x.floats().iter().zip(y.floats()).map(|(x, y)| x + y).collect();
    Ok(Tensor::float(dtype, x.sizes, sum).to_bytes().into())
}

/// Calls `piece` for the runs of elements that a block has in a whole tensor, each with its first element in the whole and its length,
/// which is at most [`DRAWN`].
fn for_pieces(whole: &[u64], start: &[u64], sizes: &[u64], mut piece: impl FnMut(usize, usize)) {
    let of = |sizes: &[u64]| -> Sizes { sizes.iter().map(|&size| size as usize).collect() };
    let block = Block { whole: of(whole), start: of(start) };
    block::for_runs(&of(sizes), [&block], |[first], length| {
        for begin in (0..length).step_by(DRAWN) {
            piece(first + begin, DRAWN.min(length - begin));
        }
    });
}

/// Returns a block of a state with its padding. `made` makes a block of the unpadded value, given the sizes of that value, the first index
/// of the block, and the sizes of the block.
fn padded(
    state: &State,
    start: &[u64],
    sizes: &[u64],
    made: impl Fn(&[u64], &[u64], &[u64]) -> Vec<u8>,
) -> Result<Bytes, Diagnostic> {
    let padded = state.ty.sizes().ok_or_else(|| unbound(state))?;
    let (_, whole) = ir::view::padding(&state.view, &padded);
    let kept = raw_view::within(&whole, start, sizes);
    let inner = RawTensor::new(state.ty.dtype, kept.clone(), made(&whole, start, &kept).into());
    let extended = (0..kept.len() as u32).try_fold(inner, |inner, dim| Some(inner?.extended(dim, sizes)));
    let misfit = || Diagnostic::new(format!("the padding of state `{}` does not fit", state.name));
    extended.flatten().map(|tensor| tensor.bytes).ok_or_else(misfit)
}

fn unbound(state: &State) -> Diagnostic {
    Diagnostic::new(format!("state `{}` has dims that are unbound or too large: {}", state.name, state.ty))
}

/// Returns an error if a module's weights are neither loaded, nor in `given`, nor drawn. [`initial_states`] begins with this check; callers
/// that allocate memory before it can run it alone, because a model without its weights may be larger than this machine.
///
/// # Errors
/// A value in `given` does not fit; weights are missing (one message lists all).
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
        None => Err(unbound(state)),
    }
}

/// Returns the names of tensors of the file that states need and that are neither loaded nor drawn.
fn absent<'m>(module: &'m Module, missing: Missing, given: &StateBytes) -> BTreeSet<&'m str> {
    let needed = module.states.values().filter(|state| {
        let is_drawn = missing == Missing::Draw && state.ty.dtype.is_float();
        !is_drawn && !given.contains_key(&state.name)
    });
    let rows = needed.filter_map(data).map(|row| &module.data[row]);
    rows.filter(|row| row.bytes().is_none()).map(|row| row.name.as_str()).collect()
}

/// Returns the row of the data table from which the initial value is made.
fn data(state: &State) -> Option<DataId> {
    match state.initializer {
        Initializer::Data(row) | Initializer::Noisy { data: row, .. } => Some(row),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Blob, DType, Data, Role, StateId, Type, ViewStep};
    use smallvec::smallvec;

    /// Returns a module with every kind of initializer and every kind of view.
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
    fn a_block_has_the_elements_of_the_whole() {
        let mut module = module();
        let ids: Vec<StateId> = module.states.keys().collect();
        for id in ids {
            let state = &mut module.states[id];
            if matches!(state.initializer, Initializer::Normal { .. } | Initializer::Fill { .. }) {
                state.view.push(ViewStep::Pad { dim: 0, after: 2 });
                let padded: Vec<u64> = state
                    .ty
                    .sizes()
                    .unwrap()
                    .iter()
                    .enumerate()
                    .map(|(dim, size)| size + 2 * u64::from(dim == 0))
                    .collect();
                state.ty = Type::of(state.ty.dtype, &padded);
            }
        }
        let values = InitialValues::new(&module, 3, Missing::Refuse, StateBytes::new()).unwrap();
        for state in module.states.values() {
            let sizes = state.ty.sizes().unwrap();
            let whole = RawTensor::new(state.ty.dtype, sizes.clone(), values.value(state).unwrap()).unwrap();
            for draw in 0..200 {
                let index = |dim: u32, below: u64| u64::from(random::philox(draw, [dim, 0, 0, 0])[0]) % below;
                let start: Vec<u64> = (0..).zip(&sizes).map(|(dim, size)| index(dim, size + 1)).collect();
                let block: Vec<u64> = (0..)
                    .zip(sizes.iter().zip(&start))
                    .map(|(dim, (size, start))| index(dim + 9, size - start + 1))
                    .collect();
                let expected = whole.block(&[], &start, &block).unwrap().bytes;
                assert_eq!(
                    values.block(state, &start, &block).unwrap(),
                    expected,
                    "{} {start:?} {block:?}",
                    state.name
                );
            }
        }
    }

    #[test]
    fn another_seed_file_or_weight_changes_the_checksum_of_samples() {
        let module = module();
        let sum = |module: &Module, seed: u64, given: StateBytes| {
            InitialValues::new(module, seed, Missing::Refuse, given).unwrap().sampled_checksum()
        };
        let given = |byte: u8| StateBytes::from([("whole".to_owned(), Bytes::from(vec![byte; 96]))]);
        let mut other = module.clone();
        let row = other.data.values_mut().next().unwrap();
        let mut bytes = row.bytes().unwrap().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        row.blob = Blob::File(Some(bytes.into()));
        let sums = [
            sum(&module, 3, StateBytes::new()),
            sum(&module, 4, StateBytes::new()),
            sum(&other, 3, StateBytes::new()),
            sum(&module, 3, given(1)),
            sum(&module, 3, given(2)),
        ];
        let different: BTreeSet<&String> = sums.iter().collect();
        assert_eq!(different.len(), sums.len());
        assert_eq!(sums[0], sum(&module, 3, StateBytes::new()));
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
