//! What can be told of a GPU without one, and, with one, that it keeps what it is given.

use super::*;
use crate::cuda::Pace;

fn facts(name: &str) -> DeviceFacts {
    DeviceFacts { name: name.into(), capability: (9, 0), memory: 1 << 30, multiprocessors: 132 }
}

#[test]
fn a_gpu_that_is_not_there_is_named_with_those_that_are() {
    let error = absent(3, &[facts("NVIDIA H200"), facts("NVIDIA A100")]).to_string();
    assert_eq!(error, "there is no GPU 3; there are 0 (NVIDIA H200), 1 (NVIDIA A100)");
}

#[test]
fn memory_that_is_not_there_is_counted() {
    let error = too_much(3 << 30, "GPU 0 (NVIDIA H200)", (1 << 30, 2 << 30)).to_string();
    let counted = "cannot allocate 3221225472 bytes on GPU 0 (NVIDIA H200): 1073741824 of its 2147483648 bytes are free";
    assert_eq!(error, counted);
}

/// With a GPU or without: an answer, and no panic.
#[test]
fn every_machine_has_an_answer() {
    match gpu(vec![], 0, Options::default(), None, None, &|_| {}) {
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let error =
        gpu(vec![], 1 << 20, Options::default(), None, None, &|_| {}).map(drop).unwrap_err().to_string();
    assert!(["libcuda", "NVIDIA", "no GPU"].iter().any(|part| error.contains(part)), "{error}");
}

/// What is in a graph on one rank has to be in one on all.
#[test]
fn ranks_of_which_one_is_watched_capture_no_graphs() {
    let at = |pace| Options { pace, ..Options::default() }.without_graphs().pace;
    assert_eq!(at(Pace::Graphs), Pace::Commands);
    assert_eq!(at(Pace::Synchronous), Pace::Synchronous);
}
