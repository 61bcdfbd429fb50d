//! Multiplications that read the same become one: queries, keys and values of a layer, and what is alike in its gradient.
//!
//! Four rules, each of which says which nodes are joined to one node, of whose result theirs are slices:
//! - contractions of one tensor with several others become one with the concatenation of these;
//! - what is done to each slice of a tensor alike is done to the tensor;
//! - what is summed of each part of a concatenation is summed of the concatenation;
//! - products of the parts of two concatenations that are added up are one product of the concatenations.
//!
//! Concatenations must cost nothing: they are of what kernels write (see `parts`). So weights are joined where kernels cast
//! them, and are not where they are states.
//!
//! What this gives is a program for lowering alone: the order in which products are added up is another.

use super::parts::made_by_kernel;
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::shape::{Concat, Slice};
use ir::{At, Builder, Changed, Definition, Module, Node, NodeId, Op, Sharding, Type, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The program with fewer contractions.
pub(super) fn contractions(mut module: Module) -> Module {
    apply(&mut module, |search| search.contractions());
    while apply(&mut module, |search| search.slices()) {}
    apply(&mut module, |search| search.reductions());
    while apply(&mut module, |search| search.slices()) {}
    sums(&mut module);
    module
}

/// Nodes that become one.
struct Group {
    members: Vec<NodeId>,
    operands: Vec<Operand>,
    /// The dim of the result along which theirs follow each other.
    dim: usize,
    /// The member before which it is put.
    place: NodeId,
}

/// An operand of the one.
enum Operand {
    /// What all of them read.
    Same(ValueId),
    /// What each of them reads, one after the other along a dim.
    Joined { parts: Vec<ValueId>, dim: usize },
}

/// What is in groups already.
#[derive(Default)]
struct Joined {
    nodes: EntitySet<NodeId>,
    /// What kernels make that has become a part of a whole.
    bases: EntitySet<ValueId>,
    /// The parts: of which group, and their place in it.
    place: BTreeMap<ValueId, (usize, usize)>,
    groups: usize,
}

impl Joined {
    fn add(&mut self, search: &Search<'_>, group: &Group) {
        self.nodes.extend(group.members.iter().copied());
        for operand in &group.operands {
            let Operand::Joined { parts, .. } = operand else { continue };
            self.bases.extend(parts.iter().filter_map(|&part| search.base(part)));
            let places = parts.iter().enumerate().map(|(index, &part)| (part, (self.groups, index)));
            self.place.extend(places);
        }
        self.groups += 1;
    }
}

/// The most nodes between two that are joined. What lies far apart would keep its operands for long.
const NEAR: u32 = 48;

struct Search<'m> {
    module: &'m Module,
    readers: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
    position: SecondaryMap<NodeId, u32>,
    /// What outputs and states hold on to.
    held: EntitySet<ValueId>,
    /// Concatenations by what they are of.
    concats: BTreeMap<(Vec<ValueId>, usize), ValueId>,
}

