//! Evaluation: the mean loss over the held-out data, every label counting the same.

use super::error::TrainError;
use super::session::Session;
use crate::data::Loader;
use std::sync::atomic::{AtomicBool, Ordering};

/// The mean loss over all held-out samples: the sum of all losses by the sum of all weights, in f64, in the data's
/// order. `None` without held-out data, and when `stop` is set before the end.
pub(super) fn evaluate(
    session: &mut Session,
    loader: &Loader,
    stop: &AtomicBool,
) -> Result<Option<f64>, TrainError> {
    if !session.evaluates() {
        return Ok(None);
    }
    session.prepare_evaluation()?;
    let (mut sum, mut weight) = (0.0, 0.0);
    for batch in loader.eval_batches() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let [batch_sum, batch_weight] = session.evaluate(&batch)?;
        sum += batch_sum;
        weight += batch_weight;
    }
    Ok((weight > 0.0).then(|| sum / weight))
}
