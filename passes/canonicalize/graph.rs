//! The e-graph: the IR's own operators as egg's language.
//!
//! An e-class is a value, or the tuple of values of an operator with several results, which [`Head::Result`] takes apart. Hash-consing
//! merges equal nodes, so a region in the graph has nodes of one phase, stage and copy alone. An operator that draws random numbers has
//! an id, which distinguishes it from others with the same operand.

use super::near::Seen;
use super::stored::Tables;
use crate::rewriting::egraph::{self, Sound, Symbol};
use egg::{Analysis, DidMerge, Id};
use ir::ops::{Inference, Operator};
use ir::{Data, Module, Op, Type, ValueId};
use std::cell::RefCell;
use std::rc::Rc;

/// The head of an e-node. Its arguments are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Head {
    /// A value from outside the region.
    Leaf(ValueId),
    /// An operator, with its result type if the type does not follow from the operands. Shared, because the graph has each node several
    /// times.
    Op(Rc<Op>, Option<Rc<Type>>),
    /// One result of an operator with several results.
    Result(u32),
    /// All values that must come out of the region.
    Root,
}

impl Symbol for Head {
    fn name(&self) -> &'static str {
        match self {
            Self::Op(op, _) => op.name(),
            Self::Leaf(_) => "",
            Self::Result(_) => "result",
            Self::Root => "root",
        }
    }
}

/// A node of the e-graph.
pub(super) type ENode = egraph::ENode<Head>;

impl ENode {
    /// Makes the e-node of an operator over classes, with its result type if the type does not follow from the operands.
    pub(super) fn of(op: Op, declared: Option<Type>, args: impl IntoIterator<Item = Id>) -> Self {
        Self::new(Head::Op(op.into(), declared.map(Rc::new)), args)
    }

    /// Returns the operator, if the head is one.
    pub(super) fn op(&self) -> Option<&Op> {
        if let Head::Op(op, _) = &self.head { Some(op) } else { None }
    }
}

/// The facts about an e-class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    /// Types of the value, or of all values of a tuple; empty for the root.
    pub(super) types: Vec<Type>,
    /// The number that all elements equal, if it is known.
    pub(super) splat: Option<f64>,
}

/// The analysis: types follow from the arguments' types. An assertion checks that united classes have the same types, which catches
/// unsound rules in tests.
pub(super) struct Typing<'m> {
    /// The program, for types of leaves and bytes of constants.
    pub(super) module: &'m Module,
    /// The facts that rules have found about stored tables, kept because a mask is the same in every layer.
    pub(super) tables: RefCell<Tables>,
    /// The matches and near misses of rules.
    pub(super) seen: RefCell<Seen>,
}

impl<'m> Typing<'m> {
    /// Starts without facts about the program.
    pub(super) fn new(module: &'m Module) -> Self {
        Self { module, tables: RefCell::default(), seen: RefCell::default() }
    }
}

pub(super) type Graph<'m> = egraph::Graph<Head, Typing<'m>>;

/// Infers the types of an e-node. Errors: the e-node is ill-typed.
pub(super) fn infer(graph: &Graph, node: &ENode) -> Result<Vec<Type>, ir::TypeError> {
    match &node.head {
        Head::Leaf(value) => Ok(vec![graph.analysis.module.ty(*value).clone()]),
        Head::Root => Ok(vec![]),
        Head::Result(i) => Ok(vec![graph[node.args[0]].data.types[*i as usize].clone()]),
        Head::Op(op, declared) => {
            let operands: Vec<Type> = node.args.iter().map(|&arg| graph.ty(arg).clone()).collect();
            let declared = declared.as_deref().map_or(&[][..], std::slice::from_ref);
            op.infer(&Inference { operands: &operands, declared })
        }
    }
}

impl Analysis<ENode> for Typing<'_> {
    type Data = Facts;

    fn make(graph: &mut Graph, node: &ENode, _: Id) -> Facts {
        let types = infer(graph, node).expect("terms are checked before they are added");
        let splat = match node.op() {
            Some(Op::Splat(splat)) => Some(splat.value.get()),
            // Equal elements in another layout are equal elements.
            Some(op) if op.movement().is_layout() => graph[node.args[0]].data.splat,
            _ => None,
        };
        Facts { types, splat }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        assert_eq!(a.types, b.types, "a rule united values of different types");
        let (had, has) = (a.splat.is_some(), b.splat.is_some());
        a.splat = a.splat.or(b.splat);
        DidMerge(!had && has, had && !has)
    }
}

impl Sound<Head> for Typing<'_> {
    fn admits(graph: &Graph, node: &ENode) -> bool {
        infer(graph, node).is_ok()
    }

    /// Whether two classes have the same types. The term of a rule that drops a broadcast may be narrower than the class.
    fn alike(graph: &Graph, a: Id, b: Id) -> bool {
        graph[a].data.types == graph[b].data.types
    }
}

/// Returns the number in a stored float tensor of one element.
fn one_number(data: &Data) -> Option<f64> {
    let single = data.ty.dtype.is_float() && data.ty.numel() == Some(1);
    single.then(|| ir::interp::file_tensor(data))?.map(|tensor| tensor.item())
}

/// Questions that rules ask.
pub(super) trait Ask {
    /// Returns the type of a class of one value.
    fn ty(&self, class: Id) -> &Type;
    /// Returns the number that all elements of a class equal.
    fn number(&self, class: Id) -> Option<f64>;
    /// Returns the number of a class, or the number in a stored tensor of one element, as legacy exports write numbers. Only for numbers
    /// that are selected or multiplied: elsewhere such a tensor may be a trained bias.
    fn choice(&self, class: Id) -> Option<f64>;
    /// Whether all elements of a class equal a number up to 2e-3 of it, so that bf16 constants match.
    fn is(&self, class: Id, number: f64) -> bool;
    /// Whether two classes are equal.
    fn same(&self, a: Id, b: Id) -> bool;
}

impl Ask for Graph<'_> {
    fn ty(&self, class: Id) -> &Type {
        &self[class].data.types[0]
    }

    fn number(&self, class: Id) -> Option<f64> {
        self[class].data.splat
    }

    fn choice(&self, class: Id) -> Option<f64> {
        let stored = |class: Id| {
            self[class].nodes.iter().find_map(|node| match node.op() {
                Some(Op::Constant(constant)) => one_number(&self.analysis.module.data[constant.data]),
                _ => None,
            })
        };
        let reshaped = |node: &ENode| match node.op() {
            Some(Op::Reshape(_)) => stored(node.args[0]),
            _ => None,
        };
        let viewed = || self[class].nodes.iter().find_map(reshaped);
        self.number(class).or_else(|| stored(class)).or_else(viewed)
    }

    fn is(&self, class: Id, number: f64) -> bool {
        self.number(class).is_some_and(|value| (value - number).abs() <= 2e-3 * number.abs())
    }

    fn same(&self, a: Id, b: Id) -> bool {
        self.find(a) == self.find(b)
    }
}