impl<'m> Search<'m> {
    fn new(module: &'m Module) -> Self {
        let (mut position, mut concats) = (SecondaryMap::new(), BTreeMap::new());
        for (index, (id, node)) in module.nodes().enumerate() {
            position[id] = index as u32;
            if let Op::Concat(concat) = &node.op {
                concats.insert((node.operands.to_vec(), concat.dim as usize), node.results[0]);
            }
        }
        let mut held = EntitySet::new();
        held.extend(module.roots());
        Self { module, readers: module.uses(), position, held, concats }
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

    /// Whether every device has all of a dim.
    fn is_whole(&self, value: ValueId, dim: usize) -> bool {
        self.module.ty(value).sharding.axes(dim).is_empty()
    }

    /// The only reader of a value that nothing holds on to.
    fn only_reader(&self, value: ValueId) -> Option<NodeId> {
        match self.readers[value][..] {
            [reader] if !self.held.contains(value) => Some(reader),
            _ => None,
        }
    }

    /// Whether two nodes do the same at the same time, and what they make differs along this dim alone.
    fn alike(&self, one: NodeId, other: NodeId, dim: usize) -> bool {
        let (this, that) = (self.node(one), self.node(other));
        let [made, makes] = [this, that].map(|node| self.module.ty(node.results[0]));
        let when = |node: &Node| (node.phase, node.stage, node.copy);
        let same_dims = made.dims.iter().zip(&makes.dims).enumerate().all(|(i, (a, b))| i == dim || a == b);
        this.op == that.op
            && when(this) == when(that)
            && made.dtype == makes.dtype
            && made.sharding == makes.sharding
            && made.ndim() == makes.ndim()
            && same_dims
    }

    /// A group of these, if there is a place for it: after all that it reads, before all that reads it.
    fn group(&self, members: Vec<NodeId>, operands: Vec<Operand>, dim: usize) -> Option<Group> {
        let read = operands.iter().flat_map(|operand| match operand {
            Operand::Same(value) => std::slice::from_ref(value),
            Operand::Joined { parts, .. } => parts,
        });
        let made = read.filter_map(|&value| self.definition(value)).map(|node| self.position[node]).max();
        let late = |member: &&NodeId| made.is_none_or(|made| self.position[**member] > made);
        let place = *members.iter().filter(late).min_by_key(|member| self.position[**member])?;
        let in_time = |reader: &NodeId| self.position[*reader] > self.position[place];
        let results = members.iter().map(|&member| self.result(member));
        let fits = |value: ValueId| {
            !self.held.contains(value) && self.is_whole(value, dim) && self.readers[value].iter().all(in_time)
        };
        (members.len() > 1 && { results }.all(fits)).then_some(Group { members, operands, dim, place })
    }

    fn definition(&self, value: ValueId) -> Option<NodeId> {
        match self.module.value(value).definition {
            Definition::Node(node, _) => Some(node),
            _ => None,
        }
    }

    /// Contractions that read one tensor, each with another besides.
    fn contractions(&self) -> Vec<Group> {
        let mut groups = vec![];
        let mut joined = Joined::default();
        for (id, _) in self.module.nodes() {
            if let Some(group) = (0..2).find_map(|side| self.reading_one(id, side, &joined)) {
                joined.add(self, &group);
                groups.push(group);
            }
        }
        groups
    }

    /// A contraction with those that come soon after it and read the same on this side.
    fn reading_one(&self, first: NodeId, side: usize, joined: &Joined) -> Option<Group> {
        let Op::Contract(contract) = &self.node(first).op else { return None };
        let shared = self.node(first).operands[side];
        let other = |id: NodeId| self.node(id).operands[1 - side];
        let [dim, part_dim] = free_dims(contract, side)?;
        let mut bases: Vec<ValueId> = Vec::new();
        let mut members: Vec<NodeId> = Vec::new();
        for &id in &self.readers[shared] {
            let near = members.last().is_none_or(|last| self.position[id] - self.position[*last] <= NEAR);
            let later = self.position[id] >= self.position[first] && !joined.nodes.contains(id);
            if !near || !later || !self.alike(first, id, dim) || self.node(id).operands[side] != shared {
                continue;
            }
            let Some(base) = self.base(other(id)) else { continue };
            let phase = |value: ValueId| self.module.producer(value).map(|node| node.phase);
            let fits = self.is_whole(other(id), part_dim)
                && !bases.contains(&base)
                && !joined.bases.contains(base)
                && bases.first().is_none_or(|first| phase(*first) == phase(base))
                && !self.feeds_gelu(self.result(id));
            if fits {
                bases.push(base);
                members.push(id);
            }
        }
        if members.first() != Some(&first) {
            return None;
        }
        // What is multiplied with the parts of a whole comes in their order: see `sums`.
        members.sort_by_key(|&id| self.partner(other(id), joined));
        let parts = members.iter().map(|&id| other(id)).collect();
        let mut operands = vec![Operand::Same(shared), Operand::Joined { parts, dim: part_dim }];
        operands.rotate_left(side);
        self.group(members, operands, dim)
    }

    /// The place among its like of what a value is multiplied with.
    fn partner(&self, value: ValueId, joined: &Joined) -> Option<(usize, usize)> {
        let contractions = self.readers[value].iter().map(|&reader| self.node(reader));
        let contractions = contractions.filter(|node| matches!(node.op, Op::Contract(_)));
        contractions.flat_map(|node| &node.operands).find_map(|operand| joined.place.get(operand).copied())
    }

    /// What a kernel makes that a value is a view of.
    fn base(&self, value: ValueId) -> Option<ValueId> {
        made_by_kernel(self.module, &self.held, value).map(|(base, _)| base)
    }

    /// Whether GELU is applied to it, perhaps with a bias: a multiplication does that too, if it makes nothing else.
    fn feeds_gelu(&self, value: ValueId) -> bool {
        let readers = |value: ValueId| self.readers[value].iter().map(|&reader| self.node(reader));
        let is_gelu = |node: &Node| matches!(node.op, Op::Unary(Unary::GeluTanh));
        readers(value).any(|node| {
            is_gelu(node)
                || matches!(node.op, Op::Binary(Binary::Add)) && readers(node.results[0]).any(is_gelu)
        })
    }

    /// What is done alike to each of the slices that a value consists of.
    fn slices(&self) -> Vec<Group> {
        let values = self.module.nodes().flat_map(|(_, node)| node.results.iter().copied());
        values
            .filter(|&value| self.readers[value].len() > 1)
            .filter_map(|value| self.on_slices(value))
            .collect()
    }

    fn on_slices(&self, whole: ValueId) -> Option<Group> {
        let (slices, dim) = self.slices_of(whole)?;
        let members = slices.iter().map(|&slice| self.only_reader(slice)).collect::<Option<Vec<NodeId>>>()?;
        let first = *members.first()?;
        if !members.iter().all(|&member| self.alike(first, member, dim)) {
            return None;
        }
        let operands = match &self.node(first).op {
            Op::Accumulate(_) => vec![Operand::Same(whole)],
            Op::Binary(Binary::Mul) => {
                let side = self.node(first).operands.iter().position(|&operand| operand == slices[0])?;
                let factor = self.factor(&members, &slices, side)?;
                let mut operands = vec![Operand::Same(whole), Operand::Same(factor)];
                operands.rotate_left(side);
                operands
            }
            Op::Binary(Binary::Add) => {
                let side = self.node(first).operands.iter().position(|&operand| operand == slices[0])?;
                let bias = self.biases(&members, &slices, side)?;
                let mut operands = vec![Operand::Same(whole), bias];
                operands.rotate_left(side);
                (dim + 1 == self.module.ty(whole).ndim()).then_some(operands)?
            }
            _ => return None,
        };
        self.group(members, operands, dim)
    }

    /// The slices along one dim, one after the other, that are all that reads a value.
    fn slices_of(&self, whole: ValueId) -> Option<(Vec<ValueId>, usize)> {
        let mut slices = Vec::new();
        for &reader in &self.readers[whole] {
            let Op::Slice(slice) = &self.node(reader).op else { return None };
            (slice.step == 1).then_some(())?;
            slices.push((slice.dim as usize, slice.start, self.result(reader)));
        }
        slices.sort_unstable();
        let dim = slices.first()?.0;
        let mut end = 0;
        for &(own, start, value) in &slices {
            (own == dim && start == end).then_some(())?;
            end += self.size(value, dim)? as i64;
        }
        let covered = Some(end as u64) == self.size(whole, dim) && !self.held.contains(whole);
        covered.then(|| (slices.into_iter().map(|(_, _, value)| value).collect(), dim))
    }

    /// The number that each slice is multiplied with, if it is one.
    fn factor(&self, members: &[NodeId], slices: &[ValueId], side: usize) -> Option<ValueId> {
        let factor = self.node(members[0]).operands[1 - side];
        let reads = |(&member, &slice): (&NodeId, &ValueId)| {
            self.node(member).operands[side] == slice && self.node(member).operands[1 - side] == factor
        };
        let number = self.module.ty(factor).ndim() == 0;
        (number && members.iter().zip(slices).all(reads)).then_some(factor)
    }

    /// What is added to each slice, if it is a number a column.
    fn biases(&self, members: &[NodeId], slices: &[ValueId], side: usize) -> Option<Operand> {
        let mut parts = Vec::new();
        for (&member, &slice) in members.iter().zip(slices) {
            let node = self.node(member);
            let bias = node.operands[1 - side];
            let ty = self.module.ty(bias);
            let fits = node.operands[side] == slice && ty.ndim() == 1 && ty.sharding == Sharding::default();
            (fits && ty.dims.last() == self.module.ty(slice).dims.last()).then_some(())?;
            self.base(bias)?;
            parts.push(bias);
        }
        Some(Operand::Joined { parts, dim: 0 })
    }

    /// What is summed alike of each part of a concatenation.
    fn reductions(&self) -> Vec<Group> {
        self.concats.iter().filter_map(|((parts, dim), &whole)| self.on_parts(parts, *dim, whole)).collect()
    }

    fn on_parts(&self, parts: &[ValueId], dim: usize, whole: ValueId) -> Option<Group> {
        let reduction = |&part: &ValueId| {
            let mut readers = self.readers[part].iter().copied();
            readers.find(|&reader| matches!(self.node(reader).op, Op::Reduce(_)))
        };
        let members = parts.iter().map(reduction).collect::<Option<Vec<NodeId>>>()?;
        let first = *members.first()?;
        let Op::Reduce(reduce) = &self.node(first).op else { return None };
        let before = reduce.dims.iter().filter(|&&gone| (gone as usize) < dim).count();
        let made_dim = if reduce.keep { dim } else { dim - before };
        let kept = !reduce.dims.contains(&(dim as u32));
        let alike = kept && members.iter().all(|&member| self.alike(first, member, made_dim));
        self.group(members, vec![Operand::Same(whole)], made_dim).filter(|_| alike)
    }
}

/// Of a contraction the dim of the result that comes from the other side alone than this one, and which dim of that side it
/// is; none if there are several.
fn free_dims(contract: &Contract, side: usize) -> Option<[usize; 2]> {
    let roles = contract.roles();
    let (free, labels) = if side == 0 { (roles.columns, &contract.rhs) } else { (roles.rows, &contract.lhs) };
    let [free] = free[..] else { return None };
    let at = |labels: &ir::ops::Labels| labels.0.iter().position(|label| *label == free);
    Some([at(&contract.out)?, at(labels)?])
}

/// Joins what a rule finds; whether it found anything.
fn apply(module: &mut Module, rule: fn(&Search<'_>) -> Vec<Group>) -> bool {
    let search = Search::new(module);
    let groups = rule(&search);
    let lasts: Vec<Option<NodeId>> = groups.iter().map(|group| search.last_part(group)).collect();
    let mut concats = search.concats;
    let mut builder = Builder::new(module, "lower");
    for (group, last) in groups.iter().zip(lasts) {
        join(&mut builder, group, last, &mut concats);
    }
    builder.finish() == Changed::Yes
}

impl Search<'_> {
    /// What makes the last of the parts that a group concatenates.
    fn last_part(&self, group: &Group) -> Option<NodeId> {
        let parts = group.operands.iter().flat_map(|operand| match operand {
            Operand::Same(_) => &[],
            Operand::Joined { parts, .. } => &parts[..],
        });
        parts.filter_map(|&part| self.definition(part)).max_by_key(|&node| self.position[node])
    }
}

/// Puts one node for a group, and slices of it for what the members made. Where the operator does not take the whole, they
/// stay.
fn join(
    builder: &mut Builder<'_>,
    group: &Group,
    last: Option<NodeId>,
    concats: &mut BTreeMap<(Vec<ValueId>, usize), ValueId>,
) -> Option<()> {
    let mut operands = Vec::new();
    for operand in &group.operands {
        operands.push(match operand {
            Operand::Same(value) => *value,
            Operand::Joined { parts, dim } => match concats.get(&(parts.clone(), *dim)) {
                Some(&known) => known,
                None => {
                    let sharding = builder.ty(parts[0]).sharding.clone();
                    let concat = Concat { dim: *dim as u32 };
                    let whole = builder.at(At::After(last?)).one(concat, parts).ok()?;
                    builder.shard(whole, sharding);
                    concats.insert((parts.clone(), *dim), whole);
                    whole
                }
            },
        });
    }
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

/// A sum, some of whose addends are products that become one.
struct Sum {
    root: NodeId,
    contract: Contract,
    /// What is multiplied: two concatenations.
    operands: [ValueId; 2],
    /// The type of the product.
    ty: Type,
    others: Vec<ValueId>,
}

/// Joins products that are added up.
fn sums(module: &mut Module) {
    let search = Search::new(module);
    let mut part_of: SecondaryMap<ValueId, Option<(ValueId, usize)>> = SecondaryMap::new();
    for ((parts, dim), &whole) in &search.concats {
        parts.iter().for_each(|&part| part_of[part] = Some((whole, *dim)));
    }
    let adds = module.nodes().filter(|(_, node)| matches!(node.op, Op::Binary(Binary::Add)));
    let found: Vec<Sum> = adds.filter_map(|(id, _)| search.sum(id, &part_of)).collect();
    let mut builder = Builder::new(module, "lower");
    for sum in found {
        add_up(&mut builder, sum);
    }
    builder.finish();
}

impl Search<'_> {
    /// A sum that is not a part of another.
    fn sum(&self, root: NodeId, part_of: &SecondaryMap<ValueId, Option<(ValueId, usize)>>) -> Option<Sum> {
        let inner = |value: ValueId| {
            let reader = self.only_reader(value)?;
            let node = self.definition(value)?;
            let add = |id: NodeId| matches!(self.node(id).op, Op::Binary(Binary::Add));
            (add(node) && add(reader) && self.alike(node, reader, usize::MAX)).then_some(node)
        };
        if inner(self.result(root)).is_some() {
            return None;
        }
        let (mut addends, mut open) = (vec![], vec![root]);
        while let Some(id) = open.pop() {
            for &operand in &self.node(id).operands {
                match inner(operand) {
                    Some(node) => open.push(node),
                    None => addends.push(operand),
                }
            }
        }
        addends.iter().find_map(|&addend| self.with_product(root, &addends, addend, part_of))
    }

    /// The sum in which all products with the other parts of what this one's operands are parts of are joined.
    fn with_product(
        &self,
        root: NodeId,
        addends: &[ValueId],
        product: ValueId,
        part_of: &SecondaryMap<ValueId, Option<(ValueId, usize)>>,
    ) -> Option<Sum> {
        let node = self.module.producer(product)?;
        let Op::Contract(contract) = &node.op else { return None };
        let [(lhs, left), (rhs, right)] = [part_of[node.operands[0]]?, part_of[node.operands[1]]?];
        let label = contract.lhs.0[left];
        (label == contract.rhs.0[right] && !contract.out.0.contains(&label)).then_some(())?;
        let [lefts, rights] = [lhs, rhs].map(|whole| &self.module.producer(whole).expect("a node").operands);
        let mut joined = Vec::new();
        for (&left, &right) in lefts.iter().zip(rights) {
            joined.push(*addends.iter().find(|&&addend| {
                let maker = self.definition(addend).filter(|_| self.only_reader(addend).is_some());
                maker.is_some_and(|maker| {
                    self.node(maker).operands[..] == [left, right]
                        && self.definition(product).is_some_and(|node| self.alike(node, maker, usize::MAX))
                })
            })?);
        }
        let ty = self.module.ty(product).clone();
        let whole = lefts.len() == rights.len() && ty == *self.module.ty(self.result(root));
        let others = addends.iter().copied().filter(|addend| !joined.contains(addend)).collect();
        whole.then(|| Sum { root, contract: contract.clone(), operands: [lhs, rhs], ty, others })
    }
}

fn add_up(builder: &mut Builder<'_>, sum: Sum) -> Option<()> {
    let mut total = builder.at(At::Before(sum.root)).one(sum.contract, &sum.operands).ok()?;
    builder.set_dtype(total, sum.ty.dtype);
    builder.shard(total, sum.ty.sharding.clone());
    for other in sum.others {
        total = builder.one(Binary::Add, &[total, other]).ok()?;
        builder.shard(total, sum.ty.sharding.clone());
    }
    let result = builder.module().node(sum.root).results[0];
    builder.replace(result, total);
    builder.remove(sum.root);
    Some(())
}
