//! A training program on its device, by names: what a step of the loop does to it.

use super::error::{Cause, TrainError};
use crate::checkpoint::{StateBytes, StateSource};
use crate::data::Batch;
use crate::device::{Device, ProgramId};
use crate::program::{Instruction, Program, Section, View};
use ir::Tensor;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The program of the step and, if there is one, of the evaluation, on one device. They share their states.
pub struct Session<'d> {
    device: &'d mut dyn Device,
    train: ProgramId,
    eval: Option<ProgramId>,
    outputs: Outputs,
    /// The index of each state, by its name.
    states: BTreeMap<String, usize>,
    /// Instructions of `update` after which the gradient's norm is there and the weights are as they were.
    until_norm: Option<usize>,
}

/// Where the numbers are that the loop reads: indices of outputs.
#[derive(Clone, Copy)]
struct Outputs {
    loss: usize,
    lr: usize,
    grad_norm: usize,
    microbatch_loss: usize,
    scaling: Option<ScalingOutputs>,
}

/// Where a program with a scaled loss says what became of a step.
#[derive(Clone, Copy)]
struct ScalingOutputs {
    skipped: usize,
    scale: usize,
    exhausted: usize,
}

/// What an update reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Updated {
    pub(super) loss: f64,
    pub(super) lr: f64,
    pub(super) grad_norm: f64,
    /// The scaled gradients were not finite, so no state was changed but the scale.
    pub(super) skipped: bool,
    /// The loss scale, if the step was skipped though it is the smallest there may be.
    pub(super) exhausted: Option<f64>,
}

impl<'d> Session<'d> {
    /// A session over two programs of `device`.
    ///
    /// # Errors
    /// The programs lack an output: the training program has `loss`, `lr`, `grad_norm` (update) and `loss.sum`
    /// (microbatch), and with `skipped` also `loss_scale` and `loss_scale.exhausted` (update); the evaluation program `loss.sum` and `loss.weight` (microbatch). A state of the evaluation
    /// program is not the training program's.
    pub fn new(
        device: &'d mut dyn Device,
        train: ProgramId,
        eval: Option<ProgramId>,
    ) -> Result<Self, TrainError> {
        let program = device.program(train);
        let outputs = Outputs {
            loss: output(program, "loss", Section::Update)?,
            lr: output(program, "lr", Section::Update)?,
            grad_norm: output(program, "grad_norm", Section::Update)?,
            microbatch_loss: output(program, "loss.sum", Section::Microbatch)?,
            scaling: scaling_outputs(program)?,
        };
        let states: BTreeMap<String, usize> =
            program.states.iter().enumerate().map(|(index, state)| (state.name.clone(), index)).collect();
        if let Some(eval) = eval.map(|eval| device.program(eval)) {
            output(eval, "loss.sum", Section::Microbatch)?;
            output(eval, "loss.weight", Section::Microbatch)?;
            let place = |name: &String| states.get(name).map(|&state| &program.states[state].view);
            if let Some(alone) = eval.states.iter().find(|state| place(&state.name) != Some(&state.view)) {
                return Err(lacks(program, "state at the place of", &alone.name));
            }
        }
        let until_norm = until_norm(program, outputs.grad_norm);
        Ok(Self { device, train, eval, outputs, states, until_norm })
    }

    /// The training program.
    pub fn program(&self) -> &Arc<Program> {
        self.device.program(self.train)
    }

    /// Samples in one microbatch: dim 0 of the batched inputs; 1 if there are none.
    pub fn microbatch(&self) -> u64 {
        let batched = self.program().inputs.iter().find(|input| input.batched);
        batched.and_then(|input| input.ty.dims.first()?.size()).unwrap_or(1)
    }

    /// Sets every state. Each value is dropped once it is there, so that all of them are never in memory twice.
    ///
    /// # Errors
    /// A state without a value, or with one of the wrong size.
    pub fn write_states(&mut self, mut values: StateBytes) -> Result<(), TrainError> {
        let program = self.program().clone();
        for (index, state) in program.states.iter().enumerate() {
            let value =
                values.remove(&state.name).ok_or_else(|| lacks(&program, "value for state", &state.name))?;
            self.device.write_state(self.train, index, &value)?;
        }
        Ok(())
    }

    /// Begins a step.
    pub(super) fn prepare(&mut self) -> Result<(), TrainError> {
        Ok(self.device.run(self.train, Section::Prepare)?)
    }

    /// Forward and backward of one microbatch; returns the sum of its losses.
    pub(super) fn microbatch_step(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        self.feed(self.train, batch)?;
        self.device.run(self.train, Section::Microbatch)?;
        self.number(self.train, self.outputs.microbatch_loss)
    }

    /// What made the first number that is not finite in a microbatch, before any update.
    pub(super) fn first_non_finite(&mut self, batch: &Batch) -> Result<Option<Cause>, TrainError> {
        let program = self.program().clone();
        for (index, state) in program.states.iter().enumerate() {
            let bytes = self.device.read_state(self.train, index)?;
            let finite = |tensor: &Tensor| tensor.numbers().iter().all(|number| number.is_finite());
            if !Tensor::from_bytes(&state.ty, &bytes).is_some_and(|tensor| finite(&tensor)) {
                return Ok(Some(Cause::State(state.name.clone())));
            }
        }
        // The update may have begun, where what was prepared has lain.
        self.device.run(self.train, Section::Prepare)?;
        self.feed(self.train, batch)?;
        let found = self.device.first_non_finite(self.train)?;
        Ok(found.map(|found| Cause::Instruction(Box::new(found))))
    }

