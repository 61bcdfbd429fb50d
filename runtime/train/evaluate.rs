//! Evaluation: the mean loss over the held-out data, in which every label counts equally.

use super::classes::LossTotal;
use super::error::TrainError;
use super::session::Session;
use crate::progress::Progress;
use data::Loader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time between two progress lines of an evaluation.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Returns the mean loss over all held-out samples: for each class of the loss, the sum of all losses divided by the sum of all weights, in
/// f64, in the data's order. A long evaluation shows its progress. Returns `None` without held-out data, and if `stop` is set on any rank
/// before the end.
pub(super) fn evaluate(
    session: &mut Session,
    loader: &Loader,
    stop: &AtomicBool,
    mut progress: Option<&mut Progress>,
) -> Result<Option<f64>, TrainError> {
    if !session.evaluates() {
        return Ok(None);
    }
    session.prepare_evaluation()?;
    let mut total = LossTotal::default();
    // The batch before is added up while the device computes the next one.
    let mut open = None;
    let (mut told, mut done) = (Instant::now(), 0);
    for batch in loader.eval_batches() {
        if session.agreement().any(stop.load(Ordering::Relaxed))? {
            // The device keeps requested outputs until they are collected.
            if let Some(asked) = open {
                session.evaluated(asked)?;
            }
            return Ok(None);
        }
        if let Some(progress) = progress.as_mut().filter(|_| told.elapsed() > LINE_EVERY) {
            told = Instant::now();
            progress.message(&format!("evaluation: {done} of {} samples", loader.eval_samples()));
        }
        done += batch.size();
        // A short batch has a program of its own, in the memory of the previous batch.
        if batch.size() < session.microbatch()
            && let Some(earlier) = open.take()
        {
            total.add(&session.evaluated(earlier)?);
        }
        let rows = session.evaluated_rows(batch.size());
        let own = batch.rows(rows.clone());
        batch.check_indices(rows, &own)?;
        let begun = session.begin_evaluation(batch.size(), &own)?;
        if let Some(earlier) = open.replace(begun) {
            total.add(&session.evaluated(earlier)?);
        }
    }
    if let Some(last) = open {
        total.add(&session.evaluated(last)?);
    }
    session.complete(&mut total)?;
    Ok(total.loss(loader.global_batch_size() / session.microbatch().max(1)))
}
