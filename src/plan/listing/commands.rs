//! The commands of a GPU in a memory plan: the stream of each, and the commands that it waits for. All others may run beside it, so the
//! places of its instructions must hold for each order of them.
//!
//! The commands are those of a GPU without cuDNN whose cuBLASLt takes every epilogue.

use super::{Place, Runs};
use crate::targets;
use cuda::lower::lower;
use cuda::program::{self as launched, Command, CudaProgram, Event, Task};
use ir::Diagnostic;
use ir::machine::DeviceKind;
use program::{Part, Program};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The commands of a step. A part begins when all commands before it have ended.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CommandPlans {
    prepare: Vec<CommandPlan>,
    microbatch: Vec<CommandPlan>,
    /// The instructions of `update` that run in every microbatch, in those before the last.
    rest_of_microbatch: Vec<CommandPlan>,
    update: Vec<CommandPlan>,
}

/// A command. It begins when two kinds of commands have ended: the earlier ones on its stream, and the ones in `waits`.
#[derive(Clone, Debug, Serialize)]
struct CommandPlan {
    stream: &'static str,
    /// The commands that it waits for, by their numbers in the part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waits: Vec<usize>,
    /// The instructions of the command, by their numbers in the section. The instructions of an inner list run at once; the lists run one after the other.
    instructions: Vec<Vec<usize>>,
    /// The places that it reads, if other commands execute other parts of its instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<Vec<Place>>,
    /// The places that it writes, if other commands execute other parts of its instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    writes: Option<Vec<Place>>,
}

impl CommandPlans {
    /// The commands of a program. `None` if it is for the processor, which runs one instruction after the other.
    ///
    /// # Errors
    /// An operator without a kernel for GPUs.
    pub(super) fn of(program: &Arc<Program>) -> Result<Option<Self>, Diagnostic> {
        if program.target != targets::of(DeviceKind::Gpu).name() {
            return Ok(None);
        }
        let cuda = lower(program.clone())?;
        let [prepare, microbatch, rest_of_microbatch, update] =
            Part::ALL.map(|(part, _)| CommandPlan::all(&cuda, part));
        Ok(Some(Self { prepare, microbatch, rest_of_microbatch, update }))
    }
}

impl CommandPlan {
    /// The commands of a part.
    fn all(cuda: &CudaProgram, part: Part) -> Vec<Self> {
        let commands = cuda.part(part);
        let mut seen = BTreeSet::new();
        let of_all = || commands.iter().flat_map(|command| command.waves.iter().flatten().copied());
        let shared: BTreeSet<usize> = of_all().filter(|instruction| !seen.insert(*instruction)).collect();
        let mut recorded: BTreeMap<Event, usize> = BTreeMap::new();
        let plan = |(number, command): (usize, &Command)| {
            let mut waits: Vec<usize> =
                command.waits.iter().filter_map(|event| recorded.get(event).copied()).collect();
            waits.sort_unstable();
            recorded.extend(command.records.map(|event| (event, number)));
            // Lowering orders a kernel of a shared instruction as if it touched all places of the instruction.
            let is_part = matches!(&command.task, Task::Multiply(multiply) if multiply.epilogue.is_addition())
                || command.writes.is_empty();
            let has_own = is_part && command.waves.iter().flatten().any(|index| shared.contains(index));
            let own = |places: &[launched::TouchedBytes]| {
                has_own.then(|| places.iter().map(Place::of_command).collect())
            };
            Self {
                stream: command.stream.described(),
                waits,
                instructions: command.waves.iter().map(|wave| wave.to_vec()).collect(),
                reads: own(&command.reads),
                writes: own(&command.writes),
            }
        };
        commands.iter().enumerate().map(plan).collect()
    }
}

impl Place {
    /// A place of a command, which may be only a part of a value.
    fn of_command(place: &launched::TouchedBytes) -> Self {
        let (memory, block) = Self::memory_of(place.region);
        let (offset, bytes) = (place.bytes.start, place.bytes.end - place.bytes.start);
        let runs = place.runs.map(|launched::Runs { length, apart }| Runs {
            bytes: length,
            repeats: vec![((bytes - length) / apart + 1, apart)],
        });
        Self { value: None, memory, block, offset, bytes, runs, shift: vec![] }
    }
}
