//! The faults of checkpoints. Each error has the path, the numbers and a remedy.

use super::compare::Differences;
use super::fingerprint::DataFingerprint;
use data::{DataError, one_line};
use ir::{Diagnostic, visible};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be written, read or used. Its text is one line, in which names and paths are escaped; the [`Diagnostic`] made
/// from it also has its notes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The checkpoint cannot be written, most often because the disk is full.
    #[error(
        "cannot save the checkpoint of step {step} to `{}`, which needs {needed} bytes: {}",
        shown(path), visible(&source.to_string())
    )]
    Write {
        /// The intended path.
        path: PathBuf,
        /// The step.
        step: u64,
        /// Bytes of the files.
        needed: u64,
        /// The system's error.
        source: io::Error,
        /// The newest whole checkpoint, if there is one.
        kept: Option<PathBuf>,
    },
    /// A file or folder cannot be read.
    #[error("cannot read `{}`: {}", shown(path), visible(&source.to_string()))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The newest checkpoint cannot be read, so it is not known whether it is whole.
    #[error("{source}")]
    OutOfReach {
        /// The error.
        source: Box<CheckpointError>,
    },
    /// A checkpoint cannot be removed.
    #[error("cannot remove `{}`: {}", shown(path), visible(&source.to_string()))]
    Remove {
        /// The checkpoint.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no checkpoint of the requested step.
    #[error("`{}` has no checkpoint of step {step}{}", shown(folder), steps_text(.steps))]
    NoStep {
        /// The folder of the checkpoints.
        folder: PathBuf,
        /// The step.
        step: u64,
        /// The steps that have checkpoints.
        steps: Vec<u64>,
    },
    /// The contents are not those of a checkpoint, or are incomplete.
    #[error("`{}` is damaged: {}", shown(path), visible(reason))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// Bytes changed after they were written.
    #[error("`{}` is damaged: the bytes of `{}` do not match their checksum", shown(path), visible(tensor))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The newest whole checkpoint in the same folder.
        whole: Option<PathBuf>,
    },
    /// Another version of the format wrote the file.
    #[error(
        "`{}` has format version {found}, and this program reads versions up to {}: resume with the version \
         of the program that wrote it",
        shown(path),
        super::FORMAT
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// The state table is not this program's.
    #[error("`{}` is a checkpoint of another program (`{}`):", shown(path), visible(module))]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// The module with which it was made.
        module: String,
        /// The differences of the tables.
        differences: Differences,
    },
    /// The run has other training data than the checkpoint.
    #[error("`{}` belongs to a run with other data: {then}; this run has {now}", shown(path))]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
        /// Its data.
        then: Box<DataFingerprint>,
        /// This run's data.
        now: Box<DataFingerprint>,
    },
    /// Training data cannot be read.
    #[error("{}", one_line(.0))]
    Data(#[from] DataError),
    /// The source of the values lacks a state, or has it with another size than the module's table.
    #[error("the value of state `{}` has {found} bytes, and its type needs {expected}", visible(name))]
    State {
        /// The state.
        name: String,
        /// The number of bytes; 0 if there is no such state.
        found: u64,
        /// The expected number of bytes.
        expected: u64,
    },
    /// A state has a name that a safetensors file cannot hold.
    #[error(
        "a state cannot be saved under the name `{}`, which the safetensors format reserves",
        visible(name)
    )]
    ReservedName {
        /// The name.
        name: String,
    },
}

impl CheckpointError {
    /// Returns the reason and the remedies, one thought each.
    fn notes(&self) -> Vec<String> {
        match self {
            Self::Write { kept, .. } => vec![kept_text(kept)],
            Self::OutOfReach { source } => {
                let advice = "this checkpoint may be whole: make the file readable, or choose an older checkpoint with --resume=DIR@STEP";
                source.notes().into_iter().chain([advice.to_owned()]).collect()
            }
            Self::Damaged { whole, .. } => whole.iter().map(|path| whole_text(path)).collect(),
            Self::OtherModel { path, differences, .. } => {
                let advice = format!(
                    "resume with the model and the flags of the first run; or load only the weights, with --weights {}",
                    shown(path)
                );
                differences.notes().into_iter().chain([advice]).collect()
            }
            Self::OtherData { .. } => {
                vec!["resume with the data of the first run, or start a new run".to_owned()]
            }
            Self::Read { .. }
            | Self::Remove { .. }
            | Self::NoStep { .. }
            | Self::Malformed { .. }
            | Self::Version { .. }
            | Self::Data(_)
            | Self::State { .. }
            | Self::ReservedName { .. } => vec![],
        }
    }
}

impl CheckpointError {
    /// Returns whether the disk is at fault, perhaps for a time.
    fn is_passing(&self) -> bool {
        match self {
            Self::Write { source, .. } | Self::Read { source, .. } | Self::Remove { source, .. } => {
                files::disk::is_passing(source)
            }
            Self::OutOfReach { source } => source.is_passing(),
            _ => false,
        }
    }
}

impl From<&CheckpointError> for Diagnostic {
    fn from(error: &CheckpointError) -> Self {
        let told = error.notes().into_iter().fold(Self::new(error.to_string()), Self::note);
        told.passing_if(error.is_passing())
    }
}

impl From<CheckpointError> for Diagnostic {
    fn from(error: CheckpointError) -> Self {
        (&error).into()
    }
}

/// Formats a path for one line.
fn shown(path: &Path) -> String {
    visible(&path.display().to_string()).into_owned()
}

fn whole_text(path: &Path) -> String {
    let (run, step) = (path.parent().and_then(Path::parent), path.file_name());
    let step = step.and_then(|name| name.to_str()?.strip_prefix("step-")).unwrap_or_default();
    let run = shown(run.unwrap_or(path));
    format!("the checkpoint `{}` is whole: resume from it with --resume={run}@{step}", shown(path))
}

fn kept_text(kept: &Option<PathBuf>) -> String {
    match kept {
        Some(path) => format!("the checkpoint `{}` is whole; resume from it with --resume", shown(path)),
        None => "there is no earlier checkpoint".to_owned(),
    }
}

fn steps_text(steps: &[u64]) -> String {
    match steps {
        [] => ", and no other checkpoint".to_owned(),
        [only] => format!("; it has the checkpoint of step {only}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u64::to_string).collect();
            format!("; it has the checkpoints of the steps {} and {last}", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_begins_no_line() {
        let name = "w\n  = all is well \u{202e}";
        let (path, reason, tensor) = (PathBuf::from(name), name.to_owned(), name.to_owned());
        let errors = [
            CheckpointError::Malformed { path: path.clone(), reason: reason.clone() },
            CheckpointError::Damaged { path: path.clone(), tensor, whole: None },
            CheckpointError::State { name: reason.clone(), found: 0, expected: 4 },
            CheckpointError::ReservedName { name: reason.clone() },
            CheckpointError::Read { path: path.clone(), source: io::Error::other(reason.clone()) },
            CheckpointError::Data(DataError::Malformed { path: path.clone(), reason: reason.clone() }),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(!text.contains(ir::is_hidden) && text.contains(r"\n  = all is well \u{202e}"), "{text}");
        }
        let differences = Differences::default();
        let error = Diagnostic::from(CheckpointError::OtherModel { path, module: reason, differences });
        assert_eq!(error.to_string().lines().count(), 2, "{error}");
    }
}
