//! Finds feed-forward blocks by their structure: one or two contractions of sequences with parameters, elementwise functions of their
//! results, and a contraction back. Names do not matter.

use crate::reports::NearMiss;
use ir::ops::elementwise::Binary;
use ir::{Definition, Dim, Module, Node, NodeId, Op, OperandRole, Phase, Role, StateId, Type, ValueId};
use serde::Serialize;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// A multiplication of rows with a parameter along their last dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Linear {
    /// The rows.
    pub(super) rows: ValueId,
    /// The parameter, a matrix.
    pub(super) weight: StateId,
    /// Whether the matrix is `[out, in]`.
    pub(super) transposed: bool,
}

/// A feed-forward block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Block {
    /// The origin of the activation.
    pub origin: String,
    /// The number of numbers of a token. `None` if the dim is not bound.
    pub features: Option<u64>,
    /// The number of hidden numbers of a token.
    pub hidden: u64,
    /// The tokens of the block: `[samples, .., features]`, or the same as rows, `[tokens, features]`.
    #[serde(skip)]
    pub input: ValueId,
    /// The number of samples that the tokens belong to.
    #[serde(skip)]
    pub samples: Dim,
    /// All nodes of the block in program order, from the first contraction to the last one or to the bias that is added to it.
    #[serde(skip)]
    pub nodes: Vec<NodeId>,
    /// The result: `[samples, .., features]`, or rows.
    #[serde(skip)]
    pub output: ValueId,
    /// The node that computes the result.
    #[serde(skip)]
    pub last: NodeId,
}

/// The feed-forward blocks of a program, in program order, and the near misses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FeedForward {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Contractions behind an activation that end no block, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<NearMiss>,
}

/// The pattern's name in reports.
pub const PATTERN: &str = "feed-forward";

/// Finds the blocks.
pub fn blocks(module: &Module) -> FeedForward {
    let uses = module.uses();
    let finder = Finder { module, readers: |value| &uses[value][..] };
    let mut found = FeedForward::default();
    for (id, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        let Some(linear) = linear(module, node) else { continue };
        match finder.block(id, linear) {
            Ok(block) => found.blocks.push(block),
            Err(None) => {}
            Err(Some(reason)) => {
                found.near.push(NearMiss { pattern: PATTERN, origin: node.origin.to_string(), reason })
            }
        }
    }
    found
}

/// Returns the multiplication with a parameter that a node computes, if it does.
pub(super) fn linear(module: &Module, node: &Node) -> Option<Linear> {
    let Op::Contract(contract) = &node.op else { return None };
    let (lhs, rhs) = (node[OperandRole::Lhs], node[OperandRole::Rhs]);
    let sides = [(lhs, &contract.lhs, rhs, &contract.rhs), (rhs, &contract.rhs, lhs, &contract.lhs)];
    sides.into_iter().find_map(|(rows, row_labels, matrix, labels)| {
        let weight = parameter(module, matrix)?;
        let ([a, b], (&summed, leading)) =
            (<[u8; 2]>::try_from(&labels.0[..]).ok()?, row_labels.0.split_last()?);
        let (&made, kept) = contract.out.0.split_last()?;
        let transposed = [b, a] == [summed, made];
        let fits =
            kept == leading && (transposed || [a, b] == [summed, made]) && parameter(module, rows).is_none();
        fits.then_some(Linear { rows, weight, transposed })
    })
}

/// Returns the samples of a sequence's tokens. Exporters lay the tokens of all samples out as rows, in OPT before the norm. Rows are
/// followed back to the reshape of a tensor with a dim of samples.
fn samples(module: &Module, tokens: ValueId) -> Option<Dim> {
    let ty = module.ty(tokens);
    if ty.ndim() >= 3 {
        return ty.dims.first().cloned();
    }
    let node = module.producer(tokens)?;
    match node.op {
        Op::Reshape(_) => {
            let from = module.ty(node.operands[0]);
            // A tensor with one row for each sample is no sequence; it may be pooled.
            let joins = from.ndim() >= 3 && from.dims[0] != ty.dims[0] && from.dims.last() == ty.dims.last();
            joins.then(|| from.dims[0].clone())
        }
        // Norms, elementwise functions, and multiplications keep the rows.
        _ => {
            let is_rows = |value: &&ValueId| module.ty(**value).dims.first() == ty.dims.first();
            node.operands.iter().filter(is_rows).find_map(|&value| samples(module, value))
        }
    }
}

/// Returns the trained state, if a value is one.
fn parameter(module: &Module, value: ValueId) -> Option<StateId> {
    match module.value(value).definition {
        Definition::State(id) if module.states[id].role == Role::Parameter => Some(id),
        _ => None,
    }
}

struct Finder<'m, R> {
    module: &'m Module,
    readers: R,
}

/// The walk from the last contraction of a block back to the first.
#[derive(Default)]
struct Walk {
    nodes: BTreeSet<NodeId>,
    input: Option<ValueId>,
    /// The first nonlinear function.
    activation: Option<NodeId>,
    entries: usize,
    /// All values of the block except its result.
    inner: BTreeSet<ValueId>,
    states: BTreeSet<StateId>,
}

