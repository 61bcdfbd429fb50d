//! Random programs over every operator: a core of smooth operators ([`ir::testing`]), calls of samples of all operators on
//! existing values, and blocks of real models: embeddings with a head and a loss, transformer layers.
//!
//! A program is a function of a few numbers. Its values stay small. Operators with jumps get only fresh operands, since
//! a number that is summed in another order may fall on the other side of a jump.

use super::choices::Choices;
use ir::ops::attention::Attention;
use ir::ops::constant::Constant;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::experts::Experts;
use ir::ops::indexing::Gather;
use ir::ops::loss::CrossEntropy;
use ir::ops::norm::LayerNorm;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::{Float, Op};
use ir::samples::{Fill, Operand, Sample};
use ir::{
    At, Blob, Builder, DType, Data, Dim, Initializer, Level, Module, Phase, Role, Tensor, TypeError, ValueId,
    random, testing,
};
use std::collections::{BTreeMap, BTreeSet};

/// The numbers from which a program is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    /// The seed of all random numbers.
    pub(crate) seed: u64,
    /// The steps of the smooth core.
    pub(crate) core: usize,
    /// The calls of samples.
    pub(crate) calls: usize,
    /// The blocks of models.
    pub(crate) blocks: usize,
    /// Whether the program is to be trained. If not, it has only a forward phase, at level `training`.
    pub(crate) trained: bool,
    /// The number of devices that must be able to share the samples equally.
    pub(crate) data_ranks: u64,
    /// Whether a block of four experts comes first.
    pub(crate) experts: bool,
}

/// A program with inputs for two microbatches.
pub(crate) struct Program {
    pub(crate) module: Module,
    pub(crate) microbatches: [Microbatch; 2],
    /// Whether the program has a loss that depends on a parameter, and must still be differentiated.
    pub(crate) trained: bool,
}

/// A tensor for each input.
pub(crate) type Microbatch = BTreeMap<String, Tensor>;

/// Makes the program of a recipe.
pub(crate) fn program(recipe: Recipe, samples: &[Sample]) -> Program {
    let mut module = testing::program(recipe.seed, DType::F32, recipe.core);
    let microbatches = [0, 1].map(|index| testing::microbatch(&module, recipe.seed, index));
    let first_dims: Vec<Dim> =
        module.inputs.iter().map(|input| module.ty(input.value).dims[0].clone()).collect();
    for (input, dim) in module.inputs.iter_mut().zip(first_dims) {
        input.batched = dim.size().is_some_and(|size| size.is_multiple_of(recipe.data_ranks));
    }
    let made =
        module.nodes().map(|(_, node)| node.results[0]).chain(module.inputs.iter().map(|input| input.value));
    let pool: Vec<ValueId> = made.filter(|&value| module.ty(value).dtype == DType::F32).collect();
    let b = Builder::new(&mut module, "random");
    let choices = Choices::new(recipe.seed ^ 0x5eed);
    let mut generator = Generator { b, choices, recipe, samples, pool, reported: vec![], microbatches };
    generator.build().expect("the generator builds what operators take");
    let Generator { b, choices, pool, reported, microbatches, .. } = generator;
    b.finish();
    for (i, value) in reported.into_iter().enumerate() {
        module.add_output(format!("reported.{i}"), value);
    }
    let read: BTreeSet<ValueId> = module.nodes().flat_map(|(_, node)| node.operands.clone()).collect();
    let unread: BTreeSet<ValueId> = pool.into_iter().filter(|value| !read.contains(value)).collect();
    if recipe.trained {
        to_loss(&mut module, &unread, choices).expect("means of floats");
    }
    let trained = recipe.trained && trains(&module);
    if !trained {
        to_step(&mut module, &unread);
    }
    Program { module, microbatches, trained }
}

