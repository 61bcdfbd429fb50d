//! Pipelines: the parts of a rank's microbatches, the messages between ranks, and the memory that outlives a part.
//!
//! Each part is drafted as a run of instructions of the section `microbatch`. A buffer that is made in one part and read in another lies in
//! a block. Each microbatch that is between these parts has a block of this kind in a slot. Blocks that live from one phase to another
//! share one pool, whatever their stage, and a slot has the bytes of the largest block. The memory is planned once, not for each
//! microbatch.

use super::draft::{BufferId, Draft, Drafts, Located};
use super::place::root;
use crate::layout::Layout;
use crate::{Block, BlockId, Kernel, Message, RankPipeline, Turn};
use cranelift_entity::EntitySet;
use ir::analysis::memory_plan::aligned;
use ir::analysis::{Lifetime, live_nodes};
use ir::timetable::{ChunkPhase, StreamTask, Task};
use ir::{
    Definition, Diagnostic, EVERY_STAGE, Initializer, Module, Node, NodeId, Phase, Role, StageTable, StateId,
    Tier,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The pipeline rank that a program is for, with its table of stages.
#[derive(Clone, Debug)]
pub(super) struct RankStages<'m> {
    pipeline: &'m StageTable,
    rank: u32,
    /// The turn of each task of the rank.
    turns: BTreeMap<Task, usize>,
}

impl<'m> RankStages<'m> {
    pub(super) fn new(pipeline: &'m StageTable, rank: u32) -> Self {
        let tasks = pipeline.timetable.ranks.get(rank as usize).into_iter().flatten();
        let turns = tasks.enumerate().map(|(turn, &task)| (task, turn)).collect();
        Self { pipeline, rank, turns }
    }

    /// Returns the turn of a part and a microbatch.
    fn turn(&self, part: ChunkPhase, microbatch: u32) -> Option<usize> {
        self.turns.get(&part.task(microbatch)).copied()
    }

    /// Returns whether one part runs before another in every microbatch.
    fn always_before(&self, one: ChunkPhase, other: ChunkPhase) -> bool {
        if self.pipeline.is_asynchronous() {
            return one.chunk == other.chunk && one.phase < other.phase;
        }
        let turns = |microbatch| self.turn(one, microbatch).zip(self.turn(other, microbatch));
        (0..self.pipeline.microbatches)
            .all(|microbatch| turns(microbatch).is_some_and(|(one, other)| one < other))
    }

    fn rank_of(&self, stage: u32) -> u32 {
        self.pipeline.placement.get(stage as usize).copied().unwrap_or(self.rank)
    }

    /// Returns the message of a transfer, or `None` if the transfer is a copy on this rank.
    fn message(&self, module: &Module, id: NodeId) -> Option<Message> {
        let (from, to) = module.transfers(id)?;
        let own = |stage| if stage == EVERY_STAGE { self.rank } else { self.rank_of(stage) };
        let (from, to) = (own(from), own(to));
        (from != to).then(|| Message { from, to, channel: id.as_u32() })
    }

    /// Returns the part of a microbatch that runs a node; `None` for a node that runs once a step.
    pub(super) fn part(&self, module: &Module, id: NodeId) -> Option<ChunkPhase> {
        let node = module.node(id);
        let is_sent = self.message(module, id).is_some_and(|message| message.from == self.rank);
        let stage = match module.transfers(id) {
            Some((from, _)) if is_sent => from,
            _ => node.stage,
        };
        node.phase.is_microbatch().then_some(ChunkPhase { phase: node.phase, chunk: stage })
    }

    /// Returns the parts of a microbatch in which the rank has nodes or tasks, in the order of the nodes.
    pub(super) fn parts(&self, module: &Module) -> Vec<ChunkPhase> {
        let mut parts: Vec<ChunkPhase> = self.tasks().iter().map(|task| task.part).collect();
        parts.extend(module.order().iter().filter_map(|&id| self.part(module, id)));
        let place = |part: &ChunkPhase| match part.phase {
            Phase::Forward => (part.phase, i64::from(part.chunk)),
            _ => (part.phase, -i64::from(part.chunk)),
        };
        parts.sort_by_key(place);
        parts.dedup();
        parts
    }

