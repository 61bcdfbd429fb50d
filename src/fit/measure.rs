//! A try: the step of a candidate, its predicted time, and the bytes of its programs.
//!
//! The passes of a candidate run on the compiled step. Candidates that are tried one after the other share the steps up to the first option
//! in which they differ. Candidates whose passes decide alike have the same program, which is lowered once.

use super::{Candidate, Conditions, Peaks, costs};
use crate::compilation::{self, Compilation};
use crate::failure::Failure;
use crate::lowering::Lowering;
use crate::training::{Programs, lower_evaluation, lower_step};
use ir::{Diagnostic, Module};
use passes::compress_activations::{self, CompressActivations};
use passes::evaluation::Evaluation;
use passes::offload::{self, Classes, Offload};
use passes::recompute::{self, Choices, DeviceRates, Recompute};
use passes::{Manager, PassContext};
use program::{StagePrograms, UpdateTime};
use std::cell::OnceCell;
use std::rc::Rc;

/// Lowers the step of a candidate, and returns the bytes of its programs. The candidate has no options that change nothing.
pub type Lower<'a> = &'a mut dyn FnMut(Module, &Candidate) -> Result<Peaks, Failure>;

/// The step of a candidate.
pub(super) struct Made {
    pub(super) step: Module,
    /// Predicted picoseconds of a step's repeated nodes, packing, copies and work on the host, if nothing runs beside them.
    pub(super) picoseconds: u64,
    decisions: Decisions,
}

/// The decisions of a candidate's passes. `None` for a pass that changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
struct Decisions {
    recompute: Option<recompute::Decision>,
    compress: Option<compress_activations::Decision>,
    offload: Option<(Classes, offload::Decision)>,
}

/// A candidate whose programs were lowered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tried {
    pub(super) candidate: Candidate,
    pub(super) peaks: Peaks,
    decisions: Decisions,
}

/// Makes and lowers candidates for a step.
pub(super) struct Measure<'a> {
    step: &'a Module,
    conditions: Conditions<'a>,
    lower: Lower<'a>,
    choices: OnceCell<Choices<'a>>,
    /// The last candidate, after those with fewer of its options.
    made: Vec<(Candidate, Rc<Made>)>,
    /// Every candidate that was lowered.
    pub(super) tried: Vec<Tried>,
}

impl<'a> Measure<'a> {
    pub(super) fn new(step: &'a Module, conditions: Conditions<'a>, lower: Lower<'a>) -> Self {
        Self { step, conditions, lower, choices: OnceCell::new(), made: vec![], tried: vec![] }
    }

    /// The possible choices of repeated nodes.
    pub(super) fn choices(&self) -> &Choices<'a> {
        self.choices.get_or_init(|| Choices::of(self.step, &DeviceRates::of(&self.conditions.node.device)))
    }

    /// Returns the bytes of a candidate's programs.
    ///
    /// # Errors
    /// A program that cannot be lowered.
    pub(super) fn tried(&mut self, candidate: &Candidate) -> Result<Tried, Failure> {
        let made = self.made(candidate)?;
        let is_same =
            |known: &&Tried| known.candidate.update == candidate.update && known.decisions == made.decisions;
        if let Some(known) = self.tried.iter().find(is_same) {
            return Ok(Tried { candidate: candidate.clone(), ..known.clone() });
        }
        let peaks = (self.lower)(made.step.clone(), &made.without_idle(candidate))?;
        let tried = Tried { candidate: candidate.clone(), peaks, decisions: made.decisions.clone() };
        self.tried.push(tried.clone());
        Ok(tried)
    }

    /// Makes the step of a candidate from that of the candidate without its last option.
    ///
    /// # Errors
    /// A pass that fails.
    pub(super) fn made(&mut self, candidate: &Candidate) -> Result<Rc<Made>, Failure> {
        // Lowering alone reads the time of updates.
        let candidate = &Candidate { update: UpdateTime::default(), ..candidate.clone() };
        if let Some((_, known)) = self.made.iter().find(|(known, _)| known == candidate) {
            return Ok(known.clone());
        }
        let mut shorter = candidate.clone();
        let made = if let Some(options) = shorter.offload.take() {
            let made = self.made(&shorter)?;
            self.offloaded(&made, &options)?
        } else if let Some(options) = shorter.compress.take() {
            let made = self.made(&shorter)?;
            self.compressed(&made, &options)?
        } else if let Some(options) = shorter.recompute.take() {
            let made = self.made(&shorter)?;
            self.repeated(&made, &options)?
        } else {
            Made { step: self.step.clone(), picoseconds: 0, decisions: Decisions::default() }
        };
        let shared = self.made.iter().position(|(known, _)| *known == shorter).map_or(0, |at| at + 1);
        self.made.truncate(shared);
        let made = Rc::new(made);
        self.made.push((candidate.clone(), made.clone()));
        Ok(made)
    }

    /// Repeats nodes.
    fn repeated(&self, made: &Made, options: &Recompute) -> Result<Made, Diagnostic> {
        let decision = self.choices().decide(options);
        let mut step = made.step.clone();
        recompute::apply(&mut step, &decision)?;
        let picoseconds = decision.picoseconds().saturating_mul(self.conditions.microbatches);
        let recompute = (!decision.is_empty()).then_some(decision);
        Ok(Made { step, picoseconds, decisions: Decisions { recompute, ..Decisions::default() } })
    }

    /// Keeps activations in fewer bytes. Their packing reads the saved bytes once in forward and writes them once in backward.
    fn compressed(&self, made: &Made, options: &CompressActivations) -> Result<Made, Diagnostic> {
        let decision = compress_activations::decide(&made.step, options);
        let mut step = made.step.clone();
        compress_activations::apply(&mut step, &decision)?;
        let [before, after] = [&made.step, &step].map(compress_activations::kept_bytes);
        let Conditions { microbatches, node, .. } = self.conditions;
        let seconds = 2.0 * before.saturating_sub(after) as f64 / node.device.memory_rate();
        let packing = ((seconds * 1e12) as u64).saturating_mul(microbatches);
        let compress = (!decision.is_empty()).then_some(decision);
        let decisions = Decisions { compress, ..made.decisions.clone() };
        Ok(Made { step, picoseconds: made.picoseconds.saturating_add(packing), decisions })
    }

    /// Moves values off the device. Copies take time, and so do nodes that run on the host.
    fn offloaded(&self, made: &Made, options: &Offload) -> Result<Made, Diagnostic> {
        let decision = offload::decide(&made.step, options);
        let mut step = made.step.clone();
        offload::apply(&mut step, options, &decision)?;
        let Conditions { microbatches, node, .. } = self.conditions;
        let [link, disk] = costs::seconds_of_copies(&step, microbatches, node);
        let beside = ((link + disk + costs::seconds_on_host(&step, node)) * 1e12) as u64;
        let offload = (!decision.is_empty()).then_some((options.classes, decision));
        let decisions = Decisions { offload, ..made.decisions.clone() };
        Ok(Made { step, picoseconds: made.picoseconds.saturating_add(beside), decisions })
    }
}

