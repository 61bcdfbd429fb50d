//! The interpreter: what a program means. Every pass and every backend is checked against it.
//!
//! One call runs one step: `prepare`, then `forward` and `backward` for each microbatch, then `update`. States are
//! read as they were when the step began and written when it ends, but buffers that a microbatch phase writes, which
//! are carried from microbatch to microbatch.

use crate::data::Data;
use crate::ops::Interp;
use crate::random;
use crate::{
    DType, Diagnostic, Initializer, Module, Node, Op, Operator, Phase, StateId, Tensor, Type, ValueId,
};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;

/// How numbers are kept between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every float as f64; casts between float types do nothing. For equality.
    Exact,
    /// Every float rounded to its value's element type. For precision.
    Typed,
}

/// The value of every state of a module.
pub type StateValues = BTreeMap<StateId, Tensor>;

/// What to do about a state whose bytes did not come with the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Say which are missing.
    Refuse,
    /// Draw them, normal with deviation 0.02, from the seed.
    Draw,
}

/// What a step reported: for each output one tensor a microbatch, or one if it belongs to `prepare` or `update`.
pub type StepOutputs = BTreeMap<String, Vec<Tensor>>;

/// The values of all states before step 0.
pub fn initial_states(module: &Module, seed: u64, missing: Missing) -> Result<StateValues, Diagnostic> {
    let mut values = StateValues::new();
    for (id, state) in module.states.iter() {
        let mut tensor = initial_value(module, id, seed, missing, &values)?;
        tensor.dtype = state.ty.dtype;
        values.insert(id, tensor);
    }
    Ok(values)
}

fn initial_value(
    module: &Module,
    id: StateId,
    seed: u64,
    missing: Missing,
    earlier: &StateValues,
) -> Result<Tensor, Diagnostic> {
    let state = &module.states[id];
    let unbound = || Diagnostic::new(format!("state `{}` has unbound dims: {}", state.name, state.ty));
    let sizes: Vec<usize> =
        state.ty.sizes().ok_or_else(unbound)?.into_iter().map(|size| size as usize).collect();
    let splat = |value: f64| Tensor::splat(state.ty.dtype, sizes.clone(), value);
    let draw = |std: f64| {
        let stream = random::stream(&state.name);
        let normal = |i: usize| std * random::normal(seed, stream, i as u64);
        Tensor::float(DType::F64, sizes.clone(), (0..sizes.iter().product()).map(normal).collect())
    };
    Ok(match state.initializer {
        Initializer::Zeros => splat(0.0),
        Initializer::Splat(bits) | Initializer::Fill { value: bits, .. } => splat(f64::from_bits(bits)),
        Initializer::Normal { std, .. } => draw(f64::from_bits(std)),
        Initializer::CopyOf(other) => earlier.get(&other).cloned().ok_or_else(|| {
            Diagnostic::new(format!("state `{}` copies one that comes after it", state.name))
        })?,
        Initializer::Data(data) => match file_tensor(&module.data[data]) {
            Some(tensor) => crate::view::apply(&state.view, &tensor).ok_or_else(|| {
                Diagnostic::new(format!("the view of state `{}` does not fit {}", state.name, tensor.ty()))
            })?,
            None if missing == Missing::Draw && state.ty.dtype.is_float() => draw(0.02),
            None => {
                return Err(Diagnostic::new(format!(
                    "the weights of `{}` are not here",
                    module.data[data].name
                ))
                .note("give them with --weights FILE.safetensors, or start from scratch with --init"));
            }
        },
    })
}

/// The tensor of a row of the data table, if its bytes are here and whole.
pub fn file_tensor(data: &Data) -> Option<Tensor> {
    Tensor::from_bytes(&data.ty, data.bytes()?)
}

/// Runs one step: reads and writes `states`, reports the outputs.
///
/// `microbatches` has, for each microbatch, a tensor for every input. Errors: an input that is missing or of another
/// type, unbound dims, constants whose bytes are not here.
pub fn step(
    module: &Module,
    mode: Mode,
    states: &mut StateValues,
    microbatches: &[BTreeMap<String, Tensor>],
) -> Result<StepOutputs, Diagnostic> {
    check(module, states, microbatches)?;
    let mut run = Run { module, mode, values: SecondaryMap::new(), outputs: StepOutputs::new() };
    for (id, state) in module.states.iter() {
        run.set(state.input, states[&id].clone());
    }
    run.phase(Phase::Prepare)?;
    run.report(|phase| phase == Phase::Prepare);
    let mut sums: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    for microbatch in microbatches {
        for input in &module.inputs {
            run.set(input.value, microbatch[&input.name].clone());
        }
        run.phase(Phase::Forward)?;
        run.phase(Phase::Backward)?;
        run.report(Phase::is_microbatch);
        run.carry_buffers(states);
        run.accumulate(&mut sums);
    }
    sums.into_iter().for_each(|(value, sum)| run.set(value, sum));
    run.phase(Phase::Update)?;
    run.report(|phase| phase == Phase::Update);
    for (id, state) in module.states.iter() {
        if let Some(output) = state.output.filter(|&output| !run.is_microbatch(output)) {
            states.insert(id, run.get(output)?.clone());
        }
    }
    Ok(run.outputs)
}

