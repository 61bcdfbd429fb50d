//! Dropout: gives the model's dropouts the numbers of their samples, from which they draw what they drop.
//!
//! The state `dropout.samples` counts the samples of all microbatches before this one, from step 0 on, so that a sample
//! has the same number however a step is cut into microbatches. Which dim of a value has the samples is found as
//! [`crate::bind`] finds it. A value without samples (a table of positions) is dropped alike in all microbatches of a
//! step: its one number is `-1` less the count at the step's start, which no sample has. Invariants: every dropout left
//! has its numbers; its id stays as imported, so that other passes' programs drop the same.

use crate::bind::{Carry, find_samples};
use crate::dead::remove_dead;
use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use ir::ops::constant::Iota;
use ir::ops::dropout::Dropout as Operator;
use ir::ops::elementwise::Binary;
use ir::{
    At, Builder, Changed, DType, Diagnostic, Dim, Initializer, Level, Module, NodeId, Op, Phase, Role, Type,
    TypeError, ValueId,
};
use std::collections::BTreeMap;
use std::fmt;

/// The pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dropout {
    /// The seed of the run.
    pub seed: u64,
    /// The share that is dropped, in place of the model's own; 0 takes dropout out.
    pub ratio: Option<f64>,
}

/// The state that counts the samples.
pub const SAMPLES: &str = "dropout.samples";

impl Transform for Dropout {
    const NAME: &'static str = "dropout";
    const NEEDED: bool = true;

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let ratio = arguments.take("ratio").map(|text| match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
            _ => Err(format!("`{text}` is no share from 0 to 1")),
        });
        Ok(Self { seed: arguments.value("seed", 0)?, ratio: ratio.transpose()? })
    }

    fn print(&self, arguments: &mut Arguments) {
        arguments.push_unless(&0, "seed", &self.seed);
        self.ratio.iter().for_each(|ratio| arguments.push("ratio", ratio));
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self)?;
        if decision.removed.is_empty() && decision.numbered.is_empty() {
            if self.ratio.is_some_and(|ratio| ratio > 0.0) {
                let warning = Diagnostic::new("the model has no dropout whose share could be set");
                cx.warn(warning.note("export it in training mode (torch.onnx.TrainingMode.TRAINING)"));
            }
            return Ok(Changed::No);
        }
        apply(module, &decision)
    }
}

/// What becomes of each dropout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Those that drop nothing.
    pub removed: Vec<NodeId>,
    /// The others, as they will be, and whether their values have samples.
    pub numbered: Vec<(NodeId, Operator, bool)>,
    /// Samples of a microbatch.
    pub batch: u64,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dropouts removed", self.removed.len())?;
        for (node, op, sampled) in &self.numbered {
            let of = if *sampled { format!("samples in dim {}", op.dim) } else { "no samples".into() };
            write!(f, "\n{node}: {} of {of}", op.ratio.get())?;
        }
        Ok(())
    }
}

/// Finds the dropouts without numbers, and where their samples are.
pub fn decide(module: &Module, options: &Dropout) -> Result<Decision, Diagnostic> {
    let mut decision = Decision::default();
    for (id, node) in module.nodes().filter(|(_, node)| node.operands.len() == 1) {
        let Op::Dropout(op) = &node.op else { continue };
        let ratio = options.ratio.map_or(op.ratio, Into::into);
        if ratio.get() == 0.0 {
            decision.removed.push(id);
        } else {
            decision.numbered.push((id, Operator { ratio, seed: options.seed, ..op.clone() }, false));
        }
    }
    if decision.numbered.is_empty() {
        return Ok(decision);
    }
    if module.level != Level::Imported {
        return Err(Diagnostic::new("dropouts get their numbers before the program is differentiated"));
    }
    let samples = find_samples(module).map_err(|error| unclear(&error))?;
    decision.batch = samples.batch.max(1);
    // A dropout of ones, to make a mask of, is that of the value with the same id: a constant itself, it would do for any
    // batch.
    let mut places: BTreeMap<u32, Carry> = BTreeMap::new();
    for (id, op, _) in &decision.numbered {
        let carry = samples.carries.get(&module.node(*id).results[0]);
        places.extend(carry.map(|&carry| (op.id, carry)));
    }
    for (id, op, sampled) in &mut decision.numbered {
        let Some(&Carry { dim, minor }) = places.get(&op.id) else { continue };
        let ty = module.ty(module.node(*id).results[0]);
        if ty.dims[dim].size() != Some(decision.batch * minor) {
            let error = Diagnostic::new(format!("the samples of {ty} do not stand first in dim {dim}"));
            return Err(unclear(&error.at(module.node(*id).origin.to_string())));
        }
        (op.dim, *sampled) = (dim as u32, true);
    }
    Ok(decision)
}

