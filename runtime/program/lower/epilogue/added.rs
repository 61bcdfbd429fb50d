//! Gradients, such as those of norms and of look-ups, that absorb the addition that reads them.

use super::{Added, EpilogueFinder, Moves};
use crate::lower::fuse::Item;
use ir::Op;
use ir::ops::elementwise::Binary;

impl EpilogueFinder<'_> {
    /// Lets gradients absorb the additions that read them.
    pub(super) fn with_additions(&self, items: Vec<Item>) -> Vec<Item> {
        let mut moves = Moves::none(&items);
        for (index, item) in items.iter().enumerate() {
            let Some(added) = self.addition(item) else { continue };
            let [gradient, add] = added.nodes;
            let Some((at, nodes)) = moves.chain(&items, index, add) else { continue };
            let within = nodes.iter().any(|&node| self.module.node(node).results[0] == added.addend);
            let others = &self.module.node(gradient).results[1..];
            if !within && others.iter().all(|&other| self.is_read_from(other, at, &moves)) {
                moves.takers[at] = Some(Item::Added(Box::new(added)));
                moves.gone[index] = true;
            }
        }
        moves.apply(self.module, items)
    }

    /// Returns the addition that is the only reader of a gradient's first result, if its other operand has the same type.
    fn addition(&self, item: &Item) -> Option<Added> {
        let Item::Node(id) = item else { return None };
        let node = self.module.node(*id);
        if !self.backend.at(node.place).kernel_contract(&node.op, node.operands.len()).adds_operand {
            return None;
        }
        let made = node.results[0];
        let reader = self.readers.only(made)?;
        let add = self.module.node(reader);
        let addend = match (&add.op, &add.operands[..]) {
            (Op::Binary(Binary::Add), &[first, second]) if first == made && second != made => second,
            (Op::Binary(Binary::Add), &[first, second]) if second == made && first != made => first,
            _ => return None,
        };
        let ty = self.module.ty(made);
        // A norm's kernel can add to any part. A look-up's kernel cannot, because its indices count along the whole dim.
        let whole = !node.op.depends_on_position() || ty.sharding.is_whole();
        let alike =
            whole && self.module.ty(addend) == ty && (add.phase, add.place) == (node.phase, node.place);
        alike.then(|| Added { nodes: [*id, reader], addend, out: add.results[0] })
    }
}
