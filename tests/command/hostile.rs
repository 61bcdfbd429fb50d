//! Hostile files and environments: a model that asks for more memory than any machine has, names with terminal escapes, an error stream
//! that is full, a limit on file sizes, numbers of threads and ranks that no machine has, deep graphs. The binary ends each with an exit
//! code and a message, never with a panic or a kill.

mod depth;
mod empty;
mod limits;
mod memory;
pub(crate) mod models;
mod names;
mod streams;
mod tokenizers;

use testing::workplace::Ended;

/// Asserts that the process ended by itself with exit code 2, and returns the message.
#[track_caller]
fn refused(ended: &Ended) -> String {
    let text = ended.errors();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    text
}
