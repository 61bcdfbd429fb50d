//! The inverse of a view, on bytes: a model of many gigabytes is never converted to numbers.

use crate::{DType, Tensor, Type, ViewStep};
use bytes::Bytes;

/// Puts the value of a state back into the tensor of the file from which `view` cuts it, and returns the tensor's bytes. The tensor has
/// `sizes` and `dtype`. `into` is the tensor as it was; zeros if it is not given. `None` if the value or the view does not fit, and for a
/// view that repeats elements.
pub fn put_back(
    view: &[ViewStep],
    sizes: &[u64],
    dtype: DType,
    into: Option<&Bytes>,
    value: Bytes,
) -> Option<Bytes> {
    let ty = Type::of(dtype, sizes);
    let length = ty.bytes()?;
    if into.is_some_and(|bytes| bytes.len() as u64 != length) {
        return None;
    }
    let Some((step, rest)) = view.split_first() else {
        return (value.len() as u64 == length).then_some(value);
    };
    let inner = super::sizes(std::slice::from_ref(step), sizes)?;
    let width = dtype.bytes() as usize;
    // Old bytes matter only if a later step is a slice. Otherwise the value overwrites all of them.
    let kept = into.filter(|_| rest.iter().any(|step| matches!(step, ViewStep::Slice { .. })));
    match step {
        ViewStep::Reshape(_) => put_back(rest, &inner, dtype, kept, value),
        ViewStep::Transpose(permutation) => {
            let kept = kept.map(|bytes| transposed(bytes, sizes, permutation, width));
            let new = put_back(rest, &inner, dtype, kept.as_ref(), value)?;
            let mut inverse = vec![0; permutation.len()];
            permutation.iter().zip(0..).for_each(|(&from, to)| inverse[from as usize] = to);
            Some(transposed(&new, &inner, &inverse, width))
        }
        ViewStep::Slice { dim, start, length: _ } => {
            let rows = Rows::new(sizes, &inner, *dim as usize, *start, width);
            let kept = kept.map(|bytes| rows.cut(bytes));
            let new = put_back(rest, &inner, dtype, kept.as_ref(), value)?;
            let mut whole = into.map_or_else(|| vec![0; length as usize], |bytes| bytes.to_vec());
            rows.paste(&new, &mut whole);
            Some(whole.into())
        }
        ViewStep::Pad { dim, .. } => {
            let rows = Rows::new(&inner, sizes, *dim as usize, 0, width);
            let padded = Type::of(dtype, &inner).bytes()? as usize;
            let kept = kept.map(|bytes| {
                let mut padded = vec![0; padded];
                rows.paste(bytes, &mut padded);
                Bytes::from(padded)
            });
            put_back(rest, &inner, dtype, kept.as_ref(), value).map(|new| rows.cut(&new))
        }
        ViewStep::Repeat(_) => None,
        ViewStep::Cast(to) => {
            let kept = kept.map(|bytes| cast(bytes, dtype, *to));
            let kept = if let Some(kept) = kept { Some(kept?) } else { None };
            put_back(rest, &inner, *to, kept.as_ref(), value).and_then(|new| cast(&new, *to, dtype))
        }
    }
}

/// A range of one dim, as runs of bytes in the whole tensor and in the part.
struct Rows {
    /// Bytes in the whole tensor from one index of the outer dims to the next.
    whole: usize,
    /// Bytes in the part from one index of the outer dims to the next.
    part: usize,
    /// The offset of the part's first byte in each such run of the whole tensor.
    offset: usize,
}

impl Rows {
    /// The range of `dim` in `whole` that begins at `start` and has the sizes of `part`.
    fn new(whole: &[u64], part: &[u64], dim: usize, start: u64, width: usize) -> Self {
        let inner = whole[dim + 1..].iter().product::<u64>() as usize * width;
        Self {
            whole: whole[dim] as usize * inner,
            part: part[dim] as usize * inner,
            offset: start as usize * inner,
        }
    }

    fn cut(&self, whole: &[u8]) -> Bytes {
        if self.whole == 0 {
            return Bytes::new();
        }
        let rows = whole.chunks_exact(self.whole);
        rows.flat_map(|row| &row[self.offset..self.offset + self.part]).copied().collect()
    }

    fn paste(&self, part: &[u8], whole: &mut [u8]) {
        if self.part > 0 {
            let rows = whole.chunks_exact_mut(self.whole).zip(part.chunks_exact(self.part));
            rows.for_each(|(row, new)| row[self.offset..self.offset + self.part].copy_from_slice(new));
        }
    }
}

