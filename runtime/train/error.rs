//! The reasons why a run ends before its last step.

use super::non_finite::NotFiniteState;
use crate::metrics::MetricsError;
use checkpoint::CheckpointError;
use data::{DataError, one_line};
use ir::timetable::Task;
use ir::{Diagnostic, visible};
use program::device::{CommError, DeviceError, NonFinite};
use ranks::RankError;
use std::path::PathBuf;

/// The reason why weights had changed before a number that is not finite was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedBy {
    /// Updates run within backward.
    EarlyUpdates,
    /// Steps of an asynchronous schedule follow each other without a flush.
    Stream,
}

/// The error of a run that cannot begin or continue. Its text is one line; the [`Diagnostic`] made from it also has its notes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss or the gradient is NaN or infinite.
    #[error(
        "{what} of step {} is {value}{}", .step + 1, cause_text(.cause)
    )]
    NotFinite {
        /// The step, from 0.
        step: u64,
        /// `the loss`, `the gradient's norm` or `the eval loss after the update`.
        what: &'static str,
        /// The value.
        value: f64,
        /// The origin of the first number that is not finite, if it was found.
        cause: Option<Cause>,
        /// The reason why weights had already changed, if they had.
        updated: Option<ChangedBy>,
        /// The newest checkpoint, made before that.
        kept: Option<PathBuf>,
    },
    /// An update made a state infinite or NaN.
    #[error("{} made {}", updates_text(*.since, *.step), .state)]
    StateNotFinite {
        /// The step after whose update the state is not finite, from 0.
        step: u64,
        /// The first step whose update may have caused this: all states were finite before it.
        since: u64,
        /// The state.
        state: NotFiniteState,
        /// The newest checkpoint, made before that.
        kept: Option<PathBuf>,
    },
    /// The gradient is not finite although the loss scale is already the smallest allowed.
    #[error(
        "the gradients of step {} are not finite, and the loss scale {scale} is already the smallest{}",
        .step + 1, cause_text(.cause)
    )]
    ScaleExhausted {
        /// The step, from 0.
        step: u64,
        /// The loss scale.
        scale: f64,
        /// The origin of the first number that is not finite, if it was found.
        cause: Option<Cause>,
        /// The newest checkpoint, made before that.
        kept: Option<PathBuf>,
    },
    /// The program lacks an output or a state that the loop needs: a bug of the compiler.
    #[error("program `{}` has no {what} `{}`, which training needs", visible(program), visible(name))]
    Lacks {
        /// The program.
        program: String,
        /// `output` or `state`.
        what: &'static str,
        /// The name of the missing item.
        name: String,
    },
    /// The data lacks an input of the program: a bug of the driver.
    #[error("the data has nothing for input `{}` of program `{}`", visible(name), visible(program))]
    Unfed {
        /// The program.
        program: String,
        /// The name of the input.
        name: String,
    },
    /// The initial value of a state cannot be made: a bug of the compiler.
    #[error("{}", .0.message)]
    Initial(Box<Diagnostic>),
    /// Microbatches do not divide the global batch.
    #[error("the global batch {global_batch} is not a multiple of the program's microbatch {microbatch}")]
    Microbatch {
        /// Samples per step.
        global_batch: u64,
        /// Dim 0 of the program's batched inputs.
        microbatch: u64,
    },
    /// There is no checkpoint to resume from.
    #[error("there is no checkpoint to resume from in `{}`", path.display())]
    NoCheckpoint {
        /// The folder in which one was expected.
        path: PathBuf,
        /// The errors of damaged checkpoints.
        damaged: Vec<CheckpointError>,
    },
    /// A file that the run reads was changed.
    #[error("{}", visible(&changed.to_string()))]
    Changed {
        /// The file and its change.
        changed: files::FileChanged,
        /// The newest checkpoint.
        kept: Option<PathBuf>,
    },
    /// The run's folder was renamed or removed.
    #[error(
        "the folder `{}` was moved or removed while the run was writing into it",
        path.display()
    )]
    FolderGone {
        /// The name that it had.
        path: PathBuf,
    },
    /// The lock of the run's folder is gone.
    #[error("the file `.lock` of the folder `{}` was removed while the run was writing into it", path.display())]
    LockGone {
        /// The folder.
        path: PathBuf,
    },
    /// A checkpoint could not be written, read or used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device failed.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// The data cannot be read, or changed.
    #[error("{}", one_line(.0))]
    Data(#[from] DataError),
    /// The metrics could not be written or truncated.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

impl TrainError {
    /// Returns the newest checkpoint in an error about a number that is not finite.
    pub(super) fn kept_mut(&mut self) -> Option<&mut Option<PathBuf>> {
        match self {
            Self::NotFinite { kept, .. }
            | Self::StateNotFinite { kept, .. }
            | Self::ScaleExhausted { kept, .. } => Some(kept),
            _ => None,
        }
    }

    /// Returns whether the machine is at fault, perhaps for a time.
    fn is_passing(&self) -> bool {
        match self {
            Self::Checkpoint(error) => Diagnostic::from(error).is_passing,
            Self::Metrics(error) => error.is_passing(),
            Self::Data(DataError::Read { source, .. } | DataError::Thread { source }) => {
                files::disk::is_passing(source)
            }
            _ => false,
        }
    }

    /// Returns the reason and the remedies, one thought each. A device's error has its own diagnostic.
    fn notes(&self) -> Vec<String> {
        match self {
            Self::NotFinite { kept, updated: Some(by), .. } => vec![updated_text(*by, kept)],
            Self::NotFinite { cause, kept, .. } => vec![kept_text(kept, cause)],
            Self::StateNotFinite { kept, .. } => vec![spoilt_text(kept)],
            Self::ScaleExhausted { kept, .. } => vec![scale_text(kept)],
            Self::NoCheckpoint { damaged, .. } => damaged.iter().flat_map(damaged_notes).collect(),
            Self::Changed { kept, .. } => vec![changed_text(kept)],
            Self::FolderGone { .. } => {
                vec!["put the folder back and continue with --resume; its checkpoints are whole".to_owned()]
            }
            Self::LockGone { .. } => {
                vec![
                    "without it a second run may write there; make sure that there is none, and continue with --resume"
                        .to_owned(),
                ]
            }
            Self::Checkpoint(error) => Diagnostic::from(error).notes,
            Self::Initial(error) => error.notes.clone(),
            Self::Lacks { .. }
            | Self::Unfed { .. }
            | Self::Microbatch { .. }
            | Self::Device(_)
            | Self::Data(_)
            | Self::Metrics(_) => vec![],
        }
    }
}

impl From<&TrainError> for Diagnostic {
    fn from(error: &TrainError) -> Self {
        match error {
            TrainError::Device(error) => (&**error).into(),
            error => {
                let told = error.notes().into_iter().fold(Self::new(error.to_string()), Self::note);
                told.passing_if(error.is_passing())
            }
        }
    }
}

impl From<TrainError> for Diagnostic {
    fn from(error: TrainError) -> Self {
        (&error).into()
    }
}

impl RankError for TrainError {
    fn device(&self) -> Option<&DeviceError> {
        if let Self::Device(error) = self { Some(error) } else { None }
    }

    /// Adds the rank to a device's error only: faults of data, losses and files are the same for all ranks.
    fn of_rank(self, rank: u64, task: Option<Task>) -> Self {
        match self {
            Self::Device(error) => error.of_rank(rank, task).into(),
            error => error,
        }
    }
}

impl From<CommError> for TrainError {
    fn from(error: CommError) -> Self {
        DeviceError::from(error).into()
    }
}

impl From<DeviceError> for TrainError {
    fn from(error: DeviceError) -> Self {
        Self::Device(Box::new(error))
    }
}

/// The origin of a number that is not finite in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// An instruction made it from finite numbers.
    Instruction(Box<NonFinite>),
    /// An update before the step put it into a state.
    State(String),
    /// It was in a state when the run began.
    Initial(String),
}

