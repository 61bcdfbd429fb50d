//! Layouts: the places of a tensor's elements in memory, as sizes and strides.
//!
//! Transposes, broadcasts, slices and most reshapes are other layouts of the same bytes, so lowering computes
//! nothing for them.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;

/// A number for each dim.
pub type Sizes = SmallVec<[usize; 6]>;

/// The sizes and strides of a tensor. Element `[i, j, …]` lies at `offset + i·strides[0] + j·strides[1] + …`, counted in elements from the
/// start of its buffer. A stride of 0 repeats an element; a negative stride runs backwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The sizes, outermost first.
    pub sizes: Sizes,
    /// The distance between neighbours along each dim.
    pub strides: SmallVec<[isize; 6]>,
    /// The offset of the element `[0, 0, …]`.
    pub offset: isize,
}

impl Layout {
    /// Returns the row-major layout from the start of the buffer.
    pub fn dense(sizes: &[usize]) -> Self {
        let order: Sizes = (0..sizes.len()).collect();
        Self::in_order(sizes, &order)
    }

    /// Returns a layout without gaps whose dims have this order in memory, outermost first.
    pub fn in_order(sizes: &[usize], order: &[usize]) -> Self {
        let mut strides = SmallVec::from_elem(0, sizes.len());
        let mut next = 1;
        for &dim in order.iter().rev() {
            strides[dim] = next;
            next *= sizes[dim] as isize;
        }
        Self { sizes: Sizes::from_slice(sizes), strides, offset: 0 }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range from the first element in memory to the last.
    pub fn span(&self) -> Range<isize> {
        if self.is_empty() {
            return self.offset..self.offset;
        }
        let (mut first, mut last) = (self.offset, self.offset);
        for (&size, &stride) in self.sizes.iter().zip(&self.strides) {
            let far = (size as isize - 1) * stride;
            first += far.min(0);
            last += far.max(0);
        }
        first..last + 1
    }

    /// Returns whether the elements lie one after the other in row-major order.
    pub fn is_dense(&self) -> bool {
        let mut next = 1;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
            if size != 1 && stride != next {
                return self.is_empty();
            }
            next *= size as isize;
        }
        true
    }

    /// Returns whether the elements lie in contiguous rows along the last dim, in row-major order, at a constant distance from row to row.
    pub fn is_in_rows(&self) -> bool {
        let runs = self.collapsed();
        let is_last = |&(size, stride): &(usize, isize)| stride == 1 && Some(&size) == self.sizes.last();
        matches!(&runs[..], [(_, step), last] if is_last(last) && *step >= last.0 as isize)
    }

    /// Returns whether neighbours along the last dim are neighbours in memory.
    pub fn is_inner_contiguous(&self) -> bool {
        let last = self.sizes.last().zip(self.strides.last());
        last.is_none_or(|(&size, &stride)| size <= 1 || stride == 1)
    }

    /// Returns the dims from the largest stride to the smallest. Dims of size one come first, because their strides have no effect.
    pub fn by_distance(&self) -> Sizes {
        let mut order: Sizes = (0..self.sizes.len()).collect();
        order.sort_by_key(|&dim| {
            std::cmp::Reverse(if self.sizes[dim] == 1 { isize::MAX } else { self.strides[dim] })
        });
        order
    }

    /// Returns the order of the dims in memory, outermost first, if the elements fill their span without gaps or repeats.
    pub fn memory_order(&self) -> Option<Sizes> {
        let order = self.by_distance();
        let ordered = Self::in_order(&self.sizes, &order);
        let same = |dim: usize| self.sizes[dim] == 1 || self.strides[dim] == ordered.strides[dim];
        (0..self.sizes.len()).all(same).then_some(order)
    }

    /// Permutes the dims: dim `i` of the result is dim `permutation[i]` of `self`.
    pub fn transpose(&self, permutation: &[usize]) -> Self {
        Self {
            sizes: permutation.iter().map(|&dim| self.sizes[dim]).collect(),
            strides: permutation.iter().map(|&dim| self.strides[dim]).collect(),
            offset: self.offset,
        }
    }

    /// Broadcasts to these sizes.
    pub fn broadcast(&self, sizes: &[usize]) -> Self {
        let missing = sizes.len() - self.sizes.len();
        let stride = |dim: usize| match dim.checked_sub(missing) {
            Some(own) if self.sizes[own] == sizes[dim] => self.strides[own],
            _ => 0,
        };
        Self {
            sizes: Sizes::from_slice(sizes),
            strides: (0..sizes.len()).map(stride).collect(),
            offset: self.offset,
        }
    }

    /// Selects the elements `start, start + step, …` of a dim.
    pub fn slice(&self, dim: usize, start: i64, step: i64, length: usize) -> Self {
        let mut sliced = self.clone();
        sliced.offset += start as isize * self.strides[dim];
        sliced.strides[dim] *= step as isize;
        sliced.sizes[dim] = length;
        sliced
    }

