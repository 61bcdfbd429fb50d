//! Views of plain bytes: the steps of `ir::view::apply` on tensors that are not converted to numbers.
//!
//! A view that only reshapes, or slices the outermost dim, shares the given bytes: the weights of a mapped file are not copied.

use bytes::Bytes;
use comm::block::{self, Block};
use ir::{DType, Tensor, Type, ViewStep};
use program::layout::Sizes;

/// A tensor as its bytes: little endian, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes, outermost first.
    pub sizes: Vec<u64>,
    /// Its elements.
    pub bytes: Bytes,
}

impl RawTensor {
    /// Makes a tensor; `None` unless the number of bytes is that of the type.
    pub fn new(dtype: DType, sizes: Vec<u64>, bytes: Bytes) -> Option<Self> {
        (Type::of(dtype, &sizes).bytes()? == bytes.len() as u64).then_some(Self { dtype, sizes, bytes })
    }

    /// Applies a view. `None` if a step does not fit, or casts from or to a type that is no float.
    pub fn view(mut self, view: &[ViewStep]) -> Option<Self> {
        for step in view {
            let sizes = ir::view::sizes(std::slice::from_ref(step), &self.sizes)?;
            let after = Type::of(self.dtype, &sizes).bytes()?;
            let bytes = match step {
                ViewStep::Cast(to) => {
                    self = self.cast(*to)?;
                    continue;
                }
                _ if after == 0 => Bytes::new(),
                ViewStep::Reshape(_) => self.bytes.clone(),
                ViewStep::Transpose(permutation) => self.transposed(permutation).into(),
                ViewStep::Slice { dim, start, length } => self.sliced(*dim as usize, *start, *length),
                ViewStep::Pad { dim, after } => self.padded(*dim as usize, *after).into(),
                ViewStep::Repeat(count) => self.bytes.repeat(*count as usize).into(),
            };
            self = Self { sizes, bytes, ..self };
        }
        Some(self)
    }

    /// Returns a block of the view's result: the elements from index `start` on, `sizes` elements along each dim. `None` in the cases of
    /// [`Self::view`], and if the block does not lie in the result. Other elements of the tensor are not read, unless the tensor must be
    /// reshaped after a copy.
    pub fn block(&self, view: &[ViewStep], start: &[u64], sizes: &[u64]) -> Option<Self> {
        let whole = ir::view::sizes(view, &self.sizes)?;
        let lies_within =
            start.iter().zip(sizes).zip(&whole).all(|((start, size), whole)| start + size <= *whole);
        let is_of_rank = [start.len(), sizes.len()] == [whole.len(); 2];
        if lies_within && is_of_rank { self.block_of(view, start, sizes) } else { None }
    }

    /// Does the same as [`Self::block`] for a block that lies in the result.
    fn block_of(&self, view: &[ViewStep], start: &[u64], sizes: &[u64]) -> Option<Self> {
        let Some((step, before)) = view.split_last() else { return Some(self.cut(start, sizes)) };
        let (mut first, mut inner) = (start.to_vec(), sizes.to_vec());
        match step {
            ViewStep::Cast(to) => self.block_of(before, start, sizes)?.cast(*to),
            ViewStep::Slice { dim, start, .. } => {
                *first.get_mut(*dim as usize)? += start;
                self.block_of(before, &first, sizes)
            }
            ViewStep::Transpose(permutation) => {
                for (index, &dim) in permutation.iter().enumerate() {
                    *first.get_mut(dim as usize)? = *start.get(index)?;
                    *inner.get_mut(dim as usize)? = *sizes.get(index)?;
                }
                self.block_of(before, &first, &inner)?.view(std::slice::from_ref(step))
            }
            ViewStep::Pad { dim, .. } => {
                let whole = ir::view::sizes(before, &self.sizes)?;
                self.block_of(before, start, &within(&whole, start, sizes))?.extended(*dim, sizes)
            }
            ViewStep::Repeat(_) => self.repeated(before, start, sizes),
            ViewStep::Reshape(_) => Some(self.clone().view(view)?.cut(start, sizes)),
        }
    }

    /// Returns a block of the view's result, repeated along dim 0.
    fn repeated(&self, view: &[ViewStep], start: &[u64], sizes: &[u64]) -> Option<Self> {
        let period = *ir::view::sizes(view, &self.sizes)?.first()?;
        let (mut start, mut left) = (start.to_vec(), sizes.to_vec());
        let mut bytes = Vec::new();
        let mut dtype = self.dtype;
        while left[0] > 0 {
            start[0] %= period;
            let piece = left[0].min(period - start[0]);
            let inner: Vec<u64> = [piece].iter().chain(&sizes[1..]).copied().collect();
            let block = self.block_of(view, &start, &inner)?;
            (start[0], left[0], dtype) = (start[0] + piece, left[0] - piece, block.dtype);
            bytes.extend_from_slice(&block.bytes);
        }
        Some(Self { dtype, sizes: sizes.to_vec(), bytes: bytes.into() })
    }

