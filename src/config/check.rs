//! Rules between flags: flags that need each other, or contradict each other.

use ir::Diagnostic;
use passes::optimizer::schedule::Curve;

use super::{CompileFlags, Settings};

impl Settings {
    /// Returns an error for each rule between flags that the settings break; none if they can be used.
    pub fn check(&self) -> Vec<Diagnostic> {
        let of_run = [self.flags_without_training(), self.patience()];
        of_run.into_iter().flatten().chain(self.compile.check(self.run.steps)).collect()
    }

    /// Refuses flags that only training uses if there is no training, rather than ignoring them.
    fn flags_without_training(&self) -> Option<Diagnostic> {
        let (data, run) = (&self.data, &self.run);
        let given: Vec<&str> = [
            ("--eval", data.eval.is_some()),
            ("--eval-every", data.eval_every.is_some()),
            ("--tokenizer", data.tokenizer.is_some()),
            ("--input", !data.input.is_empty()),
            ("--steps", run.steps.is_some()),
            ("--epochs", run.epochs.is_some()),
            ("--save-every", run.save_every.is_some()),
            ("--keep", run.keep.is_some()),
            ("--export", run.export.is_some()),
            ("--patience", run.patience.is_some()),
            ("--compress-gradients-after", run.compress_gradients_after.is_some()),
            ("--resume", run.resume.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, is_given)| is_given.then_some(flag))
        .collect();
        if data.train.is_some() || given.is_empty() {
            return None;
        }
        let verb = if given.len() == 1 { "does" } else { "do" };
        Some(
            Diagnostic::new(format!("{} {verb} not apply without --train", given.join(", ")))
                .note("give training data: --train corpus.txt, or --train synthetic to try the model"),
        )
    }

    /// Patience counts evaluations during a run, so it needs `--eval-every`.
    fn patience(&self) -> Option<Diagnostic> {
        let counts = self.run.patience.is_none() || self.data.eval_every.is_some();
        (!counts).then(|| {
            Diagnostic::new(
                "--patience does not apply without --eval-every: the run is evaluated only at its end",
            )
            .note("give the number of steps between evaluations: --eval-every 100")
        })
    }
}

impl CompileFlags {
    /// Returns an error for each rule between these flags that they break, for a run of `steps` steps if the number is known.
    pub fn check(&self, steps: Option<u64>) -> Vec<Diagnostic> {
        let problems = [self.batches(), self.schedule(steps), self.precision.check(), self.memory.check()];
        problems.into_iter().flatten().chain(self.parallel.check()).collect()
    }

    /// The global batch must be a whole number of microbatches.
    fn batches(&self) -> Option<Diagnostic> {
        let (global, microbatch) = (self.shapes.global_batch?, self.shapes.microbatch?);
        let data_ranks = self.parallel.data_ranks();
        let fits = global % (microbatch * data_ranks) == 0;
        (!fits).then(|| crate::sizes::no_whole_number(global, microbatch, data_ranks))
    }

    /// The lowest learning rate must not be above the highest, and the warm-up must leave steps for the decay.
    fn schedule(&self, steps: Option<u64>) -> Option<Diagnostic> {
        let (schedule, lr) = (&self.optimizer.lr_schedule, self.optimizer.lr);
        if schedule.curve == Curve::Constant {
            return None;
        }
        if schedule.min > lr {
            let message = format!(
                "the schedule ends at a learning rate of {:?}, which is above the highest learning rate \
                 {lr:?}",
                schedule.min
            );
            return Some(
                Diagnostic::new(message).note("min is an absolute learning rate, not a fraction of --lr"),
            );
        }
        let steps = steps.filter(|&steps| schedule.steps == 0 && steps > 0)?;
        let decay = if schedule.curve == Curve::WarmupStableDecay { schedule.decay } else { 0 };
        if decay > 0 && schedule.warmup < steps && decay > steps - schedule.warmup {
            let message = format!(
                "the warm-up of {} steps and the decay of {decay} steps do not fit into the run's {steps} \
                 steps",
                schedule.warmup
            );
            return Some(
                Diagnostic::new(message)
                    .note("shorten the warm-up or the decay, or give the schedule a length: steps=N"),
            );
        }
        (schedule.warmup >= steps).then(|| {
            let message = format!(
                "the warm-up of {} steps is as long as the run's {steps} steps or longer",
                schedule.warmup
            );
            Diagnostic::new(message).note("shorten the warm-up, or give the schedule a length: steps=N")
        })
    }
}
