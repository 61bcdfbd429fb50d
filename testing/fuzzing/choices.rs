//! Random numbers that decide how an input is changed.

use ir::random;
use std::ops::Range;

/// Random numbers, one after the other: the same for one seed.
pub struct Choices {
    seed: u64,
    drawn: u32,
}

impl Choices {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// A number below `count`, or 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.drawn += 1;
        random::philox(self.seed, [self.drawn, 0, 0, 0])[0] as usize % count.max(1)
    }

    /// Returns `true` in one of `times` calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns a random item; `None` if there are none.
    pub fn of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    /// Returns a random item to be changed; `None` if there are none.
    pub fn of_mut<'a, T>(&mut self, items: &'a mut [T]) -> Option<&'a mut T> {
        let index = self.below(items.len());
        items.get_mut(index)
    }

    /// Changes a random item, if there are any.
    pub fn change<T>(&mut self, items: &mut [T], change: impl FnOnce(&mut T)) {
        if let Some(item) = self.of_mut(items) {
            change(item);
        }
    }

    /// Returns a range of up to 16 indices within a length.
    pub fn range(&mut self, length: usize) -> Range<usize> {
        let start = self.below(length + 1);
        start..(start + 1 + self.below(16)).min(length)
    }
}
