//! Sums over microbatches: each addend is added right after it is made, or its kernel adds it directly to the sum.

use super::draft::{Draft, Drafts, Located};
use crate::layout::Layout;
use crate::{Kernel, Microbatches, Section};
use cranelift_entity::EntitySet;
use ir::timetable::ChunkPhase;
use ir::{Definition, Diagnostic, Movement, Node, NodeId, Op, ValueId};

/// A sum over microbatches: an `accumulate`, traced back through views to the result of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// The result of the `accumulate`.
    pub(super) value: ValueId,
    /// The views between the added value and the operand of the `accumulate`, first to last.
    pub(super) views: Vec<NodeId>,
    /// Whether nothing else reads the added value.
    pub(super) alone: bool,
}

impl Drafts<'_> {
    /// Finds the value that each `accumulate` adds: its operand, or the value behind the operand's views if nothing else reads these views.
    pub(super) fn find_sums(&mut self, live: &EntitySet<NodeId>) {
        let uses = self.module.uses();
        let alone = |value: ValueId| {
            let readers = uses[value].iter().filter(|&&reader| live.contains(reader)).count();
            readers == 1 && self.module.roots().all(|root| root != value)
        };
        let accumulates = self.module.nodes().filter(|(id, _)| live.contains(*id));
        let mut found = Vec::new();
        for (_, node) in accumulates.filter(|(_, node)| matches!(node.op, Op::Accumulate(_))) {
            let is_passed = |&(id, _): &(NodeId, ValueId)| {
                let view = self.module.node(id);
                view.phase.is_microbatch() && alone(view.results[0])
            };
            let views = self.module.views(node.operands[0], Movement::is_rearrangement);
            let views: Vec<_> = views.take_while(is_passed).collect();
            let base = views.last().map_or(node.operands[0], |&(_, source)| source);
            let views = views.into_iter().rev().map(|(view, _)| view).collect();
            found.push((base, Sum { value: node.results[0], views, alone: alone(base) }));
        }
        found.into_iter().for_each(|(base, sum)| self.sums[base].push(sum));
    }

    /// Adds a value that was just made to its sums over microbatches.
    pub(super) fn sum_up(&mut self, value: ValueId, section: Section) {
        if section == Section::Prepare {
            return;
        }
        for sum in std::mem::take(&mut self.sums[value]) {
            let Some(from) = self.located[value].clone() else { continue };
            let Definition::Node(node, _) = self.module.value(sum.value).definition else { continue };
            let layout = match from.layout.memory_order() {
                Some(order) => Layout::in_order(&from.layout.sizes, &order),
                None => Layout::dense(&from.layout.sizes),
            };
            let to = self.allocate(from.dtype, layout);
            self.buffers[to.buffer].carried = true;
            self.instructions.push(Draft {
                section,
                of_microbatch: false,
                part: None,
                kernel: Kernel::Accumulate,
                operands: vec![from],
                results: vec![to.clone()],
                accumulates: true,
                parts: None,
                node,
                origin: self.module.node(node).origin.clone(),
            });
            self.locate_sum(&sum, to);
        }
    }

    /// Returns the values whose sums are still to be made at the end of a microbatch, because no instruction of it makes the value, as with
    /// inputs. Values of instructions that early updates moved have no place yet, and are not included. In a pipeline, the first part of
    /// the stage that has the value as an input makes its sum.
    pub(super) fn leftover_sums(&self, part: Option<ChunkPhase>) -> Vec<ValueId> {
        let is_here = |value| part.is_none() || self.part_of(value).is_none_or(|own| Some(own) == part);
        let is_left = |value: ValueId, sums: &[Sum]| {
            !sums.is_empty() && self.located[value].is_some() && is_here(value)
        };
        self.sums.iter().filter(|(value, sums)| is_left(*value, sums)).map(|(value, _)| value).collect()
    }

    /// Sets the place of a sum, after the views between.
    pub(super) fn locate_sum(&mut self, sum: &Sum, mut located: Located) {
        for &view in &sum.views {
            self.summed_views.insert(view);
            located = match (
                &self.module.node(view).op,
                located.layout.reshape(&self.sizes(self.module.node(view).results[0])),
            ) {
                // A reshape that needs a copy makes it in the update section, after the last microbatch.
                (Op::Reshape(_), None) => {
                    let node = self.module.node(view);
                    let dense = self.copy(located, Section::Update, view, node.origin.clone());
                    Located { layout: Layout::dense(&self.sizes(node.results[0])), ..dense }
                }
                _ => self.view(view, located),
            };
        }
        self.located[sum.value] = Some(located);
    }

    /// Places the result of an `accumulate`. With one microbatch it is the only addend; otherwise the sum was made with its addend.
    pub(super) fn accumulate(&mut self, node: &Node) -> Result<(), Diagnostic> {
        if self.microbatches == Microbatches::One {
            self.located[node.results[0]] = Some(self.locate(node.operands[0])?);
        }
        self.locate(node.results[0]).map(drop)
    }
}
