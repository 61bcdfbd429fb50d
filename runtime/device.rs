//! Devices: what runs a program, and the step that they all run alike.

use crate::calls::CallClock;
use crate::comm::CommError;
use crate::program::{Microbatches, OutputSlot, Program, Section};
use crate::ranks::rank_at;
use crate::room::TooLarge;
use ir::timetable::Task;
use ir::{Phase, visible};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A program on a device, by its place in the list the device was made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub usize);

/// Runs programs that share one arena. Bytes are little-endian and row-major.
///
/// A step is: write the states (once), run `prepare`; for each microbatch write the inputs, run `microbatch`, read
/// its outputs, and end it unless it is the last; run `update`, read its outputs. [`step`] does that. States stay from step to step; everything else in
/// the arena may be overwritten by another program.
pub trait Device {
    /// A program of the device.
    fn program(&self, program: ProgramId) -> &Arc<Program>;

    /// Sets a state.
    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// The bytes of a state; of a device whose memory can be read in place, not a copy.
    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError>;

    /// Feeds the next microbatch one input. Inputs that no instruction reads are checked and forgotten.
    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Runs a section. `Prepare` begins a step, even if it has no instruction: sums over microbatches start anew.
    fn run(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError>;

    /// In a pipeline, begins a turn ([`crate::program::RankPipeline::turns`]) of the present step, after its `prepare`: inputs that are
    /// written from now on are those of its microbatch.
    fn begin_turn(&mut self, _program: ProgramId, _turn: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Pipeline)
    }

    /// Runs the instructions of the turn that was begun. Its outputs are there until the next turn begins.
    fn run_turn(&mut self, _program: ProgramId, _turn: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Pipeline)
    }

    /// Ends a microbatch that is not the last of its step: runs [`Program::rest_of_microbatch`]. The rest of the last one is a part of
    /// `update`.
    fn end_microbatch(&mut self, program: ProgramId) -> Result<(), DeviceError>;

    /// Runs some instructions of `update`: all of them, in order and each once, are what [`Device::run`] does with
    /// that section. In between, what was made so far can be looked at, and the step be given up. A device may refuse to
    /// stop elsewhere than after an instruction that makes an output.
    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError>;

    /// The bytes of an output, after the section it belongs to.
    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError>;

    /// Asks for outputs as [`Device::read_output`] gives them now. Where a device computes by itself, the caller goes on,
    /// and what it gives the device next may change them.
    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        let bytes = outputs.into_iter().map(|output| self.read_output(program, output));
        Ok(Later::Read(bytes.collect::<Result<_, _>>()?))
    }

    /// The bytes of the outputs that were asked for, each once they are there.
    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        match later {
            Later::Read(bytes) => Ok(bytes),
            Later::Coming { number, .. } => Err(DeviceError::Unknown { what: "outputs", index: number }),
        }
    }

    /// Lets the caller give the device a step of this program before it has looked at the outputs of the one before: as soon
    /// as a loss is not finite, or a gradient's norm that nothing in the program looks at, or a loss scale can get no
    /// smaller, no update changes a state any more. Whether the device can do that; unless it can, nothing changes.
    fn run_ahead(&mut self, _program: ProgramId) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Since when the device has been in a call, of a device that may never answer: a GPU waits for others.
    fn calls(&self) -> Option<CallClock> {
        None
    }

    /// Bytes of memory that the device has allocated for its programs.
    fn allocated(&self) -> u64;

    /// Does the work that needs the thread of the device's rank, which is about to end.
    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Runs a microbatch once more, instruction by instruction, and names the first that makes a number
    /// that is not finite from finite ones. To be asked when a loss is not finite, with the microbatch's inputs
    /// written again and before `update`; sums over microbatches are spoilt by it. All ranks are asked at once, and each
    /// looks at its own parts.
    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError>;

    /// As [`Device::first_non_finite`], of the turn of a pipeline that was begun: in place of [`Device::run_turn`].
    fn first_non_finite_of_turn(
        &mut self,
        _program: ProgramId,
        _turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        Err(DeviceError::Pipeline)
    }
}

/// Outputs that were asked for: given by [`Device::read_later`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Later {
    /// They were there.
    Read(Vec<Vec<u8>>),
    /// They are on their way.
    Coming {
        /// The program.
        program: ProgramId,
        /// The outputs, by index.
        outputs: Vec<usize>,
        /// By which the device knows them.
        number: usize,
    },
}

