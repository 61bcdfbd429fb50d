//! Join: several contractions of the same tensor become one, such as those of queries, keys and values of a layer, and the similar nodes
//! of its gradient.
//!
//! Four rules find nodes to join. Each of these nodes becomes a slice of the joined node's result:
//! - several contractions of one tensor become one, with the concatenation of their other operands;
//! - the same operation on each slice of a tensor becomes the operation on the tensor;
//! - the same reduction of each part of a concatenation becomes the reduction of the concatenation;
//! - a sum of products of the parts of two concatenations becomes one product of the concatenations.
//!
//! Concatenations must cost nothing: their parts are results that kernels can write anywhere. So weights that kernels cast are joined,
//! and weights that are read as states are not. Invariant: only the order of additions changes the numbers.

mod alike;
mod columns;
mod sums;
#[cfg(test)]
mod tests;

use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::analysis::{Readers, live_nodes, made_by_kernel};
use ir::ops::shape::{Concat, Slice};
use ir::{
    At, Builder, Changed, Definition, Diagnostic, Kernels, Module, Node, NodeId, Op, Tier, Type, ValueId,
};
use std::collections::BTreeMap;

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Join;

impl Transform for Join {
    const NAME: &'static str = "join";
    const NEEDED: bool = false;

    /// Errors: no target is given.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        Ok(contractions(module, cx.kernels()?))
    }
}

/// Joins contractions, and similar nodes around them.
fn contractions(module: &mut Module, kernels: &dyn Kernels) -> Changed {
    let mut changed = Changed::No;
    let mut apply = |rule| {
        let found = apply(module, kernels, rule);
        changed = found.or(changed);
        found == Changed::Yes
    };
    apply(|search| search.contractions());
    while apply(|search| search.slices()) {}
    apply(|search| search.reductions());
    while apply(|search| search.slices()) {}
    let added = sums::join(module, kernels);
    remove_dead(module, Join::NAME).or(changed).or(added)
}

/// Several nodes that become one.
struct Group {
    members: Vec<NodeId>,
    operands: Vec<Operand>,
    /// The dim of the joined result along which the results of the members follow each other.
    dim: usize,
    /// The member before which the joined node is inserted.
    place: NodeId,
}

/// An operand of the joined node.
enum Operand {
    /// A value that all members read.
    Same(ValueId),
    /// The concatenation along a dim of the values that the members read.
    Joined { parts: Vec<ValueId>, dim: usize },
}

struct JoinFinder<'m> {
    module: &'m Module,
    kernels: &'m dyn Kernels,
    /// The nodes that are still needed. Nodes that earlier rules have replaced are ignored.
    live: EntitySet<NodeId>,
    readers: Readers,
    concats: Concats,
}

/// Concatenations with their positions in program order, by their parts and dim.
type Concats = BTreeMap<(Vec<ValueId>, usize), (ValueId, u32)>;

impl<'m> JoinFinder<'m> {
    fn new(module: &'m Module, kernels: &'m dyn Kernels) -> Self {
        let live = live_nodes(module);
        let readers = Readers::new(module, &live);
        let concat = |(id, node): (NodeId, &Node)| match &node.op {
            Op::Concat(concat) => {
                let of = (node.operands.to_vec(), concat.dim as usize);
                Some((of, (node.results[0], readers.position[id])))
            }
            _ => None,
        };
        let concats = module.nodes().filter(|(id, _)| live.contains(*id)).filter_map(concat).collect();
        Self { module, kernels, live, readers, concats }
    }

    /// Returns the nodes that run on the device, in program order. The kernels of the host are different.
    fn nodes(&self) -> impl Iterator<Item = (NodeId, &'m Node)> {
        let is_on_device = |node: &Node| node.place == Tier::Device;
        self.module.nodes().filter(move |(id, node)| self.live.contains(*id) && is_on_device(node))
    }

