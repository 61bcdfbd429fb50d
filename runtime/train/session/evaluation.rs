//! Evaluation: forward of held-out samples with the weights of the present step.

use super::super::classes::{LossParts, LossTotal};
use super::super::error::TrainError;
use super::super::outputs::lacks;
use super::{Session, samples};
use data::Batch;
use program::device::{Later, ProgramId};
use program::{Section, Turn};

/// A microbatch that is being evaluated.
pub(crate) struct Evaluating {
    program: ProgramId,
    rows: u64,
    numbers: Later,
}

impl Session<'_> {
    /// Returns whether there is an evaluation program.
    pub(crate) fn evaluates(&self) -> bool {
        self.eval.is_some()
    }

    /// Begins an evaluation. Runs `prepare` again, since weights may have changed.
    pub(crate) fn prepare_evaluation(&mut self) -> Result<(), TrainError> {
        if let Some(eval) = self.eval {
            self.rank.device.run(eval, Section::Prepare)?;
        }
        Ok(())
    }

    /// Runs forward of one microbatch of this number of rows, given this rank's rows ([`Self::evaluated_rows`]). A short microbatch is the
    /// last of its evaluation.
    pub(crate) fn begin_evaluation(&mut self, rows: u64, batch: &Batch) -> Result<Evaluating, TrainError> {
        let Some(program) = self.evaluation_of(rows) else {
            return Err(lacks(self.program(), "evaluation of a batch of", &rows.to_string()));
        };
        let short = self.short_eval.as_ref().filter(|short| short.program == program);
        let parts = short.map(|short| &short.parts).or(self.eval_parts.as_ref());
        let outputs = parts.map(LossParts::outputs).unwrap_or_default();
        if Some(program) != self.eval {
            self.rank.device.run(program, Section::Prepare)?;
        }
        let turns =
            self.rank.device.program(program).pipeline.as_ref().map(|pipeline| pipeline.turns.clone());
        if let Some(turns) = turns {
            return self.evaluate_turns(program, rows, batch, &turns, outputs);
        }
        self.feed(program, batch, |_| true)?;
        self.rank.device.run(program, Section::Microbatch)?;
        Ok(Evaluating { program, rows, numbers: self.rank.device.read_later(program, outputs)? })
    }

    /// Completes the loss of an evaluation with the parts that other ranks of a pipeline computed.
    pub(crate) fn complete(&self, total: &mut LossTotal) -> Result<(), TrainError> {
        if self.turns().is_some() {
            total.complete(self.agreement().gather(total.told())?);
        }
        Ok(())
    }

    /// Evaluates a microbatch in a pipeline. Each number is read after the turn that computes it.
    fn evaluate_turns(
        &mut self,
        program: ProgramId,
        rows: u64,
        batch: &Batch,
        turns: &[Turn],
        outputs: Vec<usize>,
    ) -> Result<Evaluating, TrainError> {
        let mut numbers = vec![vec![]; outputs.len()];
        for (index, turn) in turns.iter().enumerate() {
            self.rank.device.begin_turn(program, index)?;
            self.feed(program, batch, |input| turn.feeds(input))?;
            self.rank.device.run_turn(program, index)?;
            for (number, &output) in numbers.iter_mut().zip(&outputs) {
                if self.rank.device.program(program).outputs[output].part == Some(turn.task.part) {
                    *number = self.rank.device.read_output(program, output)?;
                }
            }
        }
        Ok(Evaluating { program, rows, numbers: Later::Read(numbers) })
    }

    /// Returns the program that evaluates this number of rows.
    pub(super) fn evaluation_of(&self, rows: u64) -> Option<ProgramId> {
        let short = self.short_eval.as_ref().map(|short| short.program);
        let takes = |program: &ProgramId| samples(self.rank.device.program(*program)) == rows;
        self.eval.into_iter().chain(short).find(takes)
    }

    /// Returns the loss of an evaluated microbatch.
    pub(crate) fn evaluated(&mut self, begun: Evaluating) -> Result<LossTotal, TrainError> {
        let Evaluating { program, rows, numbers } = begun;
        let short = self.short_eval.clone().filter(|short| short.program == program);
        let parts = short.as_ref().map(|short| short.parts.clone()).or_else(|| self.eval_parts.clone());
        let Some(parts) = parts else { return Ok(LossTotal::default()) };
        let numbers = self.read(program, &parts.outputs(), numbers)?;
        let total = parts.total(&numbers);
        Ok(match short {
            Some(short) => total.of_a_part(&short.shares, rows as f64 / self.microbatch().max(1) as f64),
            None => total,
        })
    }
}
