//! RNN, GRU and LSTM. The input is multiplied by its weight in one contraction over all steps. Then one operator goes through the steps; a cell
//! that the operator does not have is unrolled, with several nodes for each step.
//!
//! Weights are read only through slices and reshapes, so that each is recognised as a parameter. Biases are added to values that
//! depend on the input, never to each other.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use super::gate::Gate;
use super::recurrent_cell::{Cell, Kind, State};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Compare, Select};
use ir::ops::recurrent::{self, Recurrent};
use ir::ops::shape::Concat;
use ir::{DType, Diagnostic, Dim, ValueId, ensure};

/// The most steps into which all recurrent layers of a file together are unrolled.
const MOST_STEPS: u64 = 16_384;

/// The recurrent layers of a file that are unrolled.
#[derive(Clone, Debug, Default)]
pub(super) struct Unrolled {
    steps: u64,
    /// The first of them, with the reason.
    first: Option<(String, &'static str)>,
}

impl Unrolled {
    /// Returns the warning about them, if there are any.
    pub(super) fn warning(&self) -> Option<Diagnostic> {
        let (origin, reason) = self.first.as_ref()?;
        let warning = format!("recurrent layers are unrolled into {} steps: {reason}", self.steps);
        let note = "each step becomes several nodes, so compiling and training take longer than with one operator for all steps";
        Some(Diagnostic::new(warning).at(origin.clone()).note(note))
    }
}

/// One recurrent node.
struct Layer {
    kind: Kind,
    /// `[steps, batch, features]`
    x: ValueId,
    steps: u64,
    batch: Dim,
    hidden: u64,
    /// For each direction, whether it runs backwards in time.
    backwards: Vec<bool>,
    batch_first: bool,
    /// The number of steps of each batch entry, `[batch]`. `None` if all entries have all steps.
    lengths: Option<ValueId>,
    clip: Option<f64>,
    gates: Vec<Gate>,
    linear_before_reset: bool,
    input_forget: bool,
}

/// The outputs of a direction.
struct DirectionOutputs {
    all: Steps,
    last: State,
}

/// The hidden state after each step, in order of time.
enum Steps {
    /// `[steps, batch, hidden]`
    Together(ValueId),
    /// `[batch, hidden]` for each step.
    Apart(Vec<ValueId>),
}

/// RNN, GRU and LSTM of every opset.
pub(super) fn recurrent(cx: &mut Context, call: &Call) -> Outputs {
    let layer = Layer::of(cx, call)?;
    let runs = (0..layer.backwards.len()).map(|i| layer.run(cx, call, i)).collect::<Result<Vec<_>, _>>()?;
    layer.outputs(cx, call, &runs)
}

impl Layer {
    fn of(cx: &mut Context, call: &Call) -> Result<Self, Problem> {
        let kind = match call.op() {
            "RNN" => Kind::Rnn,
            "GRU" => Kind::Gru,
            _ => Kind::Lstm,
        };
        let (x, w, r) = (cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?);
        let backwards = match call.string("direction").unwrap_or("forward") {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => {
                return Err(Problem::new(format!(
                    "the direction `{other}` is unknown; `forward`, `reverse` and `bidirectional` are known"
                )));
            }
        };
        ensure!(cx.ty(x).ndim() == 3, "the input is {}; it must have three dims", cx.ty(x));
        let batch_first = match call.int("layout").unwrap_or(0) {
            0 => false,
            1 => true,
            other => return Err(Problem::new(format!("the layout {other} is neither 0 nor 1"))),
        };
        let x = if batch_first { cx.b.transpose(x, &[1, 0, 2])? } else { x };
        let hidden = hidden(cx, call, r)?;
        let (directions, width) = (backwards.len() as u64, kind.gates() * hidden);
        let features = cx.ty(x).dims[2].clone();
        expect(cx, "its input weight", w, &[directions.into(), width.into(), features])?;
        expect(cx, "its recurrent weight", r, &[directions.into(), width.into(), hidden.into()])?;
        let steps = cx.bound(x, 0, "unrolls")?;
        let batch = cx.ty(x).dims[1].clone();
        let layer = Self {
            kind,
            x,
            steps,
            batch,
            hidden,
            gates: gates(call, kind, backwards.len())?,
            backwards,
            batch_first,
            lengths: None,
            clip: call.float("clip").filter(|&clip| clip > 0.0),
            linear_before_reset: call.int("linear_before_reset").unwrap_or(0) != 0,
            input_forget: call.int("input_forget").unwrap_or(0) != 0,
        };
        ensure!(layer.steps > 0, "the sequence has no steps");
        let lengths = layer.lengths(cx, call)?;
        Ok(Self { lengths, ..layer })
    }

