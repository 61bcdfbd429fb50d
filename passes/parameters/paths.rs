//! The origin and the readers of each value of a program, for the evidence of a tensor's uses.
//!
//! Every answer is computed once, in one pass over the nodes in program order or against it, so that a tensor with many
//! uses along one chain takes no more time than as many tensors with one use.

use cranelift_entity::SecondaryMap;
use ir::ops::elementwise::{Binary, Unary};
use ir::{Module, Node, NodeId, Op, ValueId};

/// The answers, by value.
pub(super) struct Paths {
    origins: SecondaryMap<ValueId, Origin>,
    /// The readers through views, concatenations and additions, and whether they are softmaxes.
    softmaxes: SecondaryMap<ValueId, Readers>,
    /// The readers through views, concatenations and multiplications, and whether they are sines and cosines.
    angles: SecondaryMap<ValueId, Readers>,
    /// Whether a result of the program depends on a value through floats only.
    reaches: SecondaryMap<ValueId, bool>,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    /// Whether the value depends on an input of the program.
    varies: bool,
    /// Whether everything that varies in it is computed from integers.
    from_integers: bool,
    /// Whether it is a product of two tensors of activations, perhaps with addends.
    scores: bool,
    /// The contraction behind views and scalar factors, if there is one.
    contraction: Option<NodeId>,
    /// The value that it is a view of, if it is one.
    viewed: Option<ValueId>,
}

/// The readers of a value, directly or through its views and sums.
#[derive(Clone, Copy, Debug, Default)]
struct Readers {
    any: bool,
    /// Whether one of them is of another kind.
    other: bool,
}

impl Paths {
    /// Computes all answers, in four passes over the nodes.
    pub(super) fn new(module: &Module) -> Self {
        let through = |op: &Op, more: Binary| matches!(op, Op::Binary(binary) if *binary == more);
        Self {
            origins: origins(module),
            softmaxes: readers(module, |op| through(op, Binary::Add), |op| matches!(op, Op::Softmax(_))),
            angles: readers(
                module,
                |op| through(op, Binary::Mul),
                |op| matches!(op, Op::Unary(Unary::Sin | Unary::Cos)),
            ),
            reaches: reaches(module),
        }
    }

    /// Whether a result of the program depends on a value through floats only. If not, no gradient comes to the value.
    pub(super) fn reaches_a_result(&self, value: ValueId) -> bool {
        self.reaches[value]
    }

    /// Whether a value depends on an input of the program.
    pub(super) fn varies(&self, value: ValueId) -> bool {
        self.origins[value].varies
    }

    /// Whether everything that varies in a value is computed from integers.
    pub(super) fn comes_from_integers(&self, value: ValueId) -> bool {
        self.origins[value].from_integers
    }

    /// Whether a value is a product of two tensors of activations, as attention scores are, perhaps with addends.
    pub(super) fn are_scores(&self, value: ValueId) -> bool {
        self.origins[value].scores
    }

    /// Whether a value is a contraction behind views and scalar factors.
    pub(super) fn is_contraction(&self, value: ValueId) -> bool {
        self.origins[value].contraction.is_some()
    }

    /// Returns the value that this one is a view of, or else the value itself.
    pub(super) fn viewed(&self, value: ValueId) -> ValueId {
        self.origins[value].viewed.unwrap_or(value)
    }

    /// Whether only softmaxes read a value, perhaps after additions.
    pub(super) fn feeds_only_softmax(&self, value: ValueId) -> bool {
        self.softmaxes[value].any && !self.softmaxes[value].other
    }

    /// Whether only sines and cosines read a value, perhaps after multiplications.
    pub(super) fn feeds_only_angles(&self, value: ValueId) -> bool {
        self.angles[value].any && !self.angles[value].other
    }
}

fn origins(module: &Module) -> SecondaryMap<ValueId, Origin> {
    let mut origins: SecondaryMap<ValueId, Origin> = SecondaryMap::new();
    for input in &module.inputs {
        let from_integers = module.ty(input.value).dtype.is_integer();
        origins[input.value] = Origin { varies: true, from_integers, ..Origin::default() };
    }
    for state in module.states.values() {
        // A state alone does not vary.
        origins[state.input].from_integers = true;
    }
    for (id, node) in module.nodes() {
        let made = origin(module, &origins, id, node);
        for &result in &node.results {
            let from_integers = made.from_integers || !made.varies || module.ty(result).dtype.is_integer();
            origins[result] = Origin { from_integers, ..made };
        }
    }
    origins
}

/// Returns the origin of a node's results.
fn origin(module: &Module, origins: &SecondaryMap<ValueId, Origin>, id: NodeId, node: &Node) -> Origin {
    let of = |value: &ValueId| origins[*value];
    let varies = node.operands.iter().any(|value| of(value).varies);
    let from_integers = node.operands.iter().all(|value| of(value).from_integers);
    let made = Origin { varies, from_integers, ..Origin::default() };
    match &node.op {
        op if op.movement().is_view() => {
            let Origin { scores, contraction, viewed, .. } = of(&node.operands[0]);
            Origin { scores, contraction, viewed: Some(viewed.unwrap_or(node.operands[0])), ..made }
        }
        Op::Contract(_) => {
            let scores = node.operands.iter().all(|value| of(value).varies);
            Origin { contraction: Some(id), scores, ..made }
        }
        Op::Binary(Binary::Add) => {
            Origin { scores: node.operands.iter().any(|value| of(value).scores), ..made }
        }
        Op::Binary(Binary::Mul | Binary::Div) => {
            let factor = node.operands.iter().find(|value| !large_dims(module, **value).is_empty());
            let contraction = factor.and_then(|value| of(value).contraction);
            let is_of_activations =
                |id: NodeId| module.node(id).operands.iter().all(|value| of(value).varies);
            Origin { contraction, scores: contraction.is_some_and(is_of_activations), ..made }
        }
        _ => made,
    }
}

/// Finds for each value whether its readers, through views, concatenations and the operators of `through`, are all of the kind
/// `wanted`.
fn readers(
    module: &Module,
    through: impl Fn(&Op) -> bool,
    wanted: impl Fn(&Op) -> bool,
) -> SecondaryMap<ValueId, Readers> {
    let mut readers: SecondaryMap<ValueId, Readers> = SecondaryMap::new();
    for (_, node) in module.nodes().rev() {
        let passed = node.op.movement().is_view() || matches!(node.op, Op::Concat(_)) || through(&node.op);
        let read =
            if passed { readers[node.results[0]] } else { Readers { any: true, other: !wanted(&node.op) } };
        for &operand in &node.operands {
            let known = &mut readers[operand];
            *known = Readers { any: known.any || read.any, other: known.other || read.other };
        }
    }
    readers
}

/// Finds for each value whether a chain of floats leads from it to a result of the program. A comparison ends the chain.
fn reaches(module: &Module) -> SecondaryMap<ValueId, bool> {
    let mut reaches: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    module.roots().for_each(|root| reaches[root] = true);
    let is_float = |value: ValueId| module.ty(value).dtype.is_float();
    for (_, node) in module.nodes().rev() {
        if node.results.iter().any(|&result| reaches[result] && is_float(result)) {
            node.operands.iter().for_each(|&operand| reaches[operand] = true);
        }
    }
    reaches
}

/// Returns the dims of more than one element, counted from the last: `[0]` is a vector that broadcasts along all but the
/// last dim.
pub(super) fn large_dims(module: &Module, value: ValueId) -> Vec<usize> {
    let dims = module.ty(value).dims.iter().rev().enumerate();
    dims.filter(|(_, size)| !size.is_one()).map(|(i, _)| i).collect()
}