impl<'m, R: Fn(ValueId) -> &'m [NodeId]> Finder<'m, R> {
    /// Returns the block that ends with this multiplication. If it is nearly the end of a block, the error has the reason.
    fn block(&self, id: NodeId, last: Linear) -> Result<Block, Option<String>> {
        let module = self.module;
        let hidden = module.ty(last.rows);
        let mut walk = Walk::default();
        self.back(&mut walk, last.rows, hidden)?;
        let (Some(input), Some(activation)) = (walk.input, walk.activation) else { return Err(None) };
        walk.nodes.insert(id);
        walk.states.insert(last.weight);
        let mut output = module.node(id).results[0];
        let mut end = id;
        if let Some((bias, sum, node)) = self.bias(output) {
            walk.inner.insert(output);
            walk.states.insert(bias);
            walk.nodes.insert(node);
            (output, end) = (sum, node);
        }
        let ty = module.ty(input);
        let Some(samples) = samples(module, input) else {
            return Err(Some(format!(
                "its rows are samples ({ty}), and routing compares the tokens of a sequence"
            )));
        };
        let Some(width) = hidden.dims.last().and_then(Dim::size) else {
            return Err(Some("its sizes are not bound".into()));
        };
        let outside = |value: &&ValueId| {
            let is_read_outside = (self.readers)(**value).iter().any(|reader| !walk.nodes.contains(reader));
            is_read_outside || module.outputs.iter().any(|output| output.value == **value)
        };
        if walk.inner.iter().any(|value| outside(&value)) {
            return Err(Some("a value inside is read outside too".into()));
        }
        if let Some(&state) = walk.states.iter().find(|&&state| outside(&&module.states[state].input)) {
            return Err(Some(format!("its parameter `{}` is read elsewhere too", module.states[state].name)));
        }
        let nodes = module.order().iter().copied().filter(|node| walk.nodes.contains(node)).collect();
        let origin = module.node(activation).origin.to_string();
        let features = ty.dims.last().and_then(Dim::size);
        Ok(Block { origin, features, hidden: width, input, samples, nodes, output, last: end })
    }

    /// Walks back from a value of hidden numbers. Without recursion, since the graph may be deeper than the call stack.
    fn back(&self, walk: &mut Walk, value: ValueId, hidden: &Type) -> Result<(), Option<String>> {
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            if walk.inner.insert(value) {
                let inner = self.step_back(walk, value, hidden)?;
                left.extend(inner.into_iter().rev());
            }
        }
        Ok(())
    }

    /// Takes the node that computes hidden numbers into the block. Returns its operands that are hidden numbers.
    fn step_back(
        &self,
        walk: &mut Walk,
        value: ValueId,
        hidden: &Type,
    ) -> Result<SmallVec<[ValueId; 2]>, Option<String>> {
        let module = self.module;
        let Definition::Node(id, _) = module.value(value).definition else { return Err(None) };
        let node = module.node(id);
        if let Some(Linear { rows, weight, .. }) = linear(module, node) {
            if walk.input.replace(rows).is_some_and(|other| other != rows) {
                return Err(Some("its first multiplications do not read the same rows".into()));
            }
            walk.entries += 1;
            walk.states.insert(weight);
            walk.nodes.insert(id);
            return Ok(SmallVec::new());
        }
        if !is_elementwise(&node.op) {
            // Attention and norms end the walk: a contraction after them ends no block.
            return Err(walk.activation.map(|_| format!("`{}` is not elementwise", node.op.name())));
        }
        walk.nodes.insert(id);
        let gates = matches!(node.op, Op::Binary(_))
            && node.operands.iter().all(|&operand| module.ty(operand).dims == hidden.dims);
        // Functions of hidden numbers and constants are activations too: the bounds of ReLU6, and the sides of a leaky ReLU.
        let bends = matches!(node.op, Op::Binary(Binary::Max | Binary::Min | Binary::Pow) | Op::Select(_));
        if gates || bends || matches!(node.op, Op::Unary(_)) {
            walk.activation = Some(id);
        }
        let mut inner = SmallVec::new();
        for &operand in &node.operands {
            let ty = module.ty(operand);
            if ty.dims == hidden.dims {
                inner.push(operand);
            } else if let Some(state) = self.vector(operand, hidden) {
                walk.states.insert(state);
            } else if ty.numel() != Some(1) {
                return Err(walk.activation.map(|_| format!("`{}` reads {ty}", node.op.name())));
            }
        }
        Ok(inner)
    }

    /// Returns the parameter, if a value is one with one number for each hidden number.
    fn vector(&self, value: ValueId, hidden: &Type) -> Option<StateId> {
        let is_vector = self.module.ty(value).dims[..] == hidden.dims[hidden.ndim() - 1..];
        parameter(self.module, value).filter(|_| is_vector)
    }

    /// Returns the bias that is added to a value, with the sum and its node, if the addition is the value's only reader.
    fn bias(&self, value: ValueId) -> Option<(StateId, ValueId, NodeId)> {
        let &[reader] = (self.readers)(value) else { return None };
        let node = self.module.node(reader);
        if self.module.outputs.iter().any(|output| output.value == value) {
            return None;
        }
        let Op::Binary(Binary::Add) = node.op else { return None };
        let other = node.operands.iter().copied().find(|&operand| operand != value)?;
        let state = self.vector(other, self.module.ty(value))?;
        Some((state, node.results[0], reader))
    }
}

/// Whether a node computes each element of its result from the elements at the same place.
fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Compare(_) | Op::Logical(_) | Op::Select(_))
}
