//! Going on: from the newest whole checkpoint of a run, with the metrics cut back to it.

use super::error::TrainError;
use crate::checkpoint::{CheckpointError, Checkpoints, DataFiles, PendingFingerprint, StateBytes};
use crate::data::Loader;
use crate::metrics;
use ir::Module;
use std::path::{Path, PathBuf};

/// Where a run goes on.
#[derive(Debug)]
pub struct Resumed {
    /// Steps done.
    pub step: u64,
    /// The value of every state after them.
    pub values: StateBytes,
    /// What the data is.
    pub data: PendingFingerprint,
    /// The checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that were passed over, since they are not whole.
    pub damaged: Vec<CheckpointError>,
}

/// The place and the values to go on with, from the newest whole checkpoint. Steps in the file `metrics`
/// (`metrics.jsonl`) that come after it are cut off. The number of microbatches may be another than before; model, optimizer,
/// data, seed and global batch may not.
///
/// # Errors
/// No checkpoint; one of another program or of other data; files that cannot be read. Nothing is changed then.
pub fn resume(
    checkpoints: &Checkpoints,
    metrics: &Path,
    module: &Module,
    loader: &Loader,
    data: &DataFiles,
) -> Result<Resumed, TrainError> {
    let latest = checkpoints.latest()?;
    let Some(checkpoint) = latest.checkpoint else {
        return Err(TrainError::NoCheckpoint {
            path: checkpoints.folder().to_owned(),
            damaged: latest.damaged,
        });
    };
    let values = checkpoint.load(module)?;
    let data = checkpoint.check_data(data)?;
    let step = loader.resume(&checkpoint.description.position)?;
    metrics::truncate_to_step(metrics, step)?;
    Ok(Resumed { step, values, data, path: checkpoint.path, damaged: latest.damaged })
}
