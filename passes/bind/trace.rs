//! Finds the dim of each value that carries the batch.

use crate::analysis::constants::{Constants, Constness};
use ir::factors::{FactorId, FactorKind};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{
    Blob, Definition, Diagnostic, Dim, Factors, Module, Movement, Node, NodeId, Op, OperandRole, Operator,
    PartialKind, Tensor, Type, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The place of the batch in a value: the size of `dim` is a product with the batch as a factor, and `minor` is the product of the
/// factors after it. `[batch·32, 128]` has dim 0 and minor 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Carry {
    /// The dim.
    pub dim: usize,
    /// The number of consecutive elements of the dim that belong to one sample.
    pub minor: u64,
}

/// The end of the warning about a sum whose divisor may be the batch.
pub(crate) const SUMS_OVER_BATCH: &str = "sums over the batch";

/// A change of the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The old batch.
    pub from: u64,
    /// The new batch.
    pub to: u64,
    /// The values that carry the batch.
    pub carries: BTreeMap<ValueId, Carry>,
    /// The constants that nodes read for the whole batch, by node and operand, cut to one sample.
    pub constants: BTreeMap<(NodeId, usize), OneSample>,
    /// Sums over the batch, each with a warning: a constant that divides the sum may be meant for the exported batch alone.
    pub sums: Vec<(NodeId, Diagnostic)>,
}

/// A constant that is the same for every sample.
#[derive(Clone, Debug, PartialEq)]
pub struct OneSample {
    /// The place of the batch in the constant.
    pub carry: Carry,
    /// The values for one sample: the constant with size 1 in place of the batch. A dim that holds more than the batch is split, so that
    /// the batch has its own dim: `[.., major, 1, minor, ..]`.
    pub tensor: Tensor,
}

impl Decision {
    /// Returns the type with the new batch.
    pub(super) fn rescaled(&self, ty: &Type, carry: Carry) -> Type {
        let mut ty = Type::new(ty.dtype, ty.dims.clone());
        let size = ty.dims[carry.dim].size().unwrap_or(0);
        ty.dims[carry.dim] = Dim::known(size / self.from * self.to);
        ty
    }
}

/// Follows the batch, for a change to `to` if that is given. Returns `None` if there is nothing to change. An error names the node
/// where the batch cannot be followed.
pub fn decide(module: &Module, to: Option<u64>) -> Result<Option<Decision>, Diagnostic> {
    let Some(from) = batch(module)? else {
        let error = || Diagnostic::new("the program has no batched input, so its batch cannot be bound");
        return if to.is_some() { Err(error()) } else { Ok(None) };
    };
    let to = to.unwrap_or(from);
    let mut trace = Trace::new(module, from, to);
    trace.run()?;
    let decision = trace.finish()?;
    let changes =
        from != to || from > 1 && (!decision.constants.is_empty() || shrinks_a_weight(module, &decision));
    Ok(changes.then_some(decision))
}

/// The batch, and its place in each value that carries it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The number of samples in a microbatch; 0 without a batched input.
    pub batch: u64,
    /// The values that have samples, each with their place.
    pub carries: BTreeMap<ValueId, Carry>,
}

/// Finds the samples. An error names the node where the batch cannot be followed.
pub fn find_samples(module: &Module) -> Result<Samples, Diagnostic> {
    let Some(batch) = batch(module)? else { return Ok(Samples::default()) };
    let mut trace = Trace::new(module, batch, batch);
    trace.run()?;
    Ok(Samples { batch, carries: trace.carries })
}

/// Returns the values that have samples, as far as these can be followed, and the nodes that read a constant that differs from sample
/// to sample.
pub(super) fn followed(module: &Module) -> (Samples, BTreeSet<NodeId>) {
    let Ok(Some(batch)) = batch(module) else { return Default::default() };
    let mut trace = Trace::new(module, batch, batch);
    while std::mem::take(&mut trace.changed) {
        for id in module.order().iter().chain(module.order().iter().rev()) {
            // An error is ignored: samples are not followed past a node that computes along the batch.
            let _ = trace.node(*id);
        }
    }
    let differs =
        |tensor: Option<&Tensor>, carry| tensor.is_some_and(|it| one_sample(it, carry, batch).is_none());
    let mut differing = BTreeSet::new();
    for (&(id, operand), &carry) in &trace.wanted {
        if differs(trace.constants.value(module.node(id).operands[operand]), carry) {
            differing.insert(id);
        }
    }
    for (id, node) in module.nodes() {
        for operand in &node.operands {
            let carry = trace.carries.get(operand).copied().filter(|_| !node.op.movement().is_view());
            let is_weight = trace.constants.known(*operand) == Constness::Weight;
            if let Some(carry) = carry.filter(|_| is_weight)
                && differs(trace.constants.value(*operand), carry)
            {
                differing.insert(id);
            }
        }
    }
    (Samples { batch, carries: trace.carries }, differing)
}

