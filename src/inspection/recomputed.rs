//! The blocks of the forward phase, and the parts that backward computes again.

use ir::text::Numbering;
use ir::units::bytes;
use ir::{Module, Movement, ValueId, visible};
use passes::recompute::Recompute;
use passes::reports::{BlockReport, Fate, RecomputeReport, ValueReport};
use std::fmt::Write;

/// The blocks, those alike together: the activations that are kept, and the operators that are computed again.
pub fn recomputed(report: &RecomputeReport) -> String {
    let blocks = &report.blocks;
    let total = |number: fn(&BlockReport) -> u64| blocks.iter().map(number).fold(0, u64::saturating_add);
    let [before, kept] = [total(|block| block.kept_before), total(|block| block.kept)].map(bytes);
    let milliseconds = total(|block| block.picoseconds) as f64 / 1e9;
    if blocks.is_empty() {
        return "recomputation: the forward phase has no blocks; nothing is computed again\n".into();
    }
    let mut text = format!(
        "recomputation: {kept} of {before} of activations in {} blocks are kept; {milliseconds:.3} ms of a microbatch are \
         computed again\n",
        blocks.len()
    );
    for alike in blocks.chunk_by(is_like) {
        let (first, last) = (&alike[0], &alike[alike.len() - 1]);
        let count = if alike.len() == 1 { "1 block".into() } else { format!("{} blocks, each", alike.len()) };
        let names = |(name, count): &(&str, usize)| {
            if *count == 1 { (*name).to_owned() } else { format!("{count} {name}") }
        };
        let operators: Vec<String> = first.operators.iter().map(names).collect();
        let operators = if operators.is_empty() { "nothing".into() } else { operators.join(", ") };
        let [before, kept] = [first.kept_before, first.kept].map(bytes);
        let (from, to) = (visible(&first.first), visible(&last.last));
        // Writing into a string does not fail.
        let _ = writeln!(text, "  {count} {kept} of {before}; again: {operators}\n    from {from} to {to}");
    }
    text
}

/// Whether a line can stand for both blocks.
fn is_like(one: &BlockReport, other: &BlockReport) -> bool {
    let key = |block: &BlockReport| (block.picoseconds, block.kept_before, block.kept);
    key(one) == key(other) && one.operators == other.operators
}

/// Says for each value of that name whether it is kept or computed again, and why. A name is that of an ONNX node, or of a
/// value in the program: `%12`. `None` if no block computes such a value.
pub(super) fn why_kept(report: &RecomputeReport, module: &Module, name: &str) -> Option<String> {
    let label = format!("node {name:?} ");
    let names = Numbering::of(module);
    let in_program = value_named(module, &names, name);
    let is_asked = |value: &&ValueReport| match in_program {
        Some(id) => value.value == id || value.copy == Some(id),
        None => value.origin == name || value.origin.starts_with(&label),
    };
    let found: Vec<String> =
        report.values.iter().filter(is_asked).map(|value| choice(&report.blocks, &names, value)).collect();
    (!found.is_empty()).then(|| found.concat())
}

/// The choice for a value, in words.
fn choice(blocks: &[BlockReport], names: &Numbering, report: &ValueReport) -> String {
    let ValueReport { operator, origin, block, picoseconds, fate, .. } = report;
    let BlockReport { first, last, price, .. } = &blocks[*block];
    let (size, picoseconds) = (bytes(report.bytes), picoseconds.map(u128::from));
    let time = picoseconds.map_or_else(String::new, microseconds);
    let worth = report.price(*price);
    let price =
        if *price >= Recompute::FULL.price { "more than any time".to_owned() } else { microseconds(worth) };
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
        Fate::Repeated if picoseconds.is_some_and(|time| time > worth) => (
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
    let (number, count) = (block + 1, blocks.len());
    format!(
        "the result{names} of `{operator}`, {size} on each device, {choice}\n  because: {why}\n    {}\n    in block \
         {number} of {count}, from {} to {}\n",
        visible(origin),
        visible(first),
        visible(last)
    )
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
