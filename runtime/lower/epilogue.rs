//! What a GPU's matrix multiplication does beside it: contractions take in the elementwise nodes that follow, and the sums
//! over rows of what they read.
//!
//! `out = activation(lhs · rhs + bias + addend)`: a contraction takes the head of the chain that reads it, as far as that
//! is of this form; what is left of the chain stays one. The gradient of a bias is a sum over the same rows as that of
//! the weight, so one kernel makes both. The gradients of norms and look-ups add to what is there.
//!
//! What takes a part of a chain in runs where the chain does. So it moves there, if all that reads what else it makes
//! comes later.

mod added;
mod heads;
mod sums;

use super::draft::{Draft, Drafts, Located};
use super::fuse::Item;
use super::pad;
use super::policy::Reads;
use crate::contraction::Plan;
use crate::layout::Layout;
use crate::program::{Activation, FusedContract, Kernel, Microbatches};
use cranelift_entity::SecondaryMap;
use ir::analysis::Readers;
use ir::ops::contract::Contract;
use ir::{DType, Diagnostic, Dim, Module, NodeId, Op, ValueId};

/// A contraction with what it does besides.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    /// The contraction, and then the nodes that it takes in.
    pub(super) nodes: Vec<NodeId>,
    /// One number a column, added to every row.
    bias: Option<ValueId>,
    /// A tensor of the result's dims that is added.
    addend: Option<ValueId>,
    /// What is done then.
    activation: Activation,
    /// What the gradient of an activation reads: what it was applied to.
    aux: Option<ValueId>,
    /// What is stored.
    pub(super) out: ValueId,
    /// What an activation was applied to, if that is stored too.
    pub(super) kept: Option<ValueId>,
    /// The sum over its rows of this operand (0 or 1), and the value that is.
    sums: Option<(u32, ValueId)>,
}

impl Fused {
    /// A contraction that only multiplies.
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

/// A gradient with what its first result is added to: of a norm what came by the residual connection, of a look-up what the
/// table's other use makes.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// The gradient and the addition.
    pub(super) nodes: [NodeId; 2],
    /// What is added.
    addend: ValueId,
    /// The sum.
    out: ValueId,
}

/// The items with contractions that do more than multiply, and gradients that add.
pub(super) fn items(
    module: &Module,
    readers: &Readers,
    microbatches: Microbatches,
    mut items: Vec<Item>,
) -> Vec<Item> {
    let search = Search { module, readers };
    let fused = |items: &[Item]| items.iter().filter(|item| matches!(item, Item::Contract(_))).count();
    // What is left of a sum of several products is a chain again, which another of them may take.
    loop {
        let before = fused(&items);
        items = search.with_heads(items);
        if fused(&items) == before {
            break;
        }
    }
    items = search.with_additions(items);
    match microbatches {
        Microbatches::One => search.with_sums(items),
        Microbatches::Many => items,
    }
}

struct Search<'m> {
    module: &'m Module,
    readers: &'m Readers,
}

/// For each item what takes a part of it in, if it is a chain, and the items that moved to do so.
struct Moves {
    /// Where each node runs.
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

    /// The chain after an item in which a node is that nothing takes in yet.
    fn chain<'i>(&self, items: &'i [Item], after: usize, node: NodeId) -> Option<(usize, &'i [NodeId])> {
        let at = self.place[node].filter(|&at| at > after && self.takers[at].is_none())?;
        match &items[at] {
            Item::Chain { nodes, .. } => Some((at, nodes)),
            _ => None,
        }
    }

    /// The items, with what takes a part of a chain before what is left of it.
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

impl Search<'_> {
    /// Whether all that reads a value runs at this place or later.
    fn is_read_from(&self, value: ValueId, at: usize, moves: &Moves) -> bool {
        self.readers.of[value].iter().all(|&reader| moves.place[reader].is_some_and(|place| place >= at))
    }
}

/// Whether one multiplication makes a contraction of dense operands: the dims of each role follow each other, in the same
/// order wherever they are.
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

/// Whether one multiplication makes a contraction, and cuBLASLt takes epilogues of it. In half types each row has to begin at
/// a multiple of four bytes.
fn takes_epilogues(module: &Module, contraction: NodeId) -> bool {
    let node = module.node(contraction);
    let fits = |&value: &ValueId| {
        let ty = module.ty(value);
        let last = ty.dims.last().and_then(Dim::size).unwrap_or_default();
        !matches!(ty.dtype, DType::F16 | DType::BF16) || last.is_multiple_of(2)
    };
    is_matrix_product(module, contraction) && node.operands.iter().chain(&node.results).all(fits)
}

