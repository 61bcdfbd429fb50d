//! Checkpoints and files of weights.

use super::{folder, two_files};
use checkpoint::{Checkpoint, DataFiles, EvalConditions, load_weights};
use files::Checksum;
use std::collections::BTreeMap;
use std::fs;

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

/// The initial value of a state in [`STATES`] that is a view of the file's data, and one without a view.
const VIEW: [&str; 2] = ["data @0 view [transpose [1, 0]]", "zeros"];

/// A checkpoint. The first four bytes are the length of `checkpoint.json` (little endian), which follows; the rest is
/// `state.safetensors`, which is also read as a file of weights. `checkpoint.json` gets the checksum of its bytes and the size of
/// the other file, so that a changed description is read to its end. Tensors keep the checksums that they come with.
pub(super) fn checkpoint(bytes: &[u8]) {
    let Some((description, states)) = two_files(bytes) else { return };
    let folder = folder();
    let path = folder.path().join("state.safetensors");
    let description = sealed(description, states.len());
    fs::write(folder.path().join("checkpoint.json"), description).expect("the folder is there");
    fs::write(&path, states).expect("the folder is there");
    let module = ir::text::parse(STATES).expect("the program is valid");
    let of_tensors = ir::text::parse(&STATES.replace(VIEW[0], VIEW[1])).expect("the program is valid");
    if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
        for module in [&module, &of_tensors] {
            let _ = checkpoint.load(module).map_err(|error| error.to_string());
        }
        let _ = checkpoint.check_data(&DataFiles::default()).map_err(|error| error.to_string());
        let _ = checkpoint.evaluations(&EvalConditions::default()).map_err(|error| error.to_string());
    }
    let aliases = BTreeMap::from([("w".to_owned(), vec!["linear.weight".to_owned()])]);
    let _ = load_weights(&path, &module, &aliases).map(|weights| weights.report.to_string());
}

/// A description in which the size of the states' file and the description's own checksum are right, if it has these fields.
fn sealed(description: &[u8], states: usize) -> Vec<u8> {
    let mut text = description.to_vec();
    if let Some(begin) = after(&text, b"\"state.safetensors\": ") {
        let digits = text[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        text.splice(begin..begin + digits, states.to_string().into_bytes());
    }
    let place = after(&text, b"\"checksum\": \"").map(|begin| begin..begin + Checksum::DIGITS);
    if let Some(digits) = place.filter(|digits| digits.end <= text.len()) {
        text[digits.clone()].fill(b'0');
        let sum = Checksum::of(&text).to_string();
        text[digits].copy_from_slice(sum.as_bytes());
    }
    text
}

/// The offset after the first `word` in `text`.
fn after(text: &[u8], word: &[u8]) -> Option<usize> {
    Some(text.windows(word.len()).position(|window| window == word)? + word.len())
}
