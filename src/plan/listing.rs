//! `--memory-plan FILE`: every instruction with the places and the values that it reads and writes, and the commands of a GPU with their
//! order, as JSON. `tests/python/replay_plan.py` replays steps with it, and knows nothing of the planner.

mod commands;

use crate::config::memory::{Budget, Budgets};
use crate::failure::Failure;
use crate::training::Programs;
use anyhow::Context;
use commands::CommandPlans;
use files::Replacement;
use ir::timetable::ChunkPhase;
use ir::{Diagnostic, Mesh, Phase};
use program::{
    BlockId, Instruction, InstructionValues, Kernel, Program, RankPipeline, Region, Section, Turn,
    UpdateTime, View,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The memory plan of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryPlan {
    /// Version of this format.
    format: u32,
    /// The model's name.
    model: String,
    /// Microbatches of a step.
    microbatches: u64,
    /// Whether updates run before all gradients are there.
    early: bool,
    /// Bytes that a rank may take of each memory, if the run has such limits; the device's include constants.
    budgets: BTreeMap<&'static str, u64>,
    /// The programs, which share their states: the step, the evaluation, and that of a short last batch.
    programs: Vec<ProgramPlan>,
}

/// The plans of a program: one for each pipeline rank.
#[derive(Clone, Debug, Serialize)]
struct ProgramPlan {
    name: &'static str,
    ranks: Vec<RankPlan>,
}

/// The plan of a pipeline rank, or of all devices of a program without stages.
#[derive(Clone, Debug, Serialize)]
struct RankPlan {
    /// The number of devices that run the program, each on its own parts of the tensors.
    devices: u64,
    /// Bytes of each memory.
    memories: BTreeMap<&'static str, u64>,
    states: Vec<NamedPlace>,
    inputs: Vec<NamedPlace>,
    outputs: Vec<NamedPlace>,
    constants: Vec<Place>,
    /// The new values of states, each with the value that it replaces.
    renewals: Vec<(u32, u32)>,
    /// The number of instructions at the start of `prepare` that run only if the step before did not write their results.
    renewed: usize,
    prepare: Vec<InstructionPlan>,
    microbatch: Vec<InstructionPlan>,
    update: Vec<InstructionPlan>,
    /// The commands of a GPU. Without them, instructions run one after the other, but for collectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    commands: Option<CommandPlans>,
    /// The parts of the microbatches of a pipeline rank, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    turns: Option<Vec<TurnPlan>>,
}

/// A state, an input or an output.
#[derive(Clone, Debug, Serialize)]
struct NamedPlace {
    name: String,
    #[serde(flatten)]
    place: Place,
    /// For an output, the section after which it is available; for an input, the microbatch section.
    #[serde(skip_serializing_if = "Option::is_none")]
    section: Option<&'static str>,
    /// In a pipeline, the part of a microbatch before which an input is fed, or after which an output is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<String>,
}

/// A part of one microbatch.
#[derive(Clone, Debug, Serialize)]
struct TurnPlan {
    part: String,
    microbatch: u32,
    /// The index in `microbatch` of its first instruction, and of the instruction after its last.
    instructions: [usize; 2],
    /// The first byte of each block in its memory; `None` for a block that is not alive.
    blocks: Vec<Option<u64>>,
}

/// An instruction.
#[derive(Clone, Debug, Serialize)]
struct InstructionPlan {
    kernel: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    origin: String,
    reads: Vec<Place>,
    writes: Vec<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scratch: Option<Place>,
    /// Pairs of an operand and a result that are one place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_place: Vec<(u32, u32)>,
    /// Whether it adds to its results, from the second microbatch on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    accumulates: bool,
    /// Whether it is listed in `update` but runs in every microbatch.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    every_microbatch: bool,
    /// For a collective, the index of the last instruction that may run before the collective has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<usize>,
}

/// The place of a value.
#[derive(Clone, Debug, Default, Serialize)]
struct Place {
    /// The number of the value. `None` if the place is a part of a value's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u32>,
    memory: &'static str,
    /// The block of the present microbatch that `offset` counts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<BlockId>,
    /// The first byte.
    offset: u64,
    /// Bytes from the first to the last, gaps included.
    bytes: u64,
    /// If there are gaps: the bytes of a run without gaps, and for each dim of runs, innermost first, their number and distance.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Runs>,
    /// For each device, the bytes by which its part of the tensor is shifted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shift: Vec<i64>,
}

/// The runs of bytes of a tensor with gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Runs {
    bytes: u64,
    repeats: Vec<(u64, u64)>,
}

