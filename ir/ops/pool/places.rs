//! Places of the largest elements: indices in their planes, and offsets in their windows. With offsets the gradient of pooling does not
//! need the operand.

use super::*;

/// The place of the largest element of each window of [`MaxPool`] in its plane, the last dims over which windows slide. It is an
/// i64, counted in row-major order; -1 for a window with only padding. The first if several are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaxPoolIndices {
    /// As in [`MaxPool`].
    pub windows: Windows,
}

/// The offset of the largest element of each window of [`MaxPool`] within the window: u8, counted in row-major order, padding
/// included; 0 for a window with only padding. The first if several are equal. A window has at most 256 elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaxPoolOffsets {
    /// As in [`MaxPool`].
    pub windows: Windows,
}

/// The gradient of [`MaxPool`] by the offsets of [`MaxPoolOffsets`]. The gradient of a window is added to the element at its
/// offset, window by window. Operands: offsets in u8, `d y`. Result: `d x`, of the declared type. Offsets in the padding or beyond
/// the window are ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaxPoolGradAt {
    /// As in [`MaxPool`].
    pub windows: Windows,
}

/// The largest number of elements of a window whose offsets fit in u8.
const OFFSETS: u64 = 1 << 8;

/// Returns whether the offsets in these windows fit in u8.
pub fn has_offsets(windows: &[Window]) -> bool {
    let size = windows.iter().try_fold(1u64, |size, window| size.checked_mul(window.size));
    size.is_some_and(|size| size <= OFFSETS)
}

/// Returns the element, in a plane of these sizes, at an offset of the window with the number `position`; `None` for padding.
pub fn element_at(
    windows: &[Window],
    sizes: &[usize],
    positions: &[usize],
    mut position: usize,
    mut offset: usize,
) -> Option<usize> {
    let (mut element, mut stride) = (0, 1);
    for ((window, &size), &count) in windows.iter().zip(sizes).zip(positions).rev() {
        let (at, k) = (position % count, offset as u64 % window.size);
        (position, offset) = (position / count, (offset as u64 / window.size) as usize);
        let padded = at as u64 * window.stride + if k == 0 { 0 } else { k * window.dilation };
        let own = padded.checked_sub(window.before).filter(|&own| own < size as u64)?;
        element += own as usize * stride;
        stride *= size;
    }
    (offset == 0).then_some(element)
}

/// Returns the offset of an element, in a plane of these sizes, within a window that covers it.
pub fn offset_of(
    windows: &[Window],
    sizes: &[usize],
    positions: &[usize],
    mut position: usize,
    mut element: usize,
) -> u64 {
    let (mut offset, mut stride) = (0, 1);
    for ((window, &size), &count) in windows.iter().zip(sizes).zip(positions).rev() {
        let (at, own) = ((position % count) as u64, (element % size) as u64);
        (position, element) = (position / count, element / size);
        offset += (own + window.before - at * window.stride) / window.dilation * stride;
        stride *= window.size;
    }
    offset
}

impl Operator for MaxPoolIndices {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        Ok(vec![Type::new(DType::I64, positions(&self.windows, x)?)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(&self.windows, signature, |x, y| format!("{x} -> {y}"))
    }

    /// The result has integers, which have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(&self.windows, signature, &signature.results[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (sizes, out) = pooled(&self.windows, cx.operands[0], |plane, covered| {
            first_largest(plane, covered).map_or(-1, |i| i as i64)
        });
        vec![Tensor::int(DType::I64, sizes, out)]
    }
}

impl Operator for MaxPoolOffsets {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        let dims = positions(&self.windows, x)?;
        ensure!(has_offsets(&self.windows), "counts up to {OFFSETS} elements of a window over {x}");
        Ok(vec![Type::new(DType::U8, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(&self.windows, signature, |x, y| format!("{x} -> {y}"))
    }

    /// Offsets are integers, which have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(&self.windows, signature, &signature.results[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let Planes { sizes, len, covered } = Planes::new(&self.windows, &x.sizes);
        let first = x.sizes.len() - self.windows.len();
        let (plane, positions) = (&x.sizes[first..], &sizes[first..]);
        let mut offsets = Vec::new();
        for x in x.floats().chunks_exact(len) {
            offsets.extend(covered.iter().enumerate().map(|(position, covered)| {
                let offset = |at| offset_of(&self.windows, plane, positions, position, at) as i64;
                first_largest(x, covered).map_or(0, offset)
            }));
        }
        vec![Tensor::int(DType::U8, sizes, offsets)]
    }
}

impl Operator for MaxPoolGradAt {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Indices, OperandRole::Gradient]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([offsets, dy], x) = (types.operands()?, types.declared()?);
        expect(dy, x, &positions(&self.windows, x)?)?;
        ensure!(
            offsets.dtype == DType::U8 && offsets.dims == dy.dims && has_offsets(&self.windows),
            "takes a u8 for each element of {dy}, not {offsets}"
        );
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(&self.windows, signature, |x, y| format!("{y}, {y} -> {x}")).linear_in(&[1])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[1], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (offsets, dy, sizes) = (cx.operands[0].ints(), cx.operands[1].floats(), cx.sizes(0));
        let planes = Planes::new(&self.windows, &sizes);
        let first = sizes.len() - self.windows.len();
        let (plane, positions) = (&sizes[first..], &planes.sizes[first..]);
        let mut dx = vec![0.0; sizes.iter().product()];
        let pooled = planes.covered.len();
        let gradients = offsets.chunks_exact(pooled).zip(dy.chunks_exact(pooled));
        for (dx, (offsets, dy)) in dx.chunks_exact_mut(planes.len).zip(gradients) {
            for (position, (&offset, dy)) in offsets.iter().zip(dy).enumerate() {
                if let Some(at) = element_at(&self.windows, plane, positions, position, offset as usize) {
                    dx[at] += dy;
                }
            }
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, dx)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_the_place_in_the_window() {
        let window = Window { size: 3, stride: 2, dilation: 2, before: 1, after: 1 };
        let (windows, sizes, positions) = ([window; 2], [7, 9], [3, 4]);
        let covered = covered(&windows, &sizes, &positions);
        for (position, elements) in covered.iter().enumerate() {
            let at = |offset| element_at(&windows, &sizes, &positions, position, offset);
            assert_eq!((0..9).filter_map(at).collect::<Vec<_>>(), *elements, "{position}");
            for &element in elements {
                let offset = offset_of(&windows, &sizes, &positions, position, element);
                assert_eq!(at(offset as usize), Some(element));
            }
            assert_eq!(at(9), None);
        }
    }
}
