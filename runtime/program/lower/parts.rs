//! Concatenations without a copy: a kernel that may write with any strides writes its result directly into its place in the whole.

use super::draft::{Drafts, Located};
use crate::kernel_contract::WritableStrides;
use crate::layout::{Layout, Sizes};
use cranelift_entity::EntitySet;
use ir::analysis::{held_values, made_by_kernel};
use ir::ops::shape::Concat;
use ir::{Diagnostic, Node, NodeId, Op, ValueId};

/// The place of a value that is written as a part of a concatenation.
#[derive(Clone, Debug)]
pub(super) struct PartPlace {
    /// The concatenation.
    pub(super) whole: ValueId,
    /// The layout of the part within the whole.
    pub(super) layout: Layout,
}

/// A concatenation whose parts are written in place.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) located: Located,
    /// The values that are its parts.
    parts: Vec<ValueId>,
}

impl Drafts<'_> {
    /// Finds the concatenations whose operands can all be written in place, and the places of these operands.
    pub(super) fn find_parts(&mut self, live: &EntitySet<NodeId>) {
        let module = self.module;
        let held = held_values(module);
        for (id, node) in module.nodes().filter(|(id, _)| live.contains(*id)) {
            let Op::Concat(concat) = &node.op else { continue };
            let Some(parts) = self.parts_of(id, concat, &held) else { continue };
            let whole = node.results[0];
            let located = self.allocate(module.ty(whole).dtype, Layout::dense(&self.sizes(whole)));
            let values = parts.iter().map(|(value, _)| *value).collect();
            self.wholes[whole] = Some(Whole { located, parts: values });
            for (value, part) in parts {
                self.parts[value] = Some(part);
            }
        }
    }

    fn parts_of(
        &self,
        id: NodeId,
        concat: &Concat,
        held: &EntitySet<ValueId>,
    ) -> Option<Vec<(ValueId, PartPlace)>> {
        let node = self.module.node(id);
        let (dim, whole) = (concat.dim as usize, node.results[0]);
        let layout = Layout::dense(&self.sizes(whole));
        let mut start = 0;
        let mut parts: Vec<(ValueId, PartPlace)> = Vec::new();
        for &operand in &node.operands {
            let writes_anywhere = |op: &Op| self.contract_at(id, op, 0).can_write(WritableStrides::Any);
            let (base, views) = made_by_kernel(self.module, held, operand, writes_anywhere)?;
            let length = self.sizes(operand)[dim];
            let own = layout.slice(dim, start, 1, length);
            start += length as i64;
            let same_phase = self.module.producer(base).is_some_and(|producer| producer.phase == node.phase);
            let known = self.parts[base].is_some() || parts.iter().any(|(other, _)| *other == base);
            if known || !same_phase {
                return None;
            }
            parts.push((base, PartPlace { whole, layout: self.before(own, &views)? }));
        }
        Some(parts)
    }

    /// Returns the layout that a value must have so that it has `layout` after these views. `views` begins with the last view.
    fn before(&self, layout: Layout, views: &[NodeId]) -> Option<Layout> {
        views.iter().try_fold(layout, |layout, &view| match &self.module.node(view).op {
            Op::Transpose(transpose) => {
                let mut inverse = Sizes::from_elem(0, transpose.permutation.len());
                for (to, &from) in transpose.permutation.iter().enumerate() {
                    inverse[from as usize] = to;
                }
                Some(layout.transpose(&inverse))
            }
            _ => layout.reshape(&self.sizes(self.module.node(view).operands[0])),
        })
    }

    /// Returns a place for a result: in the concatenation that it is a part of, or in a buffer of its own with this layout.
    pub(super) fn place(&mut self, value: ValueId, layout: Layout) -> Located {
        let dtype = self.module.ty(value).dtype;
        let Some(PartPlace { whole, layout: own }) = &self.parts[value] else {
            return self.allocate(dtype, layout);
        };
        let whole = self.wholes[*whole].as_ref().expect("a part is of a whole that has a place");
        Located::whole(whole.located.buffer, dtype, own.clone())
    }

    /// Sets the place of a concatenation. A part that its kernel wrote to a place of its own is copied there.
    pub(super) fn concatenate(&mut self, id: NodeId, node: &Node) -> Result<(), Diagnostic> {
        let Some(whole) = self.wholes[node.results[0]].clone() else { return Ok(()) };
        for &value in &whole.parts {
            let from = self.locate(value)?;
            if from.buffer != whole.located.buffer {
                let to = self.place(value, Layout::dense(&from.layout.sizes));
                self.copy_to(from, to, self.section(id), id, node.origin.clone());
            }
        }
        self.located[node.results[0]] = Some(whole.located);
        Ok(())
    }
}