    /// Returns the elements of a block. They are not copied if they are contiguous.
    fn cut(&self, start: &[u64], sizes: &[u64]) -> Self {
        let of = |sizes: &[u64]| -> Sizes { sizes.iter().map(|&size| size as usize).collect() };
        let (width, block) =
            (self.dtype.bytes() as usize, Block { whole: of(&self.sizes), start: of(start) });
        let mut runs = vec![];
        block::for_runs(&of(sizes), [&block], |[run], length| runs.push(run * width..(run + length) * width));
        let bytes = match &runs[..] {
            [run] => self.bytes.slice(run.clone()),
            runs => runs.iter().flat_map(|run| &self.bytes[run.clone()]).copied().collect(),
        };
        Self { dtype: self.dtype, sizes: sizes.to_vec(), bytes }
    }

    /// Appends zeros to a dim, up to its size in `sizes`.
    pub(super) fn extended(self, dim: u32, sizes: &[u64]) -> Option<Self> {
        let after = sizes.get(dim as usize)?.checked_sub(*self.sizes.get(dim as usize)?)?;
        if after == 0 { Some(self) } else { self.view(&[ViewStep::Pad { dim, after }]) }
    }

    /// Converts to another float type, rounding to nearest even. A tensor that already has the type is returned unchanged.
    pub(super) fn cast(self, to: DType) -> Option<Self> {
        if self.dtype == to {
            return Some(self);
        }
        if !self.dtype.is_float() || !to.is_float() {
            return None;
        }
        let mut tensor = Tensor::from_bytes(&Type::of(self.dtype, &[self.numel()]), &self.bytes)?;
        tensor.dtype = to;
        Some(Self { dtype: to, sizes: self.sizes, bytes: tensor.to_bytes().into() })
    }

    fn numel(&self) -> u64 {
        self.bytes.len() as u64 / self.dtype.bytes()
    }

    /// Returns the number of elements before a dim, and the bytes from one index of the dim to the next: `(outer, inner)`.
    fn around(&self, dim: usize) -> (usize, usize) {
        let inner = self.sizes[dim + 1..].iter().product::<u64>() * self.dtype.bytes();
        (self.sizes[..dim].iter().product::<u64>() as usize, inner as usize)
    }

    fn sliced(&self, dim: usize, start: u64, length: u64) -> Bytes {
        let (outer, inner) = self.around(dim);
        let cut = start as usize * inner..(start + length) as usize * inner;
        if outer == 1 {
            return self.bytes.slice(cut);
        }
        let rows = self.bytes.chunks_exact(self.sizes[dim] as usize * inner);
        rows.flat_map(|row| &row[cut.clone()]).copied().collect()
    }

    fn padded(&self, dim: usize, after: u64) -> Vec<u8> {
        let (outer, inner) = self.around(dim);
        let (row, zeros) = (self.sizes[dim] as usize * inner, vec![0; after as usize * inner]);
        (0..outer).flat_map(|i| [&self.bytes[i * row..(i + 1) * row], &zeros].concat()).collect()
    }

    /// Copies the runs that remain contiguous, in the order of the result.
    fn transposed(&self, permutation: &[u32]) -> Vec<u8> {
        let width = self.dtype.bytes() as usize;
        let sizes: Vec<usize> = self.sizes.iter().map(|&size| size as usize).collect();
        let own = ir::tensor::strides(&sizes);
        let kept = (0..sizes.len()).rev().take_while(|&i| permutation[i] as usize == i).count();
        let (outer, inner) = permutation.split_at(sizes.len() - kept);
        let run = inner.iter().map(|&i| sizes[i as usize]).product::<usize>() * width;
        let pick = |from: &[usize]| outer.iter().map(|&i| from[i as usize]).collect::<Vec<_>>();
        let mut out = Vec::with_capacity(self.bytes.len());
        let (sizes, strides) = (pick(&sizes), pick(&own));
        let mut index = vec![0; sizes.len()];
        loop {
            let offset = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum::<usize>() * width;
            out.extend_from_slice(&self.bytes[offset..offset + run]);
            let Some(dim) = (0..index.len()).rev().find(|&dim| index[dim] + 1 < sizes[dim]) else {
                return out;
            };
            index[dim] += 1;
            index[dim + 1..].fill(0);
        }
    }
}

