//! Training: the loop over steps, evaluation, stopping and resuming.
//!
//! [`train`] is the loop, which every rank runs with its own parts. It accesses the device through a [`Session`], the data through a
//! loader, and the disk through checkpoints and metrics. [`resume`] finds the place at which to continue. A resumed run repeats the
//! uninterrupted run bit for bit: states come from the checkpoint, samples from the step's number, and nothing else outlives a step.

mod beside;
mod classes;
mod error;
mod evaluate;
mod finite;
mod history;
pub mod metrics;
mod non_finite;
mod outputs;
pub mod progress;
mod resume;
mod run;
mod saving;
mod session;
mod step;
mod surroundings;
#[cfg(test)]
mod tests;
mod training_loop;

pub use classes::loss_of_batch;
pub use error::{Cause, ChangedBy, TrainError};
pub use history::{EvalHistory, Evaluation};
pub use non_finite::NotFiniteState;
pub use resume::{Resumed, cut_back, resume};
pub use run::{BestCheckpoint, Lead, Outcome, RunProgram, Schedule, TrainingRun};
pub use session::{GivenStates, Session};
pub use surroundings::Surroundings;
pub use training_loop::train;
