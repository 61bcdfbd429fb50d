//! Shape arithmetic: small integer tensors whose elements are known during the import.
//!
//! Exporters compute shapes with the same operators as values. These computations never reach the IR: each element is a number or,
//! as long as a dim is not bound, a product of symbols.

use ir::ops::elementwise::Binary;
use ir::tensor::{Elements, Tensor};
use ir::{Dim, tensor};

/// An element: a number, or an unbound size.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Int {
    /// A number.
    Known(i64),
    /// A product that contains symbols.
    Size(Dim),
}

impl Int {
    /// Returns the size of a dim.
    pub(super) fn of(dim: &Dim) -> Self {
        match dim.size().and_then(|size| i64::try_from(size).ok()) {
            Some(size) => Self::Known(size),
            None => Self::Size(dim.clone()),
        }
    }

    /// Returns the number, if it is known.
    pub(super) fn known(&self) -> Option<i64> {
        if let Self::Known(number) = self { Some(*number) } else { None }
    }

    /// Returns the element as the size of a dim, if it is not negative.
    pub(super) fn dim(&self) -> Option<Dim> {
        match self {
            Self::Known(number) => u64::try_from(*number).ok().map(Dim::known),
            Self::Size(dim) => Some(dim.clone()),
        }
    }

    fn product(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => a.checked_mul(*b).map(Self::Known),
            _ => Some(Self::of(&self.dim()?.product(&other.dim()?)?)),
        }
    }

    fn quotient(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => a.checked_div(*b).map(Self::Known),
            _ => Some(Self::of(&self.dim()?.quotient(&other.dim()?)?)),
        }
    }
}

/// An integer or bool tensor (bools as 0 and 1) whose elements are known, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ints {
    sizes: Vec<usize>,
    elements: Vec<Int>,
}

impl Ints {
    /// The most elements. Larger tensors are values of the program, not shapes.
    pub(super) const LIMIT: usize = 64;

    /// Makes a tensor of these sizes; `None` if the number of elements does not fit or exceeds the limit.
    pub(super) fn new(sizes: Vec<usize>, elements: Vec<Int>) -> Option<Self> {
        (Self::count(&sizes)? == elements.len()).then_some(Self { sizes, elements })
    }

    /// Makes a tensor of these sizes with equal elements; `None` over the limit.
    pub(super) fn filled(sizes: Vec<usize>, element: Int) -> Option<Self> {
        let count = Self::count(&sizes)?;
        Some(Self { sizes, elements: vec![element; count] })
    }

    /// Returns the elements of a tensor of integers or bools; `None` for floats, or over the limit.
    pub(super) fn of(tensor: &Tensor) -> Option<Self> {
        Self::count(&tensor.sizes)?;
        let elements = match &tensor.elements {
            Elements::Bool(bools) => bools.iter().map(|&b| Int::Known(i64::from(b))).collect(),
            Elements::Int(ints) => ints.iter().map(|&n| Int::Known(n)).collect(),
            Elements::Float(_) => return None,
        };
        Self::new(tensor.sizes.clone(), elements)
    }

    /// Returns the number of elements for these sizes; `None` over the limit.
    fn count(sizes: &[usize]) -> Option<usize> {
        let count = sizes.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
        (count <= Self::LIMIT).then_some(count)
    }

    /// Makes a vector.
    pub(super) fn vector(elements: Vec<Int>) -> Self {
        Self { sizes: vec![elements.len()], elements }
    }

    /// Makes a scalar.
    pub(super) fn scalar(element: Int) -> Self {
        Self { sizes: vec![], elements: vec![element] }
    }

    /// Returns the sizes.
    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the elements, row-major.
    pub(super) fn elements(&self) -> &[Int] {
        &self.elements
    }

    /// Changes the sizes; `None` if the number of elements does not fit.
    pub(super) fn reshaped(self, sizes: Vec<usize>) -> Option<Self> {
        Self::new(sizes, self.elements)
    }

    /// Applies a function to each element.
    pub(super) fn map(self, f: impl Fn(Int) -> Int) -> Self {
        Self { sizes: self.sizes, elements: self.elements.into_iter().map(f).collect() }
    }

    /// Returns all elements as numbers, if all are known.
    pub(super) fn numbers(&self) -> Option<Vec<i64>> {
        self.elements.iter().map(Int::known).collect()
    }