/// The outputs of a step: for each name the bytes of every microbatch, or of the step.
pub type StepOutputs = BTreeMap<String, Vec<Vec<u8>>>;

/// Runs one step: `microbatches` has, for each, the bytes of every input in the program's order.
pub fn step(
    device: &mut dyn Device,
    id: ProgramId,
    microbatches: &[Vec<Vec<u8>>],
) -> Result<StepOutputs, DeviceError> {
    let program = device.program(id).clone();
    let mut outputs = StepOutputs::new();
    let mut report = |device: &dyn Device, section: Section, part| {
        let is_due = |output: &OutputSlot| output.section == section && output.part == part;
        let due = program.outputs.iter().enumerate().filter(|(_, output)| is_due(output));
        for (index, output) in due {
            outputs.entry(output.name.clone()).or_default().push(device.read_output(id, index)?);
        }
        Ok::<_, DeviceError>(())
    };
    device.run(id, Section::Prepare)?;
    report(device, Section::Prepare, None)?;
    if let Some(pipeline) = &program.pipeline {
        let (given, taken) = (microbatches.len(), pipeline.microbatches as usize);
        if given != taken {
            return Err(DeviceError::Microbatches { given, taken });
        }
    }
    // An asynchronous schedule drains after the step.
    let turns = program.pipeline.iter().flat_map(|pipeline| {
        pipeline.turns_of(0, 1).into_iter().map(|index| (index, &pipeline.turns[index]))
    });
    for (index, turn) in turns {
        device.begin_turn(id, index)?;
        let given = &microbatches[turn.task.microbatch as usize];
        for (input, _) in program.inputs.iter().enumerate().filter(|(_, slot)| turn.feeds(slot)) {
            let missing = DeviceError::Inputs { given: given.len(), taken: program.inputs.len() };
            device.write_input(id, input, given.get(input).ok_or(missing)?)?;
        }
        device.run_turn(id, index)?;
        report(device, Section::Microbatch, Some(turn.task.part))?;
    }
    let microbatches = if program.pipeline.is_some() { &[] } else { microbatches };
    for (index, inputs) in microbatches.iter().enumerate() {
        if inputs.len() != program.inputs.len() {
            return Err(DeviceError::Inputs { given: inputs.len(), taken: program.inputs.len() });
        }
        for (input, bytes) in inputs.iter().enumerate() {
            device.write_input(id, input, bytes)?;
        }
        device.run(id, Section::Microbatch)?;
        report(device, Section::Microbatch, None)?;
        if index + 1 < microbatches.len() {
            device.end_microbatch(id)?;
        }
    }
    device.run(id, Section::Update)?;
    report(device, Section::Update, None)?;
    Ok(outputs)
}

/// An instruction that made a number that is not finite from finite ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NonFinite {
    /// Its place in the microbatch ([`Program::microbatch`]).
    pub instruction: usize,
    /// The operator.
    pub operator: String,
    /// The ONNX node it came from.
    pub origin: String,
    /// The first such number.
    #[serde(with = "number_bits")]
    pub value: f64,
    /// On which of several ranks.
    pub rank: Option<u64>,
    /// In a pipeline, where in the step.
    pub turn: Option<FoundIn>,
    /// For a NaN, what made the first infinity before it, if anything did: often the cause.
    pub infinity: Option<Box<NonFinite>>,
}

impl NonFinite {
    /// The first that any rank found, given those of all ranks in their order: a NaN before an infinity. A rank that is alone
    /// is not named.
    pub fn first(mut of_ranks: Vec<Option<Self>>) -> Option<Self> {
        if of_ranks.len() == 1 {
            return of_ranks.pop()?;
        }
        let found = (0..).zip(of_ranks).filter_map(|(rank, found)| Some((rank, found?)));
        let place = |found: &Self| found.turn.map(|turn| (turn.microbatch, turn.is_backward, turn.order()));
        let key =
            |(rank, found): &(u64, Self)| (!found.value.is_nan(), place(found), found.instruction, *rank);
        let first = found.min_by_key(key);
        first.map(|(rank, found)| Self { rank: Some(rank), ..found })
    }
}

/// A turn of a pipeline, in which a number was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundIn {
    /// The stage.
    pub stage: u32,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
    /// Whether it is of backward or of weight gradients.
    pub is_backward: bool,
}

impl FoundIn {
    /// The place of the stage in the order in which a microbatch passes the stages.
    fn order(self) -> i64 {
        if self.is_backward { -i64::from(self.stage) } else { i64::from(self.stage) }
    }
}

