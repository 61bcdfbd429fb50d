//! The stages of a program: of its states, values and transfers, and the program of one pipeline rank.

mod rank;

use crate::timetable::{ChunkPhase, Dependency};
use crate::{Definition, EVERY_STAGE, Module, NodeId, Op, Phase, State, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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

    /// Returns the bytes that each device sends from one part of a microbatch to another, by transfers.
    pub fn transfer_bytes(&self) -> BTreeMap<Dependency, u64> {
        let mut bytes: BTreeMap<Dependency, u64> = BTreeMap::new();
        for (id, node) in self.nodes().filter(|(_, node)| node.phase.is_microbatch()) {
            let Some((from, to)) = self.transfers(id) else { continue };
            let from = ChunkPhase::new(self.phase_of(node.operands[0]), from);
            let to = ChunkPhase::new(node.phase, to);
            let sent = bytes.entry(Dependency { from, to }).or_default();
            let of_value = self.ty(node.operands[0]).local_bytes(&self.mesh).unwrap_or(u64::MAX);
            *sent = sent.saturating_add(of_value);
        }
        bytes
    }

    /// Returns the dependencies between the parts of a microbatch: by transfers, and within each stage by phase.
    pub fn dependencies(&self) -> Vec<Dependency> {
        let Some(pipeline) = &self.pipeline else { return vec![] };
        let part = |phase, chunk| ChunkPhase { phase, chunk };
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
        let has = |part: &ChunkPhase| phases.contains(&part.phase);
        let all = all.into_iter().filter(|(from, to)| has(from) && has(to));
        all.map(|(from, to)| Dependency { from, to }).collect()
    }
}
