//! The run: its length, its checkpoints, and the checkpoint at which it resumes.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::shapes::positive_count;
use super::value::{ValueError, count_from};

/// Flags about the length of a run and its checkpoints.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Run")]
#[serde(rename_all = "kebab-case")]
pub struct RunFlags {
    /// Train until step N; steps are counted from step 0, also in a resumed run
    #[arg(long, value_name = "N", value_parser = any_count)]
    pub steps: Option<u64>,
    /// Train for N passes over the data [default: 1, without --steps]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub epochs: Option<u64>,
    /// Save a checkpoint every N steps, and always at the end and on Ctrl-C
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub save_every: Option<u64>,
    /// Keep the newest N checkpoints and the checkpoint with the lowest eval loss [default: all checkpoints]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub keep: Option<u64>,
    /// Export the last checkpoint, or the best, which has the lowest eval loss; with `best`, a checkpoint is also saved at
    /// each evaluation with a new lowest loss [default: last]
    #[arg(long, value_enum)]
    pub export: Option<Export>,
    /// End the run after N evaluations (--eval-every) in a row without a new lowest eval loss
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub patience: Option<u64>,
    /// Reduce whole gradients up to step N, and then those of --compress-gradients; a checkpoint of step N is saved
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub compress_gradients_after: Option<u64>,
    /// Resume from the last checkpoint in DIR, or from the checkpoint of step N [default for DIR: the output folder; if the
    /// same command started a run there and it has no checkpoint yet, the run starts at step 0]
    #[arg(long, value_name = "DIR[@N]", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[serde(skip)]
    pub resume: Option<Resume>,
    /// At the end, print the time of a step by kind of kernel, in a pipeline also by stage and phase with the idle share of each rank, and
    /// write the last step to timeline.json for Perfetto
    #[arg(long)]
    #[serde(skip)]
    pub profile: bool,
}

impl RunFlags {
    /// Whether the checkpoint with the lowest eval loss is exported.
    pub fn exports_best(&self) -> bool {
        self.export == Some(Export::Best)
    }

    /// The length of the training: one epoch if neither flag is given.
    pub fn length(&self) -> Length {
        match (self.steps, self.epochs) {
            (Some(steps), _) => Length::Steps(steps),
            (None, epochs) => Length::Epochs(epochs.unwrap_or(1)),
        }
    }
}

/// The checkpoint that is exported.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Export {
    /// The last checkpoint
    #[default]
    Last,
    /// The checkpoint with the lowest eval loss
    Best,
}

/// The length of a run, counted from step 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Steps in total.
    Steps(u64),
    /// Passes over the data.
    Epochs(u64),
}

/// The run to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The run in the output folder, from its last checkpoint.
    Output,
    /// The run in this folder; or `DIR@N`, or `@N` of the output folder: see [`Resume::place`].
    Folder(PathBuf),
}

/// The place at which a run resumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumePlace {
    /// The folder of a run.
    pub folder: PathBuf,
    /// The step of a checkpoint; `None` for the last one.
    pub step: Option<u64>,
}

impl Resume {
    /// Returns the place that the user means; `output` is the output folder. A name that ends in `@` and a number is read as a folder if
    /// this folder exists.
    pub fn place(&self, output: &Path) -> ResumePlace {
        let last = |folder: &Path| ResumePlace { folder: folder.to_owned(), step: None };
        let Self::Folder(text) = self else { return last(output) };
        let chosen = text.to_str().and_then(|text| text.rsplit_once('@'));
        let chosen = chosen.and_then(|(folder, step)| Some((folder, step.parse().ok()?)));
        match chosen.filter(|_| !text.exists()) {
            None => last(text),
            Some(("", step)) => ResumePlace { folder: output.to_owned(), step: Some(step) },
            Some((folder, step)) => ResumePlace { folder: folder.into(), step: Some(step) },
        }
    }
}

impl FromStr for Resume {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text.is_empty() { Self::Output } else { Self::Folder(text.into()) })
    }
}

/// A count that may be 0: `--steps 0` evaluates and stops.
fn any_count(text: &str) -> Result<u64, ValueError> {
    count_from(0, text)
}