    /// Counts the steps of a direction that is unrolled, and refuses a file that unrolls to too many steps.
    fn spend(&self, cx: &mut Context, call: &Call, reason: &'static str) -> Result<(), Problem> {
        let unrolled = &mut cx.unrolled;
        unrolled.steps = unrolled.steps.saturating_add(self.steps);
        unrolled.first.get_or_insert_with(|| (call.origin(), reason));
        if unrolled.steps <= MOST_STEPS {
            return Ok(());
        }
        let problem = Problem::new(format!(
            "with the {} steps of this layer, the recurrent layers are unrolled into more than {MOST_STEPS} steps: {reason}",
            self.steps
        ));
        Err(problem.note("bind a shorter sequence with --bind NAME=SIZE, or export with a shorter one"))
    }

    /// Returns the cell of the operator that computes a direction, or the reason why it has none.
    fn cell(&self, direction: usize, has_peepholes: bool) -> Result<recurrent::Cell, &'static str> {
        match (self.kind, self.gates_of(direction)) {
            _ if self.clip.is_some() => Err("the inputs of the activations are clamped (`clip`)"),
            _ if has_peepholes => Err("the gates read the cell state (peepholes)"),
            (Kind::Lstm, _) if self.input_forget => {
                Err("the input and forget gates are coupled (`input_forget`)")
            }
            (Kind::Gru, _) if !self.linear_before_reset => {
                Err("the reset gate acts on the state and not on its product (`linear_before_reset` is 0)")
            }
            (Kind::Lstm, [Gate::SIGMOID, Gate::TANH, Gate::TANH]) => Ok(recurrent::Cell::Lstm),
            (Kind::Gru, [Gate::SIGMOID, Gate::TANH]) => Ok(recurrent::Cell::Gru),
            (Kind::Rnn, [Gate::TANH]) => Ok(recurrent::Cell::Rnn),
            (Kind::Rnn, [Gate::RELU]) => Ok(recurrent::Cell::RnnRelu),
            _ => Err("its activations are not those of the operator"),
        }
    }

    /// Returns the activations of a direction.
    fn gates_of(&self, direction: usize) -> &[Gate] {
        let count = self.kind.activations();
        &self.gates[direction * count..(direction + 1) * count]
    }

    /// Returns the number of steps of each batch entry, unless all entries have all steps.
    fn lengths(&self, cx: &mut Context, call: &Call) -> Result<Option<ValueId>, Problem> {
        let Some(lengths) = cx.optional(call, 4)? else { return Ok(None) };
        let known = cx.ints(call, 4).and_then(|ints| ints.numbers());
        if known.is_some_and(|known| known.iter().all(|&n| u64::try_from(n) == Ok(self.steps))) {
            return Ok(None);
        }
        expect(cx, "its sequence_lens", lengths, std::slice::from_ref(&self.batch))?;
        Ok(Some(lengths))
    }

    /// Builds all steps of a direction.
    fn run(&self, cx: &mut Context, call: &Call, direction: usize) -> Result<DirectionOutputs, Problem> {
        let (w, r) = (cx.value(call, 1)?, cx.value(call, 2)?);
        let (w, r) = (part(cx, w, 0, direction)?, part(cx, r, 0, direction)?);
        let bias = self.bias(cx, call, direction)?;
        let projected = cx.b.one(Contract::new("tbi,gi->tbg"), &[self.x, w])?;
        let projected = match bias {
            Some([of_input, _]) => cx.build(projected + of_input)?,
            None => projected,
        };
        let recurrent_bias = bias.map(|[_, recurrent]| recurrent);
        // A GRU that resets after the multiplication also resets this bias. In all other cases it can be added to the input's
        // bias.
        let reset_after = self.kind == Kind::Gru && self.linear_before_reset;
        let (projected, recurrent_bias) = match recurrent_bias {
            Some(bias) if !reset_after => (cx.build(projected + bias)?, None),
            bias => (projected, bias),
        };
        let peepholes = self.peepholes(cx, call, direction)?;
        let start = self.initial(cx, call, direction)?;
        let reason = match self.cell(direction, peepholes.is_some()) {
            Ok(cell) => {
                let layer = Recurrent { cell, reverse: self.backwards[direction] };
                return self.at_once(cx, layer, [projected, r], recurrent_bias, start);
            }
            Err(reason) => reason,
        };
        self.spend(cx, call, reason)?;
        let cell = Cell {
            kind: self.kind,
            hidden: self.hidden,
            weight: r,
            bias: recurrent_bias,
            peepholes,
            gates: self.gates_of(direction).to_vec(),
            clip: self.clip,
            reset_after,
            input_forget: self.input_forget,
        };
        self.walk(cx, &cell, projected, start, self.backwards[direction])
    }