/// The samples cannot be told apart.
fn unclear(error: &Diagnostic) -> Diagnostic {
    let found = Diagnostic::new(format!("dropout needs to know the samples apart: {}", error.message));
    let found = error.origin.iter().fold(found, |found, origin| found.at(origin.clone()));
    found.note("train without it: --dropout off")
}

/// Gives the numbers.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Dropout::NAME);
    for &id in &decision.removed {
        bypass(&mut b, id);
    }
    if !decision.numbered.is_empty() {
        let numbers = Numbers::build(&mut b, decision)?;
        for (id, op, sampled) in &decision.numbered {
            let (x, result) = (b.module().node(*id).operands[0], b.module().node(*id).results[0]);
            let numbers = if *sampled { numbers.of_samples } else { numbers.of_the_step };
            let dropped = b.at(At::Before(*id)).one(op.clone(), &[x, numbers])?;
            b.replace(result, dropped);
            b.remove(*id);
        }
    }
    b.finish();
    remove_dead(module, Dropout::NAME);
    Ok(Changed::Yes)
}

/// Takes out every dropout, as an evaluation does.
pub fn remove(module: &mut Module) -> Changed {
    let found: Vec<NodeId> =
        module.nodes().filter(|(_, node)| matches!(node.op, Op::Dropout(_))).map(|(id, _)| id).collect();
    let mut b = Builder::new(module, Dropout::NAME);
    found.into_iter().for_each(|id| bypass(&mut b, id));
    b.finish()
}

/// Whoever read the result of a dropout reads what it is of.
fn bypass(b: &mut Builder, id: NodeId) {
    let (x, result) = (b.module().node(id).operands[0], b.module().node(id).results[0]);
    b.replace(result, x);
    b.remove(id);
}

/// The numbers that dropouts read.
struct Numbers {
    /// `[batch]`: of each sample of the microbatch.
    of_samples: ValueId,
    /// `[1]`: of all microbatches of the step.
    of_the_step: ValueId,
}

impl Numbers {
    fn build(b: &mut Builder, decision: &Decision) -> Result<Self, TypeError> {
        let count = Type::scalar(DType::I64);
        let id = b.tables().add_state(SAMPLES, count, Role::Counter, Initializer::Zeros);
        let before = b.module().states[id].input;
        b.origin("dropout").at(At::Start(Phase::Prepare));
        let last = b.scalar(DType::I64, -1.0)?;
        let of_the_step = b.one(Binary::Sub, &[last, before])?;
        let of_the_step = b.reshape(of_the_step, [Dim::known(1)])?;
        b.at(At::Start(Phase::Forward));
        let batch = Type::new(DType::I64, [Dim::known(decision.batch)]);
        let index = b.one_typed(Iota { dim: 0 }, &[], batch)?;
        let of_samples = b.add(before, index)?;
        let batch = b.scalar(DType::I64, decision.batch as f64)?;
        let after = b.add(before, batch)?;
        b.tables().states[id].output = Some(after);
        Ok(Self { of_samples, of_the_step })
    }
}
