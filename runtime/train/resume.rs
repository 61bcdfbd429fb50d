//! Resuming: continues from the newest whole checkpoint of a run, or from a chosen one, and truncates the metrics to it.

use super::error::TrainError;
use super::history::EvalHistory;
use crate::metrics;
use checkpoint::{
    CheckpointError, Checkpoints, DataFiles, EvalConditions, Latest, PendingFingerprint, StateBytes,
};
use data::Loader;
use ir::Module;
use std::path::{Path, PathBuf};

/// The state with which a run continues.
#[derive(Debug)]
pub struct Resumed {
    /// The number of completed steps.
    pub step: u64,
    /// The value of every state after these steps, or the parts of one rank.
    pub values: StateBytes,
    /// The fingerprint of the data.
    pub data: PendingFingerprint,
    /// The eval losses up to the checkpoint that are comparable.
    pub history: EvalHistory,
    /// The condition that changed, if earlier eval losses are therefore not comparable.
    pub forgotten: Option<&'static str>,
    /// The checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that were skipped because they are damaged.
    pub damaged: Vec<CheckpointError>,
}

/// Returns the position and the values from the checkpoint of `step`, or else from the newest whole one. The number of microbatches may
/// differ from the earlier run; model, optimizer, data, seed and global batch may not. With a `rank`, only its parts of the values are
/// read.
///
/// # Errors
/// There is no checkpoint; it is of another program or of other data; files cannot be read. Nothing on the disk is changed.
pub fn resume(
    checkpoints: &Checkpoints,
    step: Option<u64>,
    module: &Module,
    loader: &Loader,
    data: &DataFiles,
    evaluation: &EvalConditions,
    rank: Option<u64>,
) -> Result<Resumed, TrainError> {
    let latest = match step {
        Some(step) => Latest { checkpoint: Some(checkpoints.at(step)?), damaged: Vec::new() },
        None => checkpoints.latest()?,
    };
    let Some(checkpoint) = latest.checkpoint else {
        return Err(TrainError::NoCheckpoint {
            path: checkpoints.folder().to_owned(),
            damaged: latest.damaged,
        });
    };
    // Cheap checks come first: reading the data may take an hour, and reading the values minutes.
    checkpoint.check_table(module)?;
    checkpoint.check_data_size(data)?;
    let step = loader.resume(&checkpoint.description.position)?;
    let values = match rank {
        None => checkpoint.load(module)?,
        Some(rank) => checkpoint.load_part(module, rank)?,
    };
    let data = checkpoint.check_data(data)?;
    let earlier = checkpoint.evaluations(evaluation)?;
    let forgotten = earlier.changed.filter(|_| checkpoint.has_eval_losses());
    let history = EvalHistory::of_checkpoint(earlier, evaluation.measure.clone());
    Ok(Resumed { step, values, data, history, forgotten, path: checkpoint.path, damaged: latest.damaged })
}

/// Makes the files of a run match its first `step` steps. Later lines of the file `metrics` (`metrics.jsonl`) are cut off, and with
/// `checkpoints` the later checkpoints are removed. The checkpoints are removed first: after a crash the run then has only more metrics
/// than necessary, which the next call cuts off.
///
/// Returns the number of completed steps that have no metrics.
///
/// # Errors
/// Files cannot be read or changed.
pub fn cut_back(checkpoints: Option<&Checkpoints>, metrics: &Path, step: u64) -> Result<u64, TrainError> {
    checkpoints.map_or(Ok(()), |checkpoints| checkpoints.remove_after(step))?;
    Ok(metrics::truncate_to_step(metrics, step)?)
}
