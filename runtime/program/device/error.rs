//! The errors of devices and of the ranks that run them.

use super::{CommError, TooLarge};
use crate::{Microbatches, Program};
use ir::timetable::Task;
use ir::visible;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

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
        ir::units::bytes_in_tenths(*bytes),
        ir::units::bytes_in_tenths(*free)
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
        /// The system's error.
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
        /// The ONNX node of the instruction.
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

/// Describes a rank with its task in a pipeline, if it has one: `rank 1, in backward of stage 1, microbatch 3`.
pub fn rank_at(rank: u64, task: Option<Task>) -> String {
    let task = task.map_or_else(String::new, |task| format!(", in {}", task.in_words()));
    format!("rank {rank}{task}")
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
    pub fn check_size(name: &str, ty: &ir::Type, mesh: &ir::Mesh, bytes: &[u8]) -> Result<(), Self> {
        let local = ty.local(mesh).map(|sizes| sizes.iter().product::<u64>() * ty.dtype.bytes());
        let (taken, given) = (local.unwrap_or(u64::MAX), bytes.len() as u64);
        if taken == given {
            return Ok(());
        }
        Err(Self::Size { name: name.into(), ty: Box::new(ty.clone()), taken, given })
    }

    /// Returns the error of a program that is not for this number of devices.
    pub fn devices(program: &Program, given: u64) -> Self {
        let (mesh, devices) = (Box::new(program.mesh.clone()), program.mesh.devices());
        Self::Devices { program: program.name.clone(), mesh, devices, given }
    }

    /// Returns the error of a driver outside of any operator.
    pub fn driver(error: impl fmt::Display) -> Self {
        Self::Driver { operator: String::new(), origin: "".into(), message: error.to_string(), late: false }
    }

    /// Returns the error of an operator without a kernel.
    pub fn kernel(diagnostic: ir::Diagnostic) -> Self {
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