impl From<Task> for FoundIn {
    fn from(Task { part, microbatch }: Task) -> Self {
        Self { stage: part.chunk, microbatch, is_backward: part.phase != Phase::Forward }
    }
}

/// A float by its bits: JSON has no NaN.
pub(crate) mod number_bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(number.to_bits())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(f64::from_bits(u64::deserialize(deserializer)?))
    }
}

/// `` `softmax` of node "/h.0/attn/Softmax" made NaN ``
impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.operator)?;
        if !self.origin.is_empty() {
            write!(f, " of {}", visible(&self.origin))?;
        }
        write!(f, " made {}", self.value)?;
        self.rank.map_or(Ok(()), |rank| write!(f, " on rank {rank}"))?;
        if let Some(FoundIn { stage, microbatch, .. }) = self.turn {
            write!(f, ", in stage {stage} of the pipeline and microbatch {microbatch}")?;
        }
        self.infinity.as_ref().map_or(Ok(()), |earlier| write!(f, "; before it, {earlier}"))
    }
}

/// Why a device refuses.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The arena cannot be had.
    #[error("cannot allocate {bytes} bytes: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// What the system says.
        source: std::io::Error,
    },
    /// A folder takes no file for values that rest on the disk.
    #[error("cannot make a file of {bytes} bytes in {}: {source}", visible(&folder.to_string_lossy()))]
    NoFile {
        /// Bytes asked for.
        bytes: u64,
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file of values that rest on the disk cannot be read or written.
    #[error("the file of states on the disk failed: {0}")]
    Disk(std::io::Error),
    /// The host has less memory than the values of all GPUs take there.
    #[error(
        "values on the host take {} for each of {ranks} ranks, and this machine has {} free; --memory host=BYTES says what they may take",
        TooLarge::size(*bytes),
        TooLarge::size(*free)
    )]
    NoRoomOnHost {
        /// Bytes that each rank takes.
        bytes: u64,
        /// Ranks of this process.
        ranks: u64,
        /// Bytes that the system can give.
        free: u64,
    },
    /// A device has less memory than the programs take.
    #[error(transparent)]
    TooLarge(Box<TooLarge>),
    /// The threads cannot be started.
    #[error("cannot start {threads} threads: {message}")]
    Threads {
        /// How many.
        threads: usize,
        /// What the system says.
        message: String,
    },
    /// A number of bytes that is not the type's.
    #[error("`{}` is {ty} and needs {taken} bytes, and {given} bytes were given", visible(name))]
    Size {
        /// The state or input.
        name: String,
        /// Its type.
        ty: Box<ir::Type>,
        /// Bytes it takes.
        taken: u64,
        /// Bytes given.
        given: u64,
    },
    /// A number of inputs that is not the program's.
    #[error("the program takes {taken} inputs, and {given} were given")]
    Inputs {
        /// Inputs given.
        given: usize,
        /// Inputs taken.
        taken: usize,
    },
    /// A step of a pipeline with too few microbatches.
    #[error("a step of the pipeline has {taken} microbatches, and {given} were given")]
    Microbatches {
        /// Microbatches given.
        given: usize,
        /// Microbatches of a step.
        taken: usize,
    },
    /// A pipeline on a device that runs none.
    #[error("the device runs no pipelines yet")]
    Pipeline,
    /// There is nothing with this index.
    #[error("the program has no {what} {index}")]
    Unknown {
        /// State, input, output, program.
        what: &'static str,
        /// The index.
        index: usize,
    },
    /// A program lowered for one microbatch was given a second.
    #[error("the program was lowered for one microbatch per step; lower it for {:?}", Microbatches::Many)]
    OneMicrobatch,
    /// A program for another number of devices.
    #[error(
        "the program `{}` is for the {devices} devices of the mesh {mesh}, not for {given}",
        visible(program)
    )]
    Devices {
        /// The program.
        program: String,
        /// Its mesh.
        mesh: Box<ir::Mesh>,
        /// Devices of the mesh.
        devices: u64,
        /// Devices given.
        given: u64,
    },
    /// Programs whose collectives do not fit each other.
    #[error(transparent)]
    Collectives(Box<ir::Diagnostic>),
    /// A collective did not happen.
    #[error(transparent)]
    Communication(#[from] CommError),
    /// One of several ranks refused or failed. The others ended with it, and none can go on.
    #[error("{}: {source}", rank_at(*rank, *task))]
    Rank {
        /// The rank.
        rank: u64,
        /// Its task in a pipeline, if it was at one.
        task: Option<Task>,
        /// Its error.
        source: Box<DeviceError>,
    },
    /// A rank panicked: a fault of this program.
    #[error("it panicked: {message}")]
    Panicked {
        /// What the panic says.
        message: String,
    },
    /// A program for a device of another kind.
    #[error("the program `{}` was lowered for a device of another kind", visible(program))]
    Target {
        /// The program.
        program: String,
    },
    /// Instructions of which some are run with others.
    #[error("the device fuses some of the instructions {instructions:?} with other instructions")]
    Apart {
        /// Those asked for.
        instructions: Range<usize>,
    },
    /// Something has no kernel on this device.
    #[error(transparent)]
    Kernel(Box<ir::Diagnostic>),
    /// The driver of a device that computes by itself refuses.
    #[error("{}{message}{}", of_operator(operator, origin, *late), if *late { SYNCHRONOUS } else { "" })]
    Driver {
        /// The operator that was run, if one was.
        operator: String,
        /// The ONNX node it came from.
        origin: Arc<str>,
        /// What the driver says.
        message: String,
        /// Whether something that the GPU was given earlier may be at fault instead: it tells late.
        late: bool,
    },
    /// Ranks that ended with an error were asked for more.
    #[error("the ranks have ended with an error")]
    Ended,
}