/// Adds the randomly weighted mean of each value to the loss.
fn to_loss(module: &mut Module, values: &BTreeSet<ValueId>, mut choices: Choices) -> Result<(), TypeError> {
    let at = module.outputs.iter().position(|output| output.name == "loss.sum").expect("the core has one");
    let mut sum = module.outputs[at].value;
    let mut b = Builder::new(module, "random");
    b.origin("loss");
    for &value in values {
        let ty = b.ty(value).clone();
        let weights = normal(&mut choices, &ty.sizes().expect("bound"));
        let name = format!("loss.{}", b.module().data.len());
        let blob = Blob::Inline(weights.to_bytes().into());
        let data = b.tables().add_data(Data { name, ty: weights.ty(), blob, claim: None });
        let weights = b.one_typed(Constant { data }, &[], ty.clone())?;
        let product = b.build(value * weights)?;
        let mean = match ty.ndim() {
            0 => product,
            ndim => b.one(
                Reduce { kind: ReduceKind::Mean, dims: (0..ndim as u32).collect(), keep: false },
                &[product],
            )?,
        };
        sum = b.build(sum + mean)?;
    }
    b.tables().outputs[at].value = sum;
    b.finish();
    Ok(())
}

/// Whether the loss has a gradient of a parameter. Operators with jumps pass none.
fn trains(module: &Module) -> bool {
    let mut needed = BTreeSet::from([module.output("loss.sum").expect("the core has one").value]);
    for (_, node) in module.nodes().rev() {
        if node.results.iter().any(|result| needed.contains(result)) && !jumps(&node.op) {
            needed.extend(&node.operands);
        }
    }
    module.states.values().any(|state| state.role == Role::Parameter && needed.contains(&state.input))
}

/// Makes a forward program into a step that trains nothing and reports these values.
fn to_step(module: &mut Module, values: &BTreeSet<ValueId>) {
    for (i, &value) in values.iter().enumerate() {
        module.add_output(format!("unread.{i}"), value);
    }
    let mut b = Builder::new(module, "random");
    b.at(At::End(Phase::Update));
    let loss = b.scalar(DType::F32, 0.0).expect("a scalar");
    b.tables().add_output("loss", loss);
    b.tables().level = Level::Training;
    b.finish();
}

/// Draws a tensor of normal numbers.
fn normal(choices: &mut Choices, sizes: &[u64]) -> Tensor {
    let (seed, count) = (choices.seed(), sizes.iter().product::<u64>());
    let elements = (0..count).map(|i| 0.5 * random::normal(seed, 0, i)).collect();
    Tensor::float(DType::F32, sizes.iter().map(|&size| size as usize).collect(), elements).rounded()
}

struct Generator<'m, 's> {
    b: Builder<'m>,
    choices: Choices,
    recipe: Recipe,
    samples: &'s [Sample],
    /// Small f32 values through which gradients may flow.
    pool: Vec<ValueId>,
    /// Values that are only reported.
    reported: Vec<ValueId>,
    microbatches: [Microbatch; 2],
}

impl Generator<'_, '_> {
    fn build(&mut self) -> Result<(), TypeError> {
        if self.recipe.experts {
            self.b.origin("/experts");
            self.experts()?;
        }
        for i in 0..self.recipe.blocks {
            self.b.origin(format!("/block.{i}"));
            if self.choices.below(2) == 0 { self.vocabulary()? } else { self.layer()? }
        }
        for i in 0..self.recipe.calls {
            self.b.origin(format!("/call.{i}"));
            self.call()?;
        }
        Ok(())
    }

