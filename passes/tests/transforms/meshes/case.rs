//! A program with a mesh and shardings, which is split and compared.

use super::choices::Choices;
use super::generator::{Microbatch, Program};
use ir::interp::{self, Missing, Mode};
use ir::ops::collective::Change;
use ir::{Diagnostic, Level, Module, Op, PartialKind, State, Tensor, ViewStep};
use passes::autodiff::Autodiff;
use passes::optimizer::schedule::{Curve, Schedule};
use passes::optimizer::{Adafactor, Algorithm, Group, Moments, Optimizer};
use passes::simplify::Simplify;
use passes::spmd::{AxisSize, Shard, Spmd};
use passes::{Manager, Pass, PassContext, Pipeline};
use std::collections::BTreeMap;

/// The largest difference of a number, relative to the largest of its tensor, or to one.
const TOLERANCE: f64 = 1e-9;

/// The passes that may follow `spmd`.
const AFTER: [&str; 11] = [
    "",
    "",
    "",
    "collectives buckets",
    "collectives(any)",
    "recompute(price=1125899906842624)",
    "collectives buckets recompute",
    "offload(optimizer, parameters, gradients, activations, least=0)",
    "compress_activations(masks, indices, least=0)",
    "collectives buckets recompute compress_activations(masks, indices, least=0) offload(activations, least=0)",
    "collectives buckets recompute offload(optimizer, parameters, activations, least=0, keep=64, host=256)",
];

/// The number of times that each operator or property occurred.
pub(crate) type Counts = BTreeMap<&'static str, usize>;

/// A whole step on one device, and the passes that split it.
pub(crate) struct Case {
    module: Module,
    /// `spmd`, and in some cases passes after it.
    pipeline: Pipeline,
    microbatches: [Microbatch; 2],
}

impl Case {
    /// Makes a step of the program and chooses a mesh with the given data axes.
    pub(crate) fn new(program: Program, data: &[(&str, u64)], mut choices: Choices) -> Self {
        let Program { mut module, microbatches, trained } = program;
        let passes = if trained { training(&mut choices) } else { vec![] };
        run(&Pipeline { passes }, &mut module);
        let mesh = mesh(&module, data, &mut choices);
        let shard = shards(&module, &mesh, &mut choices);
        let zero = choices.of(&[0, 0, 1, 2, 3]);
        let sequence_parallel = choices.below(3) == 0;
        let spmd = Spmd { mesh, zero, sequence_parallel, shard };
        let after: Pipeline = choices.of(&AFTER).parse().expect("a pipeline");
        let pipeline = Pipeline { passes: std::iter::once(spmd.into()).chain(after.passes).collect() };
        Self { module, pipeline, microbatches }
    }

    /// Returns the step over the mesh, verified.
    pub(crate) fn split(&self) -> Result<Module, String> {
        let pipeline = &self.pipeline;
        let (mut split, mut cx) = (self.module.clone(), PassContext::default());
        let ran = Manager::default().run(pipeline, &mut split, &mut cx, |_, _, _| {});
        ran.map_err(|failure| format!("{pipeline}: {failure}"))?;
        match split.level {
            Level::Placed => Ok(split),
            level => Err(format!("{pipeline}: level {level:?}")),
        }
    }

    /// Compares the results of a split step with those of the step. Returns whether none of them is NaN.
    pub(crate) fn compare(&self, split: &Module) -> Result<bool, String> {
        let step = |module: &Module| -> Result<_, String> {
            let text = |error: Diagnostic| format!("{}: {error}", self.pipeline);
            let mut states = interp::initial_states(module, 3, Missing::Draw).map_err(text)?;
            let outputs = interp::step(module, Mode::Exact, &mut states, &self.microbatches).map_err(text)?;
            Ok((outputs, states))
        };
        let ((expected, expected_states), (outputs, states)) = (step(&self.module)?, step(split)?);
        if !outputs.keys().eq(expected.keys()) {
            return Err("it has other outputs".into());
        }
        let mut numbers = true;
        for (name, expected) in &expected {
            for (output, expected) in outputs[name].iter().zip(expected) {
                numbers &= near(&format!("output `{name}`"), output, expected)?;
            }
        }
        for (id, state) in split.states.iter() {
            let old =
                self.module.state(&state.name).ok_or_else(|| format!("state `{}` is new", state.name))?;
            let is_padded = state.ty.dims != self.module.states[old].ty.dims;
            let (padding, _) = ir::view::padding(&state.view, &state.ty.sizes().expect("bound"));
            let expected = &expected_states[&old];
            let padded = is_padded.then(|| ir::view::apply(padding, expected)).flatten();
            let expected = padded.as_ref().unwrap_or(expected);
            numbers &= near(&format!("state `{}`", state.name), &states[&id], expected)?;
        }
        Ok(numbers)
    }
}