    /// Combines two tensors element by element, with broadcasting; `None` if an element has no result, or over the limit.
    pub(super) fn zip(&self, other: &Self, f: impl Fn(&Int, &Int) -> Option<Int>) -> Option<Self> {
        let ndim = self.sizes.len().max(other.sizes.len());
        let size = |sizes: &[usize], i: usize| (i + sizes.len()).checked_sub(ndim).map_or(1, |i| sizes[i]);
        let mut sizes = Vec::new();
        for i in 0..ndim {
            let (a, b) = (size(&self.sizes, i), size(&other.sizes, i));
            sizes.push(if a == 1 { b } else { a });
            if a != b && a != 1 && b != 1 {
                return None;
            }
        }
        Self::count(&sizes)?;
        let at = |operand: &Self| tensor::offsets(&sizes, &tensor::broadcast_strides(&operand.sizes, &sizes));
        let pairs = at(self).into_iter().zip(at(other));
        let elements = pairs.map(|(i, j)| f(&self.elements[i], &other.elements[j])).collect::<Option<_>>()?;
        Some(Self { sizes, elements })
    }

    /// Returns `x` where the condition is not 0, else `y`, with broadcasting; `None` in the cases of [`Self::zip`].
    pub(super) fn select(condition: &Self, x: &Self, y: &Self) -> Option<Self> {
        let broadcast = |from: &Self, to: &Self| from.zip(to, |element, _| Some(element.clone()));
        let condition = broadcast(&broadcast(condition, x)?, y)?;
        let (x, y) = (broadcast(x, &condition)?, broadcast(y, &condition)?);
        let choices = condition.elements.iter().zip(x.elements.iter().zip(&y.elements));
        let chosen = choices.map(|(c, (x, y))| Some(if c.known()? != 0 { x } else { y }.clone()));
        Self::new(condition.sizes, chosen.collect::<Option<_>>()?)
    }

    /// Computes an arithmetic, comparing or logical operator of ONNX; `None` if it is not supported for integers.
    pub(super) fn arithmetic(op: &str, x: &Self, y: &Self) -> Option<Self> {
        let both = |x: &Int, y: &Int| Some((x.known()?, y.known()?));
        let truth = |value: bool| Some(Int::Known(i64::from(value)));
        x.zip(y, |x, y| match op {
            "Mul" => x.product(y),
            "Div" => x.quotient(y),
            "Add" if x.known() == Some(0) => Some(y.clone()),
            "Add" | "Sub" if y.known() == Some(0) => Some(x.clone()),
            "Sub" if x == y => Some(Int::Known(0)),
            "Add" => both(x, y).and_then(|(x, y)| x.checked_add(y)).map(Int::Known),
            "Sub" => both(x, y).and_then(|(x, y)| x.checked_sub(y)).map(Int::Known),
            "Max" => both(x, y).map(|(x, y)| Int::Known(x.max(y))),
            "Min" => both(x, y).map(|(x, y)| Int::Known(x.min(y))),
            "Mod" => both(x, y).filter(|&(_, y)| y != 0).map(|(x, y)| Int::Known(Binary::Mod.integer(x, y))),
            // An unbound size is positive, so it differs from 0 and from negative numbers.
            "Equal" => match (x, y) {
                (Int::Known(x), Int::Known(y)) => truth(x == y),
                (Int::Size(a), Int::Size(b)) if a == b => truth(true),
                (Int::Known(n), Int::Size(_)) | (Int::Size(_), Int::Known(n)) if *n <= 0 => truth(false),
                _ => None,
            },
            "Less" => both(x, y).and_then(|(x, y)| truth(x < y)),
            "LessOrEqual" => both(x, y).and_then(|(x, y)| truth(x <= y)),
            "Greater" => both(x, y).and_then(|(x, y)| truth(x > y)),
            "GreaterOrEqual" => both(x, y).and_then(|(x, y)| truth(x >= y)),
            "And" => both(x, y).and_then(|(x, y)| truth(x != 0 && y != 0)),
            "Or" => both(x, y).and_then(|(x, y)| truth(x != 0 || y != 0)),
            _ => None,
        })
    }

    /// Returns the elements at these places along a dim; `None` if a place is outside.
    pub(super) fn picked(&self, dim: usize, places: &[usize]) -> Option<Self> {
        let size = *self.sizes.get(dim)?;
        let (outer, inner): (usize, usize) =
            (self.sizes[..dim].iter().product(), self.sizes[dim + 1..].iter().product());
        let mut elements = Vec::new();
        for block in 0..outer {
            for place in places.iter().filter(|&&place| place < size) {
                let start: usize = (block * size + place) * inner;
                elements.extend_from_slice(self.elements.get(start..start + inner)?);
            }
        }
        let mut sizes = self.sizes.clone();
        sizes[dim] = places.len();
        Self::new(sizes, elements)
    }

