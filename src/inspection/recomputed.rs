//! The blocks of the forward phase, and the parts that backward computes again.

use super::units::bytes;
use ir::text::Numbering;
use ir::{Module, Movement, ValueId, visible};
use passes::recompute::Recompute;
use passes::reports::{BlockReport, Fate, RecomputeReport, ValueReport};
use serde::Serialize;
use std::fmt;

/// The parts of a step that backward computes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecomputeFacts {
    /// Every block that may be computed again, in program order.
    pub blocks: Vec<BlockFacts>,
    /// Every value that these blocks compute.
    #[serde(skip)]
    values: Vec<ValueReport>,
}

/// A block, such as a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockFacts {
    /// The ONNX node that its first node came from.
    pub first: String,
    /// The ONNX node that its last node came from.
    pub last: String,
    /// The operators that are computed again, with their counts.
    pub recomputed: Vec<(&'static str, usize)>,
    /// The predicted time of these on a device, in picoseconds.
    pub picoseconds: u64,
    /// Bytes on a device of the activations that backward reads, if none is computed again.
    pub kept_before: u64,
    /// Bytes that are kept.
    pub kept: u64,
    /// The price of a kept activation: picoseconds for each KiB.
    pub price: u64,
}

impl RecomputeFacts {
    /// The facts of a report.
    pub fn of(report: &RecomputeReport) -> Self {
        let blocks = report.blocks.iter().map(BlockFacts::of).collect();
        Self { blocks, values: report.values.clone() }
    }

    /// Says for each value of that name whether it is kept or computed again, and why. A name is that of an ONNX node, or of a
    /// value in the program: `%12`. `None` if no block computes such a value.
    pub(super) fn why(&self, module: &Module, name: &str) -> Option<String> {
        let label = format!("node {name:?} ");
        let names = Numbering::of(module);
        let in_program = value_named(module, &names, name);
        let is_asked = |value: &&ValueReport| match in_program {
            Some(id) => value.value == id || value.copy == Some(id),
            None => value.origin == name || value.origin.starts_with(&label),
        };
        let found: Vec<String> =
            self.values.iter().filter(is_asked).map(|value| self.value(&names, value)).collect();
        (!found.is_empty()).then(|| found.concat())
    }

    /// The choice for a value, in words.
    fn value(&self, names: &Numbering, report: &ValueReport) -> String {
        let ValueReport { operator, origin, block, picoseconds, fate, .. } = report;
        let facts = &self.blocks[*block];
        let (size, picoseconds) = (bytes(report.bytes), picoseconds.map(u128::from));
        let time = picoseconds.map_or_else(String::new, microseconds);
        let price = match facts.price {
            price if price >= Recompute::FULL.price => "more than any time".to_owned(),
            price => microseconds(report.price(price)),
        };
        let (choice, why) = match fate {
            Fate::Kept if picoseconds.is_none() => (
                "is kept for backward",
                "a reduction over devices would be repeated to compute it again".to_owned(),
            ),
            Fate::Kept => (
                "is kept for backward",
                format!(
                    "computing it again takes {time} with the nodes that it needs, and the price of its bytes is {price}"
                ),
            ),
            Fate::Repeated if picoseconds.is_some_and(|time| time > report.price(facts.price)) => (
                "is computed again in backward",
                format!("its node, which takes {time}, is repeated for other results too"),
            ),
            Fate::Repeated => (
                "is computed again in backward",
                format!("its node takes {time}, and the price of its bytes is {price}"),
            ),
            Fate::Between => ("is kept", "a later block reads it".to_owned()),
            Fate::Unread => ("is not kept", "backward does not read it".to_owned()),
        };
        let values = [Some(report.value), report.copy].into_iter().flatten().map(|value| names.value(value));
        // The program no longer has a value that nobody but backward read.
        let names: Vec<String> = values.filter(|name| !name.starts_with("%?")).collect();
        let names = if names.is_empty() { String::new() } else { format!(" {}", names.join(" and ")) };
        let BlockFacts { first, last, .. } = facts;
        let (number, count) = (block + 1, self.blocks.len());
        format!(
            "the result{names} of `{operator}`, {size} on each device, {choice}\n  because: {why}\n    {}\n    in block \
             {number} of {count}, from {} to {}\n",
            visible(origin),
            visible(first),
            visible(last)
        )
    }
}

impl BlockFacts {
    fn of(report: &BlockReport) -> Self {
        let BlockReport { first, last, operators, picoseconds, kept_before, kept, price } = report.clone();
        Self { first, last, recomputed: operators, picoseconds, kept_before, kept, price }
    }

    /// Whether a line can stand for both.
    fn is_like(&self, other: &Self) -> bool {
        let key = |block: &Self| (block.recomputed.clone(), block.picoseconds, block.kept_before, block.kept);
        key(self) == key(other)
    }
}

impl fmt::Display for RecomputeFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total =
            |number: fn(&BlockFacts) -> u64| self.blocks.iter().map(number).fold(0, u64::saturating_add);
        let [before, kept] = [total(|block| block.kept_before), total(|block| block.kept)].map(bytes);
        let milliseconds = total(|block| block.picoseconds) as f64 / 1e9;
        if self.blocks.is_empty() {
            return writeln!(f, "recomputation: the forward phase has no blocks; nothing is computed again");
        }
        writeln!(
            f,
            "recomputation: {kept} of {before} of activations in {} blocks are kept; {milliseconds:.3} ms of a microbatch are \
             computed again",
            self.blocks.len()
        )?;
        for alike in self.blocks.chunk_by(BlockFacts::is_like) {
            let (first, last) = (&alike[0], &alike[alike.len() - 1]);
            let count =
                if alike.len() == 1 { "1 block".into() } else { format!("{} blocks, each", alike.len()) };
            let names = |(name, count): &(&str, usize)| {
                if *count == 1 { (*name).to_owned() } else { format!("{count} {name}") }
            };
            let operators: Vec<String> = first.recomputed.iter().map(names).collect();
            let operators = if operators.is_empty() { "nothing".into() } else { operators.join(", ") };
            let [before, kept] = [first.kept_before, first.kept].map(bytes);
            writeln!(f, "  {count} {kept} of {before}; again: {operators}")?;
            writeln!(f, "    from {} to {}", visible(&first.first), visible(&last.last))?;
        }
        Ok(())
    }
}

/// The value behind the views of the value with this name in the text of a program.
fn value_named(module: &Module, names: &Numbering, name: &str) -> Option<ValueId> {
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let named = results.into_iter().find(|&value| names.value(value) == name)?;
    Some(module.viewed(named, Movement::is_layout))
}

fn microseconds(picoseconds: u128) -> String {
    format!("{:.1} µs", picoseconds as f64 / 1e6)
}
