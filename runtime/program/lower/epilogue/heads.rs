//! Contractions that absorb the head of the chain that reads them.

use super::{EpilogueFinder, Fused, Moves, elements, has_rows, takes_epilogues};
use crate::Activation;
use crate::backend::EpilogueLimits;
use crate::lower::fuse::Item;
use ir::ops::elementwise::{Binary, Unary};
use ir::{Dim, NodeId, Op, ValueId};

impl EpilogueFinder<'_> {
    /// Lets contractions absorb the heads of the chains that read them.
    pub(super) fn with_heads(&self, items: Vec<Item>, limits: EpilogueLimits) -> Vec<Item> {
        let mut moves = Moves::none(&items);
        // The last contraction that a chain reads comes right before it. The results of earlier contractions are addends.
        for (index, item) in items.iter().enumerate().rev() {
            let Some(id) = self.rows_of(item, limits) else { continue };
            let reader = self.readers.of[self.module.node(id).results[0]].first();
            let chain = reader.and_then(|&reader| moves.chain(&items, index, reader));
            let Some((at, nodes)) = chain else { continue };
            if let Some(fused) = self.head(id, nodes, limits)
                && fused.kept.is_none_or(|kept| self.is_read_from(kept, at, &moves))
            {
                moves.takers[at] = Some(Item::Contract(Box::new(fused)));
                moves.gone[index] = true;
            }
        }
        moves.apply(self.module, items)
    }

    /// Returns the contraction of an item, if its columns are the last dim of its result, so that a row of the result is a row of a matrix.
    fn rows_of(&self, item: &Item, limits: EpilogueLimits) -> Option<NodeId> {
        let Item::Node(id) = item else { return None };
        let Op::Contract(contract) = &self.module.node(*id).op else { return None };
        let roles = contract.roles();
        let by_rows = roles.columns.len() == 1 && !roles.rows.is_empty();
        let last = contract.out.0.last() == roles.columns.last();
        (by_rows && last && takes_epilogues(self.module, limits, *id)).then_some(*id)
    }

    /// Returns the contraction with the longest head of a chain that has the right form, if there is any.
    fn head(&self, id: NodeId, nodes: &[NodeId], limits: EpilogueLimits) -> Option<Fused> {
        let phase = |node: NodeId| self.module.node(node).phase;
        let mut fused = Fused::plain(self.module, id);
        while fused.activation == Activation::None
            && let Some(node) = self.next(&fused, nodes)
            && self.take(&mut fused, node, nodes, limits)
        {}
        (fused.nodes.len() > 1 && phase(id) == phase(nodes[0])).then_some(fused)
    }

    /// Returns the next node of the chain: the only reader of the present result, or the reader that applies an activation.
    fn next(&self, fused: &Fused, nodes: &[NodeId]) -> Option<NodeId> {
        if let Some(only) = self.readers.only(fused.out) {
            return nodes.contains(&only).then_some(only);
        }
        let is_gelu = |id: &NodeId| matches!(self.module.node(*id).op, Op::Unary(Unary::GeluTanh));
        self.readers.of[fused.out].iter().copied().find(is_gelu).filter(|reader| nodes.contains(reader))
    }

    /// Absorbs a node if the epilogue's form allows it. Returns whether it does.
    fn take(&self, fused: &mut Fused, id: NodeId, nodes: &[NodeId], limits: EpilogueLimits) -> bool {
        let node = self.module.node(id);
        let (made, result) = (fused.out, node.results[0]);
        let ty = self.module.ty(made);
        let columns = ty.dims.last().and_then(Dim::size).unwrap_or_default();
        let in_rows = columns.is_multiple_of(elements(limits.argument_row_bytes, ty.dtype));
        let has_gelu = limits.activated.contains(&ty.dtype) && in_rows;
        let within = |value: ValueId| nodes.iter().any(|&node| self.module.node(node).results[0] == value);
        let other = match node.operands[..] {
            [first, second] if first == made && second != made => Some(second),
            [first, second] if second == made && first != made => Some(first),
            _ => None,
        };
        match (&node.op, other) {
            (Op::Binary(Binary::Add), Some(other))
                if !within(other) && self.module.ty(result).dims == ty.dims =>
            {
                let dims = &self.module.ty(other).dims;
                let is_bias = dims.len() == 1 && dims.last() == ty.dims.last();
                let place = if is_bias { &mut fused.bias } else { &mut fused.addend };
                if place.is_some() || !is_bias && *dims != ty.dims {
                    return false;
                }
                *place = Some(other);
            }
            (Op::Unary(Unary::GeluTanh), _) if has_gelu => {
                fused.kept = self.readers.only(made).is_none().then_some(made);
                fused.activation = Activation::GeluTanh;
            }
            (Op::Binary(Binary::GeluTanhGrad), Some(aux))
                if has_gelu
                    && node.operands[1] == made
                    // cuBLASLt refuses GELU's gradient for a single row, which is a column in its order.
                    && has_rows(self.module, made)
                    && !within(aux)
                    && fused.bias.is_none()
                    && fused.addend.is_none() =>
            {
                fused.aux = Some(aux);
                fused.activation = Activation::GeluTanhGrad;
            }
            _ => return false,
        }
        fused.nodes.push(id);
        fused.out = result;
        true
    }
}