    /// Returns the forward tasks of the rank that run ahead of the first step.
    fn prologue(&self) -> Vec<Task> {
        if self.pipeline.is_asynchronous() {
            self.pipeline.timetable.prologue(self.rank as usize)
        } else {
            vec![]
        }
    }

    /// Returns the forward part of the rank's first stage.
    pub(super) fn forward(&self) -> ChunkPhase {
        ChunkPhase { phase: Phase::Forward, chunk: self.pipeline.stages_of(self.rank).next().unwrap_or(0) }
    }

    /// Returns the delay of the rank's weights, in updates. An asynchronous schedule gives a rank one stage.
    pub(super) fn delay(&self) -> u32 {
        self.pipeline.stages_of(self.rank).map(|stage| self.pipeline.delay_of(stage)).max().unwrap_or(0)
    }

    /// Returns whether the rank has the states of a stage.
    pub(super) fn has(&self, stage: u32) -> bool {
        stage == EVERY_STAGE || self.rank_of(stage) == self.rank
    }

    fn tasks(&self) -> &[Task] {
        self.pipeline.timetable.ranks.get(self.rank as usize).map_or(&[], |tasks| tasks)
    }
}

/// Returns the nodes of a pipeline rank on which an output, a state or another rank depends.
pub(super) fn live(module: &Module, stages: &RankStages) -> EntitySet<NodeId> {
    let mut live = live_nodes(module);
    for &id in module.order().iter().rev() {
        let sends = stages.message(module, id).is_some_and(|message| message.from == stages.rank);
        if sends {
            live.insert(id);
        }
        if live.contains(id) {
            for &operand in &module.node(id).operands {
                if let Definition::Node(maker, _) = module.value(operand).definition {
                    live.insert(maker);
                }
            }
        }
    }
    live
}

impl Drafts<'_> {
    /// Drafts a transfer: a message to another rank, a message from one, or a copy.
    pub(super) fn transfer(&mut self, id: NodeId, node: &Node) -> Result<(), Diagnostic> {
        let Some(stages) = &self.stages else {
            return Err(Diagnostic::new("a transfer has no stages to go between").at(node.origin.to_string()));
        };
        let (message, rank) = (stages.message(self.module, id), stages.rank);
        let section = self.section(id);
        let dense = |located: &Located| {
            located.layout == Layout::dense(&located.layout.sizes) && located.by_rank.is_empty()
        };
        let (mut operands, mut results) = (vec![], vec![]);
        if message.is_none_or(|message| message.from == rank) {
            let located = self.locate(node.operands[0])?;
            let is_dense = dense(&located);
            operands.push(if is_dense {
                located
            } else {
                self.copy(located, section, id, node.origin.clone())
            });
        }
        if message.is_none_or(|message| message.to == rank) {
            let sizes = self.sizes(node.results[0]);
            let located = self.allocate(self.module.ty(node.results[0]).dtype, Layout::dense(&sizes));
            self.located[node.results[0]] = Some(located.clone());
            results.push(located);
        }
        self.instructions.push(Draft {
            section,
            of_microbatch: false,
            part: None,
            kernel: message.map_or(Kernel::Copy, Kernel::Message),
            operands,
            results,
            accumulates: false,
            parts: None,
            node: id,
            origin: node.origin.clone(),
        });
        if self.located[node.results[0]].is_some() {
            self.sum_up(node.results[0], section);
        }
        Ok(())
    }
}

/// The parts of a rank's microbatches: the positions of their instructions, and the buffers that they touch.
pub(super) struct PartAccesses<'m> {
    /// The positions of each part.
    positions: Vec<(ChunkPhase, Range<u32>)>,
    /// The parts that touch each buffer.
    of: Vec<BTreeSet<ChunkPhase>>,
    stages: Option<RankStages<'m>>,
}