impl MemoryPlan {
    /// The plan of lowered programs within these budgets.
    ///
    /// # Errors
    /// An asynchronous pipeline, whose steps overlap; for a GPU an operator without a kernel.
    pub fn of(programs: &Programs, microbatches: u64, budgets: Option<&Budgets>) -> Result<Self, Diagnostic> {
        let first = programs.training.first();
        if first.pipeline.as_ref().is_some_and(|pipeline| pipeline.is_asynchronous) {
            let error = Diagnostic::new(
                "--memory-plan lists steps that follow each other, and the steps of an asynchronous schedule overlap",
            );
            return Err(error.note("use a synchronous schedule such as 1f1b, or remove --memory-plan"));
        }
        let names = ["training", "evaluation", "short evaluation"];
        let plans = names.into_iter().zip(programs.all()).map(|(name, program)| {
            let ranks = program.iter().map(RankPlan::of).collect::<Result<_, _>>()?;
            Ok(ProgramPlan { name, ranks })
        });
        let disk = budgets.and_then(|budgets| budgets.disk.as_ref()?.bytes);
        let budget = |of: fn(&Budgets) -> Option<Budget>| budgets.and_then(of);
        let limits = [("device", budget(|all| all.device)), ("host", budget(|all| all.host)), ("disk", disk)];
        Ok(Self {
            format: 2,
            model: first.name.clone(),
            microbatches,
            early: first.update == UpdateTime::Early,
            budgets: limits.into_iter().filter_map(|(name, limit)| Some((name, limit?.0))).collect(),
            programs: plans.collect::<Result<_, Diagnostic>>()?,
        })
    }

    /// Writes the plan to a file, as JSON.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec(self).context("the memory plan cannot be converted to JSON")?;
        Replacement::write(path, &text)
            .map_err(|error| Diagnostic::new(format!("cannot write {}: {error}", path.display())).into())
    }
}

impl RankPlan {
    fn of(program: &Arc<Program>) -> Result<Self, Diagnostic> {
        let mesh = &program.mesh;
        let (memory, values) = (program.memory, &program.values);
        let states = program.states.iter().zip(&values.states).map(|(state, &value)| NamedPlace {
            name: state.name.clone(),
            place: Place::of(&state.view, value, mesh),
            section: None,
            part: None,
        });
        let inputs = program.inputs.iter().zip(&values.inputs).filter_map(|(input, &value)| {
            let feeds = ChunkPhase { phase: Phase::Forward, chunk: input.stage };
            Some(NamedPlace {
                name: input.name.clone(),
                place: Place::of(input.view.as_ref()?, value, mesh),
                section: Some("microbatch"),
                part: program.pipeline.is_some().then(|| feeds.to_string()),
            })
        });
        let outputs = program.outputs.iter().zip(&values.outputs).map(|(output, &value)| NamedPlace {
            name: output.name.clone(),
            place: Place::of(&output.view, value, mesh),
            section: Some(Section::ALL[output.section as usize].1),
            part: output.part.map(|part| part.to_string()),
        });
        let constants = program.constants.iter().zip(&values.constants).map(|(constant, &value)| Place {
            value: Some(value),
            memory: "constants",
            offset: constant.base,
            bytes: constant.bytes.len() as u64,
            ..Place::default()
        });
        let [prepare, microbatch, update] = Section::ALL.map(|(section, _)| {
            let own = program.section(section).iter().zip(&values.sections[section as usize]).enumerate();
            own.map(|(index, (own, values))| InstructionPlan::of(index, own, values, mesh)).collect()
        });
        let memories = [
            ("device", memory.arena),
            ("constants", memory.constants),
            ("host", memory.host.total),
            ("disk", memory.disk.total),
        ];
        Ok(Self {
            devices: mesh.devices(),
            memories: memories.into(),
            states: states.collect(),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            constants: constants.collect(),
            renewals: values.renewals.clone(),
            renewed: program.renewed,
            prepare,
            microbatch,
            update,
            commands: CommandPlans::of(program)?,
            turns: program.pipeline.as_ref().map(TurnPlan::all),
        })
    }
}

impl TurnPlan {
    fn all(pipeline: &RankPipeline) -> Vec<Self> {
        let turns = pipeline.turns.iter().map(|turn| Self {
            part: turn.task.part.to_string(),
            microbatch: turn.task.microbatch,
            instructions: [turn.instructions.start, turn.instructions.end],
            blocks: turn.bases.iter().map(|&base| (base != Turn::NOWHERE).then_some(base)).collect(),
        });
        turns.collect()
    }
}

