//! Tests of the driver that pass on machines with a GPU and without.

use super::*;
use crate::Pace;

fn facts(name: &str) -> DeviceFacts {
    DeviceFacts { name: name.into(), capability: (9, 0), memory: 1 << 30, multiprocessors: 132 }
}

#[test]
fn a_gpu_that_is_not_there_is_named_with_those_that_are() {
    let error = facts_of(3, &[facts("NVIDIA H200"), facts("NVIDIA A100")]).unwrap_err().to_string();
    assert_eq!(error, "there is no GPU 3; there are 0 (NVIDIA H200), 1 (NVIDIA A100)");
}

/// NVRTC compiles for a T4 too, so only this check keeps kernels from running on it.
#[test]
fn a_gpu_that_is_too_old_is_refused_before_a_kernel_is_compiled() {
    let devices = [facts("NVIDIA A100"), DeviceFacts { capability: (7, 5), ..facts("Tesla T4") }];
    assert_eq!(facts_of(0, &devices).map(|facts| &*facts.name), Ok("NVIDIA A100"));
    let error = facts_of(1, &devices).unwrap_err().to_string();
    let told = "GPU 1 (Tesla T4) is too old: its compute capability is 7.5, and kernels need 8.0 or newer";
    assert_eq!(error, told);
}

#[test]
fn memory_that_is_not_there_is_counted() {
    let error = too_much(3 << 30, "GPU 0 (NVIDIA H200)", (1 << 30, 2 << 30)).to_string();
    let counted = "cannot allocate 3221225472 bytes on GPU 0 (NVIDIA H200): 1073741824 of its 2147483648 bytes are free";
    assert_eq!(error, counted);
}

/// A machine with a GPU and one without get an answer, and no panic.
#[test]
fn every_machine_has_an_answer() {
    match gpu(vec![], 0, Options::default(), None, DeviceProfiles::new(), &|_| {}) {
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let error = gpu(vec![], 1 << 20, Options::default(), None, DeviceProfiles::new(), &|_| {})
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(["libcuda", "NVIDIA", "no GPU"].iter().any(|part| error.contains(part)), "{error}");
}

/// A collective has to be in a graph on all ranks or on none.
#[test]
fn ranks_of_which_one_is_watched_capture_no_graphs() {
    let at = |pace| Options { pace, ..Options::default() }.without_graphs().pace;
    assert_eq!(at(Pace::Graphs), Pace::Commands);
    assert_eq!(at(Pace::Synchronous), Pace::Synchronous);
}