const SYNCHRONOUS: &str =
    "; with TRAINYARD_SYNC=1 a run waits for each command, so that the error names the command at fault";

fn of_operator(operator: &str, origin: &str, late: bool) -> String {
    let origin = &*visible(origin);
    let earlier = if late { ", or an earlier command of the GPU" } else { "" };
    match (operator, origin) {
        ("", _) if late => "an earlier command of the GPU: ".into(),
        ("", _) => String::new(),
        (operator, "") => format!("`{operator}`{earlier}: "),
        (operator, origin) => format!("`{operator}` of {origin}{earlier}: "),
    }
}

impl DeviceError {
    /// Whether the machine is at fault, perhaps for a time: memory or threads that others have, a disk, a rank that is lost.
    fn is_passing(&self) -> bool {
        match self {
            Self::Memory { .. } | Self::Disk(_) | Self::Threads { .. } => true,
            Self::NoFile { source, .. } => files::disk::is_passing(source),
            Self::Communication(error) => {
                matches!(
                    error,
                    CommError::Late { .. } | CommError::Stalled { .. } | CommError::Transport { .. }
                )
            }
            Self::Rank { source, .. } => source.is_passing(),
            _ => false,
        }
    }

    /// Refuses bytes that are not those of a rank's part of a type.
    pub(crate) fn check_size(name: &str, ty: &ir::Type, mesh: &ir::Mesh, bytes: &[u8]) -> Result<(), Self> {
        let local = ty.local(mesh).map(|sizes| sizes.iter().product::<u64>() * ty.dtype.bytes());
        let (taken, given) = (local.unwrap_or(u64::MAX), bytes.len() as u64);
        if taken == given {
            return Ok(());
        }
        Err(Self::Size { name: name.into(), ty: Box::new(ty.clone()), taken, given })
    }

    /// A program is not for so many devices.
    pub(crate) fn devices(program: &Program, given: u64) -> Self {
        let (mesh, devices) = (Box::new(program.mesh.clone()), program.mesh.devices());
        Self::Devices { program: program.name.clone(), mesh, devices, given }
    }

    /// A driver refuses, whatever the operator.
    pub(crate) fn driver(error: impl fmt::Display) -> Self {
        Self::Driver { operator: String::new(), origin: "".into(), message: error.to_string(), late: false }
    }

    /// Something has no kernel.
    pub(crate) fn kernel(diagnostic: ir::Diagnostic) -> Self {
        Self::Kernel(Box::new(diagnostic))
    }
}

impl From<&DeviceError> for ir::Diagnostic {
    fn from(error: &DeviceError) -> Self {
        match error {
            DeviceError::Collectives(diagnostic) | DeviceError::Kernel(diagnostic) => (**diagnostic).clone(),
            DeviceError::Rank { rank, task, source } => {
                let told = Self::from(&**source);
                Self { message: format!("{}: {}", rank_at(*rank, *task), told.message), ..told }
            }
            error => Self::of_lines(&error.to_string()).passing_if(error.is_passing()),
        }
    }
}