    /// Permutes the dims; `None` if the permutation is not valid.
    pub(super) fn transposed(&self, permutation: &[u32]) -> Option<Self> {
        let dims: Vec<usize> = permutation.iter().map(|&dim| dim as usize).collect();
        let mut sorted = dims.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.sizes.len()) {
            return None;
        }
        let own = tensor::strides(&self.sizes);
        let strides: Vec<usize> = dims.iter().map(|&dim| own[dim]).collect();
        let sizes: Vec<usize> = dims.iter().map(|&dim| self.sizes[dim]).collect();
        let elements = tensor::offsets(&sizes, &strides).into_iter().map(|i| self.elements[i].clone());
        Self::new(sizes.clone(), elements.collect())
    }

    /// Returns the elements at these places of a vector, or the rows at these places of a matrix.
    pub(super) fn rows(&self, rows: &[usize]) -> Option<Vec<Int>> {
        let width: usize = self.sizes.get(1..)?.iter().product();
        let row = |&i: &usize| self.elements.get(i * width..(i + 1) * width);
        Some(rows.iter().map(row).collect::<Option<Vec<_>>>()?.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_multiply_and_divide_without_being_bound() {
        let batch = Ints::vector(vec![Int::of(&Dim::symbol("batch")), Int::Known(3)]);
        let product = Ints::arithmetic("Mul", &batch, &Ints::scalar(Int::Known(2))).unwrap();
        assert_eq!(product.elements[0].dim().unwrap().to_string(), "2*batch");
        assert_eq!(product.elements[1], Int::Known(6));
        assert_eq!(Ints::arithmetic("Div", &product, &Ints::scalar(Int::Known(2))), Some(batch.clone()));
        assert_eq!(Ints::arithmetic("Add", &batch, &Ints::scalar(Int::Known(1))), None);
    }

    #[test]
    fn matrices_are_cut_and_transposed() {
        let numbers = |sizes: &[usize], numbers: &[i64]| {
            Ints::new(sizes.to_vec(), numbers.iter().map(|&number| Int::Known(number)).collect()).unwrap()
        };
        let matrix = numbers(&[3, 2], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(matrix.picked(0, &[2, 0]), Some(numbers(&[2, 2], &[5, 6, 1, 2])));
        assert_eq!(matrix.picked(1, &[1]), Some(numbers(&[3, 1], &[2, 4, 6])));
        assert_eq!(matrix.picked(1, &[2]), None);
        assert_eq!(matrix.transposed(&[1, 0]), Some(numbers(&[2, 3], &[1, 3, 5, 2, 4, 6])));
        assert_eq!(matrix.transposed(&[0, 0]), None);
    }

    #[test]
    fn the_least_integer_is_chosen_as_any_other() {
        let scalar = |number| Ints::scalar(Int::Known(number));
        let condition = Ints::vector(vec![Int::Known(1), Int::Known(0)]);
        let chosen = Ints::select(&condition, &scalar(i64::MIN), &scalar(7));
        assert_eq!(chosen.and_then(|chosen| chosen.numbers()), Some(vec![i64::MIN, 7]));
    }

    #[test]
    fn a_rest_has_the_sign_of_the_divisor() {
        let scalar = |number| Ints::scalar(Int::Known(number));
        let rest = |x, y| Ints::arithmetic("Mod", &scalar(x), &scalar(y))?.numbers();
        let rests = [(7, 3), (-7, 3), (7, -3), (-7, -3)].map(|(x, y)| rest(x, y));
        assert_eq!(rests, [1, 2, -2, -1].map(|rest| Some(vec![rest])));
        assert_eq!(rest(7, 0), None);
    }

    #[test]
    fn a_result_over_the_limit_is_none() {
        let vector = Ints::vector(vec![Int::Known(1); Ints::LIMIT]);
        let column = vector.clone().reshaped(vec![Ints::LIMIT, 1]).unwrap();
        assert_eq!(Ints::arithmetic("Add", &vector, &column), None);
        assert_eq!(Ints::new(vec![usize::MAX, 2], vec![]), None);
        assert_eq!(vector.reshaped(vec![Ints::LIMIT - 1]), None);
    }

    #[test]
    fn an_unbound_size_is_not_minus_one() {
        let seq = Ints::scalar(Int::of(&Dim::symbol("seq")));
        let minus_one = Ints::scalar(Int::Known(-1));
        assert_eq!(Ints::arithmetic("Equal", &seq, &minus_one), Some(Ints::scalar(Int::Known(0))));
    }
}
