//! Joins products of the parts of two concatenations that are added up into one product of the concatenations.

use super::{Join, JoinFinder};
use crate::pass::Transform;
use cranelift_entity::SecondaryMap;
use ir::ops::contract::Contract;
use ir::ops::elementwise::Binary;
use ir::{At, Builder, Changed, Kernels, Module, NodeId, Op, Type, ValueId};
use std::collections::BTreeSet;

/// A sum, some of whose addends are products that become one product.
struct Sum {
    root: NodeId,
    contract: Contract,
    /// The two concatenations that are multiplied.
    operands: [ValueId; 2],
    /// The type of the product.
    ty: Type,
    others: Vec<ValueId>,
}

/// Joins the products in all sums.
pub(super) fn join(module: &mut Module, kernels: &dyn Kernels) -> Changed {
    let search = JoinFinder::new(module, kernels);
    let mut part_of: SecondaryMap<ValueId, Option<(ValueId, usize)>> = SecondaryMap::new();
    for ((parts, dim), &(whole, _)) in &search.concats {
        parts.iter().for_each(|&part| part_of[part] = Some((whole, *dim)));
    }
    let adds = search.nodes().filter(|(_, node)| matches!(node.op, Op::Binary(Binary::Add)));
    let found: Vec<Sum> = adds.filter_map(|(id, _)| search.sum(id, &part_of)).collect();
    let mut builder = Builder::new(module, Join::NAME);
    for sum in found {
        add_up(&mut builder, sum);
    }
    builder.finish()
}

impl JoinFinder<'_> {
    /// Returns a sum that is not an addend of another sum, if products in it can be joined.
    fn sum(&self, root: NodeId, part_of: &SecondaryMap<ValueId, Option<(ValueId, usize)>>) -> Option<Sum> {
        let inner = |value: ValueId| {
            let reader = self.readers.only(value)?;
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
        // An addend that occurs twice counts twice.
        let once = addends.iter().collect::<BTreeSet<_>>().len() == addends.len();
        let product = |&addend: &ValueId| self.with_product(root, &addends, addend, part_of);
        once.then(|| addends.iter().find_map(product))?
    }

    /// Returns the sum with a product joined to those of the other parts of the same two concatenations.
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
        if ![lhs, rhs].into_iter().all(|whole| self.is_there(whole, root)) {
            return None;
        }
        let mut joined = Vec::new();
        for (&left, &right) in lefts.iter().zip(rights) {
            joined.push(*addends.iter().find(|&&addend| {
                let maker = self.definition(addend).filter(|_| self.readers.only(addend).is_some());
                maker.is_some_and(|maker| {
                    self.node(maker).operands[..] == [left, right]
                        && self.definition(product).is_some_and(|node| self.alike(node, maker, usize::MAX))
                })
            })?);
        }
        let ty = self.module.ty(product).clone();
        let each_once = joined.iter().collect::<BTreeSet<_>>().len() == lefts.len();
        let whole = lefts.len() == rights.len() && each_once && ty == *self.module.ty(self.result(root));
        let others = addends.iter().copied().filter(|addend| !joined.contains(addend)).collect();
        whole.then(|| Sum { root, contract: contract.clone(), operands: [lhs, rhs], ty, others })
    }

    /// Whether a value is computed before this node runs.
    fn is_there(&self, value: ValueId, before: NodeId) -> bool {
        self.definition(value).is_none_or(|maker| {
            self.node(maker).phase <= self.node(before).phase
                && self.readers.position[maker] < self.readers.position[before]
        })
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
