//! `--compress-gradients-after`: a run of two programs. The first one reduces whole gradients, and the second one goes on from its
//! checkpoint with compressed ones.

use super::{Compile, Training, run};
use crate::cli::report::{Outcome, tell};
use crate::cli::resuming::{self, Continued};
use crate::config::Resume;
use crate::failure::Failure;
use crate::output::Folder;
use crate::processes::Processes;
use ir::Diagnostic;

/// How a part of a run ended.
pub(super) enum Ended {
    /// The run ended.
    As(Outcome),
    /// It saved the step where the next part begins.
    AtStep,
}

impl Ended {
    /// How a command ended whose last part this is.
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Self::As(outcome) => outcome,
            Self::AtStep => Outcome::Done,
        }
    }
}

/// The commands of a run whose gradients are compressed from a step on.
pub(super) struct Parts {
    whole: Compile,
    compressed: Compile,
    after: u64,
}

impl Compile {
    /// The parts of the run; `None` if it has one program. The compressed program is compiled once before the first part, so that its errors
    /// come before the steps.
    ///
    /// # Errors
    /// An output folder that cannot be used; those of the compressed program.
    pub(super) fn parts(&self, processes: &Processes) -> Result<Option<Parts>, Failure> {
        let settings = &self.settings;
        let Some(after) = settings.run.compress_gradients_after else { return Ok(None) };
        let beginning = self.check_folder(&Folder::new(&settings.out.folder(&self.model)))?;
        if resuming::steps_done(&beginning) >= after {
            return Ok(None);
        }
        let mut compressed = self.clone();
        compressed.settings.run.resume = Some(Resume::Output);
        compressed.settings.out.force = false;
        let continued = Continued::of(&beginning, settings);
        let device = self.device(processes)?;
        let ready = compressed
            .compile(&device, continued)
            .map_err(|stopped| compressed.advised(stopped, &device, processes.launched()))?;
        ready.training.map_or(Ok(()), |mut training| training.end_after(after))?;
        let mut whole = Self { whole_gradients: true, ..self.clone() };
        whole.settings.run.profile = false;
        Ok(Some(Parts { whole, compressed, after }))
    }
}

impl Parts {
    /// Runs one part after the other.
    pub(super) fn run(&self, processes: &Processes) -> Result<Outcome, Failure> {
        match self.whole.run_part(processes, Some(self.after))? {
            Ended::As(outcome) => Ok(outcome),
            Ended::AtStep if processes.all(!run::is_stopped())? => {
                tell!("gradients are compressed after step {}", self.after);
                self.compressed.run_part(processes, None).map(Ended::outcome)
            }
            Ended::AtStep => {
                tell!("stopped after step {}; --resume goes on with compressed gradients", self.after);
                Ok(Outcome::Stopped)
            }
        }
    }
}

impl Training {
    /// Ends after a step in which the run has not yet ended.
    pub(super) fn end_after(&mut self, step: u64) -> Result<(), Diagnostic> {
        if step >= self.steps {
            let message = format!(
                "--compress-gradients-after {step} compresses no gradient: the run ends with step {}",
                self.steps
            );
            return Err(Diagnostic::new(message).note("give an earlier step, or more --steps"));
        }
        self.until = step;
        Ok(())
    }
}