impl<'m> PartAccesses<'m> {
    /// Collects the accesses of drafted instructions. `position` gives the position of an instruction by its index.
    pub(super) fn of(
        drafts: &Drafts<'m>,
        scratch: &[Option<Located>],
        position: impl Fn(usize) -> u32,
    ) -> Self {
        let mut positions: Vec<(ChunkPhase, Range<u32>)> = vec![];
        let mut of = vec![BTreeSet::new(); if drafts.stages.is_some() { drafts.buffers.len() } else { 0 }];
        for ((index, draft), scratch) in drafts.instructions.iter().enumerate().zip(scratch) {
            let (Some(part), at) = (draft.part, position(index)) else { continue };
            match positions.last_mut().filter(|(last, _)| *last == part) {
                Some((_, range)) => range.end = at + 1,
                None => positions.push((part, at..at + 1)),
            }
            for located in draft.operands.iter().chain(&draft.results).chain(scratch) {
                of[root(&drafts.buffers, located.buffer)].insert(part);
            }
        }
        let fed =
            drafts.module.inputs.iter().map(|input| (input.value, drafts.located[input.value].as_ref()));
        let outputs = drafts.module.outputs.iter().zip(&drafts.outputs);
        let reported = outputs.map(|(output, located)| (output.value, located.as_ref()));
        for (value, located) in fed.chain(reported) {
            if let (Some(part), Some(located)) = (drafts.part_of(value), located) {
                of[root(&drafts.buffers, located.buffer)].insert(part);
            }
        }
        Self { positions, of, stages: drafts.stages.clone() }
    }

    /// Returns the part at a position of a microbatch.
    fn at(&self, position: u32) -> Option<ChunkPhase> {
        self.positions.iter().find(|(_, range)| range.contains(&position)).map(|(part, _)| *part)
    }

    /// Returns the positions of a part.
    pub(super) fn range(&self, part: ChunkPhase) -> Option<Range<u32>> {
        self.positions.iter().find(|(own, _)| *own == part).map(|(_, range)| range.clone())
    }

    /// Returns whether a result may take the place of an operand that, in the order of the instructions, dies at the position where the
    /// result is made. Every other part that touches the operand must have run by then, in the order of the timetable. And the joint memory
    /// must be alive in no more parts than the operand or the result is.
    pub(super) fn may_join(&self, operand: BufferId, result: BufferId, position: u32) -> bool {
        let (Some(stages), Some(here)) = (&self.stages, self.at(position)) else { return true };
        let (old, new) = (&self.of[operand], &self.of[result]);
        let is_done = |part: &ChunkPhase| *part == here || stages.always_before(*part, here);
        old.iter().all(is_done) && (new.is_subset(old) || old.is_subset(new))
    }

    /// Lets a result take the place of an operand.
    pub(super) fn join(&mut self, operand: BufferId, result: BufferId) {
        if self.stages.is_some() {
            let of_result = std::mem::take(&mut self.of[result]);
            self.of[operand].extend(of_result);
        }
    }

    /// Returns the parts that touch a buffer of a microbatch, if there are several.
    pub(super) fn between(&self, buffer: BufferId, lifetime: Lifetime) -> Option<&BTreeSet<ChunkPhase>> {
        let parts = self.of.get(buffer)?;
        let is_of_microbatch = self.at(lifetime.first).is_some() && self.at(lifetime.last).is_some();
        (is_of_microbatch && parts.len() > 1).then_some(parts)
    }
}