fn cause_text(cause: &Option<Cause>) -> String {
    match cause {
        Some(Cause::Instruction(cause)) => format!(": {cause}"),
        Some(Cause::Initial(name)) => format!(": `{}` was not finite when the run began", visible(name)),
        Some(Cause::State(name)) => {
            format!(": `{}` was no longer finite after the previous update", visible(name))
        }
        None => String::new(),
    }
}

fn kept_text(kept: &Option<PathBuf>, cause: &Option<Cause>) -> String {
    let advice = "a smaller --lr, a longer warm-up or --clip may help";
    match kept {
        None if matches!(cause, Some(Cause::Initial(_))) => {
            "give other weights, with --weights, or start from scratch with --init".to_owned()
        }
        kept => format!("{}; {advice}", before_text(kept)),
    }
}

/// Explains that the weights have changed, so that only those of the last checkpoint remain.
fn updated_text(by: ChangedBy, kept: &Option<PathBuf>) -> String {
    let (reason, remedy) = match by {
        ChangedBy::EarlyUpdates => ("of --update early", "--update late"),
        ChangedBy::Stream => ("steps follow each other without a flush", "--schedule 1f1b"),
    };
    let advice = format!("a smaller --lr or a longer warm-up may help, and {remedy} keeps the weights");
    let began = format!("weights had changed by then, because {reason}");
    match kept {
        Some(path) => format!("{began}: the run ends at the checkpoint `{}`; {advice}", path.display()),
        None => format!("{began}, and no checkpoint was saved before that; {advice}"),
    }
}

fn before_text(kept: &Option<PathBuf>) -> String {
    match kept {
        Some(path) => format!("`{}` was saved before that", path.display()),
        None => "no checkpoint was saved before that".to_owned(),
    }
}

fn spoilt_text(kept: &Option<PathBuf>) -> String {
    let advice = "a smaller --lr or --weight-decay, a longer warm-up or --clip may help";
    format!("{}; {advice}", before_text(kept))
}

/// Names the steps of an update. Steps are counted from 1 here, as in the log.
fn updates_text(since: u64, step: u64) -> String {
    let (since, step) = (since + 1, step + 1);
    if since == step {
        format!("the update of step {step}")
    } else {
        format!("an update of the steps {since} to {step}")
    }
}

fn scale_text(kept: &Option<PathBuf>) -> String {
    let advice =
        "--bf16 has the range of fp32; with fp16, a smaller --lr, a longer warm-up or --clip may help";
    match kept {
        Some(path) => format!("`{}` was saved before that; {advice}", path.display()),
        None => advice.to_owned(),
    }
}

fn changed_text(kept: &Option<PathBuf>) -> String {
    match kept {
        Some(path) => {
            format!("restore the file, and continue with --resume from `{}`", path.display())
        }
        None => "no checkpoint was saved before that; start again with a file that no other program changes"
            .to_owned(),
    }
}

/// Formats a damaged checkpoint as notes.
fn damaged_notes(error: &CheckpointError) -> Vec<String> {
    let Diagnostic { message, notes, .. } = error.into();
    [message].into_iter().chain(notes).collect()
}
