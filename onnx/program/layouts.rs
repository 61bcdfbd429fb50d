//! Changes of dims in the graph under construction: reshape, transpose, expand and slice, omitted if they change nothing.

use super::attribute;
use super::draft::{Draft, TensorId, size};
use ir::{Diagnostic, Dim};

impl Draft<'_> {
    /// Reshapes a tensor.
    ///
    /// # Errors
    /// A size cannot be represented in ONNX.
    pub(super) fn reshape(&mut self, x: TensorId, from: &[Dim], to: &[Dim]) -> Result<TensorId, Diagnostic> {
        if from == to {
            return Ok(x);
        }
        if to.iter().any(|dim| dim.size() == Some(0)) {
            let shape = self.shape(to)?;
            return Ok(self.push("Reshape", &[x, shape], [attribute::int("allowzero", 1)]));
        }
        // No operators are needed for unbound sizes: 0 takes the dim of the operand, -1 the remaining elements.
        let (mut target, mut open) = (Vec::new(), 0);
        for (i, dim) in to.iter().enumerate() {
            target.push(match dim.size() {
                Some(known) => size(known)?,
                None if from.get(i) == Some(dim) => 0,
                None => {
                    open += 1;
                    -1
                }
            });
        }
        let shape = if open <= 1 { self.integers(&target) } else { self.shape(to)? };
        Ok(self.push("Reshape", &[x, shape], []))
    }

    /// Permutes the dims: dim `i` of the result is dim `permutation[i]`.
    pub(super) fn transpose(&mut self, x: TensorId, permutation: &[usize]) -> TensorId {
        if permutation.iter().copied().eq(0..permutation.len()) {
            return x;
        }
        self.push("Transpose", &[x], [attribute::ints("perm", permutation.iter().map(|&dim| dim as i64))])
    }

    /// Stretches dims of size one, and adds missing leading dims.
    ///
    /// # Errors
    /// A size cannot be represented in ONNX.
    pub(super) fn expand(&mut self, x: TensorId, from: &[Dim], to: &[Dim]) -> Result<TensorId, Diagnostic> {
        if from == to {
            return Ok(x);
        }
        let missing = to.len() - from.len();
        // A dim that does not change may be written as 1, which needs no size.
        let target: Vec<Dim> = to
            .iter()
            .enumerate()
            .map(|(i, dim)| match i.checked_sub(missing) {
                Some(i) if dim.size().is_none() && from[i] == *dim => Dim::known(1),
                _ => dim.clone(),
            })
            .collect();
        let shape = self.shape(&target)?;
        Ok(self.push("Expand", &[x, shape], []))
    }

    /// Takes the elements `start`, `start + step`, … before `end` along a dim, as ONNX counts.
    pub(super) fn slice(&mut self, x: TensorId, dim: u32, start: i64, end: i64, step: i64) -> TensorId {
        let [starts, ends, axes, steps] =
            [start, end, i64::from(dim), step].map(|number| self.integers(&[number]));
        let inputs = if step == 1 { vec![x, starts, ends, axes] } else { vec![x, starts, ends, axes, steps] };
        self.push("Slice", &inputs, [])
    }

    /// Inserts a dim of size one before dim `dim`.
    pub(super) fn unsqueeze(&mut self, x: TensorId, dim: usize) -> TensorId {
        let axes = self.integers(&[dim as i64]);
        self.push("Unsqueeze", &[x, axes], [])
    }

    /// Removes a dim of size one.
    pub(super) fn squeeze(&mut self, x: TensorId, dim: usize) -> TensorId {
        let axes = self.integers(&[dim as i64]);
        self.push("Squeeze", &[x, axes], [])
    }
}