/// One step in progress.
struct Run<'m> {
    module: &'m Module,
    mode: Mode,
    values: SecondaryMap<ValueId, Option<Tensor>>,
    outputs: StepOutputs,
}

impl Run<'_> {
    fn set(&mut self, value: ValueId, tensor: Tensor) {
        self.values[value] = Some(if self.mode == Mode::Typed { tensor.rounded() } else { tensor });
    }

    fn get(&self, value: ValueId) -> Result<&Tensor, Diagnostic> {
        let error = || Diagnostic::new(format!("{value} is read before it is defined"));
        self.values[value].as_ref().ok_or_else(error)
    }

    fn phase(&mut self, phase: Phase) -> Result<(), Diagnostic> {
        let module = self.module;
        for (_, node) in module.nodes().filter(|(_, node)| node.phase == phase) {
            if matches!(node.op, Op::Accumulate(_)) {
                continue; // its sum was made microbatch by microbatch
            }
            let results = self.node(node)?;
            node.results.iter().zip(results).for_each(|(&result, tensor)| self.set(result, tensor));
        }
        Ok(())
    }

    fn node(&self, node: &Node) -> Result<Vec<Tensor>, Diagnostic> {
        let operands = node.operands.iter().map(|&value| self.get(value)).collect::<Result<Vec<_>, _>>()?;
        if let Op::Cast(cast) = &node.op
            && self.mode == Mode::Exact
            && cast.to.is_float()
            && operands[0].dtype.is_float()
        {
            return Ok(vec![Tensor { dtype: cast.to, ..operands[0].clone() }]);
        }
        let results: Vec<Type> = node.results.iter().map(|&value| self.module.ty(value).clone()).collect();
        Ok(node.op.interp(&Interp {
            operands: &operands,
            results: &results,
            data: &self.module.data,
            parts: None,
        }))
    }

    /// Adds the operands of all accumulations of this microbatch to the sums.
    fn accumulate(&self, sums: &mut BTreeMap<ValueId, Tensor>) {
        for (_, node) in self.module.nodes().filter(|(_, node)| matches!(node.op, Op::Accumulate(_))) {
            let addend = self.values[node.operands[0]].as_ref().expect("accumulate reads a microbatch phase");
            match sums.get_mut(&node.results[0]) {
                None => drop(sums.insert(node.results[0], addend.clone())),
                Some(sum) => {
                    let total = sum.floats().iter().zip(addend.floats()).map(|(a, b)| a + b).collect();
                    let total = Tensor::float(sum.dtype, sum.sizes.clone(), total);
                    *sum = if self.mode == Mode::Typed { total.rounded() } else { total };
                }
            }
        }
    }

    /// Buffers that a microbatch phase writes go into the next microbatch.
    fn carry_buffers(&mut self, states: &mut StateValues) {
        for (id, state) in self.module.states.iter() {
            if let Some(output) = state.output.filter(|&output| self.is_microbatch(output)) {
                let value = self.values[output].clone().expect("the phase has run");
                self.values[state.input] = Some(value.clone());
                states.insert(id, value);
            }
        }
    }

    fn is_microbatch(&self, value: ValueId) -> bool {
        self.module.phase_of(value).is_microbatch()
    }

    fn report(&mut self, of: impl Fn(Phase) -> bool) {
        let module = self.module;
        for output in &module.outputs {
            if !of(self.module.phase_of(output.value)) {
                continue;
            }
            let tensor = self.values[output.value].clone().expect("the phase has run");
            self.outputs.entry(output.name.clone()).or_default().push(tensor);
        }
    }
}

/// Everything that could make a step fail, before it starts.
fn check(
    module: &Module,
    states: &StateValues,
    microbatches: &[BTreeMap<String, Tensor>],
) -> Result<(), Diagnostic> {
    for (id, state) in module.states.iter() {
        if states.get(&id).is_none_or(|tensor| !tensor.ty().same_shape(&state.ty)) {
            return Err(Diagnostic::new(format!(
                "state `{}` needs a value of type {}",
                state.name, state.ty
            )));
        }
    }
    for input in &module.inputs {
        let ty = module.ty(input.value);
        for microbatch in microbatches {
            match microbatch.get(&input.name) {
                Some(tensor) if tensor.ty().same_shape(ty) => {}
                Some(tensor) => {
                    let message =
                        format!("input `{}` is {}, the program takes {ty}", input.name, tensor.ty());
                    return Err(Diagnostic::new(message));
                }
                None => return Err(Diagnostic::new(format!("input `{}` is missing", input.name))),
            }
        }
    }
    for (_, node) in module.nodes() {
        if let Some(ty) = node.results.iter().map(|&value| module.ty(value)).find(|ty| ty.numel().is_none()) {
            let message = format!("a result of `{}` has unbound dims: {ty}", node.op.name());
            return Err(Diagnostic::new(message)
                .at(node.origin.to_string())
                .note("bind them with --bind NAME=SIZE"));
        }
        if let Op::Constant(constant) = &node.op
            && file_tensor(&module.data[constant.data]).is_none()
        {
            let name = &module.data[constant.data].name;
            return Err(Diagnostic::new(format!("the bytes of constant `{name}` are not here")));
        }
    }
    Ok(())
}
