//! A training program on the device of a rank, accessed by names: the operations of a step on the device.

mod evaluation;
mod spans;

use super::classes::LossParts;
use super::error::{Cause, TrainError};
use super::non_finite::Began;
use super::outputs::{Outputs, Updated, items, lacks};
use bytes::Bytes;
use checkpoint::{InitialValues, StateBytes};
use comm::agreement::Agreement;
use data::Batch;
use ir::Tensor;
use ir::timetable::Task;
use program::device::{DeviceError, Later, NonFinite, ProgramId};
use program::{InputSlot, Instruction, Program, Section, Turn};
use ranks::{Parts, Rank};
use spans::Spans;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The training program and, if there is one, the evaluation program, on the device of one rank. They share their states. Every rank has a
/// session, and all ranks must call the same functions in the same order.
pub struct Session<'d> {
    rank: Rank<'d>,
    train: ProgramId,
    eval: Option<ProgramId>,
    /// The program for a short last batch of an evaluation.
    short_eval: Option<ShortEvaluation>,
    outputs: Outputs,
    /// The parts of the evaluation program's loss that this rank computes.
    eval_parts: Option<LossParts>,
    /// The index of each state, by its name.
    states: BTreeMap<String, usize>,
    /// The states that were not finite when the run began.
    began: Began,
    /// The number of instructions of `update` after which the gradient's norm is complete and the weights are unchanged.
    until_norm: Option<usize>,
    runs_ahead: bool,
}

/// The number of microbatches per pipeline rank after which an asynchronous pipeline drains, so that all ranks can agree whether the run
/// goes on. Filling the pipeline again takes the time of one microbatch for each rank but one.
const STREAM: u64 = 64;

/// A program that evaluates a batch shorter than a microbatch.
#[derive(Clone, Debug)]
struct ShortEvaluation {
    program: ProgramId,
    parts: LossParts,
    /// The factor of each class: see [`Session::evaluate_short`].
    shares: Vec<f64>,
}

/// The values with which a session begins.
#[derive(Clone, Debug)]
pub enum GivenStates<'m> {
    /// The whole value of every state, or the rank's part of it.
    Known(StateBytes),
    /// The values before step 0. A rank makes only its part of them.
    Initial(InitialValues<'m>),
}

impl From<StateBytes> for GivenStates<'_> {
    fn from(values: StateBytes) -> Self {
        Self::Known(values)
    }
}

impl GivenStates<'_> {
    /// Removes the part of a rank; `None` if there is no such state.
    fn part(&mut self, name: &str, parts: &Parts, rank: u64) -> Result<Option<Bytes>, TrainError> {
        match self {
            Self::Initial(values) => {
                let (start, sizes) = parts.place(rank);
                values.block_of(name, &start, &sizes).map_err(|error| TrainError::Initial(Box::new(error)))
            }
            Self::Known(values) => {
                let Some(value) = values.remove(name) else { return Ok(None) };
                if value.len() as u64 == parts.local_bytes() {
                    return Ok(Some(value));
                }
                parts.check(&value)?;
                Ok(Some(parts.cut(rank, &value).into_owned().into()))
            }
        }
    }
}

impl<'d> Session<'d> {
    /// Makes a session over two programs on the device of `rank`.
    ///
    /// # Errors
    /// The programs lack an output. The training program must have `loss`, `lr`, `grad_norm` (update) and `loss.sum` (microbatch), and with
    /// `skipped` also `loss_scale` and `loss_scale.exhausted` (update); the evaluation program must have `loss.sum` and `loss.weight`
    /// (microbatch). A state of the evaluation program is not the training program's.
    pub fn new(rank: Rank<'d>, train: ProgramId, eval: Option<ProgramId>) -> Result<Self, TrainError> {
        let program = rank.device.program(train);
        let outputs = Outputs::of(program)?;
        let states: BTreeMap<String, usize> =
            program.states.iter().enumerate().map(|(index, state)| (state.name.clone(), index)).collect();
        if let Some(eval) = eval {
            check_evaluation(rank.device.program(eval), program, &states)?;
        }
        let eval_parts = eval.map(|eval| LossParts::of(rank.device.program(eval))).transpose()?;
        let until_norm = outputs.grad_norm.and_then(|norm| until_norm(program, norm));
        let runs_ahead = rank.device.run_ahead(train)?;
        let (short_eval, began) = (None, Began::default());
        Ok(Self { rank, train, eval, short_eval, outputs, eval_parts, states, began, until_norm, runs_ahead })
    }