impl InstructionPlan {
    fn of(index: usize, instruction: &Instruction, values: &InstructionValues, mesh: &Mesh) -> Self {
        let places = |views: &[View], values: &[u32]| {
            views.iter().zip(values).map(|(view, &value)| Place::of(view, value, mesh)).collect()
        };
        let scratch = instruction.scratch.as_ref().zip(values.scratch);
        let is_collective = matches!(instruction.kernel, Kernel::Collective(_));
        Self {
            kernel: instruction.name(),
            origin: instruction.origin.to_string(),
            reads: places(&instruction.operands, &values.operands),
            writes: places(&instruction.results, &values.results),
            scratch: scratch.map(|(view, value)| Place::of(view, value, mesh)),
            in_place: instruction.in_place.to_vec(),
            accumulates: instruction.accumulates,
            every_microbatch: instruction.of_microbatch,
            until: is_collective.then_some(values.last_beside.max(index)),
        }
    }
}

impl Place {
    fn of(view: &View, value: u32, mesh: &Mesh) -> Self {
        let (memory, block) = Self::memory_of(view.region);
        let (span, width) = (view.bytes(), view.dtype.bytes());
        let shift = |rank: u64| {
            let elements: isize =
                view.by_rank.iter().map(|step| mesh.place(rank, &step.axes) as isize * step.elements).sum();
            elements as i64 * width as i64
        };
        let is_shifted = !view.by_rank.is_empty();
        Self {
            value: Some(value),
            memory,
            block,
            offset: span.start,
            bytes: span.end - span.start,
            runs: Runs::of(view),
            shift: (0..mesh.devices()).filter(|_| is_shifted).map(shift).collect(),
        }
    }

    /// The name of a memory, and the block in it.
    fn memory_of(region: Region) -> (&'static str, Option<BlockId>) {
        match region {
            Region::Arena => ("device", None),
            Region::Constants => ("constants", None),
            Region::Block(block) => ("device", Some(block)),
            Region::Host => ("host", None),
            Region::HostBlock(block) => ("host", Some(block)),
            Region::Disk => ("disk", None),
        }
    }
}

impl Runs {
    /// The runs of a tensor that does not fill its span.
    fn of(view: &View) -> Option<Self> {
        let width = view.dtype.bytes();
        let dims = view.layout.sizes.iter().zip(&view.layout.strides);
        let mut dims: Vec<(u64, u64)> = dims
            .filter(|(size, stride)| **size > 1 && **stride != 0)
            .map(|(&size, &stride)| (size as u64, stride.unsigned_abs() as u64 * width))
            .collect();
        dims.sort_by_key(|(_, distance)| *distance);
        let (mut bytes, mut repeats) = (width, vec![]);
        for (size, distance) in dims {
            if distance <= bytes {
                bytes += (size - 1) * distance;
            } else {
                repeats.push((size, distance));
            }
        }
        (!repeats.is_empty() && !view.layout.is_empty()).then_some(Self { bytes, repeats })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::DType;
    use program::layout::Layout;

    fn runs(layout: Layout) -> Option<Runs> {
        let view =
            View { region: Region::Arena, base: 0, dtype: DType::F32, layout, by_rank: Default::default() };
        Runs::of(&view)
    }

    #[test]
    fn a_tensor_without_gaps_is_one_run() {
        assert_eq!(runs(Layout::dense(&[2, 3])), None);
        assert_eq!(runs(Layout::dense(&[2, 3]).transpose(&[1, 0])), None);
        assert_eq!(runs(Layout::dense(&[1, 3]).broadcast(&[5, 3])), None);
        assert_eq!(runs(Layout::dense(&[6]).slice(0, 5, -1, 6)), None);
    }

    #[test]
    fn a_slice_is_as_many_runs_as_it_has_rows() {
        let columns = runs(Layout::dense(&[2, 4, 6]).slice(2, 1, 1, 3));
        assert_eq!(columns, Some(Runs { bytes: 12, repeats: vec![(4, 24), (2, 96)] }));
        let every_second = runs(Layout::dense(&[6]).slice(0, 0, 2, 3));
        assert_eq!(every_second, Some(Runs { bytes: 4, repeats: vec![(3, 8)] }));
    }
}
