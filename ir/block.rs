//! Rectangular blocks of tensors: the parts that ranks hold of a split tensor.

use crate::Tensor;
use crate::tensor::{Elements, offsets, strides};

/// Copies the block of `sizes` that begins at `start`. Panics if it does not lie in the tensor.
pub fn read(tensor: &Tensor, start: &[usize], sizes: &[usize]) -> Tensor {
    fn pick<T: Copy>(elements: &[T], (starts, len): (Vec<usize>, usize)) -> Vec<T> {
        let mut block = Vec::with_capacity(starts.len() * len);
        starts.into_iter().for_each(|at| block.extend_from_slice(&elements[at..at + len]));
        block
    }
    let runs = runs(&tensor.sizes, start, sizes);
    let elements = match &tensor.elements {
        Elements::Float(x) => Elements::Float(pick(x, runs)),
        Elements::Int(x) => Elements::Int(pick(x, runs)),
        Elements::Bool(x) => Elements::Bool(pick(x, runs)),
    };
    Tensor { dtype: tensor.dtype, sizes: sizes.to_vec(), elements }
}

/// Writes a block of the same element type into a tensor at `start`. Panics if it does not fit.
pub fn write(tensor: &mut Tensor, start: &[usize], block: &Tensor) {
    fn put<T: Copy>(to: &mut [T], from: &[T], (starts, len): (Vec<usize>, usize)) {
        let runs = starts.into_iter().zip(from.chunks_exact(len.max(1)));
        runs.for_each(|(at, run)| to[at..at + len].copy_from_slice(run));
    }
    let runs = runs(&tensor.sizes, start, &block.sizes);
    match (&mut tensor.elements, &block.elements) {
        (Elements::Float(to), Elements::Float(from)) => put(to, from, runs),
        (Elements::Int(to), Elements::Int(from)) => put(to, from, runs),
        (Elements::Bool(to), Elements::Bool(from)) => put(to, from, runs),
        _ => panic!("a block of {} is written to {}", block.ty(), tensor.ty()),
    }
}

/// Returns the offsets in the tensor where the contiguous runs of a block begin, and their common length.
fn runs(whole: &[usize], start: &[usize], sizes: &[usize]) -> (Vec<usize>, usize) {
    let fits = (0..whole.len()).all(|i| start[i] + sizes[i] <= whole[i]);
    assert!(fits && whole.len() == sizes.len(), "{sizes:?} at {start:?} are not a block of {whole:?}");
    // The last dim that is cut is still contiguous with the dims after it.
    let cut = (0..whole.len()).rev().find(|&i| sizes[i] != whole[i]).unwrap_or(0);
    let own = strides(whole);
    let base: usize = start.iter().zip(&own).map(|(start, stride)| start * stride).sum();
    let starts = offsets(&sizes[..cut], &own[..cut]).into_iter().map(|at| at + base).collect();
    (starts, sizes[cut..].iter().product())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn blocks_put_together_are_the_tensor_they_were_cut_from() {
        let numbers = (0..2 * 4 * 6).map(f64::from).collect();
        let whole = Tensor::float(DType::F32, vec![2, 4, 6], numbers);
        assert_eq!(read(&whole, &[1, 1, 3], &[1, 2, 2]).floats(), [33.0, 34.0, 39.0, 40.0]);
        for sizes in [[2, 4, 6], [1, 4, 6], [2, 2, 6], [2, 4, 3], [1, 2, 2]] {
            let mut together = Tensor::splat(DType::F32, vec![2, 4, 6], 0.0);
            let counts: Vec<usize> = (0..3).map(|i| whole.sizes[i] / sizes[i]).collect();
            for at in offsets(&counts, &[100, 10, 1]) {
                let start = [at / 100 * sizes[0], at / 10 % 10 * sizes[1], at % 10 * sizes[2]];
                write(&mut together, &start, &read(&whole, &start, &sizes));
            }
            assert_eq!(together, whole, "{sizes:?}");
        }
    }

    #[test]
    fn scalars_and_empty_tensors_have_blocks() {
        let scalar = Tensor::splat(DType::I64, vec![], 3.0);
        assert_eq!(read(&scalar, &[], &[]), scalar);
        let mut empty = Tensor::splat(DType::Bool, vec![4, 0], 0.0);
        let block = read(&empty, &[2, 0], &[2, 0]);
        write(&mut empty, &[2, 0], &block);
        assert_eq!(block.sizes, [2, 0]);
    }
}
