//! The interface of a device that runs programs, and the order of a step, which is the same on all devices.

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

/// A program on a device: its index in the list with which the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub usize);

/// Runs programs that share one arena. Bytes are little-endian and row-major.
///
/// A step does the following, as [`step`] does. Write the states (once) and run `prepare`. For each microbatch, write the inputs, run
/// `microbatch`, read its outputs, and end it unless it is the last. Run `update` and read its outputs. States stay from step to step;
/// another program may overwrite everything else in the arena.
pub trait Device {
    /// Returns a program of the device.
    fn program(&self, program: ProgramId) -> &Arc<Program>;

    /// Sets a state.
    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Returns the bytes of a state. They are not copied if the device's memory can be read in place.
    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError>;

    /// Gives the next microbatch one input. An input that no instruction reads is checked and dropped.
    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Runs a section. `Prepare` begins a step, even if it has no instruction: sums over microbatches start anew.
    fn run(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError>;

    /// Begins a turn ([`crate::program::RankPipeline::turns`]) of the present step of a pipeline, after its `prepare`. Inputs that are
    /// written from now on belong to the turn's microbatch.
    fn begin_turn(&mut self, _program: ProgramId, _turn: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Pipeline)
    }

    /// Runs the instructions of the turn that was begun. Its outputs can be read until the next turn begins.
    fn run_turn(&mut self, _program: ProgramId, _turn: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Pipeline)
    }

    /// Ends a microbatch that is not the last of its step: runs [`Program::rest_of_microbatch`]. In the last microbatch, `update` runs
    /// these instructions.
    fn end_microbatch(&mut self, program: ProgramId) -> Result<(), DeviceError>;

    /// Runs some instructions of `update`. All of them, each once and in order, have the effect of [`Device::run`] with that section.
    /// Between two calls the caller can read finished outputs, and can give up the step. A device may refuse to stop anywhere but after an
    /// instruction that makes an output.
    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError>;

    /// Returns the bytes of an output, after its section has run.
    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError>;

    /// Asks for the present bytes of outputs, as [`Device::read_output`] returns them. On a device that computes asynchronously the caller
    /// goes on at once; what it gives the device next may change the outputs.
    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        let bytes = outputs.into_iter().map(|output| self.read_output(program, output));
        Ok(Later::Read(bytes.collect::<Result<_, _>>()?))
    }

    /// Returns the bytes of the outputs that were asked for, after waiting for each.
    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        match later {
            Later::Read(bytes) => Ok(bytes),
            Later::Coming { number, .. } => Err(DeviceError::Unknown { what: "outputs", index: number }),
        }
    }

    /// Lets the caller give the device the next step of this program before it has read the outputs of the step before. From then on no
    /// update changes a state any more, once a loss is not finite, a gradient norm that the program itself does not check is not finite, or
    /// a loss scale can get no smaller. Returns whether the device can do that; if not, nothing changes.
    fn run_ahead(&mut self, _program: ProgramId) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Returns the clock of the device's calls, if a call may never return: a GPU waits for other GPUs.
    fn calls(&self) -> Option<CallClock> {
        None
    }

    /// Returns the bytes of memory that the device has allocated for its programs.
    fn allocated(&self) -> u64;

    /// Does the remaining work that must run on the thread of the device's rank, before that thread ends.
    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Runs a microbatch once more, instruction by instruction, and returns the first instruction that makes a number that is not finite
    /// from finite ones. It is called when a loss is not finite, before `update`, with the microbatch's inputs written again. It spoils the
    /// sums over microbatches. All ranks are asked at once, and each searches its own parts.
    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError>;

    /// Does the same as [`Device::first_non_finite`] for the turn of a pipeline that was begun, in place of [`Device::run_turn`].
    fn first_non_finite_of_turn(
        &mut self,
        _program: ProgramId,
        _turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        Err(DeviceError::Pipeline)
    }
}

/// Outputs that [`Device::read_later`] asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Later {
    /// The bytes, where the device had them at once.
    Read(Vec<Vec<u8>>),
    /// Outputs that the device is still computing.
    Coming {
        /// The program.
        program: ProgramId,
        /// The outputs, by index.
        outputs: Vec<usize>,
        /// The number by which the device knows the request.
        number: usize,
    },
}

/// The outputs of a step by name: the bytes of every microbatch, or one entry for the step.
pub type StepOutputs = BTreeMap<String, Vec<Vec<u8>>>;

/// Runs one step. `microbatches` has, for each microbatch, the bytes of every input in the program's order.
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
    /// The instruction's place in the microbatch ([`Program::microbatch`]).
    pub instruction: usize,
    /// The operator.
    pub operator: String,
    /// The ONNX node of the instruction.
    pub origin: String,
    /// The first number that is not finite.
    #[serde(with = "number_bits")]
    pub value: f64,
    /// The rank that found it, if there are several.
    pub rank: Option<u64>,
    /// The turn in which it was found, in a pipeline.
    pub turn: Option<FoundIn>,
    /// For a NaN, the instruction that made the first infinity before it, if there is one: often the cause.
    pub infinity: Option<Box<NonFinite>>,
}

impl NonFinite {
    /// Returns the first finding of all ranks, given in their order: a NaN comes before an infinity. The finding of a single rank does not
    /// name the rank.
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

/// The turn of a pipeline in which a number was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundIn {
    /// The stage.
    pub stage: u32,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
    /// Whether the turn is a backward turn or one of weight gradients.
    pub is_backward: bool,
}

