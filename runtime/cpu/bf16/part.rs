//! The part of a product that is computed at a time, in a limited scratch.

use super::{BLOCK, SIDE, TERMS};

/// The largest number of tasks that compute a part, each with one panel of the left operand.
const TASKS: usize = 16;
/// Panels are not cut into ranges of terms below this number of blocks as long as fewer rows or columns help.
const DEEP: usize = 64;

/// The sizes of a part of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The panels of rows.
    pub(crate) rows: usize,
    /// The panels of columns.
    pub(crate) columns: usize,
    /// The blocks of terms of each panel.
    pub(crate) blocks: usize,
    /// Whether panels are cut into ranges of terms, and the sums wait in scratch.
    pub(crate) has_sums: bool,
}

impl Part {
    /// The least scratch, in numbers of 32 bits.
    pub(crate) const LEAST: usize = Self { rows: 1, columns: 1, blocks: 1, has_sums: true }.len();

    /// Returns the whole of a product of these rows, terms and columns. The terms are repeated `repeats` times.
    pub(crate) fn whole([rows, terms, columns]: [usize; 3], repeats: usize) -> Self {
        let blocks = terms.div_ceil(TERMS).saturating_mul(repeats).max(1);
        Self {
            rows: rows.div_ceil(SIDE).max(1),
            columns: columns.div_ceil(SIDE).max(1),
            blocks,
            has_sums: false,
        }
    }

    /// Returns the length of the scratch, in numbers of 32 bits.
    pub(crate) const fn len(&self) -> usize {
        let [left, right, sums] = self.lens();
        left.saturating_add(right).saturating_add(sums)
    }

    /// Returns the lengths of the panels of the left operand, of those of the right one, and of the sums.
    pub(crate) const fn lens(&self) -> [usize; 3] {
        let panel = self.blocks.saturating_mul(BLOCK);
        let sums = if self.has_sums {
            self.rows.saturating_mul(self.columns).saturating_mul(SIDE * SIDE)
        } else {
            0
        };
        [self.tasks().saturating_mul(panel), self.columns.saturating_mul(panel), sums]
    }

    /// Returns the largest number of tasks.
    pub(crate) const fn tasks(&self) -> usize {
        if self.rows < TASKS { self.rows } else { TASKS }
    }

    /// Returns a part whose scratch is no longer than `len`, which is at least [`Self::LEAST`].
    pub(crate) fn within(mut self, len: usize) -> Self {
        while self.len() > len && (self.rows, self.columns, self.blocks, self.has_sums) != (1, 1, 1, true) {
            let Self { rows, columns, blocks, .. } = self;
            if blocks > DEEP || (rows == 1 && columns == 1) {
                (self.blocks, self.has_sums) = (blocks.div_ceil(2), true);
            } else if columns >= rows {
                self.columns = columns.div_ceil(2);
            } else {
                self.rows = rows.div_ceil(2);
            }
        }
        self
    }
}
