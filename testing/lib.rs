//! Support that several test files share, the functions that are fuzzed, and a backend that runs the interpreter. A dependency of tests alone.

pub mod fuzzing;
pub mod interpreter;
pub mod layers;
pub mod models;
pub mod planted;
pub mod random_flags;
pub mod records;
pub mod running;
pub mod training;
pub mod verification;
pub mod workplace;

use std::path::{Path, PathBuf};

/// A file or folder of the repository's `testdata`.
pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}