impl FoundIn {
    /// Returns the place of the stage in the order in which a microbatch passes the stages.
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

/// The reason why a device refuses or fails.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The arena cannot be allocated.
    #[error("cannot allocate {bytes} bytes: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file for values on the disk cannot be made in this folder.
    #[error("cannot make a file of {bytes} bytes in {}: {source}", visible(&folder.to_string_lossy()))]
    NoFile {
        /// Bytes asked for.
        bytes: u64,
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file of values on the disk cannot be read or written.
    #[error("the file of states on the disk failed: {0}")]
    Disk(std::io::Error),
    /// The values of all GPUs on the host take more memory than the host has.
    #[error(
        "values on the host take {} for each of {ranks} ranks, and this machine has {} free; --memory host=BYTES says what they may take",
        TooLarge::size(*bytes),
        TooLarge::size(*free)
    )]
    NoRoomOnHost {
        /// Bytes that each rank takes on the host.
        bytes: u64,
        /// Ranks of this process.
        ranks: u64,
        /// Bytes that the system can give.
        free: u64,
    },
    /// The programs take more memory than a device has.
    #[error(transparent)]
    TooLarge(Box<TooLarge>),
    /// The threads cannot be started.
    #[error("cannot start {threads} threads: {message}")]
    Threads {
        /// The number of threads.
        threads: usize,
        /// The system's message.
        message: String,
    },
    /// The number of bytes does not match the type.
    #[error("`{}` is {ty} and needs {taken} bytes, and {given} bytes were given", visible(name))]
    Size {
        /// The state or input.
        name: String,
        /// Its type.
        ty: Box<ir::Type>,
        /// Bytes of the type.
        taken: u64,
        /// Bytes given.
        given: u64,
    },
    /// The number of inputs is not the program's.
    #[error("the program takes {taken} inputs, and {given} were given")]
    Inputs {
        /// Inputs given.
        given: usize,
        /// Inputs taken.
        taken: usize,
    },
    /// A step of a pipeline got too few microbatches.
    #[error("a step of the pipeline has {taken} microbatches, and {given} were given")]
    Microbatches {
        /// Microbatches given.
        given: usize,
        /// Microbatches of a step.
        taken: usize,
    },
    /// The device runs no pipelines.
    #[error("the device runs no pipelines yet")]
    Pipeline,
    /// The program has nothing with this index.
    #[error("the program has no {what} {index}")]
    Unknown {
        /// The kind of the missing item: state, input, output, program.
        what: &'static str,
        /// The index.
        index: usize,
    },
    /// A program lowered for one microbatch got a second one.
    #[error("the program was lowered for one microbatch per step; lower it for {:?}", Microbatches::Many)]
    OneMicrobatch,
    /// The program is for another number of devices.
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
    /// The collectives of the programs do not match each other.
    #[error(transparent)]
    Collectives(Box<ir::Diagnostic>),
    /// A collective failed.
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
    /// A rank panicked: a bug in Trainyard.
    #[error("it panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The program was lowered for a device of another kind.
    #[error("the program `{}` was lowered for a device of another kind", visible(program))]
    Target {
        /// The program.
        program: String,
    },
    /// Some of the instructions asked for are run in one kernel with others.
    #[error("the device fuses some of the instructions {instructions:?} with other instructions")]
    Apart {
        /// The instructions asked for.
        instructions: Range<usize>,
    },
    /// An operator has no kernel on this device.
    #[error(transparent)]
    Kernel(Box<ir::Diagnostic>),
    /// The driver of a device that computes asynchronously failed.
    #[error("{}{message}{}", of_operator(operator, origin, *late), if *late { SYNCHRONOUS } else { "" })]
    Driver {
        /// The operator that was run, if there was one.
        operator: String,
        /// The ONNX node of the operator.
        origin: Arc<str>,
        /// The driver's message.
        message: String,
        /// Whether an earlier command of the GPU may be at fault instead: a GPU reports errors late.
        late: bool,
    },
    /// Ranks that ended with an error were asked to run again.
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
    /// Returns whether the machine is at fault, perhaps for a time: memory or threads that other processes use, a disk, a lost rank.
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

    /// Refuses bytes whose number is not that of a rank's part of a type.
    pub(crate) fn check_size(name: &str, ty: &ir::Type, mesh: &ir::Mesh, bytes: &[u8]) -> Result<(), Self> {
        let local = ty.local(mesh).map(|sizes| sizes.iter().product::<u64>() * ty.dtype.bytes());
        let (taken, given) = (local.unwrap_or(u64::MAX), bytes.len() as u64);
        if taken == given {
            return Ok(());
        }
        Err(Self::Size { name: name.into(), ty: Box::new(ty.clone()), taken, given })
    }

    /// Returns the error of a program that is not for this number of devices.
    pub(crate) fn devices(program: &Program, given: u64) -> Self {
        let (mesh, devices) = (Box::new(program.mesh.clone()), program.mesh.devices());
        Self::Devices { program: program.name.clone(), mesh, devices, given }
    }

    /// Returns the error of a driver outside of any operator.
    pub(crate) fn driver(error: impl fmt::Display) -> Self {
        Self::Driver { operator: String::new(), origin: "".into(), message: error.to_string(), late: false }
    }

    /// Returns the error of an operator without a kernel.
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