    fn node(&self, id: NodeId) -> &'m Node {
        self.module.node(id)
    }

    fn result(&self, id: NodeId) -> ValueId {
        self.node(id).results[0]
    }

    fn size(&self, value: ValueId, dim: usize) -> Option<u64> {
        self.module.ty(value).dims.get(dim)?.size()
    }

    /// Whether every device has the whole of a dim.
    fn is_whole(&self, value: ValueId, dim: usize) -> bool {
        self.module.ty(value).sharding.axes(dim).is_empty()
    }

    /// Whether two nodes have the same operator and run at the same time and place, and their results differ in the size of this dim alone.
    fn alike(&self, one: NodeId, other: NodeId, dim: usize) -> bool {
        let (this, that) = (self.node(one), self.node(other));
        let [made, makes] = [this, that].map(|node| self.module.ty(node.results[0]));
        let when = |node: &Node| (node.phase, node.place, node.stage, node.copy);
        let same_dims = made.dims.iter().zip(&makes.dims).enumerate().all(|(i, (a, b))| i == dim || a == b);
        this.op == that.op
            && when(this) == when(that)
            && made.dtype == makes.dtype
            && made.sharding == makes.sharding
            && made.ndim() == makes.ndim()
            && same_dims
    }

    /// Returns a group, if there is a place for its node: after the makers of all operands, and before all readers of the results.
    fn group(&self, members: Vec<NodeId>, operands: Vec<Operand>, dim: usize) -> Option<Group> {
        let read = operands.iter().flat_map(|operand| match operand {
            Operand::Same(value) => std::slice::from_ref(value),
            Operand::Joined { parts, .. } => parts,
        });
        let made =
            read.filter_map(|&value| self.definition(value)).map(|node| self.readers.position[node]).max();
        let late = |member: &&NodeId| made.is_none_or(|made| self.readers.position[**member] > made);
        let place = *members.iter().filter(late).min_by_key(|member| self.readers.position[**member])?;
        let in_time = |reader: &NodeId| self.readers.position[*reader] > self.readers.position[place];
        let results = members.iter().map(|&member| self.result(member));
        let fits = |value: ValueId| {
            !self.readers.held.contains(value)
                && self.is_whole(value, dim)
                && self.readers.of[value].iter().all(in_time)
        };
        (members.len() > 1 && { results }.all(fits)).then_some(Group { members, operands, dim, place })
    }

    /// Returns the groups, each with the maker of the last part that it concatenates. Leaves out a group that concatenates a result of an
    /// earlier group: this result may now come later than where it was found.
    fn without_moved(&self, groups: Vec<Group>) -> Vec<(Group, Option<NodeId>)> {
        let mut moved: EntitySet<NodeId> = EntitySet::new();
        let mut kept = Vec::new();
        for group in groups {
            let parts = group.operands.iter().flat_map(|operand| match operand {
                Operand::Same(_) => &[],
                Operand::Joined { parts, .. } => &parts[..],
            });
            let makers: Vec<NodeId> = parts.filter_map(|&part| self.definition(part)).collect();
            if !makers.iter().any(|&maker| moved.contains(maker)) {
                moved.extend(group.members.iter().copied());
                kept.push((group, makers.into_iter().max_by_key(|&maker| self.readers.position[maker])));
            }
        }
        kept
    }

    /// Returns the result of a kernel that a value is a view of, if the kernel can write it anywhere.
    fn base(&self, value: ValueId) -> Option<ValueId> {
        let writes_anywhere = |op: &Op| self.kernels.writes_anywhere(op);
        made_by_kernel(self.module, &self.readers.held, value, writes_anywhere).map(|(base, _)| base)
    }

    fn definition(&self, value: ValueId) -> Option<NodeId> {
        match self.module.value(value).definition {
            Definition::Node(node, _) => Some(node),
            _ => None,
        }
    }
}

/// Joins the groups that a rule finds.
fn apply(module: &mut Module, kernels: &dyn Kernels, rule: fn(&JoinFinder<'_>) -> Vec<Group>) -> Changed {
    let search = JoinFinder::new(module, kernels);
    let groups = rule(&search);
    let groups = search.without_moved(groups);
    let JoinFinder { concats, readers: Readers { position, .. }, .. } = search;
    let mut joiner = Joiner { builder: Builder::new(module, Join::NAME), concats, position };
    let mut found = Changed::No;
    for (group, last) in &groups {
        if joiner.join(group, *last).is_some() {
            found = Changed::Yes;
        }
    }
    joiner.builder.finish();
    found
}

struct Joiner<'m> {
    builder: Builder<'m>,
    concats: Concats,
    position: SecondaryMap<NodeId, u32>,
}

impl Joiner<'_> {
    /// Inserts one node for a group, and slices of its result in place of the members. If the operator does not accept the joined operands,
    /// the members stay.
    fn join(&mut self, group: &Group, last: Option<NodeId>) -> Option<()> {
        let mut operands = Vec::new();
        for operand in &group.operands {
            operands.push(match operand {
                Operand::Same(value) => *value,
                Operand::Joined { parts, dim } => self.concatenation(parts, *dim, last?, group.place)?,
            });
        }
        let builder = &mut self.builder;
        let results: Vec<ValueId> =
            group.members.iter().map(|&member| builder.module().node(member).results[0]).collect();
        let types: Vec<Type> = results.iter().map(|&result| builder.ty(result).clone()).collect();
        let op = builder.module().node(group.members[0]).op.clone();
        let whole = builder.at(At::Before(group.place)).one(op, &operands).ok()?;
        builder.set_dtype(whole, types[0].dtype);
        builder.shard(whole, types[0].sharding.clone());
        let mut start = 0;
        for ((member, result), ty) in group.members.iter().zip(results).zip(types) {
            let slice = Slice { dim: group.dim as u32, start, step: 1 };
            start += ty.dims[group.dim].size()? as i64;
            let sharding = ty.sharding.clone();
            let part = builder.one_typed(slice, &[whole], ty).ok()?;
            builder.shard(part, sharding);
            builder.replace(result, part);
            builder.remove(*member);
        }
        Some(())
    }

    /// Returns the concatenation of these parts for a node that comes after it. If there is none yet, inserts one after the maker of the
    /// last part.
    fn concatenation(
        &mut self,
        parts: &[ValueId],
        dim: usize,
        last: NodeId,
        before: NodeId,
    ) -> Option<ValueId> {
        let key = (parts.to_vec(), dim);
        if let Some(&(known, at)) = self.concats.get(&key)
            && at < self.position[before]
        {
            return Some(known);
        }
        let sharding = self.builder.ty(parts[0]).sharding.clone();
        let whole = self.builder.at(At::After(last)).one(Concat { dim: dim as u32 }, parts).ok()?;
        self.builder.shard(whole, sharding);
        self.concats.insert(key, (whole, self.position[last]));
        Some(whole)
    }
}
