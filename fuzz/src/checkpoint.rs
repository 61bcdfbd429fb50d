//! Checkpoints and files of weights.

use super::{folder, two_files};
use runtime::checkpoint::{Checkpoint, DataFiles, load_weights};
use std::collections::BTreeMap;

/// The program whose states a checkpoint is loaded into.
const STATES: &str = "trainyard-ir 1
module @tiny training {
  data @0 \"w\" : f32[3, 2]
  state @half : bf16[3] parameter = zeros
  state @weight : f32[2, 3] parameter = data @0 view [transpose [1, 0]]
  state @empty : f32[0, 4] buffer = zeros
  state @step : i64[] counter = zeros
  func @train(%0 = @half, %1 = @weight, %2 = @empty, %3 = @step) {
  }
}";

/// A checkpoint. The first four bytes are the length of `checkpoint.json` (little endian), which follows; the rest is
/// `state.safetensors`, which is also read as a file of weights.
pub fn checkpoint(bytes: &[u8]) {
    let Some((description, states)) = two_files(bytes) else { return };
    let folder = folder();
    let path = folder.path().join("state.safetensors");
    std::fs::write(folder.path().join("checkpoint.json"), description).expect("the folder is there");
    std::fs::write(&path, states).expect("the folder is there");
    let module = ir::text::parse(STATES).expect("the program is valid");
    if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
        let _ = checkpoint.load(&module).map_err(|error| error.to_string());
        let _ = checkpoint.check_data(&DataFiles::default()).map_err(|error| error.to_string());
    }
    let aliases = BTreeMap::from([("w".to_owned(), vec!["linear.weight".to_owned()])]);
    let _ = load_weights(&path, &module, &aliases).map(|weights| weights.report.to_string());
}
