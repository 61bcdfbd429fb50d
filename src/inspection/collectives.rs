//! The communication of a step: every collective of a program, with its bytes.

use ir::analysis::CollectiveExchange;
use ir::units::{bytes, count};
use ir::{Module, Node, visible};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A collective of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectiveFacts {
    /// The operator.
    pub kind: &'static str,
    /// The axes of its groups of devices.
    pub axes: Vec<String>,
    /// The phase in which it runs.
    pub phase: &'static str,
    /// The node of the file for which it runs.
    pub origin: String,
    /// The number of values that it exchanges.
    pub values: usize,
    /// The number of its runs in a step.
    pub runs: u64,
    /// The bytes that a device sends in a step, by a ring algorithm.
    pub bytes: u64,
}

/// All communication of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Communication {
    /// Bytes that a device sends in a step.
    pub bytes: u64,
    /// The bytes over each axis, or over several axes at once (`dp*tp`).
    pub by_axis: BTreeMap<String, u64>,
    /// Every collective, in the order of the program.
    pub collectives: Vec<CollectiveFacts>,
}

impl Communication {
    /// The communication of a step of `microbatches` microbatches.
    pub(super) fn of(module: &Module, microbatches: u64) -> Self {
        let exchanges =
            module.nodes().filter_map(|(_, node)| Some((node, CollectiveExchange::of(module, node)?)));
        let facts = |(node, exchange)| CollectiveFacts::of(module, node, &exchange, microbatches);
        let collectives: Vec<CollectiveFacts> = exchanges.map(facts).collect();
        let mut by_axis = BTreeMap::new();
        for one in collectives.iter().filter(|one| one.bytes > 0) {
            *by_axis.entry(one.axes.join("*")).or_default() += one.bytes;
        }
        Self { bytes: collectives.iter().map(|one| one.bytes).sum(), by_axis, collectives }
    }
}

impl CollectiveFacts {
    /// The facts of a node with its exchange, in a step of so many microbatches.
    pub(super) fn of(module: &Module, node: &Node, exchange: &CollectiveExchange, microbatches: u64) -> Self {
        let runs = if node.phase.is_microbatch() { microbatches } else { 1 };
        Self {
            kind: node.op.name(),
            axes: exchange.axes.iter().map(|&axis| module.mesh.axes[axis].name.clone()).collect(),
            phase: node.phase.long_name(),
            origin: node.origin.to_string(),
            values: node.operands.len(),
            runs,
            bytes: exchange.sent(&module.mesh).saturating_mul(runs),
        }
    }
}

/// The collectives of one kind over the same axes in a phase: a line of the table.
#[derive(Default)]
struct Group<'a> {
    count: usize,
    values: usize,
    bytes: u64,
    origins: Vec<&'a str>,
}

impl fmt::Display for Communication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.by_axis.iter().map(|(axes, sent)| format!("over {axes} {}", bytes(*sent)));
        let over = over.collect::<Vec<_>>().join(", ");
        writeln!(
            f,
            "\neach device sends {} per step{}",
            bytes(self.bytes),
            if over.is_empty() { over } else { format!(": {over}") }
        )?;
        let mut groups: Vec<((&str, &str, String), Group)> = Vec::new();
        for one in self.collectives.iter().filter(|one| one.bytes > 0) {
            let key = (one.phase, one.kind, one.axes.join("*"));
            let at = groups.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
                groups.push((key, Group::default()));
                groups.len() - 1
            });
            let group = &mut groups[at].1;
            group.count += 1;
            group.values += one.values;
            group.bytes += one.bytes;
            if !one.origin.is_empty() && !group.origins.contains(&one.origin.as_str()) {
                group.origins.push(&one.origin);
            }
        }
        let width = groups.iter().map(|((_, _, axes), _)| axes.len()).max().unwrap_or(0);
        for ((phase, kind, axes), group) in &groups {
            let Group { count: number, values, bytes: sent, .. } = group;
            let values =
                if values > number { format!(" of {}", count(*values, "value")) } else { String::new() };
            writeln!(
                f,
                "  {phase:8}  {kind:14}  {axes:width$}  {:>10}  {number:>4}{values}{}",
                bytes(*sent),
                at(&group.origins)
            )?;
        }
        Ok(())
    }
}

/// The places in the file of the collectives of a line.
fn at(origins: &[&str]) -> String {
    match origins {
        [] => String::new(),
        [one] => format!("  at {}", visible(one)),
        [first, rest @ ..] => format!("  at {} and {} more", visible(first), rest.len()),
    }
}