    /// Builds a direction as one operator.
    fn at_once(
        &self,
        cx: &mut Context,
        layer: Recurrent,
        [projected, weight]: [ValueId; 2],
        bias: Option<ValueId>,
        start: State,
    ) -> Result<DirectionOutputs, Problem> {
        let mut operands = vec![projected, weight, start.hidden];
        operands.extend(start.cell);
        if layer.cell == recurrent::Cell::Gru {
            let width = Dim::known(self.kind.gates() * self.hidden);
            let none = ir::Type::new(cx.ty(projected).dtype, [width]);
            operands.push(bias.map_or_else(|| cx.b.splat(none, 0.0), Ok)?);
        }
        operands.extend(self.lengths);
        let made = cx.b.push(layer, &operands)?;
        let cell = start.cell.map(|_| made[2]);
        Ok(DirectionOutputs { all: Steps::Together(made[0]), last: State { hidden: made[1], cell } })
    }

    fn walk(
        &self,
        cx: &mut Context,
        cell: &Cell,
        projected: ValueId,
        mut state: State,
        backwards: bool,
    ) -> Result<DirectionOutputs, Problem> {
        let column = |cx: &mut Context, lengths: ValueId| {
            let column = cx.b.reshape(lengths, [self.batch.clone(), Dim::known(1)])?;
            cx.b.cast(column, DType::I64)
        };
        let lengths = self.lengths.map(|lengths| column(cx, lengths)).transpose()?;
        let mut steps = Vec::new();
        for i in 0..self.steps {
            let time = if backwards { self.steps - 1 - i } else { i };
            let x = cx.b.slice(projected, 0, time, Dim::known(1))?;
            let x = cx.without(x, 0)?;
            let next = cell.step(cx, x, state)?;
            // After the end of a batch entry, its state stays unchanged and its outputs are zero.
            let (seen, out) = match lengths {
                Some(lengths) => {
                    let there = cx.build(Compare::Greater.of(lengths, time as f64))?;
                    let hidden = cx.build(Select.of(there, next.hidden, state.hidden))?;
                    let cell = match (next.cell, state.cell) {
                        (Some(new), Some(old)) => Some(cx.build(Select.of(there, new, old))?),
                        _ => None,
                    };
                    (State { hidden, cell }, cx.build(Select.of(there, next.hidden, 0.0))?)
                }
                None => (next, next.hidden),
            };
            state = seen;
            steps.push(out);
        }
        if backwards {
            steps.reverse();
        }
        Ok(DirectionOutputs { all: Steps::Apart(steps), last: state })
    }

    /// Returns the two biases of a direction, each `[gates · hidden]`.
    fn bias(&self, cx: &mut Context, call: &Call, direction: usize) -> Result<Option<[ValueId; 2]>, Problem> {
        let Some(bias) = cx.optional(call, 3)? else { return Ok(None) };
        let width = self.kind.gates() * self.hidden;
        let directions = Dim::known(self.backwards.len() as u64);
        expect(cx, "its bias", bias, &[directions, Dim::known(2 * width)])?;
        let own = part(cx, bias, 0, direction)?;
        Ok(Some([cx.b.slice(own, 0, 0, Dim::known(width))?, cx.b.slice(own, 0, width, Dim::known(width))?]))
    }

    /// Returns the peepholes of an LSTM's direction: for the input, output and forget gate, each `[hidden]`.
    fn peepholes(
        &self,
        cx: &mut Context,
        call: &Call,
        direction: usize,
    ) -> Result<Option<[ValueId; 3]>, Problem> {
        if self.kind != Kind::Lstm {
            return Ok(None);
        }
        let Some(peepholes) = cx.optional(call, 7)? else { return Ok(None) };
        let directions = Dim::known(self.backwards.len() as u64);
        expect(cx, "its peepholes", peepholes, &[directions, Dim::known(3 * self.hidden)])?;
        let own = part(cx, peepholes, 0, direction)?;
        let mut gate = |i: u64| cx.b.slice(own, 0, i * self.hidden, Dim::known(self.hidden));
        Ok(Some([gate(0)?, gate(1)?, gate(2)?]))
    }