/// The blocks of a rank, while buffers are added.
#[derive(Default)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    /// Returns a place in a memory for a buffer that these parts touch.
    pub(super) fn add(&mut self, parts: &BTreeSet<ChunkPhase>, bytes: u64, tier: Tier) -> (BlockId, u64) {
        let known = self.0.iter().position(|block| block.tier == tier && block.parts.iter().eq(parts));
        let index = known.unwrap_or_else(|| {
            self.0.push(Block { parts: parts.iter().copied().collect(), bytes: 0, tier });
            self.0.len() - 1
        });
        let block = &mut self.0[index];
        let at = block.bytes;
        block.bytes += aligned(bytes);
        (index as BlockId, at)
    }

    /// Adds the block of the version that the forward part reads. It has no slots of its own.
    pub(super) fn add_versions(&mut self, part: ChunkPhase, versions: &mut Versions) {
        versions.block = self.0.len() as BlockId;
        self.0.push(Block { parts: vec![part], bytes: versions.bytes, tier: Tier::Device });
    }

    /// Adds the slots of all blocks of a memory, from the address `start` on. Returns the bytes that they take.
    pub(super) fn add_slots(&self, slots: &mut Slots, stages: &RankStages, tier: Tier, start: u64) -> u64 {
        let mut pools: BTreeMap<(Phase, Phase), Vec<BlockId>> = BTreeMap::new();
        for (id, block) in (0..).zip(&self.0).filter(|(_, block)| block.tier == tier) {
            let phases = block.parts.iter().map(|part| part.phase);
            let pool = (phases.clone().min(), phases.max());
            if let (Some(first), Some(last)) = pool {
                pools.entry((first, last)).or_default().push(id);
            }
        }
        let mut end = start;
        if stages.pipeline.is_asynchronous() {
            // Forward of a microbatch runs ahead of backward by as many microbatches as the prologue has.
            let count = stages.prologue().len() as u64 + 1;
            for ids in pools.values() {
                let size = ids.iter().map(|&id| self.0[id as usize].bytes).max().unwrap_or(0);
                slots.in_stream.extend(ids.iter().map(|&id| (id, end, size)));
                end += count * size;
            }
            return end - start;
        }
        for ids in pools.values() {
            let size = ids.iter().map(|&id| self.0[id as usize].bytes).max().unwrap_or(0);
            let mut alive: Vec<(Range<usize>, BlockId)> = vec![];
            for &id in ids {
                for microbatch in 0..stages.pipeline.microbatches {
                    let turns =
                        self.0[id as usize].parts.iter().filter_map(|&part| stages.turn(part, microbatch));
                    let bounds = (turns.clone().min(), turns.max());
                    alive.extend(bounds.0.zip(bounds.1).map(|(first, last)| (first..last + 1, id)));
                }
            }
            alive.sort_by_key(|(turns, id)| (turns.start, *id));
            let mut free_from: Vec<usize> = vec![];
            for (turns, id) in alive {
                let free = free_from.iter().position(|&free| free <= turns.start);
                let slot = free.unwrap_or_else(|| {
                    free_from.push(0);
                    free_from.len() - 1
                });
                free_from[slot] = turns.end;
                slots.alive.push((turns, id, end + slot as u64 * size));
            }
            end += free_from.len() as u64 * size;
        }
        end - start
    }
}

/// The versions of the weights of a rank with a delay. All states of one version lie together at the start of the arena, the newest version
/// first, each version in the same order. A forward task reads the version of its step, whose address is that of the block.
pub(super) struct Versions {
    /// The block of the version that a forward task reads.
    pub(super) block: BlockId,
    /// The bytes of a version.
    bytes: u64,
    /// The address of each state that has versions, and of each of its versions, by the index of its buffer.
    pub(super) addresses: BTreeMap<BufferId, u64>,
    /// The place in the block of each state's oldest version.
    oldest: BTreeMap<BufferId, u64>,
}

impl Versions {
    /// Returns the versions of a rank's weights; `None` without a delay.
    pub(super) fn of(drafts: &Drafts) -> Option<Self> {
        let delay = drafts.stages.as_ref().map_or(0, RankStages::delay);
        let mut ages: BTreeMap<StateId, Vec<BufferId>> = BTreeMap::new();
        // The first buffers are those of states, in their order.
        for (buffer, state) in drafts.module.states.values().enumerate() {
            match state.initializer {
                Initializer::CopyOf(newest) if state.role == Role::Version && drafts.is_here(state.input) => {
                    ages.entry(newest).or_insert_with(|| vec![newest.as_u32() as usize]).push(buffer);
                }
                _ => {}
            }
        }
        if delay == 0 || ages.is_empty() {
            return None;
        }
        let bytes: u64 = ages.values().map(|ages| aligned(drafts.buffers[ages[0]].bytes)).sum();
        let mut versions = Self { block: 0, bytes, addresses: BTreeMap::new(), oldest: BTreeMap::new() };
        let mut at = 0;
        for ages in ages.values() {
            versions.addresses.extend((0..).zip(ages).map(|(age, &buffer)| (buffer, age * bytes + at)));
            versions.oldest.extend(ages.last().map(|&buffer| (buffer, at)));
            at += aligned(drafts.buffers[ages[0]].bytes);
        }
        Some(versions)
    }