/// The bytes in the order of the permuted dims, copied in runs of the dims that stay where they are.
fn transposed(bytes: &[u8], sizes: &[u64], permutation: &[u32], width: usize) -> Bytes {
    let sizes: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
    let strides = crate::tensor::strides(&sizes);
    let kept = permutation.iter().enumerate().rev().take_while(|(i, dim)| **dim as usize == *i).count();
    let outer = &permutation[..permutation.len() - kept];
    let run = sizes[sizes.len() - kept..].iter().product::<usize>() * width;
    let pick = |from: &[usize]| outer.iter().map(|&dim| from[dim as usize]).collect::<Vec<_>>();
    let (counts, strides) = (pick(&sizes), pick(&strides));
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0; counts.len()];
    while out.len() < bytes.len() {
        let at = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum::<usize>() * width;
        out.extend_from_slice(&bytes[at..at + run]);
        for dim in (0..index.len()).rev() {
            index[dim] += 1;
            if index[dim] < counts[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
    out.into()
}

/// The elements converted to another float type, rounded to nearest even.
fn cast(bytes: &Bytes, from: DType, to: DType) -> Option<Bytes> {
    if from == to {
        return Some(bytes.clone());
    }
    if !from.is_float() || !to.is_float() {
        return None;
    }
    let elements = bytes.len() as u64 / from.bytes();
    let tensor = Tensor::from_bytes(&Type::of(from, &[elements]), bytes)?;
    Some(Tensor { dtype: to, ..tensor }.to_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ViewStep::{Cast, Pad, Reshape, Slice, Transpose};

    fn slice(dim: u32, start: u64, length: u64) -> ViewStep {
        Slice { dim, start, length }
    }

    fn transpose(permutation: &[u32]) -> ViewStep {
        Transpose(permutation.into())
    }

    fn reshape(sizes: &[u64]) -> ViewStep {
        Reshape(sizes.into())
    }

    #[test]
    fn bytes_go_back_as_numbers_do() {
        let views: [&[ViewStep]; 12] = [
            &[],
            &[transpose(&[2, 0, 1])],
            &[transpose(&[1, 0, 2]), slice(0, 1, 2)],
            &[slice(2, 1, 2), transpose(&[2, 1, 0])],
            &[slice(0, 0, 1), slice(1, 2, 2), slice(2, 0, 3)],
            &[reshape(&[6, 8]), slice(1, 3, 4), reshape(&[2, 3, 4])],
            &[slice(1, 1, 2), reshape(&[4, 6]), transpose(&[1, 0]), slice(0, 2, 3)],
            &[Pad { dim: 1, after: 2 }],
            &[Pad { dim: 2, after: 1 }, slice(2, 3, 2), transpose(&[1, 0, 2])],
            &[transpose(&[1, 2, 0]), Pad { dim: 0, after: 3 }, reshape(&[42, 2])],
            &[Cast(DType::F64), slice(0, 1, 1)],
            &[slice(1, 4, 0)],
        ];
        let sizes = [2u64, 4, 6];
        let numbers = |from: f64, count: usize| (0..count).map(|i| from + i as f64).collect::<Vec<_>>();
        let file = Tensor::float(DType::F32, vec![2, 4, 6], numbers(0.0, 48));
        for view in views {
            let cut = crate::view::apply(view, &file).expect("the view fits");
            let value = Tensor::float(cut.dtype, cut.sizes.clone(), numbers(1000.0, cut.len()));
            for original in [file.clone(), Tensor::splat(DType::F32, vec![2, 4, 6], 0.0)] {
                let into = Bytes::from(original.to_bytes());
                let into = (original == file).then_some(&into);
                let mut expected = original;
                crate::view::write_back(view, &value, &mut expected).expect("the value fits");
                let found = put_back(view, &sizes, DType::F32, into, value.to_bytes().into());
                assert_eq!(found.expect("the value fits"), expected.to_bytes(), "{view:?}");
            }
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused() {
        let put =
            |view: &[ViewStep], bytes: usize| put_back(view, &[4], DType::F32, None, vec![0; bytes].into());
        assert!(put(&[], 16).is_some() && put(&[], 12).is_none());
        assert!(put(&[slice(0, 1, 2)], 8).is_some() && put(&[slice(0, 1, 2)], 16).is_none());
        assert!(put(&[slice(0, 3, 2)], 8).is_none());
        assert!(put(&[Cast(DType::I32)], 16).is_none());
        assert!(put_back(&[], &[u64::MAX, 4], DType::F32, None, Bytes::new()).is_none());
    }
}
