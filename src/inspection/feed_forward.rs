//! The feed-forward blocks of a model, which `--moe` turns into mixtures of experts.

use super::NearMissFacts;
use super::units::{count, grouped};
use ir::{Dim, Module, visible};
use passes::moe::{self, Block};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The feed-forward blocks of a model, and the multiplications that nearly end one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FeedForwardFacts {
    /// The blocks, in program order.
    pub blocks: Vec<FeedForwardBlock>,
    /// Where a block was nearly found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<NearMissFacts>,
}

/// A feed-forward block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeedForwardBlock {
    /// Its activation in the file.
    pub origin: String,
    /// Numbers of a token; `None` if the dim is not bound.
    pub features: Option<u64>,
    /// Hidden numbers.
    pub hidden: u64,
}

impl FeedForwardFacts {
    /// The name of the pattern.
    pub(super) const PATTERN: &str = "feed-forward";

    /// The blocks of a program with its parameters.
    pub(super) fn of(module: &Module) -> Self {
        let found = moe::blocks(module);
        let block = |block: &Block| FeedForwardBlock {
            origin: block.origin.to_string(),
            features: module.ty(block.input).dims.last().and_then(Dim::size),
            hidden: block.hidden,
        };
        Self {
            blocks: found.blocks.iter().map(block).collect(),
            near: found.near.iter().map(NearMissFacts::of).collect(),
        }
    }

    /// The place of each block, for `--why`.
    pub(super) fn places(&self) -> String {
        let mut text = String::new();
        for FeedForwardBlock { origin, features, hidden } in &self.blocks {
            let features =
                features.map(|features| format!("{} numbers, ", grouped(features))).unwrap_or_default();
            // Writing into a string does not fail.
            let _ = writeln!(text, "  at {}: {features}{} hidden", visible(origin), grouped(*hidden));
        }
        text
    }
}

/// A line with the number of blocks of each size.
impl fmt::Display for FeedForwardFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
        self.blocks.iter().for_each(|block| *sizes.entry(block.hidden).or_default() += 1);
        let sizes =
            sizes.iter().map(|(hidden, times)| format!("{times} of {} hidden numbers", grouped(*hidden)));
        let sizes: Vec<String> = sizes.collect();
        writeln!(
            f,
            "{}: {}; --moe makes mixtures of experts of them",
            count(self.blocks.len(), "feed-forward block"),
            sizes.join(", ")
        )
    }
}
