//! Evaluation: the mean loss over the held-out data, every label counting the same.

use super::classes::LossTotal;
use super::error::TrainError;
use super::session::Session;
use crate::data::Loader;
use std::sync::atomic::{AtomicBool, Ordering};

/// The mean loss over all held-out samples: of each class of the loss the sum of all losses by the sum of all weights, in
/// f64, in the data's order. `None` without held-out data, and when `stop` is set before the end.
pub(super) fn evaluate(
    session: &mut Session,
    loader: &Loader,
    stop: &AtomicBool,
) -> Result<Option<f64>, TrainError> {
    if !session.evaluates() {
        return Ok(None);
    }
    session.prepare_evaluation()?;
    let mut total = LossTotal::default();
    // While the device is at a batch, the one before is added up.
    let mut open = None;
    let mut batches = loader.eval_batches();
    loop {
        let next = batches.next();
        if next.is_some() && stop.load(Ordering::Relaxed) {
            // What the device was asked for it keeps until it is collected.
            if let Some(asked) = open {
                session.evaluated(asked)?;
            }
            return Ok(None);
        }
        let begun = next.map(|batch| session.begin_evaluation(&batch)).transpose()?;
        if let Some(earlier) = std::mem::replace(&mut open, begun) {
            total.add(&session.evaluated(earlier)?);
        }
        if open.is_none() {
            break;
        }
    }
    Ok(total.loss(loader.global_batch_size() / session.microbatch().max(1)))
}