/// Returns the first node whose result for a sample depends on other samples of the microbatch. Cross-entropies do not count:
/// they sum over samples, but a label that is ignored adds nothing. An error names the node where the batch cannot be
/// followed.
pub fn where_samples_meet(module: &Module) -> Result<Option<NodeId>, Diagnostic> {
    // A batch of one cannot be told from dims that have one element for another reason.
    let Some(batch) = batch(module)?.filter(|&batch| batch > 1) else { return Ok(None) };
    let mut trace = Trace::new(module, batch, batch);
    trace.run()?;
    Ok(module.order().iter().copied().find(|id| trace.met.contains(id)))
}

/// Whether a tensor of the file carries the batch.
fn shrinks_a_weight(module: &Module, decision: &Decision) -> bool {
    decision
        .carries
        .keys()
        .any(|&value| module.producer(value).is_some_and(|node| matches!(node.op, Op::Constant(_))))
}

/// Returns the names of the file's tensors that repeat the same values for each sample. A batch of one shows no repetition.
pub(super) fn repeated(module: &Module, decision: &Decision) -> BTreeSet<String> {
    let read = decision.constants.keys().map(|&(node, operand)| module.node(node).operands[operand]);
    let values = read.chain(decision.carries.keys().copied()).filter(|_| decision.from > 1);
    let names = values.filter_map(|value| {
        let Op::Constant(constant) = &module.producer(module.viewed(value, Movement::is_view))?.op else {
            return None;
        };
        let data = &module.data[constant.data];
        let is_stretched = module.ty(value).numel() > data.ty.numel();
        (matches!(data.blob, Blob::File(_)) && !is_stretched).then(|| data.name.clone())
    });
    names.collect()
}

/// Returns the size of dim 0 of all batched inputs. Errors: the sizes differ.
pub(crate) fn batch(module: &Module) -> Result<Option<u64>, Diagnostic> {
    let batched = module.inputs.iter().filter(|input| input.batched);
    let sizes: Vec<(&str, Option<u64>)> = batched
        .map(|input| (input.name.as_str(), module.ty(input.value).dims.first().and_then(Dim::size)))
        .collect();
    match sizes.iter().find(|(_, size)| *size != sizes[0].1) {
        Some((name, _)) => {
            Err(Diagnostic::new(format!("inputs `{}` and `{name}` differ in dim 0", sizes[0].0)))
        }
        None => Ok(sizes.first().and_then(|(_, size)| *size).filter(|&size| size > 0)),
    }
}

/// Whether samples would mix along this factor although it can be split: the dim of a lookup, and the positions of a causal attention.
fn by_position(op: &Op, factors: &Factors, factor: FactorId) -> bool {
    let place = match op {
        Op::Gather(gather) => (0, gather.dim as usize),
        Op::GatherElements(gather) => (0, gather.dim as usize),
        Op::ScatterElements(scatter) => (0, scatter.dim as usize),
        Op::Attention(attention) if attention.causal => (0, 2),
        _ => return false,
    };
    factors.operands[place.0][place.1].contains(&factor)
}

/// Whether an operator computes statistics of the batch. Another batch has other statistics, as it should.
fn describes_the_batch(op: &Op) -> bool {
    matches!(op, Op::BatchStatistics(_) | Op::Reduce(Reduce { kind: ReduceKind::Mean, .. }))
}

struct Trace<'m> {
    module: &'m Module,
    from: u64,
    to: u64,
    constants: Constants<'m>,
    /// Values computed from random numbers and constants alone. Each sample has its own, also in a batch of one.
    drawn: BTreeSet<ValueId>,
    carries: BTreeMap<ValueId, Carry>,
    /// Constants that must have the same values for every sample.
    wanted: BTreeMap<(NodeId, usize), Carry>,
    summed: BTreeSet<NodeId>,
    /// Nodes that combine samples, except cross-entropies.
    met: BTreeSet<NodeId>,
    changed: bool,
}

