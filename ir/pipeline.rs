//! Pipelines: the stages of a program, the pipeline ranks that own them, and the order in which each rank works.
//!
//! Nodes and states name their stage. A program without a table of stages has a single stage, stage 0.

mod rank;

use crate::timetable::{Dependency, Part, Timetable};
use crate::{Definition, Module, NodeId, Op, Phase, State, ValueId};
use std::collections::BTreeSet;
use std::ops::Range;

/// The stage of nodes and states of which every stage has its own copy: constants, and counters that all stages count alike.
pub const EVERY_STAGE: u32 = u32::MAX;

/// The table of stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The name of the schedule that made the timetable.
    pub schedule: String,
    /// The number of microbatches of a step.
    pub microbatches: u32,
    /// The pipeline rank of each stage. A rank may own several stages.
    pub placement: Vec<u32>,
    /// For each stage, the number of updates between the weights that it reads and the newest weights. Empty in a synchronous
    /// schedule.
    pub delays: Vec<u32>,
    /// The order in which each pipeline rank works.
    pub timetable: Timetable,
}

impl Pipeline {
    /// Returns the number of pipeline ranks.
    pub fn ranks(&self) -> u32 {
        self.timetable.ranks.len() as u32
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> u32 {
        self.placement.len() as u32
    }

    /// Whether steps follow each other without a flush, so that stages read the weights of earlier updates.
    pub fn is_asynchronous(&self) -> bool {
        !self.delays.is_empty()
    }

    /// Returns the number of updates between the weights that a stage reads and the newest weights.
    pub fn delay_of(&self, stage: u32) -> u32 {
        self.delays.get(stage as usize).copied().unwrap_or(0)
    }

    /// Returns the pipeline with the timetable of so many steps as one long step.
    pub fn unrolled(&self, steps: u32) -> Self {
        let timetable = self.timetable.unrolled(self.microbatches, steps);
        Self { microbatches: self.microbatches * steps, timetable, ..self.clone() }
    }

    /// Returns the stages of a pipeline rank, in order.
    pub fn stages_of(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.stages()).filter(move |&stage| self.placement[stage as usize] == rank)
    }
}

impl Module {
    /// Returns the number of ranks of the program: the devices of the mesh, for each pipeline rank. Ranks are numbered stage by
    /// stage.
    pub fn ranks(&self) -> u64 {
        self.mesh.devices() * self.pipeline.as_ref().map_or(1, |pipeline| u64::from(pipeline.ranks()))
    }

    /// Returns the place of a rank in the mesh.
    pub fn place_in_mesh(&self, rank: u64) -> u64 {
        rank % self.mesh.devices()
    }

    /// Returns the pipeline ranks that have a state: all of them if every stage has it, otherwise the rank of its stage.
    pub fn pipeline_ranks_with(&self, state: &State) -> Range<u32> {
        match &self.pipeline {
            None => 0..1,
            Some(pipeline) if state.stage == EVERY_STAGE => 0..pipeline.ranks(),
            Some(pipeline) => {
                let rank = pipeline.placement[state.stage as usize];
                rank..rank + 1
            }
        }
    }

    /// Whether a rank has a part of a state.
    pub fn has_state(&self, rank: u64, state: &State) -> bool {
        self.pipeline_ranks_with(state).contains(&((rank / self.mesh.devices()) as u32))
    }

    /// Returns the stage of a value: [`EVERY_STAGE`] for inputs.
    pub fn stage_of(&self, value: ValueId) -> u32 {
        match self.value(value).definition {
            Definition::Input(_) => EVERY_STAGE,
            Definition::State(id) => self.states[id].stage,
            Definition::Node(id, _) => self.node(id).stage,
        }
    }

    /// Returns the sending and the receiving stage of a node, if it is a transfer.
    pub fn transfers(&self, id: NodeId) -> Option<(u32, u32)> {
        let node = self.node(id);
        match node.op {
            Op::Transfer(_) => Some((self.stage_of(node.operands[0]), node.stage)),
            _ => None,
        }
    }

    /// Returns the dependencies between the parts of a microbatch: by transfers, and within each stage by phase.
    pub fn dependencies(&self) -> Vec<Dependency> {
        let Some(pipeline) = &self.pipeline else { return vec![] };
        let part = |phase, chunk| Part { phase, chunk };
        let mut all = BTreeSet::new();
        for stage in 0..pipeline.stages() {
            let phases = [Phase::Forward, Phase::Backward, Phase::Weight];
            for pair in phases.windows(2) {
                all.insert((part(pair[0], stage), part(pair[1], stage)));
            }
        }
        for (id, node) in self.nodes().filter(|(_, node)| node.phase.is_microbatch()) {
            if let Some((from, to)) = self.transfers(id) {
                all.insert((part(self.phase_of(node.operands[0]), from), part(node.phase, to)));
            }
        }
        let phases = pipeline.timetable.phases();
        let has = |part: &Part| phases.contains(&part.phase);
        let all = all.into_iter().filter(|(from, to)| has(from) && has(to));
        all.map(|(from, to)| Dependency { from, to }).collect()
    }
}