    /// Returns the same elements in row-major order with other sizes, if strides can express it.
    pub fn reshape(&self, sizes: &[usize]) -> Option<Self> {
        if self.is_empty() {
            return Some(Self { offset: self.offset, ..Self::dense(sizes) });
        }
        let runs = self.collapsed();
        let mut strides: SmallVec<[isize; 6]> = SmallVec::from_elem(0, sizes.len());
        let mut runs = runs.into_iter().rev();
        let (mut left, mut stride) = (1, 1);
        for (dim, &size) in sizes.iter().enumerate().rev() {
            if left == 1 && size != 1 {
                (left, stride) = runs.next()?;
            }
            if size != 1 && left % size != 0 {
                return None;
            }
            strides[dim] = stride;
            left /= size;
            stride *= size as isize;
        }
        (left == 1).then(|| Self { sizes: Sizes::from_slice(sizes), strides, offset: self.offset })
    }

    /// Returns whether it is certain that the two layouts share no element: one lies before the other, or, for some row length, the two
    /// take separate ranges of every row.
    pub fn is_apart(&self, other: &Self) -> bool {
        let apart = |one: Range<isize>, other: Range<isize>| one.end <= other.start || other.end <= one.start;
        let beside = |row: isize| Some(apart(self.within_rows(row)?, other.within_rows(row)?));
        let mut rows = self.strides.iter().chain(&other.strides).copied().filter(|&stride| stride > 1);
        apart(self.span(), other.span()) || rows.any(|row| beside(row) == Some(true))
    }

    /// Returns the range of each row of this length that the layout takes, if no part of it crosses the end of a row.
    fn within_rows(&self, row: isize) -> Option<Range<isize>> {
        let along = self.sizes.iter().zip(&self.strides).filter(|(_, stride)| **stride % row != 0);
        let last: isize = along.map(|(&size, &stride)| (size as isize - 1).max(0) * stride).sum();
        let start = self.offset.rem_euclid(row);
        let fits = self.strides.iter().all(|&stride| stride >= 0) && start + last < row;
        fits.then_some(start..start + last + 1)
    }

    /// Returns sizes and strides without dims of size one. Neighbours that one stride can cover are merged.
    pub fn collapsed(&self) -> SmallVec<[(usize, isize); 6]> {
        let mut runs: SmallVec<[(usize, isize); 6]> = SmallVec::new();
        for (&size, &stride) in self.sizes.iter().zip(&self.strides) {
            match runs.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => runs.push((size, stride)),
            }
        }
        runs
    }
}

/// `[8, 128]`, with strides where the tensor is not row-major from the start of its buffer.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.sizes.as_slice())?;
        if !self.is_dense() || self.offset != 0 {
            write!(f, " at {} by {:?}", self.offset, self.strides.as_slice())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_whole_are_apart() {
        let whole = Layout::dense(&[4, 6, 8]);
        let [first, second] = [(0, 2), (2, 4)].map(|(start, length)| whole.slice(1, start, 1, length));
        let turned = second.transpose(&[2, 0, 1]).slice(2, 1, 1, 3);
        let row = second.slice(0, 1, 1, 1).slice(1, 0, 1, 1).broadcast(&[4, 2, 8]);
        for other in [&second, &turned, &row] {
            assert!(first.is_apart(other) && other.is_apart(&first), "{other}");
        }
        for other in [whole.slice(1, 1, 1, 2), whole.slice(0, 3, 1, 1), whole.slice(2, 0, 1, 1)] {
            assert!(!first.is_apart(&other) && !other.is_apart(&first), "{other}");
        }
    }

    #[test]
    fn a_transposed_tensor_splits_and_merges_only_where_strides_allow() {
        let transposed = Layout::dense(&[4, 6]).transpose(&[1, 0]);
        assert_eq!(transposed.reshape(&[24]), None);
        let split = transposed.reshape(&[2, 3, 4]).unwrap();
        assert_eq!(split.strides.as_slice(), [3, 1, 6]);
        assert_eq!(split.transpose(&[2, 0, 1]).reshape(&[4, 6]), Some(Layout::dense(&[4, 6])));
    }

    #[test]
    fn a_reshape_goes_through_dims_of_size_one() {
        let layout = Layout::dense(&[2, 1, 3]).transpose(&[1, 0, 2]);
        assert!(layout.is_dense());
        assert_eq!(layout.reshape(&[1, 6, 1]).unwrap().sizes.as_slice(), [1, 6, 1]);
        assert_eq!(Layout::dense(&[1]).reshape(&[]).unwrap(), Layout::dense(&[]));
        assert_eq!(Layout::dense(&[]).reshape(&[1, 1]).unwrap().len(), 1);
    }

    #[test]
    fn memory_order_finds_permutations_and_refuses_holes_and_repeats() {
        let layout = Layout::in_order(&[2, 3, 4, 5], &[0, 2, 1, 3]);
        assert_eq!(layout.memory_order().unwrap().as_slice(), [0, 2, 1, 3]);
        assert_eq!(layout.slice(3, 0, 1, 4).memory_order(), None);
        assert_eq!(Layout::dense(&[3]).broadcast(&[2, 3]).memory_order(), None);
    }

    #[test]
    fn the_span_of_a_reversed_slice_starts_at_its_last_element() {
        let reversed = Layout::dense(&[10]).slice(0, 9, -2, 5);
        assert_eq!(reversed.span(), 1..10);
    }
}
