//! The e-graph of a placed program: operators with their place and the types of their results.
//!
//! Dims are global and a sharding is part of a type. So an operator on a part is the operator on the whole with other types, and a rule
//! that cuts a program changes only types. Hash-consing merges equal nodes. The place (phase, stage, copy) is part of a node, so nodes
//! of different places stay apart.

use super::rows::{self, Dims};
use crate::rewriting::egraph::{self, Sound, Symbol};
use egg::{Analysis, DidMerge, Id};
use ir::factors::{FactorId, Factors};
use ir::ops::Operator;
use ir::ops::collective::Collective;
use ir::{AxisId, Module, Op, Phase, Sharding, Signature, Type, ValueId};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// When and where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StepPlace {
    pub(super) phase: Phase,
    pub(super) stage: u32,
    pub(super) copy: u32,
}

/// A type of the program, by its number in [`Types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TypeId(u32);

pub(super) type TypeIds = SmallVec<[TypeId; 3]>;

/// The head of an e-node. Its arguments are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::large_enum_variant)] // nearly every head is an operator
pub(super) enum Head {
    /// A value that no node makes: an input, or a state.
    Leaf(ValueId),
    /// An operator with the types of its results.
    Op(Op, TypeIds, StepPlace),
    /// One result of an operator with several results.
    Result(u32),
    /// The operand, kept from forward for this place of backward: an identity that costs memory.
    Saved(StepPlace),
    /// All values that must come out of the program.
    Root,
}

impl Symbol for Head {
    fn name(&self) -> &'static str {
        match self {
            Self::Op(op, ..) => op.name(),
            Self::Leaf(_) => "",
            Self::Result(_) => "result",
            Self::Saved(_) => "saved",
            Self::Root => "root",
        }
    }
}

/// A node of the e-graph.
pub(super) type ENode = egraph::ENode<Head>;

impl ENode {
    /// Returns the collective, if the node is one of a single operand.
    pub(super) fn collective(&self) -> Option<(Collective, TypeId, StepPlace)> {
        match (&self.head, &self.args[..]) {
            (Head::Op(Op::Collective(collective), types, place), [_]) => {
                Some((*collective, types[0], *place))
            }
            _ => None,
        }
    }
}

/// A term that a rule makes equal to a class.
pub(super) type Term = egraph::Term<Head>;

impl Term {
    /// Makes a collective over a term.
    pub(super) fn collective(collective: Collective, operand: Self, ty: TypeId, place: StepPlace) -> Self {
        Self::Node(Head::Op(Op::Collective(collective), smallvec![ty], place), vec![operand])
    }
}

/// The facts about an e-class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    /// Types of the value, or of all values of a tuple; none for the root.
    pub(super) types: TypeIds,
    /// The dims of each value that may be cut: see [`super::rows`].
    pub(super) rows: SmallVec<[Dims; 3]>,
    /// The earliest place that computes it; `None` if no node makes it.
    pub(super) place: Option<StepPlace>,
}

/// Every type in the e-graph, once.
#[derive(Default)]
struct Types {
    types: Vec<Rc<Type>>,
    numbers: BTreeMap<Rc<Type>, TypeId>,
}

/// A call: the operator, `None` for the identity, and the types of its operands and results.
pub(super) type Call = (Option<Op>, TypeIds, TypeIds);

/// The types of a call after a factor was split: of the operands that change, and of all results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) operands: SmallVec<[Option<TypeId>; 4]>,
    pub(super) results: TypeIds,
}

/// The analysis, and the facts about the program that rules ask for. An assertion checks that united classes have the same types, which
/// catches unsound rules in tests.
pub(super) struct Program<'m> {
    pub(super) module: &'m Module,
    /// Whether every dim may be cut, not only rows.
    any: bool,
    /// The rows of batched inputs.
    batched: BTreeMap<ValueId, Dims>,
    types: RefCell<Types>,
    // Layers are alike, so the same questions come up again and again.
    factors: RefCell<BTreeMap<Call, Rc<Factors>>>,
    splits: RefCell<BTreeMap<SplitKey, Option<Rc<Split>>>>,
}

/// A call, a factor of it, and the axes to split the factor over.
type SplitKey = (Call, FactorId, SmallVec<[AxisId; 2]>);

pub(super) type Graph<'m> = egraph::Graph<Head, Program<'m>>;

impl<'m> Program<'m> {
    pub(super) fn new(module: &'m Module, any: bool) -> Self {
        let batched = rows::batched(module);
        let (types, factors, splits) = Default::default();
        Self { module, any, batched, types, factors, splits }
    }

    /// Returns the rows of an input or a state.
    fn batched(&self, value: ValueId) -> Dims {
        self.batched.get(&value).copied().unwrap_or_default()
    }

    /// Returns the number of a type. Types that differ only in the spelling of a sharding have one number.
    pub(super) fn number(&self, ty: &Type) -> TypeId {
        let ty = normal(ty);
        let mut types = self.types.borrow_mut();
        if let Some(&id) = types.numbers.get(&ty) {
            return id;
        }
        let (id, ty) = (TypeId(types.types.len() as u32), Rc::new(ty));
        types.types.push(ty.clone());
        types.numbers.insert(ty, id);
        id
    }

    /// Returns the type of a number.
    pub(super) fn ty(&self, id: TypeId) -> Rc<Type> {
        self.types.borrow().types[id.0 as usize].clone()
    }

    /// Returns the types of a call.
    pub(super) fn signature(&self, operands: &[TypeId], results: &[TypeId]) -> Signature {
        let types = |ids: &[TypeId]| ids.iter().map(|&id| Type::clone(&self.ty(id))).collect();
        Signature { operands: types(operands), results: types(results) }
    }

