//! The fuzz targets. Each function reads any bytes as one kind of file, and panics only if the program is at fault.
//!
//! `fuzz/fuzz_targets/` hands these functions to libFuzzer; `tests/fuzz_corpus.rs` calls them with the corpus, and needs no
//! fuzzer for that. [`TARGETS`] lists them.

mod checkpoint;
pub mod choices;
mod config;
mod data;
pub mod mutate;
pub mod onnx_file;
mod text;

/// The function of a fuzz target: it runs one input.
pub type FuzzFunction = fn(&[u8]);

/// The name of each target, the folder of its seeds in the corpus, and its function.
pub const TARGETS: [(&str, &str, FuzzFunction); 9] = [
    ("model", "model", onnx_file::model),
    ("onnx", "model", onnx_file::onnx),
    ("text", "text", text::text),
    ("checkpoint", "checkpoint", checkpoint::checkpoint),
    ("data", "data", data::data),
    ("csv", "csv", data::csv),
    ("npz", "npz", data::npz),
    ("tokenizer", "tokenizer", data::tokenizer),
    ("config", "config", config::config),
];

/// Runs an input through a target.
///
/// # Panics
/// The program is at fault, or no target has this name.
pub fn run(target: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(name, ..)| *name == target);
    let (_, _, run) = found.unwrap_or_else(|| panic!("no target has the name {target}"));
    run(bytes);
}

/// Splits an input of two files: its first four bytes are the length of the first file (little endian).
fn two_files(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, files) = bytes.split_first_chunk::<4>()?;
    Some(files.split_at(files.len().min(u32::from_le_bytes(*length) as usize)))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}