    /// Adds a sample's operator, on values of the pool whose types fit, or else on fresh values.
    fn call(&mut self) -> Result<(), TypeError> {
        let sample = self.samples[self.choices.below(self.samples.len())].clone();
        let seed = self.choices.seed();
        let fills = [sample.fill(seed), sample.fill(seed + 1)];
        let mut operands: Vec<ValueId> = Vec::new();
        let mut forwards: Vec<(Op, Vec<usize>, Vec<ValueId>)> = Vec::new();
        for (i, operand) in sample.operands.iter().enumerate() {
            let closed = self.recipe.trained && !sample.differentiable;
            let known = if closed || jumps(&sample.op) { None } else { self.alike(operand) };
            let value = match (&operand.fill, known) {
                (Fill::Result(op, of, result), _) => {
                    let known = forwards.iter().position(|(other, from, _)| other == op && from == of);
                    let at = known.unwrap_or(forwards.len());
                    if known.is_none() {
                        let from: Vec<ValueId> = of.iter().map(|&i| operands[i]).collect();
                        let results = self.b.push(op.clone(), &from)?;
                        forwards.push((op.clone(), of.clone(), results.to_vec()));
                    }
                    forwards[at].2[*result]
                }
                (Fill::Normal, Some(known)) => known,
                _ => self.fresh(fills.each_ref().map(|fill| fill[i].clone()), closed),
            };
            operands.push(value);
        }
        let op = match sample.op.clone() {
            Op::Constant(_) => {
                let data = sample.data.values().next().expect("a sample has its data").clone();
                let name = format!("constant.{}", self.b.module().data.len());
                Constant { data: self.b.tables().add_data(Data { name, ..data }) }.into()
            }
            op => op,
        };
        let results = self.b.push_typed(op.clone(), &operands, &sample.declared)?;
        for (i, &result) in results.iter().enumerate() {
            let hidden = self.recipe.trained && (!sample.differentiable || sample.statistics.contains(&i));
            if self.b.ty(result).dtype != DType::F32 || hidden {
                self.reported.push(result);
            } else {
                let bounded =
                    if op.movement().is_unchanged() { result } else { self.b.one(Unary::Tanh, &[result])? };
                self.pool.push(bounded);
            }
        }
        Ok(())
    }

    /// Returns a value of the pool with the type of an operand; sometimes `None` although there is one.
    fn alike(&mut self, operand: &Operand) -> Option<ValueId> {
        let fits = |value: &&ValueId| self.b.ty(**value).same_shape(&operand.ty);
        let found: Vec<ValueId> = self.pool.iter().filter(fits).copied().collect();
        (!found.is_empty() && self.choices.below(4) > 0).then(|| self.choices.of(&found))
    }

    /// Adds an input or a state with these values in the two microbatches. `closed`: it is never trained.
    fn fresh(&mut self, [first, second]: [Tensor; 2], closed: bool) -> ValueId {
        let ty = first.ty();
        let number = self.b.module().states.len() + self.b.module().inputs.len();
        if ty.dtype == DType::F32 && self.choices.below(2) == 0 {
            let role = if closed { Role::Buffer } else { Role::Parameter };
            return self.state(&format!("state.{number}"), first, role);
        }
        let divides = ty
            .dims
            .first()
            .and_then(Dim::size)
            .is_some_and(|size| size.is_multiple_of(self.recipe.data_ranks));
        let batched = divides && self.choices.below(3) > 0;
        self.input(&format!("input.{number}"), [first, second], batched)
    }

    fn input(&mut self, name: &str, values: [Tensor; 2], batched: bool) -> ValueId {
        let ty = values[0].ty();
        for (microbatch, value) in self.microbatches.iter_mut().zip(values) {
            microbatch.insert(name.into(), value);
        }
        self.b.tables().add_input(name, ty, batched)
    }

    fn state(&mut self, name: &str, value: Tensor, role: Role) -> ValueId {
        let data = self.data(&format!("{name}.file"), &value);
        let id = self.b.tables().add_state(name, value.ty(), role, Initializer::Data(data));
        self.b.module().states[id].input
    }

    fn data(&mut self, name: &str, value: &Tensor) -> ir::DataId {
        let blob = Blob::Inline(value.to_bytes().into());
        self.b.tables().add_data(Data { name: name.into(), ty: value.ty(), blob, claim: None })
    }