/// Returns the passes from a loss to a whole step.
fn training(choices: &mut Choices) -> Vec<Pass> {
    let half = "precision(bf16)".parse::<Pipeline>().expect("a pipeline").passes;
    let moments = choices.of(&[Moments::Full, Moments::Bf16]);
    let adam =
        Algorithm::Adam { beta1: 0.9, beta2: 0.99, eps: 1e-8, decoupled: choices.below(2) == 0, moments };
    // With a smaller eps, gradients that are zero except for rounding would move parameters. The sign in Lion would do so in any case, and
    // 8-bit codes would differ.
    let adagrad = Algorithm::Adagrad { eps: 1e-8 };
    let relative = choices.below(2) == 0;
    let beta1 = choices.of(&[0.0, 0.9]);
    let adafactor = Algorithm::Adafactor(Adafactor { relative, beta1, eps1: 1e-8, ..Adafactor::DEFAULT });
    let momentum = choices.of(&[0.0, 0.9]);
    let sgd = Algorithm::Sgd { momentum, nesterov: momentum > 0.0 && choices.below(2) == 0 };
    let schedule: Schedule = choices.of(&[
        Schedule::default(),
        Schedule { curve: Curve::WarmupStableDecay, warmup: 1, min: 0.001, steps: 4, decay: 2 },
    ]);
    let group = choices.of(&["", "*:lr=0.5,weight-decay=0.3"]).parse::<Group>().ok();
    let optimizer = Optimizer {
        algorithm: choices.of(&[adam, sgd, adagrad, adafactor]),
        lr: 0.01,
        weight_decay: choices.of(&[0.0, 0.1]),
        clip: choices.of(&[None, Some(0.1)]),
        schedule,
        groups: group.into_iter().collect(),
        keep_gradients: choices.below(2) == 0,
        ..Optimizer::default()
    };
    let mut passes: Vec<Pass> = vec![Autodiff::default().into()];
    if choices.below(4) == 0 {
        passes.extend(half);
    }
    passes.push(optimizer.into());
    if choices.below(2) == 0 {
        passes.push(Simplify.into());
    }
    passes
}

fn run(pipeline: &Pipeline, module: &mut Module) {
    let ran = Manager::default().run(pipeline, module, &mut PassContext::default(), |_, _, _| {});
    ran.unwrap_or_else(|failure| panic!("{pipeline}: {failure}"));
}

/// Returns data axes and tensor axes that the heads of the program's attentions allow, in either order.
fn mesh(module: &Module, data: &[(&str, u64)], choices: &mut Choices) -> Vec<AxisSize> {
    let heads: Vec<u64> = module
        .nodes()
        .filter(|(_, node)| matches!(node.op, Op::Attention(_)))
        .flat_map(|(_, node)| {
            [0, 1].map(|operand| module.ty(node.operands[operand]).dims[1].size().expect("bound"))
        })
        .collect();
    let fits =
        |size: u64| heads.iter().all(|heads| heads.is_multiple_of(size) || size.is_multiple_of(*heads));
    let ranks: u64 = data.iter().map(|(_, size)| size).product();
    let sizes: Vec<u64> = [2, 2, 3, 4].into_iter().filter(|&size| fits(size) && size * ranks <= 8).collect();
    let axis = |(name, size): (&str, u64)| AxisSize { name: name.into(), size };
    let data: Vec<AxisSize> = data.iter().copied().map(axis).collect();
    let tensor = match choices.of(&sizes) {
        _ if !data.is_empty() && choices.below(5) == 0 => vec![],
        4 if choices.below(2) == 0 => vec![axis(("tp.a", 2)), axis(("tp.b", 2))],
        size => vec![axis(("tp", size))],
    };
    if choices.below(2) == 0 { [data, tensor].concat() } else { [tensor, data].concat() }
}

