//! Memory in which algorithms are tried before a program runs. Nothing of the program lies there.

use crate::driver::{Address, DriverError, MultiplyPlaces};
use crate::gpu::handles::{Allocation, Queue};
use crate::program::{Matrices, Multiply};
use ir::DType;

/// Memory begins at a multiple of this number of bytes, and cuBLASLt looks at no larger alignment.
const ALIGNMENT: u64 = 256;

/// A byte that makes an ordinary number in every type: 0.0115 in f32 and bf16, 1.06 in f16. Numbers that are not zero take as much
/// power as a program's numbers.
const FILL: u8 = 0x3c;

/// Separate memory for trial runs.
pub(in crate::gpu) struct Scratch {
    memory: Allocation,
    bytes: u64,
}

impl Scratch {
    /// Allocates this number of bytes and fills them.
    pub(in crate::gpu) fn new(bytes: u64, queue: &Queue) -> Result<Self, DriverError> {
        let memory = Allocation::new(bytes)?;
        queue.fill(memory.at, FILL, bytes)?;
        Ok(Self { memory, bytes })
    }

    /// Returns the places of the matrices of a multiplication, if there is room for them.
    pub(super) fn places(&self, multiply: &Multiply) -> Option<MultiplyPlaces> {
        let (places, end) = places(multiply, self.memory.at);
        (end.0 <= self.memory.at.0 + self.bytes).then_some(places)
    }
}

/// Returns the bytes that a multiplication takes in a scratch.
pub(in crate::gpu) fn bytes(multiply: &Multiply) -> u64 {
    places(multiply, Address(0)).1.0
}

/// Returns places that are never read or written, for questions that need no run.
pub(super) fn nowhere(multiply: &Multiply) -> MultiplyPlaces {
    places(multiply, Address(1 << 40)).0
}