    /// Uses `program` to evaluate a short last batch. The sum and the weight of each class of its loss are multiplied by its share in
    /// `shares`: 1, unless every batch has the same weight.
    ///
    /// # Errors
    /// Those of [`Self::new`] for an evaluation program.
    pub fn evaluate_short(&mut self, program: ProgramId, shares: Vec<f64>) -> Result<(), TrainError> {
        let short = self.rank.device.program(program);
        check_evaluation(short, self.program(), &self.states)?;
        let parts = LossParts::of(short)?;
        self.short_eval = Some(ShortEvaluation { program, parts, shares });
        Ok(())
    }

    /// Ends the session.
    pub(super) fn into_rank(self) -> Rank<'d> {
        self.rank
    }

    /// Returns the training program.
    pub fn program(&self) -> &Arc<Program> {
        self.rank.device.program(self.train)
    }

    /// Returns the samples in one microbatch: dim 0 of the batched inputs; 1 if there are none.
    pub fn microbatch(&self) -> u64 {
        samples(self.program())
    }

    /// Sets the rank's part of every state. Each value is dropped once its part is on the device, so the values are never all in memory
    /// twice. Only parts that are not finite are kept.
    ///
    /// # Errors
    /// A state has no value, or a value of the wrong size.
    pub fn write_states<'m>(&mut self, values: impl Into<GivenStates<'m>>) -> Result<(), TrainError> {
        let (program, mut values) = (self.program().clone(), values.into());
        let rank = self.rank.place(&program);
        for (index, state) in program.states.iter().enumerate() {
            let parts = Parts::of(&state.name, &state.ty, &program.mesh)?;
            let part = values.part(&state.name, &parts, rank)?;
            let part = part.ok_or_else(|| lacks(&program, "value for state", &state.name))?;
            self.rank.device.write_state(self.train, index, &part)?;
            self.began.add(&state.name, state.ty.dtype, &part);
        }
        Ok(())
    }

    /// Returns the agreement with all ranks of the run.
    pub(super) fn agreement(&self) -> &Agreement {
        &self.rank.agreement
    }

    /// Returns the rows of a batch that this rank needs for the program's inputs.
    pub(super) fn rows(&self) -> Range<u64> {
        self.rows_of(self.train)
    }

    /// Does the same as [`Self::rows`] for an evaluation of this number of rows.
    pub(super) fn evaluated_rows(&self, rows: u64) -> Range<u64> {
        self.evaluation_of(rows).map_or(0..rows, |program| self.rows_of(program))
    }

    fn rows_of(&self, program: ProgramId) -> Range<u64> {
        let program = self.rank.device.program(program);
        let whole = 0..samples(program);
        let rank = self.rank.place(program);
        let of_input =
            |input: &InputSlot| Some(Parts::of(&input.name, &input.ty, &program.mesh).ok()?.rows(rank));
        let mut rows = program.inputs.iter().filter(|input| input.batched).map(of_input);
        let Some(first) = rows.next().flatten() else { return whole };
        if rows.all(|other| other.as_ref() == Some(&first)) { first } else { whole }
    }

    /// Returns the rank's part of a state's value; `None` if there is no state of that name.
    pub(super) fn read_state(&self, name: &str) -> Option<Result<Cow<'_, [u8]>, DeviceError>> {
        let &index = self.states.get(name)?;
        Some(self.rank.device.read_state(self.train, index))
    }

    /// Returns the states that were not finite when the run began.
    pub(super) fn began(&self) -> &Began {
        &self.began
    }

    /// Begins a step.
    pub(super) fn prepare(&mut self) -> Result<(), TrainError> {
        Ok(self.rank.device.run(self.train, Section::Prepare)?)
    }

    /// Returns whether the device gets a step before the numbers of the step before it are read.
    pub(super) fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Returns whether the gradient's norm is complete before the weights change.
    pub(super) fn norm_comes_first(&self) -> bool {
        self.until_norm.is_some()
    }

    /// Runs forward and backward of one microbatch, given this rank's rows ([`Self::rows`]).
    pub(super) fn begin_microbatch(&mut self, batch: &Batch) -> Result<Later, TrainError> {
        self.feed(self.train, batch, |_| true)?;
        self.rank.device.run(self.train, Section::Microbatch)?;
        Ok(self.rank.device.read_later(self.train, Vec::from_iter(self.outputs.microbatch_loss))?)
    }

    /// Ends a microbatch that is not the last of its step.
    pub(super) fn end_microbatch(&mut self) -> Result<(), TrainError> {
        Ok(self.rank.device.end_microbatch(self.train)?)
    }

    /// Returns the sum of a microbatch's losses.
    pub(super) fn microbatch_loss(&mut self, begun: Later) -> Result<f64, TrainError> {
        let output = self.outputs.microbatch_loss;
        let output = output.ok_or_else(|| lacks(self.program(), "output", "loss.sum"))?;
        let [loss] = self.numbers(self.train, [output], begun)?;
        Ok(loss)
    }

    /// Returns the turns of this rank in the microbatches of a step, if the program is of a pipeline.
    pub(super) fn turns(&self) -> Option<Vec<Turn>> {
        self.program().pipeline.as_ref().map(|pipeline| pipeline.turns.clone())
    }

    /// Returns the turns of step `step` in a stream of `steps` steps without a flush, by index, if the program is of a pipeline.
    pub(super) fn turns_of(&self, step: u64, steps: u64) -> Option<Vec<(usize, Task)>> {
        let pipeline = self.program().pipeline.as_ref()?;
        let turns = pipeline.turns_of(step, steps).into_iter();
        Some(turns.map(|index| (index, pipeline.turns[index].task)).collect())
    }

    /// Returns the largest number of steps without a flush: 1, unless the schedule is asynchronous. At the end of such a stream all ranks
    /// agree.
    pub(super) fn longest_stream(&self) -> u64 {
        match &self.program().pipeline {
            Some(pipeline) if pipeline.is_asynchronous => {
                let microbatches = STREAM * u64::from(pipeline.ranks);
                (microbatches / u64::from(pipeline.microbatches).max(1)).max(1)
            }
            _ => 1,
        }
    }

    /// Returns whether steps follow each other without a flush.
    pub(super) fn is_asynchronous(&self) -> bool {
        self.program().pipeline.as_ref().is_some_and(|pipeline| pipeline.is_asynchronous)
    }

    /// Runs a turn, given this rank's rows of its microbatch. Returns the sum of the microbatch's losses, if the turn computes it.
    pub(super) fn run_turn(&mut self, turn: usize, batch: &Batch) -> Result<Option<f64>, TrainError> {
        let task = self.begin_turn(turn, batch)?;
        self.rank.device.run_turn(self.train, turn)?;
        let outputs = &self.program().outputs;
        let made = self.outputs.microbatch_loss.filter(|&loss| outputs[loss].part == Some(task.part));
        let Some(loss) = made else { return Ok(None) };
        let later = self.rank.device.read_later(self.train, vec![loss])?;
        Ok(Some(self.numbers(self.train, [loss], later)?[0]))
    }

    fn begin_turn(&mut self, turn: usize, batch: &Batch) -> Result<Task, TrainError> {
        self.rank.device.begin_turn(self.train, turn)?;
        let pipeline = self.program().pipeline.clone().unwrap_or_default();
        let own = pipeline.turns.get(turn).ok_or(DeviceError::Unknown { what: "turn", index: turn })?;
        self.feed(self.train, batch, |input| own.feeds(input))?;
        Ok(own.task)
    }

    /// Returns the cause of the first number in a microbatch that is not finite, before any update. The states are finite, except those
    /// that were not when the run began.
    pub(super) fn first_non_finite(&mut self, batch: &Batch) -> Result<Option<Cause>, TrainError> {
        if let Some(name) = self.began_with(f64::is_nan)? {
            return Ok(Some(Cause::Initial(name)));
        }
        // The update may have begun, and may have overwritten the results of `prepare`.
        self.rank.device.run(self.train, Section::Prepare)?;
        self.feed(self.train, batch, |_| true)?;
        let found = self.rank.device.first_non_finite(self.train)?;
        let of_ranks = self.agreement().gather(found)?;
        if let Some(found) = NonFinite::first(of_ranks) {
            return Ok(Some(Cause::Instruction(Box::new(found))));
        }
        Ok(self.began_with(f64::is_infinite)?.map(Cause::Initial))
    }

    /// Does the same as [`Self::first_non_finite`] in a pipeline, for all microbatches of a step, whose rows `batch` returns.
    pub(super) fn first_non_finite_of_turns(
        &mut self,
        batch: impl Fn(u64) -> Batch,
    ) -> Result<Option<Cause>, TrainError> {
        if let Some(name) = self.began_with(f64::is_nan)? {
            return Ok(Some(Cause::Initial(name)));
        }
        self.rank.device.run(self.train, Section::Prepare)?;
        let mut found = None;
        for (index, turn) in self.turns().unwrap_or_default().iter().enumerate() {
            self.begin_turn(index, &batch(turn.task.microbatch.into()))?;
            let of_turn = self.rank.device.first_non_finite_of_turn(self.train, index)?;
            found = found.or(of_turn);
        }
        let of_ranks = self.agreement().gather(found)?;
        if let Some(found) = NonFinite::first(of_ranks) {
            return Ok(Some(Cause::Instruction(Box::new(found))));
        }
        Ok(self.began_with(f64::is_infinite)?.map(Cause::Initial))
    }

    /// Returns the first state that had a number of this kind on any rank when the run began.
    fn began_with(&self, of_kind: fn(f64) -> bool) -> Result<Option<String>, TrainError> {
        let own = self.began.first(of_kind).map(str::to_owned);
        let of_ranks = self.agreement().gather(own)?;
        Ok(of_ranks.into_iter().flatten().min())
    }

    /// Begins the update. Returns the gradient's norm, if it is complete before the weights change.
    pub(super) fn gradient_norm(&mut self) -> Result<Option<f64>, TrainError> {
        let (Some(until), Some(output)) = (self.until_norm, self.outputs.grad_norm) else { return Ok(None) };
        self.rank.device.run_update(self.train, 0..until)?;
        let norm = self.rank.device.read_later(self.train, vec![output])?;
        let [norm] = self.numbers(self.train, [output], norm)?;
        Ok(Some(norm))
    }

    /// Runs the update, or its remaining instructions, which make new states.
    pub(super) fn begin_update(&mut self) -> Result<Later, TrainError> {
        if self.runs_ahead || self.is_asynchronous() {
            self.rank.device.run(self.train, Section::Update)?;
        } else {
            let count = self.program().section(Section::Update).len();
            self.rank.device.run_update(self.train, self.until_norm.unwrap_or(0)..count)?;
        }
        Ok(self.rank.device.read_later(self.train, self.outputs.of_update())?)
    }

    /// Returns the report of an update.
    pub(super) fn updated(&mut self, begun: Later) -> Result<Updated, TrainError> {
        let values = self.values(self.train, &self.outputs.of_update(), begun)?;
        self.outputs.updated(self.program(), values)
    }

    /// Returns whether the program scales its loss and skips a step whose gradients are not finite.
    pub(super) fn skips(&self) -> bool {
        self.outputs.scaling.is_some()
    }

    /// Writes the inputs of a microbatch that are `due`.
    fn feed(
        &mut self,
        id: ProgramId,
        batch: &Batch,
        due: impl Fn(&InputSlot) -> bool,
    ) -> Result<(), TrainError> {
        let program = self.rank.device.program(id).clone();
        let rows = self.rows_of(id);
        for (index, input) in program.inputs.iter().enumerate().filter(|(_, input)| due(input)) {
            let Some(array) = batch.tensors.get(&input.name) else {
                return Err(TrainError::Unfed { program: program.name.clone(), name: input.name.clone() });
            };
            self.rank.write_rows(id, index, &array.bytes, rows.clone())?;
        }
        Ok(())
    }

    /// Returns the only element of each of some outputs, which were requested in this order.
    fn numbers<const N: usize>(
        &mut self,
        id: ProgramId,
        outputs: [usize; N],
        later: Later,
    ) -> Result<[f64; N], TrainError> {
        let mut numbers = [0.0; N];
        numbers.copy_from_slice(&self.read(id, &outputs, later)?);
        Ok(numbers)
    }

    /// Does the same as [`Self::numbers`] for any number of outputs.
    fn read(&mut self, id: ProgramId, outputs: &[usize], later: Later) -> Result<Vec<f64>, TrainError> {
        let values = self.values(id, outputs, later)?;
        items(self.rank.device.program(id), outputs, &values)
    }

    /// Returns some outputs, which were requested in this order.
    fn values(&mut self, id: ProgramId, outputs: &[usize], later: Later) -> Result<Vec<Tensor>, TrainError> {
        let all = self.rank.device.collect(later)?;
        let program = self.rank.device.program(id);
        let value = |(&output, bytes): (&usize, Vec<u8>)| {
            let slot = &program.outputs[output];
            Tensor::from_bytes(&slot.ty, &bytes).ok_or_else(|| lacks(program, "tensor", &slot.name))
        };
        outputs.iter().zip(all).map(value).collect()
    }
}