    /// Adds a parameter of normal numbers.
    fn weight(&mut self, sizes: &[u64]) -> ValueId {
        let name = format!("weight.{}", self.b.module().states.len());
        let value = normal(&mut self.choices, sizes);
        self.state(&name, value, Role::Parameter)
    }

    fn integers(&mut self, sizes: &[u64], below: u64) -> Tensor {
        let count = sizes.iter().product::<u64>();
        let elements = (0..count).map(|_| self.choices.below(below as usize) as i64).collect();
        Tensor::int(DType::I64, sizes.iter().map(|&size| size as usize).collect(), elements)
    }

    /// Adds a look-up of rows in a table, perhaps with a head that makes logits for a loss.
    fn vocabulary(&mut self) -> Result<(), TypeError> {
        let rows = self.choices.of(&[7, 8, 9, 10, 14, 16, 18, 20, 24]);
        let (batch, length) =
            (self.recipe.data_ranks * self.choices.of(&[1, 2]), self.choices.of(&[1, 2, 4]));
        let width = self.choices.of(&[2, 4, 6]);
        let number = self.b.module().inputs.len();
        let tokens = [(), ()].map(|()| self.integers(&[batch, length], rows));
        let tokens = self.input(&format!("tokens.{number}"), tokens, true);
        let table = self.weight(&[rows, width]);
        let hidden = self.b.one(Gather { dim: 0 }, &[table, tokens])?;
        let hidden = self.b.one(Unary::Tanh, &[hidden])?;
        self.pool.push(hidden);
        if self.choices.below(3) == 0 {
            return Ok(());
        }
        let head = if self.choices.below(2) == 0 { table } else { self.weight(&[rows, width]) };
        let logits = self.b.one(Contract::new("bsd,vd->bsv"), &[hidden, head])?;
        let labels = [(), ()].map(|()| self.integers(&[batch, length], rows));
        let labels = self.input(&format!("labels.{number}"), labels, true);
        let label_smoothing = Float::new(self.choices.of(&[0.0, 0.0, 0.1]));
        let loss = self.b.push(CrossEntropy { ignore_index: 1, label_smoothing }, &[logits, labels])?;
        self.pool.push(loss[0]);
        if self.choices.below(3) == 0 {
            self.reported.push(logits);
        }
        Ok(())
    }

    /// Adds a transformer layer, with shared heads or without.
    fn layer(&mut self) -> Result<(), TypeError> {
        let (batch, length) = (self.recipe.data_ranks * self.choices.of(&[1, 2]), self.choices.of(&[2, 4]));
        let (heads, shared, size) = (4, self.choices.of(&[1, 2]), 2);
        let width = self.choices.of(&[4, 8]);
        let number = self.b.module().inputs.len();
        let x = [(), ()].map(|()| normal(&mut self.choices, &[batch, length, width]));
        let x = self.input(&format!("x.{number}"), x, true);
        let (scale, bias) = (self.weight(&[width]), self.weight(&[width]));
        let normed = self.b.push(LayerNorm { eps: Float::new(1e-5) }, &[x, scale, bias])?[0];
        let mut project = |heads: u64| -> Result<ValueId, TypeError> {
            let weight = self.weight(&[width, heads * size]);
            let flat = self.b.one(Contract::new("bsd,do->bso"), &[normed, weight])?;
            let split = self.b.reshape(flat, [batch, length, heads, size].map(Dim::known))?;
            self.b.transpose(split, &[0, 2, 1, 3])
        };
        let (q, k, v) = (project(heads)?, project(heads / shared)?, project(heads / shared)?);
        let causal = self.choices.below(2) == 0;
        let attended = self.b.push(Attention { scale: Float::new(0.7), causal }, &[q, k, v])?[0];
        let back = self.b.transpose(attended, &[0, 2, 1, 3])?;
        let back = self.b.reshape(back, [batch, length, heads * size].map(Dim::known))?;
        let out = self.weight(&[heads * size, width]);
        let out = self.b.one(Contract::new("bso,od->bsd"), &[back, out])?;
        let x = self.b.build(x + out)?;
        let (up, bias, down) = (self.weight(&[width, 12]), self.weight(&[12]), self.weight(&[12, width]));
        let inner = self.b.one(Contract::new("bsd,do->bso"), &[x, up])?;
        let inner = self.b.build(inner + bias)?;
        let inner = self.b.one(Unary::GeluTanh, &[inner])?;
        let inner = self.b.one(Contract::new("bso,od->bsd"), &[inner, down])?;
        let x = self.b.build(x + inner)?;
        let x = self.b.one(Unary::Tanh, &[x])?;
        self.pool.push(x);
        Ok(())
    }