impl<'m> Trace<'m> {
    fn new(module: &'m Module, from: u64, to: u64) -> Self {
        let batched = module.inputs.iter().filter(|input| input.batched);
        let constants = Constants::new(module);
        Self {
            module,
            from,
            to,
            drawn: drawn(module, &constants),
            constants,
            carries: batched.map(|input| (input.value, Carry { dim: 0, minor: 1 })).collect(),
            wanted: BTreeMap::new(),
            summed: BTreeSet::new(),
            met: BTreeSet::new(),
            changed: true,
        }
    }

    /// Passes over the nodes, forwards and backwards, until no more values are found to carry the batch.
    fn run(&mut self) -> Result<(), Diagnostic> {
        while std::mem::take(&mut self.changed) {
            for id in self.module.order().iter().chain(self.module.order().iter().rev()) {
                self.node(*id).map_err(|error| self.explain(*id, error))?;
            }
        }
        Ok(())
    }

    fn explain(&self, id: NodeId, error: String) -> Diagnostic {
        let node = self.module.node(id);
        let (from, to) = (self.from, self.to);
        let cannot = if from == to { "followed".to_string() } else { format!("changed to {to}") };
        let message =
            format!("the batch of size {from} cannot be {cannot}: the node `{}` {error}", node.op.name());
        let diagnostic = Diagnostic::new(message);
        let diagnostic =
            if node.origin.is_empty() { diagnostic } else { diagnostic.at(node.origin.to_string()) };
        diagnostic.note(format!("keep the batch at {from}, or export the model with a dynamic batch"))
    }

    fn node(&mut self, id: NodeId) -> Result<(), String> {
        let node = self.module.node(id);
        if node.operands.is_empty() {
            return self.source(node);
        }
        if matches!(node.op, Op::Reshape(_)) {
            return self.reshape(id, node);
        }
        let signature = self.module.signature(node);
        let factors = node.op.factors(&signature);
        let values = || node.operands.iter().chain(&node.results);
        let dims = || factors.operands.iter().chain(&factors.results);
        let mut found = None;
        for (value, dims) in values().zip(dims()) {
            let Some(&carry) = self.carries.get(value) else { continue };
            let here = locate(&factors, &dims[carry.dim], carry.minor, self.from);
            let here = here.ok_or("mixes the batch with another dim")?;
            if *found.get_or_insert(here) != here {
                return Err("has the batch in two dims".into());
            }
        }
        let Some((factor, minor)) = found else { return Ok(()) };
        if by_position(&node.op, &factors, factor) {
            return Err("computes along the batch".into());
        }
        let kind = factors.factors[factor as usize].kind;
        if kind != FactorKind::Free && !matches!(node.op, Op::CrossEntropy(_)) {
            self.met.insert(id);
        }
        match kind {
            FactorKind::Free => {}
            FactorKind::Reduced(PartialKind::Sum) if !matches!(node.op, Op::CrossEntropy(_)) => {
                self.summed.insert(id);
            }
            FactorKind::Reduced(_) => {}
            FactorKind::Custom if describes_the_batch(&node.op) => {}
            FactorKind::Whole | FactorKind::Custom => return Err("computes along the batch".into()),
        }
        for (i, dims) in factors.operands.iter().enumerate() {
            if let Some(carry) = place(&factors, dims, factor, minor) {
                self.operand(id, i, carry)?;
            }
        }
        for (&result, dims) in node.results.iter().zip(&factors.results) {
            if let Some(carry) = place(&factors, dims, factor, minor) {
                self.set(result, carry)?;
            }
        }
        Ok(())
    }

    /// Checks a node without operands. It can have any size, unless it counts along the batch.
    fn source(&self, node: &Node) -> Result<(), String> {
        match (&node.op, self.carries.get(&node.results[0])) {
            (Op::Iota(iota), Some(carry)) if iota.dim as usize == carry.dim => {
                Err("counts the samples".into())
            }
            _ => Ok(()),
        }
    }