/// Whether a tensor has more than one row, where rows are along its last dim.
fn has_rows(module: &Module, value: ValueId) -> bool {
    let dims = &module.ty(value).dims;
    dims.split_last().is_some_and(|(_, leading)| leading.iter().any(|dim| dim.size() != Some(1)))
}

impl Drafts<'_> {
    /// Drafts a contraction that does more than multiply.
    pub(super) fn fused_contract(&mut self, fused: &Fused) -> Result<(), Diagnostic> {
        let module = self.module;
        let id = fused.nodes[0];
        let node = module.node(id);
        let Op::Contract(contract) = &node.op else { unreachable!("only contractions are fused") };
        let made = [Some(fused.out), fused.kept, fused.sums.map(|(_, sum)| sum)];
        let made: Vec<ValueId> = made.into_iter().flatten().collect();
        let mut operands = vec![self.locate(node.operands[0])?, self.locate(node.operands[1])?];
        let layout = |drafts: &Self, value: ValueId| match drafts.padded.contains(value) {
            true => pad::layout(&drafts.sizes(value)),
            false => Layout::dense(&drafts.sizes(value)),
        };
        let mut results: Vec<Located> =
            made.iter().map(|&value| self.place(value, layout(self, value))).collect();
        if let Some(kept) = fused.kept
            && !is_in_rows_of(8, &results[1].layout)
        {
            results[1] = self.allocate(module.ty(kept).dtype, Layout::dense(&self.sizes(kept)));
        }
        let matrices = 1 + usize::from(fused.kept.is_some());
        // Views whose rows no stride reaches through are copied, and so is what would be written so.
        if !is_one(contract, &operands, &results[..matrices]) {
            for (operand, &value) in operands.iter_mut().zip(&node.operands) {
                *operand = self.operand(value, Reads::Dense, node, id)?;
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
            if !begins_evenly(operand) {
                *operand = self.copy(operand.clone(), node.phase.into(), id, node.origin.clone());
            }
        }
        for result in &mut results[..matrices] {
            if !begins_evenly(result) {
                *result = self.allocate(result.dtype, Layout::dense(&result.layout.sizes));
            }
        }
        for value in [fused.bias, fused.addend].into_iter().flatten() {
            operands.push(self.operand(value, Reads::Dense, node, id)?);
        }
        if let Some(value) = fused.aux {
            let aux = self.operand(value, Reads::Dense, node, id)?;
            let aligned = is_in_rows_of(8, &aux.layout);
            let section = node.phase.into();
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

    /// Drafts a gradient that adds: the addend is an operand more.
    pub(super) fn added(&mut self, added: &Added) -> Result<(), Diagnostic> {
        let module = self.module;
        let id = added.nodes[0];
        let node = module.node(id);
        let mut operands = Vec::new();
        for &value in node.operands.iter().chain([&added.addend]) {
            operands.push(self.operand(value, Reads::Dense, node, id)?);
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

    /// Drafts a kernel that makes more than its node.
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
            section: node.phase.into(),
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
            self.sum_up(value, node.phase.into());
        }
    }
}

/// Whether one multiplication makes a contraction, into each of these.
fn is_one(contract: &Contract, operands: &[Located], made: &[Located]) -> bool {
    let layouts = |out: &Located| [&operands[0], &operands[1], out].map(|located| located.layout.clone());
    made.iter().all(|out| Plan::of(contract, layouts(out)).is_one())
}

/// Whether each row of a matrix of an epilogue begins where cuBLASLt takes it: in half types at a multiple of four bytes.
fn begins_evenly(matrix: &Located) -> bool {
    !matches!(matrix.dtype, DType::F16 | DType::BF16) || is_in_rows_of(2, &matrix.layout)
}

/// Whether each row begins at a multiple of so many elements. cuBLASLt keeps the argument of GELU, of a half type, in rows of
/// eight.
fn is_in_rows_of(elements: isize, layout: &Layout) -> bool {
    let aligned = |distance: isize| distance % elements == 0;
    aligned(layout.offset) && layout.strides.iter().all(|&stride| stride == 1 || aligned(stride))
}
