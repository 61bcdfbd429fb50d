//! Numbers of states that are not finite.
//!
//! A number that is not finite and was already in its place when the run began comes from the file: a mask has its −∞, and a row that no
//! sample reads may have any value. Training made every other such number.

use bytes::Bytes;
use ir::{DType, Role, State};
use std::collections::BTreeMap;
use std::fmt;

/// The values, at the beginning of a run, of the states that were not finite then: a rank's part of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Began(BTreeMap<String, (DType, Bytes)>);

impl Began {
    /// Keeps a state's value if it is not finite. The value is shared, not copied.
    pub(super) fn add(&mut self, name: &str, dtype: DType, value: &Bytes) {
        if first_not_finite(dtype, value, None).is_some() {
            self.0.insert(name.to_owned(), (dtype, value.clone()));
        }
    }

    /// Returns the first number of a state's value that is not finite, unless the run began with it. `unpadded` removes the padding from a
    /// value of the state, because padding belongs to the mesh and not to the state.
    pub(super) fn made(
        &self,
        state: &State,
        value: &[u8],
        unpadded: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Option<f64> {
        let (dtype, began) = (state.ty.dtype, self.0.get(&state.name).map(|(_, value)| value));
        first_not_finite(dtype, value, began.map(|began| &began[..]))?;
        let began = began.map(|began| unpadded(began));
        first_not_finite(dtype, &unpadded(value), began.as_deref())
    }

    /// Returns the first state that had a number of this kind when the run began.
    pub(super) fn first(&self, of_kind: fn(f64) -> bool) -> Option<&str> {
        let mut states = self.0.iter();
        let has = |(_, (dtype, value)): &(&String, &(DType, Bytes))| {
            not_finite(*dtype, value).any(|(_, number)| of_kind(number))
        };
        states.find(has).map(|(name, _)| name.as_str())
    }
}

/// A state that training made infinite or NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFiniteState {
    /// Its name.
    pub name: String,
    /// The purpose of the state.
    pub role: Role,
    /// The first number that is not finite.
    pub value: f64,
}

/// ``the parameter `fc.weight` inf``
impl fmt::Display for NotFiniteState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Parameter => "parameter",
            Role::Buffer => "buffer",
            Role::Version => "earlier version of a parameter",
            Role::Optimizer => "optimizer's state",
            Role::Compression => "state of the compression of gradients",
            Role::Scaler | Role::Rng | Role::Counter => "state",
        };
        write!(f, "the {role} `{}` {}", self.name, self.value)
    }
}

/// The number of bytes that are checked together: they stay in the processor's first-level cache.
const CHUNK: usize = 16 << 10;

/// Returns the first number that is not finite and differs from the number in its place in `began`.
fn first_not_finite(dtype: DType, value: &[u8], began: Option<&[u8]>) -> Option<f64> {
    let size = dtype.bytes() as usize;
    let same = |at: usize, number: f64| {
        let then = began.and_then(|began| began.get(at..at + size)).map(|bytes| number_at(dtype, bytes));
        then.is_some_and(|then| then == number || (then.is_nan() && number.is_nan()))
    };
    not_finite(dtype, value).find(|&(at, number)| !same(at, number)).map(|(_, number)| number)
}

/// Returns the numbers that are not finite, each with the place of its first byte. Integers have none.
fn not_finite(dtype: DType, value: &[u8]) -> impl Iterator<Item = (usize, f64)> {
    let size = dtype.bytes() as usize;
    let chunks = value.chunks(CHUNK).enumerate().filter(move |(_, chunk)| has_not_finite(dtype, chunk));
    chunks.flat_map(move |(index, chunk)| {
        let numbers = chunk.chunks_exact(size).map(move |bytes| number_at(dtype, bytes)).enumerate();
        let bad = numbers.filter(|(_, number)| !number.is_finite());
        bad.map(move |(element, number)| (index * CHUNK + element * size, number))
    })
}