impl Made {
    /// Whether some activations are kept in fewer bytes.
    pub(super) fn is_compressed(&self) -> bool {
        self.decisions.compress.is_some()
    }

    /// Returns this step's candidate without the options that change nothing. For example, all activations that have a form without loss
    /// may be computed again.
    pub(super) fn without_idle(&self, candidate: &Candidate) -> Candidate {
        let Decisions { recompute, compress, offload } = &self.decisions;
        Candidate {
            recompute: candidate.recompute.clone().filter(|_| recompute.is_some()),
            compress: candidate.compress.clone().filter(|_| compress.is_some()),
            offload: candidate.offload.clone().filter(|_| offload.is_some()),
            update: candidate.update,
        }
    }
}

/// Lowers the steps of a compilation as the programs of a run are.
pub(super) struct Lowered<'a> {
    compilation: &'a Compilation,
    manager: &'a Manager,
    conditions: Conditions<'a>,
    lowering: Lowering<'a>,
    /// The evaluation of all steps whose states stay where they are: it has no backward phase.
    evaluation: Option<StagePrograms>,
}

impl<'a> Lowered<'a> {
    /// `manager` runs the passes of lowering.
    pub(super) fn new(
        compilation: &'a Compilation,
        manager: &'a Manager,
        conditions: Conditions<'a>,
    ) -> Self {
        let lowering = compilation.lowering(manager);
        Self { compilation, manager, conditions, lowering, evaluation: None }
    }

    /// Returns the bytes of the programs of a step.
    ///
    /// # Errors
    /// A program that cannot be lowered.
    pub(super) fn peaks(&mut self, step: Module, candidate: &Candidate) -> Result<Peaks, Failure> {
        let Conditions { microbatches, target, multiprocessors, .. } = self.conditions;
        let moved = candidate.offload.is_some().then(|| self.evaluation_of(step.clone())).transpose()?;
        let update = candidate.update;
        let training = lower_step(&mut self.lowering, step, microbatches, update, target, multiprocessors)?;
        let evaluation = match (moved, &self.evaluation) {
            (Some(module), _) => lower_evaluation(&mut self.lowering, module, target, &training)?,
            (None, Some(known)) => known.clone(),
            (None, None) => {
                let module = self.compilation.evaluation.clone();
                self.evaluation
                    .insert(lower_evaluation(&mut self.lowering, module, target, &training)?)
                    .clone()
            }
        };
        Ok(Peaks::of(&Programs { target, training, evaluation, short_evaluation: None }))
    }

    /// The evaluation of a step whose states rest in other memories.
    fn evaluation_of(&self, mut step: Module) -> Result<Module, Failure> {
        let mut cx = PassContext::default();
        compilation::run(self.manager, &Evaluation.into(), &mut step, &mut cx, |_, _, _| {})?;
        Ok(step)
    }
}
