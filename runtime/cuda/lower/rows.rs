//! The division of rows among the threads of a kernel: the shapes of `kernels/rows.cuh`.

use super::{Multiprocessors, Unplaced};
use ir::DType;
use program::View;

/// The part of a row that a kernel may hold in registers.
#[derive(Clone, Copy)]
pub(super) struct RegisterBudget {
    /// The elements of a thread, if at most a warp has a row.
    pub(super) by_warp: usize,
    /// The elements of a thread, if more threads than a warp have a row.
    pub(super) by_block: usize,
    /// The most threads of a row.
    pub(super) threads: usize,
}

impl RegisterBudget {
    /// The budget of kernels that hold one row, which leaves registers for much of it.
    pub(super) const ONE: Self = Self { by_warp: 32, by_block: 32, threads: 1024 };
    /// The budget of kernels that hold two rows.
    pub(super) const TWO: Self = Self { by_warp: 32, by_block: 32, threads: 512 };

    /// Returns the budget in packs of `width` elements. Registers hold half as many f64 elements.
    fn packs(self, dtype: DType, width: usize) -> [usize; 2] {
        let share = if dtype == DType::F64 { 2 } else { 1 };
        [self.by_warp, self.by_block].map(|elements| (elements / share / width).max(1))
    }
}

/// Rows whose elements are neighbours, one row after the other.
pub(super) struct DenseRows {
    pub(super) rows: usize,
    pub(super) size: usize,
    /// The elements that are read at once.
    width: usize,
    /// The threads of a row.
    group: usize,
    /// The rows that a block processes at once.
    pub(super) groups: usize,
    /// Whether registers hold a row.
    pub(super) held: bool,
}

impl DenseRows {
    /// Returns the shape of the rows of dense operands and results. The first tensor has the type of the computation.
    pub(super) fn of(
        tensors: &[&Unplaced],
        rows: usize,
        size: usize,
        held: RegisterBudget,
        on: Multiprocessors,
    ) -> Self {
        let dtype = tensors[0].dtype;
        let width = width(dtype, |width| {
            let begins = |tensor: &&Unplaced| tensor.layout.offset.unsigned_abs().is_multiple_of(width);
            size.is_multiple_of(width) && tensors.iter().all(begins)
        });
        let (packs, [by_warp, by_block]) = (size / width, held.packs(dtype, width));
        let mut group = packs.next_power_of_two().min(32);
        let mut most = by_warp;
        while group < held.threads && packs > group * most {
            (group, most) = (2 * group, by_block);
        }
        let mut groups = (256 / group).max(1);
        while groups > 1 && groups * group > 64 && rows.div_ceil(groups) < on.blocks() {
            groups /= 2;
        }
        Self { rows, size, width, group, groups, held: packs <= group * most }
    }

    /// Returns the threads of a block.
    pub(super) fn threads(&self) -> u32 {
        (self.group * self.groups) as u32
    }

    /// Returns the elements of a thread.
    pub(super) fn own(&self) -> usize {
        self.size.div_ceil(self.group)
    }

    /// Returns the shape's name.
    pub(super) fn name(&self) -> String {
        let Self { rows, size, width, group, groups, held } = self;
        format!("rows::Along<{rows}, {size}, {width}, {group}, {groups}, {held}>")
    }
}

/// Rows along any dim of dense tensors.
pub(super) struct Shape {
    /// The shape's name.
    pub(super) name: String,
    pub(super) blocks: usize,
    /// Threads of a block.
    pub(super) threads: u32,
}

impl Shape {
    /// Rows along a dim.
    pub(super) fn of(tensors: &[&Unplaced], dim: usize, held: RegisterBudget, on: Multiprocessors) -> Self {
        let sizes = &tensors[0].layout.sizes;
        let size = sizes[dim];
        let (outer, inner): (usize, usize) =
            (sizes[..dim].iter().product(), sizes[dim + 1..].iter().product());
        if inner == 1 {
            let along = DenseRows::of(tensors, outer, size, held, on);
            let blocks = along.rows.div_ceil(along.groups);
            return Self { name: along.name(), blocks, threads: along.threads() };
        }
        let rows = outer * inner;
        // Neighbouring threads read neighbouring rows. If there are few rows, each has more threads.
        let most = if rows < 2048 { 32 } else { 8 };
        let mut down = 1;
        while down < most && size >= 4 * down && (size > 32 * down || rows * down < 1 << 16) {
            down *= 2;
        }
        let across = 256 / down;
        let [own, _] = held.packs(tensors[0].dtype, 1);
        let is_held = size <= down * own;
        let name = format!("rows::Across<{outer}, {size}, {inner}, {across}, {down}, {is_held}>");
        Self { name, blocks: rows.div_ceil(across), threads: 256 }
    }
}

/// Returns the most elements of a type that can be read at once, among the widths that `fits` accepts.
pub(super) fn width(dtype: DType, fits: impl Fn(usize) -> bool) -> usize {
    let mut width = (16 / dtype.bytes() as usize).min(8);
    while width > 1 && !fits(width) {
        width /= 2;
    }
    width
}

/// Returns a tensor without its place, as it is known before memory is planned. A place begins at a multiple of 64 bytes.
pub(super) fn unplaced(view: &View) -> Unplaced {
    Unplaced { dtype: view.dtype, layout: view.layout.clone() }
}
