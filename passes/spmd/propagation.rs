//! Propagation: extends the shardings of a few values to all values that factors tie to them.
//!
//! As in Shardy, a node's rule says which dims are the same factor. If one tensor of a node has the factor split and another has not, the
//! other takes the axes over, unless they already split something else there. No operator is known here. A disagreement between two
//! tensors stays: partitioning then decides at the node, by cost.

use cranelift_entity::SecondaryMap;
use ir::factors::{DimFactors, FactorAxes, FactorId, FactorKind};
use ir::{AxisId, Definition, Factors, Mesh, Module, NodeId, Operator, Phase, Sharding, Type, ValueId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The axes that split each dim of a value, major first; empty if no dim is split.
pub(super) type Layout = SmallVec<[FactorAxes; 4]>;

/// The reason for a split of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A seed, with the reason in words.
    Seed(String),
    /// A node that ties the value to this other value.
    Node(NodeId, ValueId),
}

/// The layouts of all values of a module, as far as they are decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Layouts {
    dims: SecondaryMap<ValueId, Layout>,
    /// Values whose layouts must not be extended.
    closed: SecondaryMap<ValueId, bool>,
    causes: BTreeMap<(ValueId, AxisId), Cause>,
    /// Factors of nodes with fixed axes, whatever the node's tensors have.
    pinned: BTreeMap<NodeId, (FactorId, FactorAxes)>,
}

impl Layouts {
    /// Returns the axes of each dim of a value: as many lists as it has dims, or none.
    pub(super) fn of(&self, value: ValueId) -> &Layout {
        &self.dims[value]
    }

    /// Returns the axes of one dim.
    pub(super) fn axes(&self, value: ValueId, dim: usize) -> &[AxisId] {
        self.dims[value].get(dim).map_or(&[], |axes| axes)
    }

    /// Returns the value's sharding, which is not partial.
    pub(super) fn sharding(&self, value: ValueId) -> Sharding {
        Sharding { dims: self.dims[value].clone(), partial: None }
    }

    /// Whether any dim is split over the axis.
    pub(super) fn uses(&self, value: ValueId, axis: AxisId) -> bool {
        self.dims[value].iter().any(|axes| axes.contains(&axis))
    }

    /// Splits a dim over one more axis. Does nothing if the value uses the axis already.
    pub(super) fn split(&mut self, value: ValueId, ndim: usize, dim: usize, axis: AxisId, cause: Cause) {
        if !self.uses(value, axis) {
            self.dims[value].resize(ndim, FactorAxes::new());
            self.dims[value][dim].push(axis);
            self.causes.insert((value, axis), cause);
        }
    }

    /// Keeps propagation from adding to a value.
    pub(super) fn close(&mut self, value: ValueId) {
        self.closed[value] = true;
    }

    /// Whether propagation adds nothing to a value.
    pub(super) fn is_closed(&self, value: ValueId) -> bool {
        self.closed[value]
    }

    /// Fixes the axes that split a factor of a node.
    pub(super) fn pin(&mut self, node: NodeId, factor: FactorId, axes: FactorAxes) {
        self.pinned.insert(node, (factor, axes));
    }

    /// Returns the factor of a node with fixed axes, and the axes.
    pub(super) fn pinned(&self, node: NodeId) -> Option<(FactorId, FactorAxes)> {
        self.pinned.get(&node).cloned()
    }

    /// Returns the reason why a value is split over an axis: the words of the seed, and the nodes on the way from it, nearest first.
    pub(super) fn cause(&self, mut value: ValueId, axis: AxisId) -> Option<(&str, Vec<NodeId>)> {
        let mut path = Vec::new();
        loop {
            match self.causes.get(&(value, axis))? {
                Cause::Seed(words) => return Some((words, path)),
                Cause::Node(node, from) => {
                    path.push(*node);
                    value = *from;
                }
            }
        }
    }
}

/// A module with the rules of its nodes, which are computed once.
pub(super) struct Rules<'m> {
    pub(super) module: &'m Module,
    pub(super) mesh: &'m Mesh,
    factors: SecondaryMap<NodeId, Option<Factors>>,
    uses: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
}

impl<'m> Rules<'m> {
    pub(super) fn new(module: &'m Module, mesh: &'m Mesh) -> Self {
        let mut factors = SecondaryMap::with_capacity(module.node_count());
        for (id, node) in module.nodes() {
            factors[id] = Some(node.op.factors(&module.signature(node)));
        }
        Self { module, mesh, factors, uses: module.uses() }
    }

    /// Returns the rule of a node in the order.
    pub(super) fn of(&self, node: NodeId) -> &Factors {
        self.factors[node].as_ref().expect("every node in the order has a rule")
    }

    /// Returns the nodes that read a value.
    pub(super) fn readers(&self, value: ValueId) -> &[NodeId] {
        &self.uses[value]
    }

    /// Returns the node that makes a value; `None` for an input or a state.
    pub(super) fn maker(&self, value: ValueId) -> Option<NodeId> {
        match self.module.value(value).definition {
            Definition::Node(node, _) => Some(node),
            Definition::Input(_) | Definition::State(_) => None,
        }
    }

    /// Returns the nodes that read or make a value.
    fn around(&self, value: ValueId) -> impl Iterator<Item = NodeId> + '_ {
        self.maker(value).into_iter().chain(self.uses[value].iter().copied())
    }

    /// Returns every operand and result of a node with the factors of its dims.
    pub(super) fn tensors(&self, id: NodeId) -> impl Iterator<Item = (ValueId, &[DimFactors])> {
        let (node, factors) = (self.module.node(id), self.of(id));
        let operands = node.operands.iter().zip(&factors.operands);
        operands.chain(node.results.iter().zip(&factors.results)).map(|(&value, dims)| (value, &dims[..]))
    }
}