    /// Returns the bytes of all versions.
    pub(super) fn total(&self, delay: u32) -> u64 {
        self.bytes * (u64::from(delay) + 1)
    }

    /// Returns the place in the block of a buffer that is a state's oldest version, if an instruction of a forward part reads it.
    pub(super) fn place(&self, buffer: BufferId, part: Option<ChunkPhase>) -> Option<(BlockId, u64)> {
        let is_forward = part.is_some_and(|part| part.phase == Phase::Forward);
        self.oldest.get(&buffer).filter(|_| is_forward).map(|&at| (self.block, at))
    }
}

/// For each block of a microbatch, the turns in which it is alive, and its address.
#[derive(Default)]
pub(super) struct Slots {
    alive: Vec<(Range<usize>, BlockId, u64)>,
    /// In an unbroken stream, the address of the first slot of each block's pool, and the bytes of a slot. The microbatches of the stream
    /// take the slots in turn.
    in_stream: Vec<(BlockId, u64, u64)>,
}

/// Returns the turns of a rank, given the instructions of the section `microbatch` and their parts.
///
/// The turns are the tasks that run ahead of the first step, and then those of `period` steps. Each turn gets the range of its part's
/// instructions, and the address of every block that is alive in it: the slot of its microbatch and, in a forward task, the version of the
/// weights.
pub(super) fn turns(
    stages: &RankStages,
    blocks: Blocks,
    slots: &Slots,
    parts: &[Option<ChunkPhase>],
    versions: Option<&Versions>,
) -> RankPipeline {
    let (tasks, prologue) = (stages.tasks(), stages.prologue());
    let range = |part: ChunkPhase| {
        let start = parts.iter().position(|own| *own == Some(part)).unwrap_or(0);
        let length = parts[start..].iter().take_while(|own| **own == Some(part)).count();
        start..start + length
    };
    let mut ranges: BTreeMap<ChunkPhase, Range<usize>> = BTreeMap::new();
    let (microbatches, ahead) = (stages.pipeline.microbatches, prologue.len() as u32);
    let period = period(microbatches, ahead + 1);
    let first = prologue.into_iter().map(|task| StreamTask { task, step: 0 });
    let of_steps = (0..period).flat_map(|step| tasks.iter().map(move |&task| StreamTask { task, step }));
    let stream: Vec<StreamTask> = first.chain(of_steps).collect();
    let mut turns: Vec<Turn> = stream
        .iter()
        .map(|StreamTask { task, .. }| Turn {
            task: *task,
            instructions: ranges.entry(task.part).or_insert_with(|| range(task.part)).clone(),
            bases: vec![Turn::NOWHERE; blocks.0.len()],
        })
        .collect();
    for (turn, task) in turns.iter_mut().zip(&stream) {
        let slot = u64::from(task.microbatch(microbatches) % (ahead + 1));
        for (id, start, size) in &slots.in_stream {
            turn.bases[*id as usize] = start + slot * size;
        }
        if turn.task.part.phase == Phase::Forward {
            // A forward task that runs ahead by some steps reads a version that is newer by as many updates.
            let steps = turn.task.microbatch / microbatches.max(1);
            let age = stages.delay().saturating_sub(steps);
            if let Some(versions) = versions {
                turn.bases[versions.block as usize] = u64::from(age) * versions.bytes;
            }
        }
    }
    for (alive, id, base) in &slots.alive {
        let microbatch = turns[alive.start].task.microbatch;
        for turn in &mut turns[alive.clone()] {
            if turn.task.microbatch == microbatch {
                turn.bases[*id as usize] = *base;
            }
        }
    }
    RankPipeline {
        rank: stages.rank,
        ranks: stages.pipeline.ranks(),
        microbatches,
        is_asynchronous: stages.pipeline.is_asynchronous(),
        ahead,
        period,
        blocks: blocks.0,
        turns,
    }
}

/// Returns the number of steps after which the microbatches of a stream, which take the slots in turn, begin at the same slot again.
fn period(microbatches: u32, slots: u32) -> u32 {
    let (mut divisor, mut rest) = (slots.max(1), microbatches.max(1));
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    slots.max(1) / divisor
}
