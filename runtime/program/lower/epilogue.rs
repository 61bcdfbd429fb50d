//! Epilogues, if the backend's multiplications have them. A contraction absorbs the elementwise nodes that follow it, and the sums over the
//! rows of its operands. A gradient absorbs the addition that reads it, if its kernel contract allows that.
//!
//! `out = activation(lhs · rhs + bias + addend)`: a contraction absorbs the first nodes (the head) of the chain that reads it, as far as
//! they have this form. The other nodes stay a chain. The gradient of a bias is a sum over the same rows as the gradient of the weight, so
//! one kernel computes both.
//!
//! A contraction that absorbs part of a chain takes the chain's place in the program order. It may move there if all readers
//! of its other results come later.

mod added;
mod heads;
mod sums;

use super::draft::{Draft, Drafts, Located};
use super::fuse::Item;
use super::pad;
use crate::backend::{EpilogueLimits, Target};
use crate::contraction::ContractionPlan;
use crate::kernel_contract::OperandLayout;
use crate::layout::Layout;
use crate::{Activation, FusedContract, Kernel, Microbatches};
use cranelift_entity::SecondaryMap;
use ir::analysis::Readers;
use ir::ops::contract::Contract;
use ir::{DType, Diagnostic, Dim, Module, NodeId, Op, Tier, ValueId};

/// A contraction with its epilogue.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    /// The contraction, followed by the nodes that it absorbs.
    pub(super) nodes: Vec<NodeId>,
    /// One number for each column, added to every row.
    bias: Option<ValueId>,
    /// A tensor with the result's dims that is added.
    addend: Option<ValueId>,
    /// The activation, which comes last.
    activation: Activation,
    /// The argument of the activation, which the activation's gradient reads.
    aux: Option<ValueId>,
    /// The result.
    pub(super) out: ValueId,
    /// The argument of the activation, if it is stored too.
    pub(super) kept: Option<ValueId>,
    /// The operand (0 or 1) that is summed over its rows, and the sum.
    sums: Option<(u32, ValueId)>,
}

impl Fused {
    /// Returns a contraction without an epilogue.
    fn plain(module: &Module, contraction: NodeId) -> Self {
        Self {
            nodes: vec![contraction],
            bias: None,
            addend: None,
            activation: Activation::None,
            aux: None,
            out: module.node(contraction).results[0],
            kept: None,
            sums: None,
        }
    }
}

/// A gradient whose first result is added to another gradient: for a norm, the gradient of the residual connection; for a look-up, the
/// gradient of the table's other use.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// The gradient and the addition.
    pub(super) nodes: [NodeId; 2],
    /// The other gradient.
    addend: ValueId,
    /// The sum.
    out: ValueId,
}

/// Returns the items with epilogues and with gradients that add.
pub(super) fn items(
    module: &Module,
    backend: Target,
    readers: &Readers,
    microbatches: Microbatches,
    mut items: Vec<Item>,
) -> Vec<Item> {
    let search = EpilogueFinder { module, backend, readers };
    let Some(limits) = backend.epilogues() else { return search.with_additions(items) };
    let fused = |items: &[Item]| items.iter().filter(|item| matches!(item, Item::Contract(_))).count();
    // The remaining nodes of a sum of several products are a chain again, which another product may absorb.
    loop {
        let before = fused(&items);
        items = search.with_heads(items, limits);
        if fused(&items) == before {
            break;
        }
    }
    items = search.with_additions(items);
    match microbatches {
        Microbatches::One => search.with_sums(items, limits),
        Microbatches::Many => items,
    }
}

struct EpilogueFinder<'m> {
    module: &'m Module,
    backend: Target,
    readers: &'m Readers,
}

/// For each chain the item that absorbs a part of it, and the items that moved to do so.
struct Moves {
    /// The index of the item that runs each node.
    place: SecondaryMap<NodeId, Option<usize>>,
    takers: Vec<Option<Item>>,
    gone: Vec<bool>,
}

impl Moves {
    fn none(items: &[Item]) -> Self {
        let mut place = SecondaryMap::new();
        for (index, item) in items.iter().enumerate() {
            item.nodes().iter().for_each(|&node| place[node] = Some(index));
        }
        Self { place, takers: vec![None; items.len()], gone: vec![false; items.len()] }
    }

