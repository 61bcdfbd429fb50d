//! Reading strided elements in the memory order of results.

use program::layout::Layout;
use smallvec::SmallVec;

/// A layout as runs: sizes and strides, merged where one stride covers several dims.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    runs: SmallVec<[(usize, isize); 6]>,
    offset: isize,
}

/// The access pattern of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One element after the other.
    Contiguous,
    /// The same element again and again.
    One,
    /// Anything else.
    Strided,
}

impl Walk {
    /// Walks through a layout with its dims in this order, outermost first.
    pub(super) fn new(layout: &Layout, order: &[usize]) -> Self {
        Self { runs: layout.transpose(order).collapsed(), offset: layout.offset }
    }

    /// Walks through a layout in row-major order.
    pub(super) fn row_major(layout: &Layout) -> Self {
        Self { runs: layout.collapsed(), offset: layout.offset }
    }

    pub(super) fn shape(&self) -> Shape {
        match self.runs.as_slice() {
            [] | [(_, 0)] => Shape::One,
            [(_, 1)] => Shape::Contiguous,
            _ => Shape::Strided,
        }
    }

    /// Returns the position of the element with this index.
    #[cfg(test)]
    fn position(&self, mut index: usize) -> usize {
        let mut position = self.offset;
        for &(size, stride) in self.runs.iter().rev() {
            position += (index % size) as isize * stride;
            index /= size;
        }
        position as usize
    }

    /// Reads the elements from index `start` on.
    #[inline]
    pub(super) fn load<T: Copy>(&self, elements: &[T], start: usize, out: &mut [T]) {
        self.for_runs(start, out.len(), |at, position, stride, count| {
            let out = &mut out[at..at + count];
            match stride {
                1 => out.copy_from_slice(&elements[position..position + count]),
                0 => out.fill(elements[position]),
                _ => {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = elements[(position as isize + i as isize * stride) as usize];
                    }
                }
            }
        });
    }

    /// Calls `run` for each stretch of one stride among `count` elements from index `start` on, with the stretch's start in the output, the
    /// position of its first element, the stride, and its length.
    #[inline]
    pub(super) fn for_runs(
        &self,
        start: usize,
        count: usize,
        mut run: impl FnMut(usize, usize, isize, usize),
    ) {
        // A dim of size 0 has no run.
        if count == 0 {
            return;
        }
        let Some((&(inner, stride), outer)) = self.runs.split_last() else {
            return run(0, self.offset as usize, 0, count);
        };
        let (mut index, mut rest) = (start % inner, start / inner);
        let mut base = self.offset;
        let mut at: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
        for (at, &(size, stride)) in at.iter_mut().zip(outer).rev() {
            *at = rest % size;
            base += *at as isize * stride;
            rest /= size;
        }
        let mut done = 0;
        while done < count {
            let length = (inner - index).min(count - done);
            run(done, (base + index as isize * stride) as usize, stride, length);
            done += length;
            index = 0;
            for (at, &(size, stride)) in at.iter_mut().zip(outer).rev() {
                *at += 1;
                base += stride;
                if *at < size {
                    break;
                }
                base -= size as isize * stride;
                *at = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_reads_what_the_layout_says_from_any_start() {
        let elements: Vec<u32> = (0..60).collect();
        let layout =
            Layout::dense(&[3, 4, 5]).transpose(&[2, 0, 1]).slice(0, 4, -2, 3).broadcast(&[2, 3, 3, 4]);
        let walk = Walk::row_major(&layout);
        let mut expected = vec![];
        for _ in 0..2 {
            for i in 0..3 {
                expected.extend((0..12).map(|j| j * 5 + 4 - 2 * i));
            }
        }
        for start in 0..72 {
            let mut out = vec![0; 72 - start];
            walk.load(&elements, start, &mut out);
            assert_eq!(out, expected[start..]);
            assert_eq!(elements[walk.position(start)], expected[start]);
        }
    }
}
