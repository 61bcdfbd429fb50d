//! The feed-forward blocks of a model, which `--moe` turns into mixtures of experts, in words.

use ir::units::{count, grouped};
use ir::visible;
use passes::moe::{Block, FeedForward};
use std::collections::BTreeMap;

/// The place of each block, for `--why`.
pub(super) fn places(found: &FeedForward) -> String {
    let place = |Block { origin, features, hidden, .. }: &Block| {
        let features = features.map(|features| format!("{} numbers, ", grouped(features)));
        let (origin, features) = (visible(origin), features.unwrap_or_default());
        format!("  at {origin}: {features}{} hidden\n", grouped(*hidden))
    };
    found.blocks.iter().map(place).collect()
}

/// A line with the number of blocks of each size. Empty without blocks.
pub(super) fn feed_forward(found: &FeedForward) -> String {
    if found.blocks.is_empty() {
        return String::new();
    }
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    found.blocks.iter().for_each(|block| *sizes.entry(block.hidden).or_default() += 1);
    let sizes = sizes.iter().map(|(hidden, times)| format!("{times} of {} hidden numbers", grouped(*hidden)));
    let (blocks, sizes) = (count(found.blocks.len(), "feed-forward block"), sizes.collect::<Vec<_>>());
    format!("{blocks}: {}; --moe makes mixtures of experts of them\n", sizes.join(", "))
}