    /// Returns the chain that contains a node, if it comes after an item and no other item absorbs a part of it yet.
    fn chain<'i>(&self, items: &'i [Item], after: usize, node: NodeId) -> Option<(usize, &'i [NodeId])> {
        let at = self.place[node].filter(|&at| at > after && self.takers[at].is_none())?;
        match &items[at] {
            Item::Chain { nodes, .. } => Some((at, nodes)),
            _ => None,
        }
    }

    /// Returns the items. An item that absorbs a part of a chain comes just before the remaining nodes of the chain.
    fn apply(self, module: &Module, items: Vec<Item>) -> Vec<Item> {
        let mut result = Vec::new();
        for ((item, taker), gone) in items.into_iter().zip(self.takers).zip(self.gone) {
            match (item, taker) {
                (Item::Chain { mut nodes, mut stored }, Some(taker)) => {
                    nodes.retain(|node| !taker.nodes().contains(node));
                    stored.retain(|value| nodes.iter().any(|&node| module.node(node).results[0] == *value));
                    result.push(taker);
                    if !nodes.is_empty() {
                        result.push(Item::Chain { nodes, stored });
                    }
                }
                (item, _) if !gone => result.push(item),
                _ => {}
            }
        }
        result
    }
}

impl EpilogueFinder<'_> {
    /// Returns whether all readers of a value run at this place or later.
    fn is_read_from(&self, value: ValueId, at: usize, moves: &Moves) -> bool {
        self.readers.of[value].iter().all(|&reader| moves.place[reader].is_some_and(|place| place >= at))
    }
}

/// Returns whether one multiplication computes a contraction of dense operands: the dims of each role are adjacent, in the same order in
/// all tensors.
fn is_matrix_product(module: &Module, contraction: NodeId) -> bool {
    let node = module.node(contraction);
    let Op::Contract(contract) = &node.op else { return false };
    let roles = contract.roles();
    let follow = |labels: &[u8], role: &[u8]| {
        role.is_empty() || labels.windows(role.len()).any(|labels| labels == role)
    };
    let (lhs, rhs, out) = (&contract.lhs.0, &contract.rhs.0, &contract.out.0);
    let some = |value: ValueId| module.ty(value).dims.iter().all(|dim| dim.size() != Some(0));
    roles.batch.is_empty()
        && [lhs, out].iter().all(|labels| follow(labels, &roles.rows))
        && [lhs, rhs].iter().all(|labels| follow(labels, &roles.summed))
        && [rhs, out].iter().all(|labels| follow(labels, &roles.columns))
        && node.operands.iter().all(|&operand| some(operand))
}

/// Returns whether one multiplication computes a contraction, and the rows of its matrices are aligned as epilogues need.
fn takes_epilogues(module: &Module, limits: EpilogueLimits, contraction: NodeId) -> bool {
    let node = module.node(contraction);
    let fits = |&value: &ValueId| {
        let ty = module.ty(value);
        let last = ty.dims.last().and_then(Dim::size).unwrap_or_default();
        last.is_multiple_of(elements(limits.row_bytes, ty.dtype))
    };
    let is_on_device = node.place == Tier::Device;
    is_on_device
        && is_matrix_product(module, contraction)
        && node.operands.iter().chain(&node.results).all(fits)
}

/// Returns the number of elements of a type in this number of bytes, at least one.
fn elements(bytes: u64, dtype: DType) -> u64 {
    (bytes / dtype.bytes()).max(1)
}

/// Returns whether a tensor has more than one row along its last dim.
fn has_rows(module: &Module, value: ValueId) -> bool {
    let dims = &module.ty(value).dims;
    dims.split_last().is_some_and(|(_, leading)| leading.iter().any(|dim| dim.size() != Some(1)))
}

