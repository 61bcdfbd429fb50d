//! The order of elements along a dim: top-k indices.

use super::reduce::rows;
use super::*;
use crate::tensor::Elements;
use crate::{DType, Dim};
use std::cmp::Ordering;

/// `places = top_k x`: the indices (`i64`) of the `count` largest elements along a dim, or of the smallest, in their order
/// (ONNX TopK). The result has the dims of `x`, except that dim `dim` has the size `count`.
///
/// Equal elements keep the order of their indices. NaN is larger than every number, as in PyTorch and NumPy. The elements
/// themselves are `gather_elements x, places`, which also has their gradient.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopK {
    /// The dim along which elements are compared.
    pub dim: u32,
    /// The number of indices in the result, in place of the dim.
    pub count: u64,
    /// Whether the largest elements are taken. If not, the smallest are.
    pub largest: bool,
}

impl TopK {
    /// Compares two elements and their indices. `Less` means that the first comes earlier in the result.
    pub fn order<T: PartialOrd>(&self, [x, y]: [T; 2], [i, j]: [usize; 2]) -> Ordering {
        let is_nan = |x: &T| x.partial_cmp(x).is_none();
        let ascending = x.partial_cmp(&y).unwrap_or_else(|| is_nan(&x).cmp(&is_nan(&y)));
        let by_size = if self.largest { ascending.reverse() } else { ascending };
        by_size.then(i.cmp(&j))
    }

    /// Returns the indices of one row of `size` elements.
    ///
    /// Time: `O(size + count · log count)`, by a partial selection and a sort of the selected indices.
    pub fn of_row<T: PartialOrd>(&self, size: usize, element: impl Fn(usize) -> T) -> Vec<usize> {
        let order = |&i: &usize, &j: &usize| self.order([element(i), element(j)], [i, j]);
        let (mut places, count) = ((0..size).collect::<Vec<_>>(), self.count as usize);
        if (1..size).contains(&count) {
            places.select_nth_unstable_by(count - 1, order);
        }
        places.truncate(count);
        places.sort_unstable_by(order);
        places
    }
}

impl Operator for TopK {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([x], dim) = (types.operands()?, self.dim as usize);
        ensure!(x.dtype != DType::Bool && dim < x.ndim(), "cannot order elements along dim {dim} of {x}");
        ensure!(
            x.dims[dim].size().is_none_or(|size| size >= self.count),
            "takes {} elements along dim {dim} of {x}",
            self.count
        );
        let mut dims = x.dims.clone();
        dims[dim] = Dim::known(self.count);
        Ok(vec![Type::new(DType::I64, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = |own: &str| {
            let word = |i| if i == self.dim as usize { own.to_string() } else { format!("f{i}") };
            (0..signature.operands[0].ndim()).map(word).collect::<Vec<_>>().join(" ")
        };
        Factors::rule(&format!("{} -> {}", words("n^"), words("k^")), signature)
    }

    /// Indices have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None])
    }

    /// One comparison for each element, and `log₂ count` for each sorted element.
    fn cost(&self, signature: &Signature) -> Cost {
        let [elements, places] =
            [&signature.operands[0], &signature.results[0]].map(|ty| ty.numel().unwrap_or(0));
        let sorting = places.saturating_mul(u64::from(self.count.max(1).ilog2()));
        Cost::streaming(signature, elements.saturating_add(sorting))
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let (from, mut sizes) = (rows(&x.sizes, self.dim), x.sizes.clone());
        sizes[self.dim as usize] = self.count as usize;
        let mut out = vec![0; sizes.iter().product()];
        for (from, to) in from.iter().zip(rows(&sizes, self.dim)) {
            let places = match &x.elements {
                Elements::Float(x) => self.of_row(from.len(), |i| x[from[i]]),
                Elements::Int(x) => self.of_row(from.len(), |i| x[from[i]]),
                Elements::Bool(_) => unreachable!("infer has checked the types"),
            };
            to.iter().zip(places).for_each(|(&to, place)| out[to] = place as i64);
        }
        vec![Tensor { dtype: DType::I64, sizes, elements: Elements::Int(out) }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: u64, largest: bool, row: &[f64]) -> Vec<usize> {
        TopK { dim: 0, count, largest }.of_row(row.len(), |i| row[i])
    }

    #[test]
    fn equal_elements_keep_their_order() {
        assert_eq!(places(3, true, &[1.0, 2.0, 2.0, 0.0, 2.0]), [1, 2, 4]);
        assert_eq!(places(4, false, &[1.0, 0.0, 0.0, 1.0, -0.0]), [1, 2, 4, 0]);
        assert_eq!(places(5, true, &[1.0, 2.0, 2.0, 0.0, 2.0]), [1, 2, 4, 0, 3]);
        assert_eq!(places(0, true, &[1.0, 2.0]), [0; 0]);
        assert_eq!(places(0, true, &[]), [0; 0]);
    }

    #[test]
    fn a_nan_is_larger_than_every_number() {
        let row = [1.0, f64::NAN, f64::INFINITY, f64::NAN];
        assert_eq!(places(3, true, &row), [1, 3, 2]);
        assert_eq!(places(3, false, &row), [0, 2, 1]);
    }
}