    /// Returns the state before the first step; zeros if none is given.
    fn initial(&self, cx: &mut Context, call: &Call, direction: usize) -> Result<State, Problem> {
        let dtype = cx.ty(self.x).dtype;
        let mut state = |i: usize, what: &str| {
            let directions = Dim::known(self.backwards.len() as u64);
            let hidden = Dim::known(self.hidden);
            let Some(given) = cx.optional(call, i)? else {
                let ty = ir::Type::new(dtype, [self.batch.clone(), hidden]);
                return Ok(cx.b.splat(ty, 0.0)?);
            };
            let (dims, at) = if self.batch_first {
                ([self.batch.clone(), directions, hidden], 1)
            } else {
                ([directions, self.batch.clone(), hidden], 0)
            };
            expect(cx, what, given, &dims)?;
            part(cx, given, at, direction)
        };
        let hidden = state(5, "its initial_h")?;
        let cell = if self.kind == Kind::Lstm { Some(state(6, "its initial_c")?) } else { None };
        Ok(State { hidden, cell })
    }

    /// Builds Y, Y_h and, for an LSTM, Y_c, in the requested layout.
    fn outputs(&self, cx: &mut Context, call: &Call, runs: &[DirectionOutputs]) -> Outputs {
        let mut outputs = vec![Entry::Failed; call.output_count()];
        let at = u32::from(self.batch_first);
        if call.output(0).is_some() {
            let mut all = Vec::new();
            for run in runs {
                // First `[steps, batch, hidden]` or the layout's order of these dims, then with the dim of the direction.
                let joined = match &run.all {
                    Steps::Together(all) => *all,
                    Steps::Apart(steps) => {
                        let steps = steps.iter().map(|&step| cx.with_dim(step, 0));
                        let steps = steps.collect::<Result<Vec<_>, _>>()?;
                        joined(cx, &steps, 0)?
                    }
                };
                let laid = if self.batch_first { cx.b.transpose(joined, &[1, 0, 2])? } else { joined };
                all.push(cx.with_dim(laid, 1 + at)?);
            }
            outputs[0] = Entry::Value(joined(cx, &all, 1 + at)?);
        }
        let last: [fn(&DirectionOutputs) -> Option<ValueId>; 2] =
            [|run| Some(run.last.hidden), |run| run.last.cell];
        for (i, state) in last.into_iter().enumerate().map(|(i, state)| (i + 1, state)) {
            let values: Option<Vec<ValueId>> = runs.iter().map(state).collect();
            if let (Some(values), Some(_)) = (values, call.output(i)) {
                let values =
                    values.into_iter().map(|value| cx.with_dim(value, at)).collect::<Result<Vec<_>, _>>()?;
                outputs[i] = Entry::Value(joined(cx, &values, at)?);
            }
        }
        Ok(outputs)
    }
}

/// Returns the size of the hidden state from the recurrent weight. An attribute, if present, must agree.
fn hidden(cx: &Context, call: &Call, r: ValueId) -> Result<u64, Problem> {
    let ty = cx.ty(r);
    let size = ty.dims.last().and_then(Dim::size).filter(|&size| size > 0 && size < 1 << 32);
    let size = size
        .ok_or_else(|| Problem::new(format!("the recurrent weight {ty} does not determine hidden_size")))?;
    match call.int("hidden_size") {
        Some(said) if u64::try_from(said) != Ok(size) => {
            Err(Problem::new(format!("hidden_size is {said}, and the recurrent weight is {ty}")))
        }
        _ => Ok(size),
    }
}

/// Returns the activations of all directions.
fn gates(call: &Call, kind: Kind, directions: usize) -> Result<Vec<Gate>, Problem> {
    let count = directions * kind.activations();
    let names: Vec<&str> = match call.strings("activations") {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => kind.defaults().iter().copied().cycle().take(count).collect(),
    };
    ensure!(names.len() == count, "the node has {} activations; it needs {count}", names.len());
    let list = |name: &str| call.floats(name).unwrap_or_default();
    Gate::all(&names, &list("activation_alpha"), &list("activation_beta"))
}

/// Refuses a value that does not have these dims.
fn expect(cx: &Context, what: &str, value: ValueId, dims: &[Dim]) -> Result<(), Problem> {
    let ty = cx.ty(value);
    if ty.dims[..] == *dims {
        return Ok(());
    }
    let wanted: Vec<String> = dims.iter().map(Dim::to_string).collect();
    Err(Problem::new(format!("the {what} is {ty}; it must have dims [{}]", wanted.join(", "))))
}

/// Returns one place along a dim, and removes the dim.
fn part(cx: &mut Context, x: ValueId, dim: u32, place: usize) -> Built {
    let own = cx.b.slice(x, dim, place as u64, Dim::known(1))?;
    cx.without(own, dim)
}

fn joined(cx: &mut Context, values: &[ValueId], dim: u32) -> Built {
    Ok(if let [only] = values { *only } else { cx.b.one(Concat { dim }, values)? })
}
