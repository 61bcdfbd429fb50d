//! A sequence of random choices from a seed.

use ir::random;

pub(crate) struct Choices {
    seed: u64,
    drawn: u32,
}

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.seed() as usize % count
    }

    pub(crate) fn of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// Returns a number that can be the seed of other choices.
    pub(crate) fn seed(&mut self) -> u64 {
        self.drawn += 1;
        u64::from(random::philox(self.seed, [self.drawn, 0, 0, 1])[0])
    }
}