impl Drafts<'_> {
    /// Drafts a contraction with an epilogue. Operands and results get layouts that one multiplication accepts, with rows aligned as
    /// [`EpilogueLimits`] says. An operand with another layout is copied. A result with another layout gets a buffer of its own instead,
    /// from which its concatenation copies it later.
    pub(super) fn fused_contract(&mut self, fused: &Fused) -> Result<(), Diagnostic> {
        let module = self.module;
        let id = fused.nodes[0];
        let node = module.node(id);
        let (Op::Contract(contract), Some(limits)) = (&node.op, self.backend.epilogues()) else {
            unreachable!("contractions are fused, where they have epilogues")
        };
        let made = [Some(fused.out), fused.kept, fused.sums.map(|(_, sum)| sum)];
        let made: Vec<ValueId> = made.into_iter().flatten().collect();
        let mut operands = vec![self.locate(node.operands[0])?, self.locate(node.operands[1])?];
        let layout = |drafts: &Self, value: ValueId| {
            if drafts.padded.contains(value) {
                pad::layout(&drafts.sizes(value))
            } else {
                Layout::dense(&drafts.sizes(value))
            }
        };
        let mut results: Vec<Located> =
            made.iter().map(|&value| self.place(value, layout(self, value))).collect();
        if let Some(kept) = fused.kept
            && !begins_evenly(&results[1], limits.argument_row_bytes)
        {
            results[1] = self.allocate(module.ty(kept).dtype, Layout::dense(&self.sizes(kept)));
        }
        let matrices = 1 + usize::from(fused.kept.is_some());
        // Operands whose rows have no common stride are copied, and so are results with such a layout.
        if !is_one(contract, &operands, &results[..matrices]) {
            for (operand, &value) in operands.iter_mut().zip(&node.operands) {
                *operand = self.operand(value, OperandLayout::Dense, node, id)?;
            }
        }
        if !is_one(contract, &operands, &results[..matrices]) {
            let dense = |&value: &ValueId| {
                let layout = Layout::dense(&self.sizes(value));
                self.allocate(module.ty(value).dtype, layout)
            };
            results = made.iter().map(dense).collect();
        }
        for operand in &mut operands {
            if !begins_evenly(operand, limits.row_bytes) {
                *operand = self.copy(operand.clone(), self.section(id), id, node.origin.clone());
            }
        }
        for result in &mut results[..matrices] {
            if !begins_evenly(result, limits.row_bytes) {
                *result = self.allocate(result.dtype, Layout::dense(&result.layout.sizes));
            }
        }
        for value in [fused.bias, fused.addend].into_iter().flatten() {
            operands.push(self.operand(value, OperandLayout::Dense, node, id)?);
        }
        if let Some(value) = fused.aux {
            let aux = self.operand(value, OperandLayout::Dense, node, id)?;
            let aligned = begins_evenly(&aux, limits.argument_row_bytes);
            let section = self.section(id);
            operands.push(if aligned { aux } else { self.copy(aux, section, id, node.origin.clone()) });
        }
        let kernel = Kernel::Contract(Box::new(FusedContract {
            contract: contract.clone(),
            bias: fused.bias.is_some(),
            addend: fused.addend.is_some(),
            activation: fused.activation,
            keeps: fused.kept.is_some(),
            sums: fused.sums.map(|(side, _)| side),
        }));
        self.fused(id, kernel, operands, made.into_iter().zip(results));
        Ok(())
    }

    /// Drafts a gradient that adds: the addend is its additional last operand.
    pub(super) fn added(&mut self, added: &Added) -> Result<(), Diagnostic> {
        let module = self.module;
        let id = added.nodes[0];
        let node = module.node(id);
        let mut operands = Vec::new();
        for &value in node.operands.iter().chain([&added.addend]) {
            operands.push(self.operand(value, OperandLayout::Dense, node, id)?);
        }
        let made = [added.out].into_iter().chain(node.results[1..].iter().copied());
        let dense = |value: ValueId| {
            let layout = Layout::dense(&self.sizes(value));
            (value, self.allocate(module.ty(value).dtype, layout))
        };
        let results: Vec<(ValueId, Located)> = made.map(dense).collect();
        self.fused(id, Kernel::Op(node.op.clone()), operands, results.into_iter());
        Ok(())
    }

    /// Drafts a kernel that computes more than its node.
    fn fused(
        &mut self,
        id: NodeId,
        kernel: Kernel,
        operands: Vec<Located>,
        results: impl Iterator<Item = (ValueId, Located)>,
    ) {
        let node = self.module.node(id);
        let (made, results): (Vec<ValueId>, Vec<Located>) = results.unzip();
        self.instructions.push(Draft {
            section: self.section(id),
            of_microbatch: false,
            part: None,
            kernel,
            operands,
            results: results.clone(),
            accumulates: false,
            parts: None,
            node: id,
            origin: node.origin.clone(),
        });
        for (value, located) in made.into_iter().zip(results) {
            self.located[value] = Some(located);
            self.sum_up(value, self.section(id));
        }
    }
}

/// Returns whether one multiplication computes a contraction into each of these results.
fn is_one(contract: &Contract, operands: &[Located], made: &[Located]) -> bool {
    let layouts = |out: &Located| [&operands[0], &operands[1], out].map(|located| located.layout.clone());
    made.iter().all(|out| ContractionPlan::of(contract, layouts(out)).is_one())
}

/// Returns whether each row of a matrix begins at a multiple of this number of bytes.
fn begins_evenly(matrix: &Located, bytes: u64) -> bool {
    let elements = elements(bytes, matrix.dtype) as isize;
    let aligned = |distance: isize| distance % elements == 0;
    let Layout { strides, offset, .. } = &matrix.layout;
    aligned(*offset) && strides.iter().all(|&stride| stride == 1 || aligned(stride))
}
