//! Reports a decision: each block, and each value of it with its fate.

use super::Recompute;
use super::blocks::{base, local_bytes};
use super::choices::{BlockDecision, Choices, Decision};
use super::cut::{Network, is_repeatable};
use crate::reports::{BlockReport, Fate, RecomputeReport, ValueReport};
use ir::analysis::takes_no_time;
use ir::{Definition, NodeId, ValueId};
use std::collections::BTreeSet;

impl Choices<'_> {
    /// Reports a decision that was made with these options.
    pub(super) fn report(&self, decision: &Decision, options: &Recompute) -> RecomputeReport {
        let mut report = RecomputeReport::default();
        for (index, (nodes, made)) in self.blocks.repeatable().iter().zip(&decision.blocks).enumerate() {
            let price = options.price_in(index);
            report.blocks.push(self.block(nodes, made, price));
            let is_computed = |id: &&NodeId| !takes_no_time(&self.module.node(**id).op);
            for &id in nodes.iter().filter(is_computed) {
                let results = self.module.node(id).results.iter();
                report.values.extend(results.map(|&value| self.value(index, made, id, value)));
            }
        }
        report
    }

    fn block(&self, nodes: &[NodeId], made: &BlockDecision, price: u64) -> BlockReport {
        let [first, last] =
            [nodes[0], nodes[nodes.len() - 1]].map(|node| self.module.node(node).origin.to_string());
        let mut operators: Vec<(&'static str, usize)> = Vec::new();
        for &node in nodes.iter().filter(|node| made.repeated.contains(node)) {
            let name = self.module.node(node).op.name();
            match operators.iter_mut().find(|(other, _)| *other == name) {
                Some((_, count)) => *count += 1,
                None => operators.push((name, 1)),
            }
        }
        let [kept_before, kept] = made.kept;
        BlockReport { first, last, operators, picoseconds: made.time, kept_before, kept, price }
    }

    fn value(&self, block: usize, made: &BlockDecision, id: NodeId, value: ValueId) -> ValueReport {
        let node = self.module.node(id);
        let network = &self.networks[block];
        let is_kept = |needed: &ValueId| base(self.module, *needed) == value;
        let fate = if self.blocks.between.contains(value) {
            Fate::Between
        } else if made.repeated.contains(&id) {
            Fate::Repeated
        } else if made.needed.iter().any(is_kept) {
            Fate::Kept
        } else {
            Fate::Unread
        };
        let picoseconds = match fate {
            Fate::Repeated => Some(network.time(id)),
            Fate::Between | Fate::Kept | Fate::Unread => self.time_of_repeating(network, made, id),
        };
        ValueReport {
            value,
            copy: None,
            origin: node.origin.to_string(),
            operator: node.op.name(),
            block,
            bytes: local_bytes(self.module, value),
            picoseconds,
            fate,
        }
    }

    /// Returns the picoseconds of a node and of all nodes that would have to be repeated with it. `None` if one of them must not be
    /// repeated.
    fn time_of_repeating(&self, network: &Network, made: &BlockDecision, id: NodeId) -> Option<u64> {
        let (mut seen, mut pending, mut total) = (BTreeSet::new(), vec![id], 0u64);
        while let Some(id) = pending.pop() {
            if !network.contains(id) || made.repeated.contains(&id) || !seen.insert(id) {
                continue;
            }
            if !is_repeatable(self.module.node(id)) {
                return None;
            }
            total = total.saturating_add(network.time(id));
            let absent =
                |value: &&ValueId| !made.needed.contains(value) && !self.blocks.between.contains(**value);
            let operands = self.module.node(id).operands.iter().filter(absent);
            pending.extend(operands.filter_map(|&value| match self.module.value(value).definition {
                Definition::Node(id, _) => Some(id),
                Definition::Input(_) | Definition::State(_) => None,
            }));
        }
        Some(total)
    }
}