/// Lays the matrices and vectors of a multiplication one after the other from an address on, and returns the end. Each begins
/// as far behind a multiple of [`ALIGNMENT`] as in the program's memory, so cuBLASLt sees the same problem.
fn places(multiply: &Multiply, start: Address) -> (MultiplyPlaces, Address) {
    let Multiply { sizes: [m, k, n], dtype, out_dtype, epilogue, .. } = multiply;
    let mut next = start.0;
    let mut take = |byte: i64, before: u64, bytes: u64| {
        let at = (next + before).next_multiple_of(ALIGNMENT) + byte.rem_euclid(ALIGNMENT as i64) as u64;
        next = at + bytes;
        Address(at)
    };
    let mut matrices = |matrices: &Matrices, dtype: DType, sizes: [usize; 2]| {
        let span = matrices.touched(dtype, multiply.batch, sizes).bytes;
        // Matrices at a negative distance lie before the first.
        let before = matrices.apart.min(0).unsigned_abs() * (multiply.batch as u64 - 1) * dtype.bytes();
        take(matrices.start, before, span.end - span.start)
    };
    let lhs = matrices(&multiply.lhs, *dtype, [*m, *k]);
    let rhs = matrices(&multiply.rhs, *dtype, [*k, *n]);
    let out = matrices(&multiply.out, *out_dtype, [*m, *n]);
    let addend = epilogue.addend.as_ref().map(|addend| matrices(addend, *out_dtype, [*m, *n]));
    let aux = epilogue.aux.as_ref().map(|aux| matrices(aux, *out_dtype, [*m, *n]));
    let mut vector = |byte: i64, elements: usize| take(byte, 0, elements as u64 * out_dtype.bytes());
    let bias = epilogue.bias.map(|start| vector(start.byte, *n));
    let sums = epilogue.sums.map(|(side, start)| vector(start.byte, [*m, *n][side as usize]));
    (MultiplyPlaces { lhs, rhs, out, bias, addend, aux, sums }, Address(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::blas::Call;
    use crate::program::{Epilogue, ValueStart};
    use program::{Activation, Region};

    /// An arena at a multiple of 256, as the device's memory is.
    const ARENA: u64 = 7 << 20;

    fn multiply(epilogue: Epilogue) -> Multiply {
        let matrices =
            |start, length: i64| Matrices { region: Region::Arena, start, strides: [length, 1], apart: 0 };
        Multiply {
            sizes: [6, 16, 24],
            batch: 1,
            lhs: matrices(4096, 16),
            rhs: matrices(1 << 33, 24),
            out: matrices(64, 24),
            dtype: DType::BF16,
            out_dtype: DType::BF16,
            accumulates: false,
            epilogue,
        }
    }

    /// Returns the places in a program's memory.
    fn in_program(multiply: &Multiply) -> MultiplyPlaces {
        let at = |start: i64| Address(ARENA + start as u64);
        let epilogue = &multiply.epilogue;
        MultiplyPlaces {
            lhs: at(multiply.lhs.start),
            rhs: at(multiply.rhs.start),
            out: at(multiply.out.start),
            bias: epilogue.bias.map(|start| at(start.byte)),
            addend: epilogue.addend.as_ref().map(|addend| at(addend.start)),
            aux: epilogue.aux.as_ref().map(|aux| at(aux.start)),
            sums: epilogue.sums.map(|(_, start)| at(start.byte)),
        }
    }

    fn epilogues() -> Vec<Epilogue> {
        let start = |byte| ValueStart { region: Region::Arena, byte };
        let matrix = |start| Matrices { region: Region::Arena, start, strides: [24, 1], apart: 0 };
        let (gelu, gradient) = (Activation::GeluTanh, Activation::GeluTanhGrad);
        vec![
            Epilogue::default(),
            Epilogue { bias: Some(start(20)), addend: Some(matrix(32)), ..Epilogue::default() },
            Epilogue { activation: gelu, aux: Some(matrix(48)), bias: Some(start(2)), ..Epilogue::default() },
            Epilogue { activation: gradient, aux: Some(matrix(16)), ..Epilogue::default() },
            Epilogue { sums: Some((1, start(10))), ..Epilogue::default() },
        ]
    }

    /// A choice that is made in scratch is found again when the program runs.
    #[test]
    fn the_problem_is_that_of_the_programs_memory() {
        for multiply in epilogues().into_iter().map(multiply) {
            let problem = |places: &MultiplyPlaces| Call::of(&multiply, places, false).unwrap().problem;
            let (own, end) = places(&multiply, Address(3 << 20));
            assert_eq!(problem(&own), problem(&in_program(&multiply)), "{multiply:?}");
            assert_eq!(end.0 - (3 << 20), bytes(&multiply));
        }
    }

    /// Adding to the result makes no other problem, so one plan serves both calls.
    #[test]
    fn a_multiplication_that_adds_is_the_same_problem() {
        let multiply = multiply(Epilogue::default());
        let problem = |add| Call::of(&multiply, &in_program(&multiply), add).unwrap().problem;
        assert_eq!(problem(false), problem(true));
    }

    #[test]
    fn places_are_apart() {
        for multiply in epilogues().into_iter().map(multiply) {
            let (places, end) = places(&multiply, Address(0));
            let matrices =
                [places.lhs, places.rhs, places.out, places.addend.unwrap_or(end), places.aux.unwrap_or(end)];
            let lengths = [6 * 16 * 2, 16 * 24 * 2, 6 * 24 * 2, 6 * 24 * 2, 6 * 24 * 2];
            let vectors = [places.bias, places.sums].into_iter().flatten().map(|at| (at.0, 24 * 2));
            let mut all: Vec<(u64, u64)> =
                matrices.iter().zip(lengths).map(|(at, length)| (at.0, length)).chain(vectors).collect();
            all.retain(|(at, _)| *at < end.0);
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{all:?}");
            assert!(all.iter().all(|(at, length)| at + length <= end.0), "{all:?}");
        }
    }

    #[test]
    fn matrices_that_follow_downwards_have_room_before_the_first() {
        let mut multiply = multiply(Epilogue::default());
        multiply.batch = 3;
        multiply.lhs.apart = -96;
        let (places, _) = places(&multiply, Address(0));
        assert!(places.lhs.0 >= 2 * 96 * 2);
    }
}
