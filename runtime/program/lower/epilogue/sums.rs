//! Contractions that sum over all rows of an operand, and absorb the reductions that sum the same rows.

use super::{EpilogueFinder, Fused, has_rows, takes_epilogues};
use crate::backend::EpilogueLimits;
use crate::lower::fuse::Item;
use ir::ops::reduce::ReduceKind;
use ir::{NodeId, Op, ValueId};

impl EpilogueFinder<'_> {
    /// Lets contractions absorb sums over the rows of their operands.
    pub(super) fn with_sums(&self, items: Vec<Item>, limits: EpilogueLimits) -> Vec<Item> {
        let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
        for index in 0..items.len() {
            let Some((reduce, operand)) = items[index].as_ref().and_then(|item| self.row_sum(item)) else {
                continue;
            };
            let made = self.module.node(reduce).results[0];
            let reads = |item: &Item| {
                item.nodes().iter().any(|&node| self.module.node(node).operands.contains(&made))
            };
            let found = items.iter().enumerate().find_map(|(at, item)| {
                let (contraction, side) = self.sums_rows_of(item.as_ref()?, operand, limits)?;
                let [node, sum] = [contraction, reduce].map(|node| self.module.node(node));
                // Readers of the sum must come after the contraction.
                let in_time = at < index || !items[index..at].iter().flatten().any(reads);
                let same = self.module.ty(node.results[0]).dtype == self.module.ty(made).dtype;
                (in_time && same && (node.phase, node.place) == (sum.phase, sum.place)).then_some((
                    at,
                    contraction,
                    side,
                ))
            });
            let Some((at, contraction, side)) = found else { continue };
            let mut fused = Fused::plain(self.module, contraction);
            fused.nodes.push(reduce);
            fused.sums = Some((side, made));
            items[index] = None;
            items[at] = Some(Item::Contract(Box::new(fused)));
        }
        items.into_iter().flatten().collect()
    }

    /// Returns the contraction of an item and the number of the operand that is this value, if the contraction makes a matrix and sums over
    /// all rows of the value.
    fn sums_rows_of(&self, item: &Item, value: ValueId, limits: EpilogueLimits) -> Option<(NodeId, u32)> {
        let Item::Node(id) = item else { return None };
        let node = self.module.node(*id);
        let Op::Contract(contract) = &node.op else { return None };
        let roles = contract.roles();
        let matrix = roles.columns.len() == 1 && roles.rows.len() == 1;
        let side = (0..2).find(|&side| node.operands[side] == value)?;
        let labels = &[&contract.lhs, &contract.rhs][side].0;
        let last = labels.last()?;
        let all = labels.len() == roles.summed.len() + 1 && !roles.summed.contains(last);
        // cuBLASLt refuses sums of one term, and a single sum.
        let columns = self.module.ty(value).dims.last()?.size();
        let sums = has_rows(self.module, value) && columns != Some(1);
        (matrix && all && sums && takes_epilogues(self.module, limits, *id)).then_some((*id, side as u32))
    }

    /// Returns a reduction over all dims but the last, and its operand.
    fn row_sum(&self, item: &Item) -> Option<(NodeId, ValueId)> {
        let Item::Node(id) = item else { return None };
        let node = self.module.node(*id);
        let Op::Reduce(reduce) = &node.op else { return None };
        let ndim = self.module.ty(node.operands[0]).ndim();
        let all = ndim > 1 && reduce.dims.iter().copied().eq(0..ndim as u32 - 1);
        let plain = reduce.kind == ReduceKind::Sum && !reduce.keep;
        (all && plain).then(|| (*id, node.operands[0]))
    }
}
