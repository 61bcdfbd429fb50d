//! Going on: from the newest whole checkpoint of a run or a chosen one, with the metrics cut back to it.

use super::error::TrainError;
use super::history::EvalHistory;
use crate::metrics;
use checkpoint::{
    CheckpointError, Checkpoints, DataFiles, EvalConditions, Latest, PendingFingerprint, StateBytes,
};
use data::Loader;
use ir::Module;
use std::path::{Path, PathBuf};

/// Where a run goes on.
#[derive(Debug)]
pub struct Resumed {
    /// Steps done.
    pub step: u64,
    /// The value of every state after them, or the part of one rank.
    pub values: StateBytes,
    /// The fingerprint of the data.
    pub data: PendingFingerprint,
    /// The eval losses up to the checkpoint that count.
    pub history: EvalHistory,
    /// Why earlier eval losses do not count: the conditions that changed.
    pub forgotten: Option<&'static str>,
    /// The checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that were passed over, since they are not whole.
    pub damaged: Vec<CheckpointError>,
}

/// The place and the values to go on with, from the checkpoint of `step`, or else the newest whole one. The number of
/// microbatches may be another than before; model, optimizer, data, seed and global batch may not. With a `rank`, only its parts
/// of the values are read.
///
/// # Errors
/// No checkpoint; one of another program or of other data; files that cannot be read. Nothing is changed on disk.
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
    // Cheap checks come first: the data may take an hour to read, and the values minutes.
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

/// Makes a run's files those of the run after `step` steps: lines of the file `metrics` (`metrics.jsonl`) that come after
/// it are cut off, and with `checkpoints` the later checkpoints are removed. Those go first: a crash leaves a run with
/// more metrics than it needs, which the next one cuts off.
///
/// Returns the number of steps of which there are no metrics, though they were done.
///
/// # Errors
/// Files that cannot be read or changed.
pub fn cut_back(checkpoints: Option<&Checkpoints>, metrics: &Path, step: u64) -> Result<u64, TrainError> {
    checkpoints.map_or(Ok(()), |checkpoints| checkpoints.remove_after(step))?;
    Ok(metrics::truncate_to_step(metrics, step)?)
}
