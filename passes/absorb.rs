//! Absorb: removes casts that the kernels of a target can do as they read and write. A kernel reads the operand of the cast itself,
//! or writes the result of the cast itself.
//!
//! Invariant: these kernels compute in f32 in any case, so the numbers stay except for one rounding: a product that is cast to f32
//! is no longer rounded to a half type first. After this pass the module is at [`Level::Lowered`].

use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use ir::analysis::held_values;
use ir::{Builder, Changed, DType, Diagnostic, Kernels, Level, Module, Node, NodeId, Op, Tier, ValueId};

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absorb;

impl Transform for Absorb {
    const NAME: &'static str = "absorb";
    const NEEDED: bool = false;

    /// Errors: no target is given.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let kernels = cx.kernels()?;
        let reads = decide_reads(module, kernels);
        reads.apply(module);
        let writes = decide_writes(module, kernels);
        writes.apply(module);
        remove_dead(module, Self::NAME);
        module.level = Level::Lowered;
        Ok(Changed::Yes)
    }
}

/// The operands that kernels read in the type that they have before a cast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// The node, the index of the operand, and the value before the cast.
    pub operands: Vec<(NodeId, usize, ValueId)>,
}

/// The results that kernels write in the type that a cast gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// The result, and the cast that is its only reader.
    pub results: Vec<(ValueId, NodeId)>,
}

/// Returns the operand of a node that is a cast of a float.
fn cast_source(module: &Module, node: &Node) -> Option<ValueId> {
    matches!(node.op, Op::Cast(_)).then(|| node.operands[0]).filter(|&from| module.ty(from).dtype.is_float())
}

/// Finds the operands that kernels widen to f32 themselves.
pub fn decide_reads(module: &Module, kernels: &dyn Kernels) -> Reads {
    let mut operands = Vec::new();
    for (id, node) in module.nodes() {
        let on_host = node.place != Tier::Device;
        for (index, &operand) in node.operands.iter().enumerate().filter(|_| !on_host) {
            let Some(producer) = module.producer(operand).filter(|producer| producer.phase == node.phase)
            else {
                continue;
            };
            let Some(from) = cast_source(module, producer) else { continue };
            let widens = is_half(module.ty(from).dtype) && module.ty(operand).dtype == DType::F32;
            if widens && kernels.reads_half(&node.op, index) {
                operands.push((id, index, from));
            }
        }
    }
    Reads { operands }
}

impl Reads {
    /// Makes the nodes read the values before the casts.
    pub fn apply(&self, module: &mut Module) {
        let mut builder = Builder::new(module, Absorb::NAME);
        self.operands.iter().for_each(|&(node, index, from)| builder.set_operand(node, index, from));
        builder.finish();
    }
}

/// Finds the results that only a cast reads, and whose kernel can write the type of the cast.
pub fn decide_writes(module: &Module, kernels: &dyn Kernels) -> Writes {
    let uses = module.uses();
    let held = held_values(module);
    let mut results = Vec::new();
    for (id, node) in module.nodes() {
        let Some(from) = cast_source(module, node) else { continue };
        let is_near = |producer: &&Node| producer.phase == node.phase && producer.place == Tier::Device;
        let Some(producer) = module.producer(from).filter(is_near) else { continue };
        let alone = uses[from].as_slice() == [id] && !held.contains(from);
        let index = producer.results.iter().position(|&result| result == from).unwrap_or_default();
        let (made, to) = (module.ty(from).dtype, module.ty(node.results[0]).dtype);
        if alone && kernels.writes_as(&producer.op, index, made, to) {
            results.push((from, id));
        }
    }
    Writes { results }
}

impl Writes {
    /// Gives the results the types of the casts, and removes the casts.
    pub fn apply(&self, module: &mut Module) {
        let cast_results: Vec<_> =
            self.results.iter().map(|(_, cast)| module.node(*cast).results[0]).collect();
        let mut builder = Builder::new(module, Absorb::NAME);
        for (&(from, cast), made) in self.results.iter().zip(cast_results) {
            let dtype = builder.ty(made).dtype;
            builder.set_dtype(from, dtype);
            builder.replace(made, from);
            builder.remove(cast);
        }
        builder.finish();
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
