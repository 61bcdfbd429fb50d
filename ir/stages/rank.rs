//! The program of one pipeline rank: the part of a program with stages that this rank runs.

use crate::EVERY_STAGE;
use crate::module::{Definition, Node, Value};
use crate::ops::transfer::Transfer;
use crate::{Input, Module, NodeId, Op, Phase, StateId, Tier, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Module {
    /// Returns the program of a pipeline rank, for lowering. It has the nodes and states of the rank's stages and those of every
    /// stage. Each stage of the rank has its own copies of the inputs and of microbatch nodes of every stage. A transfer between
    /// ranks is in the programs of both: the sender's has no reader, and the receiver's operand has no defining node in the order,
    /// so the verifier refuses the program. If backward reads a state that each microbatch changes, it reads a copy that forward
    /// made.
    ///
    /// Microbatch phases are sorted into parts: forward by ascending stage, the other phases by descending stage. Outputs are the
    /// ones that the rank computes or receives from another rank.
    pub fn of_pipeline_rank(&self, rank: u32) -> Self {
        let Some(pipeline) = &self.pipeline else { return self.clone() };
        let stages = pipeline.stages_of(rank).collect();
        let mut part = RankPart { module: self.clone(), stages, copies: BTreeMap::new() };
        part.select();
        part.states();
        part.share();
        part.snapshot_states();
        part.accumulate_in_backward();
        part.sort();
        part.outputs();
        part.module
    }
}

struct RankPart {
    module: Module,
    /// The stages of the rank.
    stages: BTreeSet<u32>,
    /// The copy of a shared value for each stage, by the original value and the stage.
    copies: BTreeMap<(ValueId, u32), ValueId>,
}

impl RankPart {
    fn is_own(&self, stage: u32) -> bool {
        stage == EVERY_STAGE || self.stages.contains(&stage)
    }

    fn first_stage(&self) -> u32 {
        self.stages.first().copied().unwrap_or(0)
    }

    /// Removes the nodes of other ranks.
    fn select(&mut self) {
        let module = &self.module;
        let is_here = |&id: &NodeId| match module.transfers(id) {
            Some((from, to)) => self.is_own(from) || self.is_own(to),
            None => self.is_own(module.node(id).stage),
        };
        let order = module.order.iter().copied().filter(is_here).collect();
        self.module.order = order;
    }

    /// Returns the stage on which a node reads its operands. Nodes of every stage that run once a step read the first stage's
    /// copies.
    fn reads_on(&self, id: NodeId) -> u32 {
        let stage = self.module.transfers(id).map_or(self.module.node(id).stage, |(from, _)| from);
        if stage == EVERY_STAGE { self.first_stage() } else { stage }
    }

    /// Copies states that each microbatch changes, in forward of their stage, for later phases and for other stages of the rank.
    fn snapshot_states(&mut self) {
        let module = &self.module;
        let changes = |id: &StateId| {
            let output = module.states[*id].output;
            output.is_some_and(|output| module.phase_of(output).is_microbatch())
                && self.is_own(module.states[*id].stage)
        };
        let changing: BTreeMap<ValueId, u32> = module
            .states
            .keys()
            .filter(changes)
            .map(|id| (module.states[id].input, module.states[id].stage))
            .map(|(value, stage)| (value, if stage == EVERY_STAGE { self.first_stage() } else { stage }))
            .collect();
        let mut made: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let (mut copies, order) = (vec![], self.module.order.clone());
        for id in order {
            let (node, stage) = (self.module.node(id).clone(), self.reads_on(id));
            if !node.phase.is_microbatch() || matches!(node.op, Op::Transfer(_)) {
                continue;
            }
            for (index, value) in node.operands.iter().enumerate() {
                let Some(&owner) = changing.get(value) else { continue };
                if owner == stage && node.phase == Phase::Forward {
                    continue;
                }
                let copy = *made.entry(*value).or_insert_with(|| {
                    let (id, copy) = self.copy_of_state(*value, owner);
                    copies.push(id);
                    copy
                });
                self.module.nodes[id].operands[index] = copy;
            }
        }
        let forward = self.module.order.iter().position(|&id| self.module.node(id).phase >= Phase::Forward);
        let at = forward.unwrap_or(self.module.order.len());
        self.module.order.splice(at..at, copies);
    }

    /// In an asynchronous schedule, makes sums of values of forward read copies of the values that are made in backward, because
    /// forward of the next step runs before the update reads the sums over microbatches.
    fn accumulate_in_backward(&mut self) {
        if self.module.pipeline.as_ref().is_none_or(|pipeline| !pipeline.is_asynchronous()) {
            return;
        }
        let (mut made, mut copies) = (BTreeMap::new(), vec![]);
        for id in self.module.order.clone() {
            let node = self.module.node(id);
            let value = node.operands.first().copied();
            let Some(value) = value.filter(|_| matches!(node.op, Op::Accumulate(_))) else { continue };
            if self.module.phase_of(value) != Phase::Forward {
                continue;
            }
            let copy = *made.entry(value).or_insert_with(|| {
                let (id, copy) = self.copy_of(value, Phase::Backward, self.first_stage());
                copies.push(id);
                copy
            });
            self.module.nodes[id].operands[0] = copy;
        }
        let is_later = |&id: &NodeId| self.module.node(id).phase > Phase::Backward;
        let at = self.module.order.iter().position(is_later).unwrap_or(self.module.order.len());
        self.module.order.splice(at..at, copies);
    }

    fn copy_of_state(&mut self, value: ValueId, stage: u32) -> (NodeId, ValueId) {
        self.copy_of(value, Phase::Forward, stage)
    }

    fn copy_of(&mut self, value: ValueId, phase: Phase, stage: u32) -> (NodeId, ValueId) {
        let node = Node {
            op: Transfer.into(),
            operands: [value].into_iter().collect(),
            results: Default::default(),
            phase,
            stage,
            copy: 0,
            place: Tier::Device,
            origin: Arc::from(""),
            by: Arc::from("stage"),
        };
        let (id, results) = self.add(node, &[value]);
        (id, results[0])
    }

    /// Adds a node whose results have the types of `like`.
    fn add(&mut self, node: Node, like: &[ValueId]) -> (NodeId, Vec<ValueId>) {
        let id = self.module.nodes.next_key();
        let results: Vec<ValueId> = (0..)
            .zip(like)
            .map(|(index, &value)| {
                let ty = self.module.ty(value).clone();
                self.module.values.push(Value { ty, definition: Definition::Node(id, index) })
            })
            .collect();
        self.module.nodes.push(Node { results: results.iter().copied().collect(), ..node });
        (id, results)
    }

    /// Gives each stage its own copies of the inputs and of the microbatch nodes of every stage that it reads.
    fn share(&mut self) {
        let wanted = self.wanted();
        self.share_inputs(&wanted);
        let order = std::mem::take(&mut self.module.order);
        let mut shared = Vec::with_capacity(order.len());
        for id in order {
            let node = self.module.node(id).clone();
            if !is_shared(&node) {
                let stage = self.reads_on(id);
                let operands = node.operands.iter().map(|&value| self.on(value, stage)).collect();
                self.module.nodes[id].operands = operands;
                shared.push(id);
                continue;
            }
            let stages: BTreeSet<u32> =
                node.results.iter().filter_map(|result| wanted.get(result)).flatten().copied().collect();
            for stage in stages {
                let operands = node.operands.iter().map(|&value| self.on(value, stage)).collect();
                let (id, results) = self.add(Node { operands, stage, ..node.clone() }, &node.results);
                for (&old, new) in node.results.iter().zip(results) {
                    self.copies.insert((old, stage), new);
                }
                shared.push(id);
            }
        }
        self.module.order = shared;
        let first = self.first_stage();
        let roots: Vec<ValueId> = self.module.roots().collect();
        let on_first: BTreeMap<ValueId, ValueId> =
            roots.into_iter().map(|root| (root, self.on(root, first))).collect();
        for output in &mut self.module.outputs {
            output.value = on_first[&output.value];
        }
        for state in self.module.states.values_mut() {
            state.output = state.output.map(|output| on_first[&output]);
        }
    }

    /// Returns a stage's copy of a value, or the value itself if it has none.
    fn on(&self, value: ValueId, stage: u32) -> ValueId {
        self.copies.get(&(value, stage)).copied().unwrap_or(value)
    }

    /// Returns the stages that read each input and each result of a shared node, also through other shared nodes.
    fn wanted(&self) -> BTreeMap<ValueId, BTreeSet<u32>> {
        let module = &self.module;
        let mut wanted: BTreeMap<ValueId, BTreeSet<u32>> = BTreeMap::new();
        for root in module.roots() {
            wanted.entry(root).or_default().insert(self.first_stage());
        }
        for (id, node) in module.nodes().rev() {
            let stages: BTreeSet<u32> = if is_shared(node) {
                node.results.iter().filter_map(|result| wanted.get(result)).flatten().copied().collect()
            } else {
                [self.reads_on(id)].into()
            };
            node.operands.iter().for_each(|&value| wanted.entry(value).or_default().extend(&stages));
        }
        wanted
    }

    /// Adds an input for each stage that reads it, which is set when the stage's forward of a microbatch begins. An input that no
    /// stage of the rank reads stays in the table, which determines the number of samples of a microbatch.
    fn share_inputs(&mut self, wanted: &BTreeMap<ValueId, BTreeSet<u32>>) {
        let inputs = std::mem::take(&mut self.module.inputs);
        for input in inputs {
            let unread = BTreeSet::from([self.first_stage()]);
            for &stage in wanted.get(&input.value).unwrap_or(&unread) {
                let definition = Definition::Input(self.module.inputs.len() as u32);
                let ty = self.module.ty(input.value).clone();
                let value = self.module.values.push(Value { ty, definition });
                self.copies.insert((input.value, stage), value);
                self.module.inputs.push(Input { value, stage, ..input.clone() });
            }
        }
    }

    /// Sorts the nodes of microbatch phases by part.
    fn sort(&mut self) {
        let module = &self.module;
        let part = |&id: &NodeId| {
            let node = module.node(id);
            let stage = module
                .transfers(id)
                .map_or(node.stage, |(from, _)| if self.is_own(from) { from } else { node.stage });
            let place = match node.phase {
                Phase::Forward => i64::from(stage),
                Phase::Backward | Phase::Weight => -i64::from(stage),
                Phase::Prepare | Phase::Update => 0,
            };
            (node.phase, place)
        };
        let mut order = module.order.clone();
        order.sort_by_key(part);
        self.module.order = order;
    }

    /// Keeps the outputs whose values the rank has; values from other ranks are replaced by the results of their transfers.
    fn outputs(&mut self) {
        let module = &self.module;
        let received: BTreeMap<ValueId, ValueId> = module
            .nodes()
            .filter(|(id, node)| module.transfers(*id).is_some() && self.is_own(node.stage))
            .map(|(_, node)| (node.operands[0], node.results[0]))
            .collect();
        let known = |value: ValueId| {
            if self.is_own(module.stage_of(value)) { Some(value) } else { received.get(&value).copied() }
        };
        let outputs = module.outputs.iter();
        let outputs = outputs
            .filter_map(|output| Some(crate::Output { value: known(output.value)?, ..output.clone() }));
        self.module.outputs = outputs.collect();
    }

    /// Keeps the states of other ranks in the table, without new values.
    fn states(&mut self) {
        let others: Vec<StateId> = self
            .module
            .states
            .iter()
            .filter(|(_, state)| !self.is_own(state.stage))
            .map(|(id, _)| id)
            .collect();
        others.into_iter().for_each(|id| self.module.states[id].output = None);
    }
}

/// Whether each stage that reads a node has its own copy of the node.
fn is_shared(node: &Node) -> bool {
    node.stage == EVERY_STAGE && node.phase.is_microbatch()
}