/// Returns the samples in one microbatch of a program: dim 0 of the batched inputs; 1 if there are none.
fn samples(program: &Program) -> u64 {
    let batched = program.inputs.iter().find(|input| input.batched);
    batched.and_then(|input| input.ty.dims.first()?.size()).unwrap_or(1)
}

/// Returns an error if an evaluation program has a state that is not one of `train`.
fn check_evaluation(
    eval: &Program,
    train: &Program,
    states: &BTreeMap<String, usize>,
) -> Result<(), TrainError> {
    let place = |name: &String| states.get(name).map(|&state| &train.states[state].view);
    match eval.states.iter().find(|state| place(&state.name) != Some(&state.view)) {
        Some(alone) => Err(lacks(train, "state at the place of", &alone.name)),
        None => Ok(()),
    }
}

/// Returns the number of instructions of `update` up to the gradient's norm. `None` if they already change a state that the microbatches
/// read.
fn until_norm(program: &Program, grad_norm: usize) -> Option<usize> {
    let norm = Spans::of([&program.outputs[grad_norm].view]);
    let update = program.section(Section::Update);
    let makes = |instruction: &Instruction| instruction.results.iter().any(|result| norm.overlap(result));
    let until = update.iter().rposition(makes)? + 1;
    let microbatch = program.microbatch().map(|(_, _, instruction)| instruction);
    let before = program.section(Section::Prepare).iter().chain(microbatch);
    let read = Spans::of(before.flat_map(|instruction| &instruction.operands));
    let states = program.states.iter().map(|state| &state.view);
    let states = Spans::of(states.filter(|state| read.overlap(state)));
    // Instructions of a microbatch that are in `update` do not count: they run in every other microbatch too, so a search that repeats a
    // microbatch may find their states changed anyway.
    let own = update[..until].iter().filter(|instruction| !instruction.of_microbatch);
    let changes = own.flat_map(|instruction| &instruction.results).any(|result| states.overlap(result));
    (!changes).then_some(until)
}

#[cfg(test)]
mod tests;
