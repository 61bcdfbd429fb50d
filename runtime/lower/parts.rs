//! Concatenations without a copy: what a kernel may write with any strides it writes where it belongs in the whole.

use super::draft::{Drafts, Located};
use super::{LowerOptions, Target, select};
use crate::backend::Backend;
use crate::kernel_contract::WritableStrides;
use crate::layout::{Layout, Sizes};
use cranelift_entity::EntitySet;
use ir::ops::shape::Concat;
use ir::{Diagnostic, Module, Node, NodeId, Op, ValueId};

/// Where a value is written that is a part of another.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The concatenation.
    pub(super) whole: ValueId,
    /// The part's elements there.
    pub(super) layout: Layout,
}

/// A concatenation whose parts are written in place.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) located: Located,
    /// What it is of.
    parts: Vec<ValueId>,
}

/// As [`made_by`] for a GPU's kernels, whose programs alone are joined.
pub(super) fn made_by_kernel(
    module: &Module,
    held: &EntitySet<ValueId>,
    value: ValueId,
) -> Option<(ValueId, Vec<NodeId>)> {
    made_by(Target::Cuda.backend(), module, held, value)
}

/// What a kernel makes that a value is a view of, and the views between, the last first; none if that must lie as the
/// kernel says, or is held on to.
fn made_by(
    backend: &dyn Backend,
    module: &Module,
    held: &EntitySet<ValueId>,
    value: ValueId,
) -> Option<(ValueId, Vec<NodeId>)> {
    let (mut base, mut views) = (value, vec![]);
    loop {
        let ir::Definition::Node(id, _) = module.value(base).definition else { return None };
        let node = module.node(id);
        match &node.op {
            Op::Reshape(_) | Op::Transpose(_) => {
                views.push(id);
                base = node.operands[0];
            }
            op => {
                let contract = backend.kernel_contract(op, node.operands.len());
                let fits = contract.can_write(WritableStrides::Any) && !held.contains(base);
                return fits.then_some((base, views));
            }
        }
    }
}

impl Drafts<'_> {
    /// Finds the concatenations whose operands can all be written in place, and where.
    pub(super) fn find_parts(&mut self, live: &EntitySet<NodeId>, options: &LowerOptions) {
        let module = self.module;
        let held = select::held(module, options);
        for (_, node) in module.nodes().filter(|(id, _)| live.contains(*id)) {
            let Op::Concat(concat) = &node.op else { continue };
            let Some(parts) = self.parts_of(node, concat, &held) else { continue };
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
        node: &Node,
        concat: &Concat,
        held: &EntitySet<ValueId>,
    ) -> Option<Vec<(ValueId, Part)>> {
        let (dim, whole) = (concat.dim as usize, node.results[0]);
        let layout = Layout::dense(&self.sizes(whole));
        let mut start = 0;
        let mut parts: Vec<(ValueId, Part)> = Vec::new();
        for &operand in &node.operands {
            let (base, views) = made_by(self.backend, self.module, held, operand)?;
            let length = self.sizes(operand)[dim];
            let own = layout.slice(dim, start, 1, length);
            start += length as i64;
            let same_phase = self.module.producer(base).is_some_and(|producer| producer.phase == node.phase);
            let known = self.parts[base].is_some() || parts.iter().any(|(other, _)| *other == base);
            if known || !same_phase {
                return None;
            }
            parts.push((base, Part { whole, layout: self.before(own, &views)? }));
        }
        Some(parts)
    }

    /// The layout of what such views look at, the last first, if this is what they are to see.
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

    /// A place for a result: in the whole that it is a part of, or of its own, laid out so.
    pub(super) fn place(&mut self, value: ValueId, layout: Layout) -> Located {
        let dtype = self.module.ty(value).dtype;
        let Some(Part { whole, layout: own }) = &self.parts[value] else {
            return self.allocate(dtype, layout);
        };
        let whole = self.wholes[*whole].as_ref().expect("a part is of a whole that has a place");
        Located { buffer: whole.located.buffer, dtype, layout: own.clone() }
    }

    /// Says where a concatenation is. What some kernel has made in a place of its own after all is copied there.
    pub(super) fn concatenate(&mut self, id: NodeId, node: &Node) -> Result<(), Diagnostic> {
        let Some(whole) = self.wholes[node.results[0]].clone() else { return Ok(()) };
        for &value in &whole.parts {
            let from = self.locate(value)?;
            if from.buffer != whole.located.buffer {
                let to = self.place(value, Layout::dense(&from.layout.sizes));
                self.copy_to(from, to, node.phase.into(), id, node.origin.clone());
            }
        }
        self.located[node.results[0]] = Some(whole.located);
        Ok(())
    }
}
