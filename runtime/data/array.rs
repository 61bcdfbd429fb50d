//! Tensors as plain bytes, and batches of named tensors, which the loader gives to a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ir::DType;

use super::element::{self, Scalar};

/// A dense tensor, row major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of the elements.
    pub dtype: DType,
    /// The dims, outermost first.
    pub dims: Vec<u64>,
    /// The elements, little endian, without padding.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Returns rows `range` of dim 0; the result has the dims `[range.len(), dims[1..]]`.
    ///
    /// # Panics
    /// Panics if there is no dim 0, or if it is shorter than `range.end`.
    pub fn rows(&self, range: Range<u64>) -> Self {
        assert!(range.end <= self.dims[0], "rows {range:?} of dims {:?}", self.dims);
        let row = self.dims[1..].iter().product::<u64>() * self.dtype.bytes();
        let mut dims = self.dims.clone();
        dims[0] = range.end - range.start;
        let bytes = self.bytes[(range.start * row) as usize..(range.end * row) as usize].to_vec();
        Self { dtype: self.dtype, dims, bytes }
    }

    /// Returns the elements as `f64` (exact except for 64-bit integers beyond 2^53).
    pub fn to_f64s(&self) -> Vec<f64> {
        let scalar = |bytes| match element::read(self.dtype, bytes) {
            Scalar::Integer(value) => value as f64,
            Scalar::Float(value) => value,
        };
        self.bytes.chunks_exact(self.dtype.bytes() as usize).map(scalar).collect()
    }

    /// Returns the elements of an integer or bool array; `None` for floats and for values beyond `i64`.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        let scalar = |bytes| match element::read(self.dtype, bytes) {
            Scalar::Integer(value) => i64::try_from(value).ok(),
            Scalar::Float(_) => None,
        };
        self.bytes.chunks_exact(self.dtype.bytes() as usize).map(scalar).collect()
    }
}

/// Named tensors for one step, one microbatch or one evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Inputs and labels by name. Dim 0 of the batched tensors is [`rows`](Self::rows).
    pub tensors: BTreeMap<String, Array>,
    /// The inputs that are the same for every sample, which have no batch dim.
    pub broadcast: BTreeSet<String>,
    /// The length of dim 0.
    pub rows: u64,
    /// The number of rows that are samples. The rows after them fill the batch up, and all their labels are ignored.
    pub samples: u64,
}

impl Batch {
    /// Returns microbatch `index` of `count` equal ones: rows `index * rows / count ..` of dim 0.
    ///
    /// # Panics
    /// Panics if `count` does not divide the rows, or if `index` is not below it.
    pub fn microbatch(&self, index: u64, count: u64) -> Self {
        assert!(
            index < count && self.rows.is_multiple_of(count),
            "microbatch {index} of {count} of {} rows",
            self.rows
        );
        let rows = self.rows / count;
        self.slice(index * rows..(index + 1) * rows)
    }

    /// Returns rows `range` of every batched tensor, and whole broadcast tensors.
    ///
    /// # Panics
    /// Panics if `range` ends after [`rows`](Self::rows).
    pub fn slice(&self, range: Range<u64>) -> Self {
        let cut = |(name, array): (&String, &Array)| {
            let whole = self.broadcast.contains(name);
            (name.clone(), if whole { array.clone() } else { array.rows(range.clone()) })
        };
        Self {
            tensors: self.tensors.iter().map(cut).collect(),
            broadcast: self.broadcast.clone(),
            rows: range.end - range.start,
            samples: self.samples.clamp(range.start, range.end) - range.start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_microbatch_cuts_dim_0_and_counts_the_samples_in_it() {
        let rows = Array { dtype: DType::U8, dims: vec![4, 2], bytes: (0..8).collect() };
        let shared = Array { dtype: DType::U8, dims: vec![3], bytes: vec![7, 8, 9] };
        let batch = Batch {
            tensors: [("x".to_owned(), rows), ("table".to_owned(), shared.clone())].into(),
            broadcast: ["table".to_owned()].into(),
            rows: 4,
            samples: 3,
        };
        let second = batch.microbatch(1, 2);
        assert_eq!(second.tensors["x"].bytes, [4, 5, 6, 7]);
        assert_eq!(second.tensors["x"].dims, [2, 2]);
        assert_eq!(second.tensors["table"], shared);
        assert_eq!((second.rows, second.samples), (2, 1));
        assert_eq!(batch.microbatch(0, 2).samples, 2);
    }
}