    /// Follows the batch through a reshape, where it keeps its stride in memory.
    fn reshape(&mut self, id: NodeId, node: &Node) -> Result<(), String> {
        let (from, to) = (node.operands[0], node.results[0]);
        let sizes = |value| self.module.ty(value).sizes().ok_or("has unbound dims");
        let (before, after) = (sizes(from)?, sizes(to)?);
        let error = || "splits or mixes the batch".to_string();
        if let Some(&carry) = self.carries.get(&from) {
            let carry = reshaped(carry, &before, &after, self.from).ok_or_else(error)?;
            self.set(to, carry)?;
        } else if let Some(&carry) = self.carries.get(&to) {
            let carry = reshaped(carry, &after, &before, self.from).ok_or_else(error)?;
            self.operand(id, 0, carry)?;
        }
        Ok(())
    }

    /// Marks an operand of a node, which must carry the batch.
    fn operand(&mut self, id: NodeId, operand: usize, carry: Carry) -> Result<(), String> {
        let node = self.module.node(id);
        let value = node.operands[operand];
        // A dim of size one is broadcast by the operator.
        let known = self.carries.contains_key(&value) || self.drawn.contains(&value);
        if self.from == 1 && !known && stretches(&node.op, node.role(operand)) {
            return Ok(());
        }
        // A stretched constant is stretched to the new batch; any other is computed for one sample.
        let stretched = self.module.producer(value).is_some_and(|node| matches!(node.op, Op::Broadcast(_)));
        match self.module.value(value).definition {
            _ if self.constants.known(value) == Constness::Constant && !stretched => {
                if let Some(other) = self.wanted.insert((id, operand), carry)
                    && other != carry
                {
                    return Err("has the batch in two dims".into());
                }
                Ok(())
            }
            Definition::Input(index) if !self.carries.contains_key(&value) => {
                let name = &self.module.inputs[index as usize].name;
                Err(format!("reads input `{name}` along the batch, and this input is not batched"))
            }
            Definition::State(_) => Err("reads a state whose size would change with the batch".into()),
            _ => self.set(value, carry),
        }
    }