    /// Adds two layers of four experts. Rows either have a dim of experts, with a capacity, or choose a matrix by an index.
    fn experts(&mut self) -> Result<(), TypeError> {
        let (batch, length) = (self.recipe.data_ranks * self.choices.of(&[1, 2]), self.choices.of(&[2, 3]));
        let (experts, capacity, width, hidden) = (4, 2, 4, 6);
        let number = self.b.module().inputs.len();
        let x = [(), ()].map(|()| normal(&mut self.choices, &[batch, length, width]));
        let x = self.input(&format!("x.{number}"), x, true);
        let scale = self.weight(&[width]);
        let x = self.b.build(x * scale)?;
        let (up, down) = (self.weight(&[experts, width, hidden]), self.weight(&[experts, hidden, width]));
        let made = if self.choices.below(2) == 0 {
            let mask = [(), ()].map(|()| normal(&mut self.choices, &[batch, length, experts, capacity]));
            let mask = self.input(&format!("dispatch.{number}"), mask, true);
            let rows = self.b.one(Contract::new("bsec,bsk->beck"), &[mask, x])?;
            let bias = self.weight(&[experts, 1, hidden]);
            let inner = self.b.one(Contract::new("beck,ekn->becn"), &[rows, up])?;
            let inner = self.b.build(inner + bias)?;
            let inner = self.b.one(Unary::GeluTanh, &[inner])?;
            let rows = self.b.one(Contract::new("becn,enk->beck"), &[inner, down])?;
            let router = self.weight(&[width, experts]);
            let gates = self.b.one(Contract::new("bsk,ke->bse"), &[x, router])?;
            let gates = self.b.one(Unary::Tanh, &[gates])?;
            let gates = self.b.reshape(gates, [batch, length, experts, 1].map(Dim::known))?;
            let mask = self.b.build(mask * gates)?;
            self.b.one(Contract::new("bsec,beck->bsk"), &[mask, rows])?
        } else {
            let index = [(), ()].map(|()| self.integers(&[batch, length], experts));
            let index = self.input(&format!("choice.{number}"), index, true);
            let index = self.b.reshape(index, [Dim::known(batch * length)])?;
            let rows = self.b.reshape(x, [batch * length, width].map(Dim::known))?;
            let inner = self.b.one(Experts { transposed: false }, &[rows, up, index])?;
            let inner = self.b.one(Unary::GeluTanh, &[inner])?;
            let rows = self.b.one(Experts { transposed: false }, &[inner, down, index])?;
            self.b.reshape(rows, [batch, length, width].map(Dim::known))?
        };
        let made = self.b.one(Unary::Tanh, &[made])?;
        self.pool.push(made);
        Ok(())
    }
}

/// Whether a small change of an operand can make a large change of the result.
fn jumps(op: &Op) -> bool {
    match op {
        Op::Compare(_) | Op::Logical(_) | Op::Bitcast(_) | Op::MaxPoolIndices(_) => true,
        Op::MaxPoolOffsets(_) => true,
        Op::Cast(cast) => !cast.to.is_float(),
        Op::Unary(unary) => {
            matches!(unary, Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::IsNan)
        }
        Op::Binary(binary) => matches!(binary, Binary::Mod),
        _ => false,
    }
}
