//! Predicts the tasks of a pipeline rank on a machine, which need not be this one.
//!
//! A task runs the instructions of its part. A backend lists the commands of a part like those of a section, from a program with no other
//! instructions. Messages are left out, because the timetable has the time of transfers.

use super::SimulatedPart;
use crate::Target;
use crate::commands::{CommandList, work};
use crate::{Instruction, Part, Program, Region, Section, Turn, View};
use ir::Diagnostic;
use ir::machine::Machine;
use ir::timetable;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// The parts of a step of a pipeline rank, simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedRank {
    /// One run of each part of a microbatch.
    pub tasks: BTreeMap<timetable::ChunkPhase, SimulatedPart>,
    /// The section `prepare`.
    pub prepare: SimulatedPart,
    /// The section `update`.
    pub update: SimulatedPart,
    /// The bytes of the messages that `prepare` and `update` send or receive, for each of the two sections and each other rank.
    pub messages: [BTreeMap<u32, u64>; 2],
}

impl SimulatedRank {
    /// Simulates the program of a pipeline rank, which was lowered for this target.
    ///
    /// # Errors
    /// An operator without a kernel.
    pub fn of(program: &Program, target: Target, machine: &Machine) -> Result<Self, Diagnostic> {
        let mut tasks = BTreeMap::new();
        for turn in program.pipeline.iter().flat_map(|pipeline| &pipeline.turns) {
            if let Entry::Vacant(task) = tasks.entry(turn.task.part) {
                let list = commands(target, only_turn(program, turn))?;
                task.insert(SimulatedPart::on(&list, Part::Microbatch, machine));
            }
        }
        let once = commands(target, only_once_a_step(program))?;
        let [prepare, update] =
            [Part::Prepare, Part::Update].map(|part| SimulatedPart::on(&once, part, machine));
        let messages = [Section::Prepare, Section::Update].map(|section| messages(program, section));
        Ok(Self { tasks, prepare, update, messages })
    }

    /// Returns the seconds of a task.
    pub fn seconds(&self, part: timetable::ChunkPhase) -> f64 {
        self.tasks.get(&part).map_or(0.0, |part| part.seconds)
    }
}

/// Returns the commands of a step of several microbatches.
fn commands(target: Target, program: Program) -> Result<CommandList, Diagnostic> {
    target.commands(&Arc::new(program), 2)
}

/// Returns a program whose microbatch is one turn of a pipeline rank, and which runs nothing else.
fn only_turn(program: &Program, turn: &Turn) -> Program {
    let microbatch = &program.section(Section::Microbatch)[turn.instructions.clone()];
    let microbatch = microbatch.iter().filter(|instruction| instruction.message().is_none());
    let microbatch = microbatch.map(|instruction| placed(instruction, &turn.bases)).collect();
    without_stages(program, [vec![], microbatch, vec![]])
}

/// Returns a program that has only the sections `prepare` and `update` of a pipeline rank.
fn only_once_a_step(program: &Program) -> Program {
    let section = |section| -> Vec<Instruction> {
        let all = program.section(section).iter();
        all.filter(|instruction| instruction.message().is_none()).cloned().collect()
    };
    without_stages(program, [section(Section::Prepare), vec![], section(Section::Update)])
}

fn without_stages(program: &Program, sections: [Vec<Instruction>; 3]) -> Program {
    let (inputs, outputs) = (vec![], vec![]);
    // Instructions that another step need not repeat are counted as well.
    Program { sections, inputs, outputs, pipeline: None, renewed: 0, ..program.clone() }
}

/// Returns an instruction of a turn, with the addresses of its blocks.
fn placed(instruction: &Instruction, bases: &[u64]) -> Instruction {
    let mut placed = instruction.clone();
    let views = placed.operands.iter_mut().chain(&mut placed.results).chain(&mut placed.scratch);
    views.for_each(|view: &mut View| {
        if let Region::Block(_) = view.region {
            view.base = view.base.saturating_add(view.region.start(bases));
            view.region = Region::Arena;
        }
    });
    placed
}

/// Returns the bytes of a section's messages with each other rank.
fn messages(program: &Program, section: Section) -> BTreeMap<u32, u64> {
    let own = program.pipeline.as_ref().map_or(0, |pipeline| pipeline.rank);
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for instruction in program.section(section) {
        let Some(message) = instruction.message() else { continue };
        let other = if message.from == own { message.to } else { message.from };
        let moved = instruction.operands.iter().chain(&instruction.results).map(work::bytes).sum();
        let sum = bytes.entry(other).or_default();
        *sum = sum.saturating_add(moved);
    }
    bytes
}
