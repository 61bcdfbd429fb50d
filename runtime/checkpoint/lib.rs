//! Values of states on disk: checkpoints, weights given by the user, and the values before step 0.
//!
//! A checkpoint is a folder `checkpoints/step-N` of two files. `state.safetensors` has every state of the module's table by name: global,
//! unsharded, without padding, in its element type. With several ranks, each rank writes its blocks of the states to a file of its own
//! instead. `checkpoint.json` describes the checkpoint ([`Description`]). The files are written into a folder with a temporary name,
//! flushed to the disk and only then renamed, so an existing folder `step-N` is always whole. Every tensor has a checksum, and so has
//! `checkpoint.json`: bytes that a disk changed later are refused, with the name of the tensor.

mod compare;
mod description;
mod earlier_evaluations;
mod error;
mod evaluations;
mod find;
mod fingerprint;
mod folders;
mod initial;
mod kept;
mod load;
mod matching;
mod padding;
mod pending;
mod raw_view;
mod sampled;
mod save;
mod shards;
mod tensor_file;
mod tensor_writer;
#[cfg(test)]
mod testing;
mod weights;

pub use compare::Differences;
pub use description::{Description, FORMAT, Shard, StateRow};
pub use earlier_evaluations::{EarlierEvaluations, EvalConditions};
pub use error::CheckpointError;
pub use evaluations::{EvalLoss, Evaluations};
pub use find::Latest;
pub use fingerprint::{DataFiles, DataFingerprint, FilePlace, HashRule, HashedFile, MOST_LISTED};
pub use folders::Checkpoints;
pub use initial::{InitialValues, check_weights, initial_states};
pub use load::Checkpoint;
pub use padding::unpadded_type;
pub use pending::PendingFingerprint;
pub use raw_view::RawTensor;
pub use tensor_file::TensorFile;
pub use tensor_writer::{Checksums, TensorLayout, TensorRow};
pub use weights::{Weights, WeightsReport, load_weights, weights_of};

use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Values of states by name: little endian, row-major, in the state's element type.
pub type StateBytes = BTreeMap<String, Bytes>;

/// A source of the values of states, such as a device or a map.
pub trait StateSource {
    /// Returns the bytes of the state of that name (little endian, row-major); `None` if there is none.
    fn state(&self, name: &str) -> Option<Cow<'_, [u8]>>;
}

impl StateSource for StateBytes {
    fn state(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.get(name).map(|bytes| Cow::Borrowed(bytes.as_ref()))
    }
}

/// The name of the file of states in a checkpoint's folder.
const STATES: &str = "state.safetensors";
/// The name of the file with the description of a checkpoint.
const DESCRIPTION: &str = "checkpoint.json";