/// The limits of a propagation.
pub(super) struct Scope<'a> {
    /// The axes that are passed on.
    pub(super) axes: &'a [AxisId],
    /// The phases whose nodes pass them on.
    pub(super) phases: &'a [Phase],
    /// Whether states take axes over.
    pub(super) states: bool,
    /// The nodes in these phases that pass axes on; `None` for all.
    pub(super) nodes: Option<&'a BTreeSet<NodeId>>,
}

/// Passes axes on until nothing changes. `from` has the seeded values; `None` for all values.
pub(super) fn propagate(rules: &Rules, layouts: &mut Layouts, scope: &Scope, from: Option<&[ValueId]>) {
    let within = |node: &NodeId| {
        let listed = scope.nodes.is_none_or(|nodes| nodes.contains(node));
        listed && scope.phases.contains(&rules.module.node(*node).phase)
    };
    let mut queue: VecDeque<NodeId> = match from {
        None => rules.module.order().iter().copied().filter(within).collect(),
        Some(values) => values.iter().flat_map(|&value| rules.around(value)).filter(within).collect(),
    };
    let mut queued: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    queue.iter().for_each(|&node| queued[node] = true);
    while let Some(node) = queue.pop_front() {
        queued[node] = false;
        for value in visit(rules, layouts, scope, node) {
            for next in rules.around(value).filter(|next| *next != node && within(next)) {
                if !std::mem::replace(&mut queued[next], true) {
                    queue.push_back(next);
                }
            }
        }
    }
}

/// The axes that the tensors of a node agree on, by factor, with a value that has them.
type AgreedAxes = BTreeMap<FactorId, (FactorAxes, ValueId)>;

/// Passes axes on between the tensors of one node. Returns the changed values.
fn visit(rules: &Rules, layouts: &mut Layouts, scope: &Scope, id: NodeId) -> Vec<ValueId> {
    let factors = rules.of(id);
    let Some(known) = agreed(rules, layouts, id) else { return Vec::new() };
    let mut changed = Vec::new();
    let stays = |value: ValueId| {
        let is_state = matches!(rules.module.value(value).definition, Definition::State(_));
        layouts.is_closed(value) || is_state && !scope.states
    };
    let open: Vec<_> = rules.tensors(id).filter(|&(value, _)| !stays(value)).collect();
    for (value, dims) in open {
        for (i, dim) in dims.iter().enumerate() {
            let split = |factor| known.get(&factor).map(|(axes, _)| axes.clone()).unwrap_or_default();
            let wanted = factors.merge(rules.mesh, dim, split);
            let has = layouts.axes(value, i).len();
            if !wanted.starts_with(layouts.axes(value, i)) || wanted.len() == has {
                continue;
            }
            for &axis in &wanted[has..] {
                if !scope.axes.contains(&axis) || layouts.uses(value, axis) {
                    break; // later axes would have to come after this one
                }
                let source = dim.iter().filter_map(|factor| known.get(factor));
                let from = source.into_iter().find(|(axes, _)| axes.contains(&axis)).map(|(_, from)| *from);
                let cause = Cause::Node(id, from.unwrap_or(value));
                layouts.split(value, dims.len(), i, axis, cause);
                changed.push(value);
            }
        }
    }
    changed
}

/// Returns the axes that the node's tensors agree on, by factor; `None` if there are none.
fn agreed(rules: &Rules, layouts: &Layouts, id: NodeId) -> Option<AgreedAxes> {
    let factors = rules.of(id);
    let mut known = AgreedAxes::new();
    let mut disputed: Vec<FactorId> = Vec::new();
    for (value, dims) in rules.tensors(id) {
        if layouts.of(value).is_empty() {
            continue;
        }
        for (i, dim) in dims.iter().enumerate() {
            // Axes that the dim's factors cannot express are not passed on here.
            let Ok(spread) = factors.spread(rules.mesh, dim, layouts.axes(value, i)) else { continue };
            for (factor, axes) in spread.into_iter().filter(|(_, axes)| !axes.is_empty()) {
                match known.get_mut(&factor) {
                    None => drop(known.insert(factor, (axes, value))),
                    Some((longest, _)) if longest.starts_with(&axes) => {}
                    Some(entry) if axes.starts_with(&entry.0) => *entry = (axes, value),
                    Some(_) => disputed.push(factor),
                }
            }
        }
    }
    // A pinned factor is not passed on: its axes may split another factor of the node's tensors, and would block that one.
    let pinned = layouts.pinned(id).map(|(factor, _)| factor);
    known.retain(|factor, _| {
        let kind = factors.factors[*factor as usize].kind;
        let decided = disputed.contains(factor) || pinned == Some(*factor);
        !decided && matches!(kind, FactorKind::Free | FactorKind::Reduced(_))
    });
    // An axis that would split two factors of the node splits neither.
    let all: Vec<AxisId> = known.values().flat_map(|(axes, _)| axes.iter().copied()).collect();
    known.retain(|_, (axes, _)| {
        axes.iter().all(|axis| all.iter().filter(|other| *other == axis).count() == 1)
    });
    (!known.is_empty()).then_some(known)
}

/// Returns the bytes of a whole tensor; 0 if its dims are not bound.
pub(super) fn bytes(ty: &Type) -> u64 {
    ty.bytes().unwrap_or(0)
}
