//! What can go wrong with a checkpoint, each with the path, the numbers and what would work.

use super::compare::Differences;
use super::fingerprint::DataFingerprint;
use crate::data::DataError;
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be written, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused, most often for want of space.
    #[error(
        "cannot save the checkpoint of step {step} to `{}`, which takes {needed} bytes: {source}\n  = {}",
        path.display(), kept_text(.kept)
    )]
    Write {
        /// Where it was to be.
        path: PathBuf,
        /// The step.
        step: u64,
        /// Bytes of the files.
        needed: u64,
        /// Why not.
        source: io::Error,
        /// The newest whole checkpoint, if there is one.
        kept: Option<PathBuf>,
    },
    /// The file system refused.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system refused.
    #[error("cannot remove `{}`: {source}", path.display())]
    Remove {
        /// The checkpoint.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No checkpoint of the step that was asked for.
    #[error("`{}` has no checkpoint of step {step}{}", folder.display(), steps_text(.steps))]
    NoStep {
        /// The folder of the checkpoints.
        folder: PathBuf,
        /// The step.
        step: u64,
        /// The steps of which there are checkpoints.
        steps: Vec<u64>,
    },
    /// The contents are not a checkpoint's, or not all of it is there.
    #[error("`{}` is damaged: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Bytes that are not those that were written.
    #[error(
        "`{}` is damaged: the bytes of `{tensor}` do not have the checksum that they were written with{}",
        path.display(), whole_text(.whole)
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The newest checkpoint beside it that is whole.
        whole: Option<PathBuf>,
    },
    /// Written by another version of the format.
    #[error(
        "`{}` has format version {found}; this program reads versions up to {}: go on with the program that wrote it",
        path.display(), super::FORMAT
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// The state table is not this program's.
    #[error(
        "`{}` is a checkpoint of another program (`{}`):{differences}\n  = go on with the model and the flags of \
         the first run; or take only its weights, with --weights {}/{}",
        path.display(), ir::visible(module), path.display(), super::STATES
    )]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// The module it was made with.
        module: String,
        /// How the tables differ.
        differences: Differences,
    },
    /// Other training data.
    #[error(
        "`{}` was made with other data, of {then}; this run has {now}\n  = go on with the data of the first run, or start a \
         new one",
        path.display()
    )]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
        /// Its data.
        then: Box<DataFingerprint>,
        /// This run's data.
        now: Box<DataFingerprint>,
    },
    /// Training data that cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The source of the values does not have a state as the module's table says.
    #[error("the value of state `{name}` has {found} bytes, its type takes {expected}")]
    State {
        /// The state.
        name: String,
        /// Bytes there are; 0 if there is no such state.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// A name that a safetensors file cannot hold.
    #[error("a state cannot be saved under the name `{name}`, which the safetensors format keeps for itself")]
    ReservedName {
        /// The name.
        name: String,
    },
}

fn whole_text(whole: &Option<PathBuf>) -> String {
    whole.as_ref().map_or_else(String::new, |path| {
        let (run, step) = (path.parent().and_then(Path::parent), path.file_name());
        let step = step.and_then(|name| name.to_str()?.strip_prefix("step-")).unwrap_or_default();
        let run = run.unwrap_or(path).display();
        format!(
            "\n  = the checkpoint `{}` is whole: go on from it with --resume={run}@{step}",
            path.display()
        )
    })
}

fn kept_text(kept: &Option<PathBuf>) -> String {
    match kept {
        Some(path) => format!("the checkpoint `{}` is whole; go on from it with --resume", path.display()),
        None => "there is no earlier checkpoint".to_owned(),
    }
}

fn steps_text(steps: &[u64]) -> String {
    match steps {
        [] => ", and none of any other".to_owned(),
        [only] => format!("; it has that of step {only}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u64::to_string).collect();
            format!("; it has those of the steps {} and {last}", first.join(", "))
        }
    }
}