/// Returns whether any number is not finite, which means that all bits of its exponent are ones. The loops have no branch, so they become
/// vector instructions.
fn has_not_finite(dtype: DType, bytes: &[u8]) -> bool {
    macro_rules! any {
        ($bits:ty, $exponent:literal) => {{
            const SIZE: usize = size_of::<$bits>();
            let (elements, _) = bytes.as_chunks::<SIZE>();
            elements
                .iter()
                .fold(false, |any, bytes| any | (<$bits>::from_le_bytes(*bytes) & $exponent == $exponent))
        }};
    }
    match dtype {
        DType::F16 => any!(u16, 0x7c00),
        DType::BF16 => any!(u16, 0x7f80),
        DType::F32 => any!(u32, 0x7f80_0000),
        DType::F64 => any!(u64, 0x7ff0_0000_0000_0000),
        _ => false,
    }
}

/// Returns the number in the bytes of one element of a float type; 0 for other types.
fn number_at(dtype: DType, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f64(),
        (DType::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f64(),
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        (DType::F64, bytes) => bytes.try_into().map_or(0.0, f64::from_le_bytes),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Initializer, Module, Tensor, Type, ViewStep};
    use ranks::Parts;

    /// Returns this many numbers of a float type as bytes, with one of them replaced.
    fn bytes(dtype: DType, count: u64, place: usize, number: f64) -> Vec<u8> {
        let mut numbers: Vec<f64> = (0..count).map(|index| index as f64 % 7.0 - 3.0).collect();
        numbers[place] = number;
        Tensor::float(dtype, vec![count as usize], numbers).rounded().to_bytes()
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_in_every_float_type_and_at_every_place() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let count = 2 * CHUNK as u64 / dtype.bytes() + 5;
            let chunk = CHUNK / dtype.bytes() as usize;
            for place in [0, 1, chunk - 1, chunk, 2 * chunk, count as usize - 1] {
                for number in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                    let value = bytes(dtype, count, place, number);
                    let found = first_not_finite(dtype, &value, None).expect("it is there");
                    assert!(found == number || (found.is_nan() && number.is_nan()), "{dtype} {place}");
                    assert_eq!(first_not_finite(dtype, &value, Some(&value)), None, "{dtype} {place}");
                }
                let largest = if dtype == DType::F16 { 65504.0 } else { 3e38 };
                assert_eq!(first_not_finite(dtype, &bytes(dtype, count, place, largest), None), None);
            }
        }
        assert_eq!(first_not_finite(DType::I32, &[0xff; 4 * CHUNK], None), None);
    }

    #[test]
    fn an_infinity_that_became_nan_or_moved_was_made_by_training() {
        let value = |place, number| bytes(DType::F32, 9, place, number);
        let made = |now: &[u8], then: &[u8]| first_not_finite(DType::F32, now, Some(then));
        let began = value(4, f64::NEG_INFINITY);
        assert_eq!(made(&value(4, f64::NEG_INFINITY), &began), None);
        assert_eq!(made(&value(4, 1.0), &began), None);
        assert!(made(&value(4, f64::NAN), &began).is_some_and(f64::is_nan));
        assert_eq!(made(&value(4, f64::INFINITY), &began), Some(f64::INFINITY));
        assert_eq!(made(&value(5, f64::NEG_INFINITY), &began), Some(f64::NEG_INFINITY));
    }

    #[test]
    fn padding_is_no_part_of_a_state() {
        let mut module = Module::new("padded");
        let ty = Type::of(DType::F32, &[9]);
        let id = module.add_state("w", ty, Role::Parameter, Initializer::Zeros);
        let state = &mut module.states[id];
        state.view.push(ViewStep::Pad { dim: 0, after: 2 });
        let state = &module.states[id];
        let parts = Parts::of(&state.name, &state.ty, &module.mesh).unwrap();
        let unpadded = |value: &[u8]| parts.within(0, value.into(), &[7]).into_owned();
        let made = |place| Began::default().made(state, &bytes(DType::F32, 9, place, f64::NAN), unpadded);
        assert!(made(6).is_some_and(f64::is_nan));
        assert_eq!(made(7), None);
    }
}
