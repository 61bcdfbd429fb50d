//! The stages of a cut: the nodes of the file in each, with their times and the bytes that leave it.

use super::times::Times;
use super::{StageFacts, share};
use ir::{ChunkPhase, Definition, Module, NodeId, Phase, Role, StageTable, ValueId};
use std::collections::BTreeSet;

impl StageFacts {
    /// The facts of all stages, in their order.
    pub(super) fn all(module: &Module, pipeline: &StageTable, times: &Times) -> Vec<Self> {
        let forward = divided(module);
        let stages = (0..).zip(&pipeline.placement);
        let of = |(stage, &rank): (u32, &u32)| Self {
            delay: pipeline.delays.get(stage as usize).copied(),
            ..Self::of(module, &forward, stage, rank, times)
        };
        let mut all: Vec<Self> = stages.map(of).collect();
        let slowest = all.iter().map(Self::ms).fold(0.0, f64::max);
        all.iter_mut().for_each(|stage| stage.share_of_slowest = share(stage.ms(), slowest));
        all
    }

    fn of(module: &Module, forward: &[NodeId], stage: u32, rank: u32, times: &Times) -> Self {
        let own = forward.iter().map(|&id| module.node(id)).filter(|node| node.stage == stage);
        let mut origins = own.map(|node| &*node.origin).filter(|origin| !origin.is_empty());
        let first = origins.next().unwrap_or_default();
        let last = origins.next_back().unwrap_or(first);
        let states = module.states.values().filter(|state| state.stage == stage);
        let parameters = states.filter(|state| state.role == Role::Parameter);
        let sent = |is_wanted: &dyn Fn(u32) -> bool| {
            let sent = times.sent().filter(|(dependency, _)| dependency.from.chunk == stage);
            let sent = sent.filter(|(dependency, _)| is_wanted(dependency.to.chunk));
            sent.map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
        };
        let splits = module.pipeline.as_ref().is_some_and(|pipeline| pipeline.timetable.splits_backward());
        let ms = |phase| times.task(ChunkPhase::new(phase, stage));
        Self {
            rank,
            first: first.to_owned(),
            last: last.to_owned(),
            delay: None,
            parameters: parameters.filter_map(|state| state.ty.numel()).fold(0, u64::saturating_add),
            forward_ms: ms(Phase::Forward),
            backward_ms: ms(Phase::Backward),
            weight_ms: splits.then(|| ms(Phase::Weight)),
            share_of_slowest: 0.0,
            sent_forward: sent(&|to| to > stage),
            sent_backward: sent(&|to| to < stage),
        }
    }

    /// Milliseconds of all its tasks for a microbatch.
    fn ms(&self) -> f64 {
        self.forward_ms + self.backward_ms + self.weight_ms.unwrap_or_default()
    }
}

/// The nodes of the forward phase that depend on inputs. Other nodes, such as transposes of weights, may be far from the nodes of their stage.
fn divided(module: &Module) -> Vec<NodeId> {
    let mut dependent: BTreeSet<ValueId> = BTreeSet::new();
    let mut divided = vec![];
    for (id, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        let depends = |value: &ValueId| {
            matches!(module.value(*value).definition, Definition::Input(_)) || dependent.contains(value)
        };
        if node.operands.iter().any(depends) {
            dependent.extend(node.results.iter().copied());
            divided.push(id);
        }
    }
    divided
}
