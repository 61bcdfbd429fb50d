//! Sums over microbatches: each addend is added where it is made, or written there in the first place.

use super::draft::{Draft, Drafts, Located};
use crate::layout::Layout;
use crate::program::{Kernel, Microbatches, Section};
use cranelift_entity::EntitySet;
use ir::timetable::Part;
use ir::{Definition, Diagnostic, Movement, Node, NodeId, Op, ValueId};

/// A sum over microbatches: an `accumulate`, read through views back to what a kernel makes.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// The result of the `accumulate`.
    pub(super) value: ValueId,
    /// The views between what is added up and the operand of the `accumulate`, first to last.
    pub(super) views: Vec<NodeId>,
    /// Whether nothing else reads what is added up.
    pub(super) alone: bool,
}

impl Drafts<'_> {
    /// Finds what each `accumulate` adds up: its operand, or, past views that nothing else reads, what they look at.
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

    /// Adds what was just made to the sums over microbatches that want it.
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

    /// The values whose sums are still to be made: those no instruction of the microbatch makes, early updates aside.
    /// In a pipeline, the first part of the stage that is fed the value makes them.
    pub(super) fn leftover_sums(&self, part: Option<Part>) -> Vec<ValueId> {
        let is_here = |value| part.is_none() || self.part_of(value).is_none_or(|own| Some(own) == part);
        let is_left = |value: ValueId, sums: &[Sum]| {
            !sums.is_empty() && self.located[value].is_some() && is_here(value)
        };
        self.sums.iter().filter(|(value, sums)| is_left(*value, sums)).map(|(value, _)| value).collect()
    }

    /// Says where a sum is, through the views between.
    pub(super) fn locate_sum(&mut self, sum: &Sum, mut located: Located) {
        for &view in &sum.views {
            self.summed_views.insert(view);
            located = match (
                &self.module.node(view).op,
                located.layout.reshape(&self.sizes(self.module.node(view).results[0])),
            ) {
                // The copy that the reshape needs belongs after the loop; the update section has none of it before.
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

    /// With one microbatch a sum is its only addend; else it has been made where its addend was.
    pub(super) fn accumulate(&mut self, node: &Node) -> Result<(), Diagnostic> {
        if self.microbatches == Microbatches::One {
            self.located[node.results[0]] = Some(self.locate(node.operands[0])?);
        }
        self.locate(node.results[0]).map(drop)
    }
}