/// Returns random axes for random dims of some states, in the file's order of dims, if they divide.
fn shards(module: &Module, mesh: &[AxisSize], choices: &mut Choices) -> Vec<Shard> {
    let mut shards = Vec::new();
    for state in module.states.values() {
        if choices.below(2) == 0 || state.ty.ndim() == 0 {
            continue;
        }
        let sizes = state.ty.sizes().expect("bound");
        let mut parts = vec![1; sizes.len()];
        let mut dims: Vec<Vec<String>> = vec![vec![]; sizes.len()];
        for axis in mesh {
            let dim = choices.below(sizes.len() + 1);
            let divides = |&size: &u64| size.is_multiple_of(parts[dim] * axis.size);
            if sizes.get(dim).is_some_and(divides) {
                parts[dim] *= axis.size;
                dims[dim].push(axis.name.clone());
            }
        }
        shards.push(Shard { pattern: state.name.clone(), dims: as_in_file(dims, state) });
    }
    shards
}

fn as_in_file(mut dims: Vec<Vec<String>>, state: &State) -> Vec<Vec<String>> {
    for step in state.view.iter().rev() {
        if let ViewStep::Transpose(permutation) = step {
            let mut before = dims.clone();
            permutation.iter().zip(dims).for_each(|(&from, axes)| before[from as usize] = axes);
            dims = before;
        }
    }
    dims
}

/// Checks that finite numbers are near and all others are equal. Returns whether none is NaN.
fn near(what: &str, given: &Tensor, expected: &Tensor) -> Result<bool, String> {
    if given.sizes != expected.sizes {
        return Err(format!("{what} is {:?}, not {:?}", given.sizes, expected.sizes));
    }
    let (given, expected) = (given.numbers(), expected.numbers());
    let finite = expected.iter().filter(|x| x.is_finite());
    let largest = finite.fold(1.0f64, |largest, x| largest.max(x.abs()));
    let same = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= TOLERANCE * largest;
    match given.iter().zip(&expected).position(|(&x, &y)| !same(x, y)) {
        Some(at) => Err(format!("{what} has {} at {at}, not {}", given[at], expected[at])),
        None => Ok(expected.iter().all(|x| !x.is_nan())),
    }
}

/// Counts the operators of a placed program, and other properties that some programs should have.
pub(crate) fn counts(module: &Module) -> Counts {
    let mut counts = Counts::new();
    for (_, node) in module.nodes() {
        *counts.entry(node.op.name()).or_default() += 1;
        if let Op::Collective(_) = node.op {
            let [from, to] = [node.operands[0], node.results[0]].map(|value| module.ty(value));
            let change = Change::between(&from.sharding, &to.sharding, from.ndim()).expect("it is verified");
            let what = match change.reduced {
                Some(PartialKind::Max) => "reduced to the largest",
                Some(PartialKind::Min) => "reduced to the smallest",
                _ if change.axes.len() > 1 => "over several axes",
                _ => continue,
            };
            *counts.entry(what).or_default() += 1;
        }
    }
    let padded =
        module.states.values().filter(|state| matches!(state.view.last(), Some(ViewStep::Pad { .. })));
    *counts.entry("padded states").or_default() += padded.count();
    let is_expert = |axis: &ir::AxisId| module.mesh.axes[*axis].role == ir::AxisRole::Expert;
    let split = module
        .states
        .values()
        .filter(|state| state.ty.ndim() == 3 && state.ty.sharding.axes(0).iter().any(is_expert));
    *counts.entry("split experts").or_default() += split.count();
    counts
}