    /// Returns the sharding rule of a call.
    pub(super) fn factors(&self, call: &Call) -> Rc<Factors> {
        if let Some(factors) = self.factors.borrow().get(call) {
            return factors.clone();
        }
        let signature = self.signature(&call.1, &call.2);
        let factors = Rc::new(match &call.0 {
            Some(op) => op.factors(&signature),
            None => Factors::elementwise(&signature).linear_in(&[0]),
        });
        self.factors.borrow_mut().insert(call.clone(), factors.clone());
        factors
    }

    /// Returns the answer to a question about a call. It is computed once, and then remembered.
    pub(super) fn split(
        &self,
        call: &Call,
        factor: FactorId,
        axes: &[AxisId],
        answer: impl FnOnce() -> Option<Split>,
    ) -> Option<Rc<Split>> {
        let key = (call.clone(), factor, SmallVec::from_slice(axes));
        if let Some(split) = self.splits.borrow().get(&key) {
            return split.clone();
        }
        let split = answer().map(Rc::new);
        self.splits.borrow_mut().insert(key, split.clone());
        split
    }
}

/// Returns a type in normal form: its sharding has an entry for every dim or none, and the axes of a sum are sorted.
fn normal(ty: &Type) -> Type {
    let mut ty = ty.clone();
    if ty.sharding.dims.iter().all(|axes| axes.is_empty()) {
        ty.sharding = Sharding { dims: SmallVec::new(), partial: ty.sharding.partial };
    } else {
        ty.sharding.dims.resize(ty.dims.len(), SmallVec::new());
    }
    if let Some((_, axes)) = &mut ty.sharding.partial {
        axes.sort_unstable();
    }
    ty.sharding.partial = ty.sharding.partial.filter(|(_, axes)| !axes.is_empty());
    ty
}

impl Analysis<ENode> for Program<'_> {
    type Data = Facts;

    fn make(graph: &mut Graph, node: &ENode, _: Id) -> Facts {
        let program = &graph.analysis;
        match &node.head {
            Head::Leaf(value) => {
                let ty = program.module.ty(*value);
                let rows = if program.any { Dims::all(ty.ndim()) } else { program.batched(*value) };
                Facts { types: smallvec![program.number(ty)], rows: smallvec![rows], place: None }
            }
            Head::Op(op, types, place) => {
                let operands: Vec<Dims> = node.args.iter().map(|&arg| graph[arg].data.rows[0]).collect();
                let rows = if program.any {
                    types.iter().map(|&ty| Dims::all(program.ty(ty).ndim())).collect()
                } else if operands.iter().all(|rows| rows.is_empty()) {
                    smallvec![Dims::default(); types.len()]
                } else {
                    let args = node.args.iter().map(|&arg| graph.type_id(arg)).collect();
                    rows::passed_on(&program.factors(&(Some(op.clone()), args, types.clone())), &operands)
                };
                Facts { types: types.clone(), rows, place: Some(*place) }
            }
            Head::Result(i) => {
                let (i, tuple) = (*i as usize, &graph[node.args[0]].data);
                Facts { types: smallvec![tuple.types[i]], rows: smallvec![tuple.rows[i]], place: tuple.place }
            }
            Head::Saved(place) => Facts { place: Some(*place), ..graph[node.args[0]].data.clone() },
            Head::Root => Facts { types: TypeIds::new(), rows: SmallVec::new(), place: None },
        }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        assert_eq!(a.types, b.types, "a rule united values of different types");
        let rows = a.rows.iter().zip(&b.rows).map(|(&a, &b)| a | b).collect();
        let merged = Facts { types: b.types.clone(), rows, place: a.place.min(b.place) };
        let changed = DidMerge(merged != *a, merged != b);
        *a = merged;
        changed
    }
}

impl Sound<Head> for Program<'_> {
    /// Admits every node: rules write the types of their nodes themselves.
    fn admits(_: &Graph, _: &ENode) -> bool {
        true
    }

    /// Whether two classes have the same types, and are not made by a microbatch and by `update`: values of a microbatch enter `update` by
    /// `accumulate` alone.
    fn alike(graph: &Graph, a: Id, b: Id) -> bool {
        let [a, b] = [&graph[a].data, &graph[b].data];
        let apart = |a: StepPlace, b: StepPlace| a.phase.is_microbatch() && b.phase == Phase::Update;
        let places = a.place.zip(b.place);
        a.types == b.types && !places.is_some_and(|(a, b)| apart(a, b) || apart(b, a))
    }
}

/// Questions that rules ask.
pub(super) trait Ask {
    /// Returns the type of a class of one value, as a number.
    fn type_id(&self, class: Id) -> TypeId;
    /// Returns the type of a class of one value.
    fn ty(&self, class: Id) -> Rc<Type>;
    /// Returns a node that computes as a call (the operator, `None` for a saved value, with its types) and its place.
    fn call(&self, node: &ENode) -> Option<(Call, StepPlace)>;
}

impl Ask for Graph<'_> {
    fn type_id(&self, class: Id) -> TypeId {
        self[class].data.types[0]
    }

    fn ty(&self, class: Id) -> Rc<Type> {
        self.analysis.ty(self.type_id(class))
    }

    fn call(&self, node: &ENode) -> Option<(Call, StepPlace)> {
        let operands: TypeIds = match node.head {
            Head::Op(..) | Head::Saved(_) => node.args.iter().map(|&arg| self.type_id(arg)).collect(),
            _ => return None,
        };
        Some(match &node.head {
            Head::Op(op, types, place) => ((Some(op.clone()), operands, types.clone()), *place),
            Head::Saved(place) => ((None, operands.clone(), operands), *place),
            _ => return None,
        })
    }
}