/// Returns the sizes of the part of a block that lies in a tensor of the sizes `whole`.
pub(super) fn within(whole: &[u64], start: &[u64], sizes: &[u64]) -> Vec<u64> {
    let kept = |((&whole, &start), &size): ((&u64, &u64), &u64)| size.min(whole.saturating_sub(start));
    whole.iter().zip(start).zip(sizes).map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smallvec::{SmallVec, smallvec};

    /// Returns a random step that fits a tensor of these sizes.
    fn step(sizes: &[u64], choice: [u64; 3]) -> ViewStep {
        let dim = (choice[1] % sizes.len().max(1) as u64) as u32;
        let size = sizes.get(dim as usize).copied();
        match (choice[0] % 5, size) {
            (0, Some(size)) => {
                let start = choice[2] % (size + 1);
                ViewStep::Slice { dim, start, length: size - start }
            }
            (1, Some(_)) => ViewStep::Pad { dim, after: choice[2] % 3 },
            (2, _) => ViewStep::Reshape(smallvec![sizes.iter().product()]),
            (3, _) => ViewStep::Cast(if choice[2].is_multiple_of(2) { DType::F16 } else { DType::F64 }),
            _ => {
                let mut permutation: SmallVec<[u32; 4]> = (0..sizes.len() as u32).collect();
                permutation.rotate_left(dim as usize);
                ViewStep::Transpose(permutation)
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_go_through_a_view_as_numbers_do(
            sizes in proptest::collection::vec(0u64..5, 0..4),
            choices in proptest::collection::vec(any::<[u64; 3]>(), 0..4),
        ) {
            let mut view = Vec::new();
            for choice in choices {
                view.push(step(&ir::view::sizes(&view, &sizes).unwrap(), choice));
            }
            let count = sizes.iter().product::<u64>();
            let numbers = (0..count).map(|i| i as f64 * 0.25 - 3.0).collect();
            let tensor = Tensor::float(DType::F32, sizes.iter().map(|&size| size as usize).collect(), numbers);
            let expected = ir::view::apply(&view, &tensor).unwrap();
            let raw = RawTensor::new(DType::F32, sizes, tensor.to_bytes().into()).unwrap();
            let found = raw.view(&view).unwrap();
            prop_assert_eq!(found.dtype, expected.dtype);
            prop_assert_eq!(&found.sizes, &expected.ty().sizes().unwrap());
            prop_assert_eq!(&found.bytes[..], &expected.to_bytes()[..]);
        }

        #[test]
        fn a_block_is_cut_out_of_what_the_view_makes(
            sizes in proptest::collection::vec(1u64..5, 0..4),
            choices in proptest::collection::vec(any::<[u64; 3]>(), 0..5),
            place in any::<[u64; 8]>(),
        ) {
            let mut view = Vec::new();
            for choice in choices {
                view.push(step(&ir::view::sizes(&view, &sizes).unwrap(), choice));
            }
            let numbers = (0..sizes.iter().product::<u64>()).flat_map(|i| (i as f32).to_le_bytes()).collect::<Vec<u8>>();
            let raw = RawTensor::new(DType::F32, sizes, numbers.into()).unwrap();
            let whole = raw.clone().view(&view).unwrap();
            let start: Vec<u64> = whole.sizes.iter().zip(place).map(|(size, place)| place % (size + 1)).collect();
            let block: Vec<u64> =
                whole.sizes.iter().zip(&start).zip(&place[4..]).map(|((size, start), place)| place % (size - start + 1)).collect();
            prop_assert_eq!(raw.block(&view, &start, &block), Some(whole.cut(&start, &block)));
            let beyond: Vec<u64> = whole.sizes.iter().map(|size| size + 1).collect();
            prop_assert!(beyond.is_empty() || raw.block(&view, &vec![0; beyond.len()], &beyond).is_none());
        }
    }

    #[test]
    fn reshapes_and_outer_slices_share_the_bytes() {
        let bytes = Bytes::from(vec![1u8; 24]);
        let tensor = RawTensor::new(DType::U8, vec![4, 6], bytes.clone()).unwrap();
        let view = [ViewStep::Reshape(smallvec![8, 3]), ViewStep::Slice { dim: 0, start: 2, length: 3 }];
        let found = tensor.view(&view).unwrap();
        assert_eq!(found.bytes.as_ptr(), bytes[6..].as_ptr());
        assert_eq!((found.sizes, found.bytes.len()), (vec![3, 3], 9));
    }

    #[test]
    fn a_view_that_does_not_fit_is_none() {
        let tensor = || RawTensor::new(DType::I8, vec![4], Bytes::from(vec![0; 4])).unwrap();
        assert!(tensor().view(&[ViewStep::Slice { dim: 1, start: 0, length: 1 }]).is_none());
        assert!(tensor().view(&[ViewStep::Cast(DType::F32)]).is_none());
        assert!(tensor().view(&[ViewStep::Pad { dim: 0, after: u64::MAX }]).is_none());
        assert!(RawTensor::new(DType::F32, vec![u64::MAX, 4], Bytes::new()).is_none());
    }
}
