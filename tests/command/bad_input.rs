//! Bad input: wrong flags, files or data, or faults of the machine. Each message names the fault, its place, and a command or a value that works. The
//! command ends with the right exit code, and leaves no file half written.

mod data;
mod disk;
mod flags;
mod model;
mod npz;
mod numbers;

use crate::TRAINYARD;
use expect_test::Expect;
use testing::workplace::{Ended, Workplace};

const FRESH: &str = "compile testdata/gpt2-fresh.onnx --microbatch 32 --train text.txt";

fn place() -> Workplace {
    Workplace::with_text(TRAINYARD, 10_000)
}

/// Asserts that the command ends with exit code 2 and this message, and leaves all files as they were.
#[track_caller]
fn refused(place: &Workplace, arguments: &str, expected: Expect) {
    let before = place.contents();
    let ended = place.run(arguments);
    failed(&ended, expected);
    assert!(before == place.contents(), "trainyard {arguments}: it left {:?}", place.contents().keys());
}

/// Asserts that the command ended with exit code 2 and this message.
#[track_caller]
fn failed(ended: &Ended, expected: Expect) {
    expected.assert_eq(&ended.errors());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}

/// Files in a run's folder that only a run in progress should have.
fn half_written(place: &Workplace) -> Vec<String> {
    let half = |name: &String| name.contains("tmp") || name.contains("partial");
    place.contents().into_keys().filter(half).collect()
}