    /// Begins the update: the gradient's norm, if it is there before the weights change.
    pub(super) fn gradient_norm(&mut self) -> Result<Option<f64>, TrainError> {
        let Some(until) = self.until_norm else { return Ok(None) };
        self.device.run_update(self.train, 0..until)?;
        self.number(self.train, self.outputs.grad_norm).map(Some)
    }

    /// Ends the update, and the step: new states, and its numbers.
    pub(super) fn update(&mut self) -> Result<Updated, TrainError> {
        let count = self.program().section(Section::Update).len();
        self.device.run_update(self.train, self.until_norm.unwrap_or(0)..count)?;
        let [loss, lr, grad_norm] = [self.outputs.loss, self.outputs.lr, self.outputs.grad_norm]
            .map(|output| self.number(self.train, output));
        let (mut skipped, mut exhausted) = (false, None);
        if let Some(scaling) = self.outputs.scaling {
            skipped = self.number(self.train, scaling.skipped)? != 0.0;
            if self.number(self.train, scaling.exhausted)? != 0.0 {
                exhausted = Some(self.number(self.train, scaling.scale)?);
            }
        }
        Ok(Updated { loss: loss?, lr: lr?, grad_norm: grad_norm?, skipped, exhausted })
    }

    /// Whether the program scales its loss, and skips a step whose gradients are not finite.
    pub(super) fn skips(&self) -> bool {
        self.outputs.scaling.is_some()
    }

    /// Whether there is an evaluation program.
    pub(super) fn evaluates(&self) -> bool {
        self.eval.is_some()
    }

    /// Begins an evaluation: weights may have changed.
    pub(super) fn prepare_evaluation(&mut self) -> Result<(), TrainError> {
        if let Some(eval) = self.eval {
            self.device.run(eval, Section::Prepare)?;
        }
        Ok(())
    }

    /// Forward of one microbatch; returns the sum of its losses and of their weights.
    pub(super) fn evaluate(&mut self, batch: &Batch) -> Result<[f64; 2], TrainError> {
        let Some(eval) = self.eval else { return Ok([0.0; 2]) };
        self.feed(eval, batch)?;
        self.device.run(eval, Section::Microbatch)?;
        let program = self.device.program(eval).clone();
        let read = |name| self.number(eval, output(&program, name, Section::Microbatch)?);
        Ok([read("loss.sum")?, read("loss.weight")?])
    }

    fn feed(&mut self, id: ProgramId, batch: &Batch) -> Result<(), TrainError> {
        let program = self.device.program(id).clone();
        for (index, input) in program.inputs.iter().enumerate() {
            let Some(array) = batch.tensors.get(&input.name) else {
                return Err(TrainError::Unfed { program: program.name.clone(), name: input.name.clone() });
            };
            self.device.write_input(id, index, &array.bytes)?;
        }
        Ok(())
    }

    /// The only element of an output.
    fn number(&self, id: ProgramId, output: usize) -> Result<f64, TrainError> {
        let bytes = self.device.read_output(id, output)?;
        let program = self.device.program(id);
        let slot = &program.outputs[output];
        let number = Tensor::from_bytes(&slot.ty, &bytes).filter(|tensor| tensor.len() == 1);
        Ok(number.ok_or_else(|| lacks(program, "scalar", &slot.name))?.item())
    }
}

impl StateSource for Session<'_> {
    fn state(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let &index = self.states.get(name)?;
        self.device.read_state(self.train, index).ok()
    }
}

/// How many instructions of `update` make the gradient's norm, unless they already change a state that the
/// microbatches read.
fn until_norm(program: &Program, grad_norm: usize) -> Option<usize> {
    let overlap = |a: &View, b: &View| {
        let (x, y) = (a.bytes(), b.bytes());
        a.region == b.region && x.start < y.end && y.start < x.end
    };
    let norm = &program.outputs[grad_norm].view;
    let update = program.section(Section::Update);
    let makes = |instruction: &Instruction| instruction.results.iter().any(|result| overlap(result, norm));
    let until = update.iter().rposition(makes)? + 1;
    let microbatch = [Section::Prepare, Section::Microbatch].map(|section| program.section(section)).concat();
    let is_read = |state: &View| {
        microbatch.iter().flat_map(|instruction| &instruction.operands).any(|operand| overlap(operand, state))
    };
    let read: Vec<&View> =
        program.states.iter().map(|state| &state.view).filter(|state| is_read(state)).collect();
    let mut written = update[..until].iter().flat_map(|instruction| &instruction.results);
    let changes = written.any(|result| read.iter().any(|state| overlap(result, state)));
    (!changes).then_some(until)
}

fn scaling_outputs(program: &Program) -> Result<Option<ScalingOutputs>, TrainError> {
    if program.output("skipped").is_none() {
        return Ok(None);
    }
    let [skipped, scale, exhausted] =
        ["skipped", "loss_scale", "loss_scale.exhausted"].map(|name| output(program, name, Section::Update));
    Ok(Some(ScalingOutputs { skipped: skipped?, scale: scale?, exhausted: exhausted? }))
}

fn output(program: &Program, name: &str, section: Section) -> Result<usize, TrainError> {
    let found = program.output(name).filter(|&index| program.outputs[index].section == section);
    found.ok_or_else(|| lacks(program, "output", name))
}

fn lacks(program: &Program, what: &'static str, name: &str) -> TrainError {
    TrainError::Lacks { program: program.name.clone(), what, name: name.to_owned() }
}