    fn set(&mut self, value: ValueId, carry: Carry) -> Result<(), String> {
        match self.carries.insert(value, carry) {
            None => self.changed = true,
            Some(known) if known == carry => {}
            Some(_) => return Err("has the batch in two dims".into()),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Decision, Diagnostic> {
        let mut constants = BTreeMap::new();
        for (&(id, operand), &carry) in &self.wanted {
            let value = self.module.node(id).operands[operand];
            let tensor = self.constants.value(value).and_then(|tensor| one_sample(tensor, carry, self.from));
            let error = || self.explain(id, "reads a constant that differs from sample to sample".into());
            constants.insert((id, operand), OneSample { carry, tensor: tensor.ok_or_else(error)? });
        }
        for (&value, &carry) in self.carries.iter().filter(|_| self.from > 1) {
            let Definition::Node(id, _) = self.module.value(value).definition else { continue };
            let Op::Constant(constant) = &self.module.node(id).op else { continue };
            let data = &self.module.data[constant.data];
            let tensor = data.bytes().and_then(|bytes| Tensor::from_bytes(&data.ty, bytes));
            if tensor.and_then(|tensor| one_sample(&tensor, carry, self.from)).is_none() {
                return Err(self.explain(
                    id,
                    format!("reads `{}`, which differs from sample to sample or is missing", data.name),
                ));
            }
        }
        let warn = |&id: &NodeId| {
            let node = self.module.node(id);
            let warning = Diagnostic::new(format!("`{}` {SUMS_OVER_BATCH}", node.op.name()));
            let warning = if node.origin.is_empty() { warning } else { warning.at(node.origin.to_string()) };
            (
                id,
                warning
                    .note(format!("a constant that divides this sum is still for a batch of {}", self.from)),
            )
        };
        let sums = if self.from == self.to { vec![] } else { self.summed.iter().map(warn).collect() };
        Ok(Decision { from: self.from, to: self.to, carries: self.carries, constants, sums })
    }
}

/// Returns the values that elementwise operators compute from random numbers and constants alone.
fn drawn(module: &Module, constants: &Constants) -> BTreeSet<ValueId> {
    let mut drawn = BTreeSet::new();
    let is_splat =
        |value: ValueId| module.producer(value).is_some_and(|node| matches!(node.op, Op::Splat(_)));
    for (_, node) in module.nodes() {
        let own = match &node.op {
            Op::RandomUniform(_) => true,
            // A dropout of a splat is a mask.
            Op::Dropout(_) => is_splat(node[OperandRole::Data]),
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Logical(_) | Op::Cast(_) | Op::Select(_) => {
                let mut others = node.operands.iter().filter(|operand| !drawn.contains(*operand));
                let any = node.operands.iter().any(|operand| drawn.contains(operand));
                any && others.all(|&operand| constants.known(operand) == Constness::Constant)
            }
            _ => false,
        };
        if own {
            drawn.insert(node.results[0]);
        }
    }
    drawn
}

/// Whether an operator broadcasts an operand's dims of size one.
fn stretches(op: &Op, operand: OperandRole) -> bool {
    match op {
        Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) => true,
        Op::Select(_) | Op::Broadcast(_) => true,
        Op::Rotary(_) => matches!(operand, OperandRole::Cosines | OperandRole::Sines),
        Op::Attention(_) => operand == OperandRole::Mask,
        _ => false,
    }
}

/// Returns the factor of a dim that carries the batch, and the part of `minor` that lies within the factor.
fn locate(factors: &Factors, dim: &[u32], minor: u64, batch: u64) -> Option<(u32, u64)> {
    let mut after = dim.iter().map(|&f| factors.factors[f as usize].size.size()).product::<Option<u64>>()?;
    dim.iter().find_map(|&factor| {
        let size = factors.factors[factor as usize].size.size()?;
        after = after.checked_div(size)?;
        let inside = minor.is_multiple_of(after.max(1)).then(|| minor / after.max(1))?;
        size.is_multiple_of(inside * batch).then_some((factor, inside))
    })
}

/// Returns the place of the batch in a tensor if this factor carries it.
fn place(factors: &Factors, dims: &[ir::factors::DimFactors], factor: u32, minor: u64) -> Option<Carry> {
    let dim = dims.iter().position(|dim| dim.contains(&factor))?;
    let at = dims[dim].iter().position(|&f| f == factor)?;
    let after = dims[dim][at + 1..]
        .iter()
        .map(|&f| factors.factors[f as usize].size.size())
        .product::<Option<u64>>()?;
    Some(Carry { dim, minor: minor * after })
}

/// Returns the place of the batch in a tensor after a reshape: preferably a dim of its own.
fn reshaped(carry: Carry, before: &[u64], after: &[u64], batch: u64) -> Option<Carry> {
    let stride = carry.minor * before[carry.dim + 1..].iter().product::<u64>();
    let candidates: Vec<Carry> = (0..after.len())
        .filter_map(|dim| {
            let inner = after[dim + 1..].iter().product::<u64>().max(1);
            let minor = stride.is_multiple_of(inner).then(|| stride / inner)?;
            (minor > 0 && after[dim].is_multiple_of(minor * batch)).then_some(Carry { dim, minor })
        })
        .collect();
    let alone = candidates.iter().find(|carry| carry.minor == 1 && after[carry.dim] == batch);
    alone.or(candidates.first()).copied()
}

/// Returns the part of one sample, if all samples have the same values.
fn one_sample(tensor: &Tensor, carry: Carry, batch: u64) -> Option<Tensor> {
    let (batch, minor) = (batch as usize, carry.minor as usize);
    let mut sizes = tensor.sizes.clone();
    let major = sizes[carry.dim].checked_div(batch * minor)?;
    let split: &[usize] = if major == 1 && minor == 1 { &[batch] } else { &[major, batch, minor] };
    sizes.splice(carry.dim..=carry.dim, split.iter().copied());
    let at = carry.dim + usize::from(split.len() > 1);
    let inner: usize = sizes[at + 1..].iter().product();
    let numbers: Vec<u64> = tensor.numbers().into_iter().map(f64::to_bits).collect();
    let repeats = |block: &[u64]| block.chunks(inner.max(1)).all(|sample| *sample == block[..inner]);
    if !numbers.chunks((inner * batch).max(1)).all(repeats) {
        return None;
    }
    let split = Tensor { dtype: tensor.dtype, sizes, elements: tensor.elements.clone() };
    let first = ir::ViewStep::Slice { dim: at as u32, start: 0, length: 1 };
    ir::view::apply(&[first], &split)
}
