//! Blocks of dense tensors: the places of a part's contiguous runs in the whole tensor.

use program::layout::{Layout, Sizes};

/// A block of a dense tensor, as the index of its first element. The code that reads or writes the block knows the block's sizes.
pub struct Block {
    /// The sizes of the tensor.
    pub whole: Sizes,
    /// The index of the block's first element.
    pub start: Sizes,
}

impl Block {
    /// Returns the block of a whole tensor.
    pub fn all(sizes: &[usize]) -> Self {
        Self { whole: Sizes::from_slice(sizes), start: Sizes::from_elem(0, sizes.len()) }
    }

    /// Returns the block of a tensor that begins at index `start` of a dim.
    pub fn from(sizes: &[usize], dim: usize, start: usize) -> Self {
        let mut block = Self::all(sizes);
        block.start[dim] = start;
        block
    }

    /// Returns the first dim from which on a block of these sizes is contiguous.
    fn cut(&self, sizes: &[usize]) -> usize {
        (0..sizes.len()).rev().find(|&dim| sizes[dim] != self.whole[dim]).unwrap_or(0)
    }

    /// Returns the starts of the runs of a block with these sizes, in order. Each run covers the dims from `cut` on.
    fn starts(&self, sizes: &[usize], cut: usize) -> Vec<usize> {
        let strides = Layout::dense(&self.whole).strides;
        let place = |dim: usize, index: usize| (self.start[dim] + index) * strides[dim] as usize;
        let base = (cut..sizes.len()).map(|dim| place(dim, 0)).sum();
        (0..cut).fold(vec![base], |starts, dim| {
            let step = |start: usize| (0..sizes[dim]).map(move |index| start + place(dim, index));
            starts.into_iter().flat_map(step).collect()
        })
    }
}

/// Calls `run` for each contiguous run that blocks of these sizes have in common, in row-major order, with its start in each block's tensor
/// and its length.
pub fn for_runs<const N: usize>(
    sizes: &[usize],
    blocks: [&Block; N],
    mut run: impl FnMut([usize; N], usize),
) {
    if sizes.contains(&0) {
        return;
    }
    let cut = blocks.iter().map(|block| block.cut(sizes)).max().unwrap_or(0);
    let starts = blocks.map(|block| block.starts(sizes, cut));
    let len = sizes[cut..].iter().product();
    let runs = starts.first().map_or(0, Vec::len);
    (0..runs).for_each(|index| run(std::array::from_fn(|i| starts[i][index]), len));
}

/// Copies a block of these sizes, of elements of `width` bytes, from one tensor to another.
pub fn copy(
    sizes: &[usize],
    width: usize,
    (from, source): (&[u8], &Block),
    (to, target): (&mut [u8], &Block),
) {
    for_runs(sizes, [source, target], |[source, target], len| {
        to[target * width..][..len * width].copy_from_slice(&from[source * width..][..len * width]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_cut_out_and_put_elsewhere_keeps_its_rows() {
        let from: Vec<u8> = (0..24).collect(); // [2, 3, 4]
        let mut to = vec![99; 2 * 4 * 2];
        let target = Block { whole: Sizes::from_slice(&[2, 4, 2]), start: Sizes::from_slice(&[0, 1, 0]) };
        copy(&[2, 2, 2], 1, (&from, &Block::from(&[2, 3, 4], 2, 2)), (&mut to, &target));
        assert_eq!(to, [99, 99, 2, 3, 6, 7, 99, 99, 99, 99, 14, 15, 18, 19, 99, 99]);
    }

    #[test]
    fn scalars_are_one_run_and_empty_tensors_none() {
        let mut runs = 0;
        for_runs(&[], [&Block::all(&[])], |[start], len| runs += usize::from((start, len) == (0, 1)));
        for_runs(&[3, 0], [&Block::all(&[3, 0])], |_, _| runs += 10);
        assert_eq!(runs, 1);
    }
}
