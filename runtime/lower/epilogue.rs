//! What a GPU's matrix multiplication does beside it: contractions take in the elementwise nodes that follow, and the sums
//! over rows of what they read.
//!
//! `out = activation(lhs · rhs + bias + addend)`: a contraction takes the head of the chain that reads it, as far as that
//! is of this form; what is left of the chain stays one. The gradient of a bias is a sum over the same rows as that of
//! the weight, so one kernel makes both.

use super::draft::{Draft, Drafts, Located};
use super::fuse::Item;
use super::policy::Reads;
use super::{LowerOptions, select};
use crate::layout::Layout;
use crate::program::{Activation, FusedContract, Kernel, Microbatches};
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::ReduceKind;
use ir::{DType, Diagnostic, Dim, Module, Node, NodeId, Op, ValueId};

/// A contraction with what it does besides.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    /// The contraction.
    pub(super) node: NodeId,
    /// One number a column, added to every row.
    pub(super) bias: Option<ValueId>,
    /// A tensor of the result's dims that is added.
    pub(super) addend: Option<ValueId>,
    /// What is done then.
    pub(super) activation: Activation,
    /// What the gradient of an activation reads: what it was applied to.
    pub(super) aux: Option<ValueId>,
    /// What is stored.
    pub(super) out: ValueId,
    /// What an activation was applied to, if that is stored too.
    pub(super) kept: Option<ValueId>,
    /// The sum over its rows of this operand (0 or 1), and the value that is.
    pub(super) sums: Option<(u32, ValueId)>,
}

/// A gradient with what its first result is added to: of a norm what came by the residual connection, of a look-up what the
/// table's other use makes.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// The gradient.
    pub(super) node: NodeId,
    /// What is added.
    pub(super) addend: ValueId,
    /// The sum.
    pub(super) out: ValueId,
}

/// The items with contractions that do more than multiply, and gradients of norms that add.
pub(super) fn items(
    module: &Module,
    live: &EntitySet<NodeId>,
    options: &LowerOptions,
    mut items: Vec<Item>,
) -> Vec<Item> {
    let search = Search::new(module, live, options);
    let fused = |items: &[Item]| items.iter().filter(|item| matches!(item, Item::Contract(_))).count();
    // What is left of a sum of several products is a chain again, which another of them may take.
    loop {
        let before = fused(&items);
        items = search.with_chains(items);
        if fused(&items) == before {
            return search.with_sums(search.with_norms(items));
        }
    }
}

struct Search<'m> {
    module: &'m Module,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    held: EntitySet<ValueId>,
    microbatches: Microbatches,
}

impl<'m> Search<'m> {
    fn new(module: &'m Module, live: &EntitySet<NodeId>, options: &LowerOptions) -> Self {
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (id, node) in module.nodes().filter(|(id, _)| live.contains(*id)) {
            for &operand in &node.operands {
                if readers[operand].last() != Some(&id) {
                    readers[operand].push(id);
                }
            }
        }
        let mut held = EntitySet::new();
        let outputs = module.outputs.iter().filter(|output| select::keeps(options, &output.name));
        outputs.for_each(|output| {
            held.insert(output.value);
        });
        module.states.values().filter_map(|state| state.output).for_each(|value| {
            held.insert(value);
        });
        Self { module, readers, held, microbatches: options.microbatches }
    }

    /// The contraction of an item, if its columns are the last dim of what it makes, so that a row of it is a row of a
    /// matrix.
    fn rows_of(&self, item: &Item) -> Option<(NodeId, &'m Contract)> {
        let Item::Node(id) = item else { return None };
        let Op::Contract(contract) = &self.module.node(*id).op else { return None };
        let roles = contract.roles();
        let by_rows = roles.batch.is_empty() && roles.columns.len() == 1 && !roles.rows.is_empty();
        (by_rows && contract.out.0.last() == roles.columns.last()).then_some((*id, contract))
    }

    /// The contraction of an item, if it makes a matrix, of rows or of columns.
    fn matrix_of(&self, item: &Item) -> Option<(NodeId, &'m Contract)> {
        let Item::Node(id) = item else { return None };
        let Op::Contract(contract) = &self.module.node(*id).op else { return None };
        let roles = contract.roles();
        let matrix = roles.batch.is_empty() && roles.columns.len() == 1 && roles.rows.len() == 1;
        matrix.then_some((*id, contract))
    }

    /// Contractions take in the heads of the chains that read them.
    fn with_chains(&self, items: Vec<Item>) -> Vec<Item> {
        // Where each node runs.
        let mut place: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
        for (index, item) in items.iter().enumerate() {
            item.nodes().iter().for_each(|&node| place[node] = Some(index));
        }
        let mut heads: Vec<Option<Fused>> = vec![None; items.len()];
        let mut gone = vec![false; items.len()];
        // The last contraction that a chain reads comes right before it; what others made is added.
        for (index, item) in items.iter().enumerate().rev() {
            let Some((id, _)) = self.rows_of(item) else { continue };
            let made = self.module.node(id).results[0];
            let chain = self.readers[made].first().and_then(|&reader| place[reader]);
            let Some(chain) = chain.filter(|&chain| chain > index && heads[chain].is_none()) else {
                continue;
            };
            let Item::Chain { nodes, .. } = &items[chain] else { continue };
            if let Some(fused) = self.head(id, nodes) {
                heads[chain] = Some(fused);
                gone[index] = true;
            }
        }
        let mut result = Vec::new();
        for ((item, head), gone) in items.into_iter().zip(heads).zip(gone) {
            match (item, head) {
                (Item::Chain { nodes, stored }, Some(fused)) => {
                    let taken = self.taken(&fused, &nodes);
                    let rest: Vec<NodeId> =
                        nodes.iter().copied().filter(|node| !taken.contains(node)).collect();
                    let made: Vec<ValueId> =
                        rest.iter().map(|&node| self.module.node(node).results[0]).collect();
                    let stored = stored.into_iter().filter(|value| made.contains(value)).collect();
                    result.push(Item::Contract(Box::new(fused)));
                    if !rest.is_empty() {
                        result.push(Item::Chain { nodes: rest, stored });
                    }
                }
                (item, _) if !gone => result.push(item),
                _ => {}
            }
        }
        result
    }

    /// What a contraction takes of a chain that reads it: the longest head of the right form, if there is any.
    fn head(&self, id: NodeId, nodes: &[NodeId]) -> Option<Fused> {
        let made = self.module.node(id).results[0];
        let mut fused = Fused {
            node: id,
            bias: None,
            addend: None,
            activation: Activation::None,
            aux: None,
            out: made,
            kept: None,
            sums: None,
        };
        while fused.activation == Activation::None
            && let Some(node) = self.next(&fused, nodes)
            && self.take(&mut fused, node, nodes)
        {}
        (fused.out != made).then_some(fused)
    }

    /// The node of the chain that comes next, if it is all that reads what is there so far, or the one that applies an
    /// activation.
    fn next(&self, fused: &Fused, nodes: &[NodeId]) -> Option<&'m Node> {
        let readers = &self.readers[fused.out];
        let node = |id: &NodeId| self.module.node(*id);
        if let ([only], false) = (&readers[..], self.held.contains(fused.out)) {
            return nodes.contains(only).then(|| node(only));
        }
        let applied = readers.iter().find(|reader| matches!(node(reader).op, Op::Unary(Unary::GeluTanh)));
        applied.filter(|reader| nodes.contains(reader)).map(node)
    }

    /// Takes a node in, if it is of the form.
    fn take(&self, fused: &mut Fused, node: &Node, nodes: &[NodeId]) -> bool {
        let (made, result) = (fused.out, node.results[0]);
        let ty = self.module.ty(made);
        // cuBLASLt has GELU for half types, and keeps what it is applied to in rows of 16 bytes.
        let columns = ty.dims.last().and_then(Dim::size).unwrap_or_default();
        let has_gelu = matches!(ty.dtype, DType::F16 | DType::BF16) && columns.is_multiple_of(8);
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
                let place = match is_bias {
                    true if fused.bias.is_none() => &mut fused.bias,
                    false if fused.addend.is_none() && *dims == ty.dims => &mut fused.addend,
                    _ => return false,
                };
                *place = Some(other);
            }
            (Op::Unary(Unary::GeluTanh), _) if has_gelu => {
                let read_again = self.readers[made].len() > 1 || self.held.contains(made);
                fused.kept = read_again.then_some(made);
                fused.activation = Activation::GeluTanh;
            }
            (Op::Binary(Binary::GeluTanhGrad), Some(aux))
                if has_gelu
                    && node.operands[1] == made
                    && !within(aux)
                    && fused.bias.is_none()
                    && fused.addend.is_none() =>
            {
                fused.aux = Some(aux);
                fused.activation = Activation::GeluTanhGrad;
            }
            _ => return false,
        }
        fused.out = result;
        true
    }

    /// The nodes of the chain between the contraction and what is stored.
    fn taken(&self, fused: &Fused, nodes: &[NodeId]) -> Vec<NodeId> {
        let mut taken = Vec::new();
        let mut value = fused.out;
        let first = self.module.node(fused.node).results[0];
        while value != first {
            let made = |node: &&NodeId| self.module.node(**node).results[0] == value;
            let Some(&id) = nodes.iter().find(made) else { break };
            taken.push(id);
            // The operand that came from the contraction: the one made by it, or within the chain.
            let operands = &self.module.node(id).operands;
            let side = |operand: &&ValueId| {
                Some(**operand) != fused.bias
                    && Some(**operand) != fused.addend
                    && Some(**operand) != fused.aux
            };
            let Some(&next) = operands.iter().find(side) else { break };
            value = next;
        }
        taken
    }

    /// Gradients of norms take in the addition that reads them.
    fn with_norms(&self, items: Vec<Item>) -> Vec<Item> {
        let mut place: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
        for (index, item) in items.iter().enumerate() {
            item.nodes().iter().for_each(|&node| place[node] = Some(index));
        }
        let mut added: Vec<Option<(NodeId, Added)>> = vec![None; items.len()];
        let mut gone = vec![false; items.len()];
        for (index, item) in items.iter().enumerate() {
            let Some((add, found)) = self.addition(item) else { continue };
            let Some(chain) = place[add].filter(|&chain| chain > index && added[chain].is_none()) else {
                continue;
            };
            // It moves there: what reads its other results must come later.
            let others = &self.module.node(found.node).results[1..];
            let in_time = |reader: &NodeId| place[*reader].is_none_or(|at| at > chain);
            let within =
                items[chain].nodes().iter().any(|&node| self.module.node(node).results[0] == found.addend);
            if !within && others.iter().all(|&other| self.readers[other].iter().all(in_time)) {
                added[chain] = Some((add, found));
                gone[index] = true;
            }
        }
        let mut result = Vec::new();
        for ((item, added), gone) in items.into_iter().zip(added).zip(gone) {
            match (item, added) {
                (Item::Chain { nodes, stored }, Some((add, added))) => {
                    let out = added.out;
                    result.push(Item::Added(Box::new(added)));
                    let nodes: Vec<NodeId> = nodes.into_iter().filter(|&node| node != add).collect();
                    let stored = stored.into_iter().filter(|&value| value != out).collect();
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

    /// The addition that alone reads what a norm's gradient gives, if the other side is of the same type.
    fn addition(&self, item: &Item) -> Option<(NodeId, Added)> {
        let Item::Node(id) = item else { return None };
        let node = self.module.node(*id);
        let (Op::LayerNormGrad(_) | Op::RmsNormGrad(_) | Op::GatherGrad(_)) = &node.op else { return None };
        let made = node.results[0];
        let [reader] = self.readers[made][..] else { return None };
        let add = self.module.node(reader);
        let addend = match (&add.op, &add.operands[..]) {
            (Op::Binary(Binary::Add), &[first, second]) if first == made && second != made => second,
            (Op::Binary(Binary::Add), &[first, second]) if second == made && first != made => first,
            _ => return None,
        };
        let ty = self.module.ty(made);
        // A norm's kernel adds whatever its rows are part of; indices count along the whole.
        let whole = !matches!(node.op, Op::GatherGrad(_)) || ty.sharding.is_whole();
        let alike = whole && self.module.ty(addend) == ty && add.phase == node.phase;
        let out = add.results[0];
        (alike && !self.held.contains(made)).then_some((reader, Added { node: *id, addend, out }))
    }

    /// Contractions that sum over all rows of an operand take in the reductions of it that do as well.
    fn with_sums(&self, items: Vec<Item>) -> Vec<Item> {
        let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
        for index in 0..items.len() {
            let Some((reduce, operand)) = items[index].as_ref().and_then(|item| self.row_sum(item)) else {
                continue;
            };
            let made = self.module.node(reduce).results[0];
            let found = items.iter().enumerate().find_map(|(at, item)| {
                let (id, contract) = self.matrix_of(item.as_ref()?)?;
                let node = self.module.node(id);
                let side = (0..2).find(|&side| node.operands[side] == operand)?;
                let labels = [&contract.lhs, &contract.rhs][side];
                let summed = contract.roles().summed;
                let last = labels.0.last()?;
                let all = labels.0.len() == summed.len() + 1 && !summed.contains(last);
                // What reads the sum must come after the contraction.
                let in_time = at > index
                    && items[index..at].iter().flatten().all(|item| {
                        item.nodes().iter().all(|&node| !self.module.node(node).operands.contains(&made))
                    });
                let same = self.module.ty(node.results[0]).dtype == self.module.ty(made).dtype;
                let phase = node.phase == self.module.node(reduce).phase;
                (all && (in_time || at < index) && same && phase).then_some((at, id, side))
            });
            let Some((at, node, side)) = found else { continue };
            items[index] = None;
            let out = self.module.node(node).results[0];
            items[at] = Some(Item::Contract(Box::new(Fused {
                node,
                bias: None,
                addend: None,
                activation: Activation::None,
                aux: None,
                out,
                kept: None,
                sums: Some((side as u32, made)),
            })));
        }
        items.into_iter().flatten().collect()
    }

    /// A reduction over all dims but the last, and what it reads.
    fn row_sum(&self, item: &Item) -> Option<(NodeId, ValueId)> {
        let Item::Node(id) = item else { return None };
        let node = self.module.node(*id);
        let Op::Reduce(reduce) = &node.op else { return None };
        let ndim = self.module.ty(node.operands[0]).ndim();
        let all = ndim > 1 && reduce.dims.iter().copied().eq(0..ndim as u32 - 1);
        let plain = reduce.kind == ReduceKind::Sum && !reduce.keep;
        (all && plain && self.microbatches == Microbatches::One).then(|| (*id, node.operands[0]))
    }
}

impl Drafts<'_> {
    /// Drafts a contraction that does more than multiply.
    pub(super) fn fused_contract(&mut self, fused: &Fused) -> Result<(), Diagnostic> {
        let module = self.module;
        let node = module.node(fused.node);
        let Op::Contract(contract) = &node.op else { unreachable!("only contractions are fused") };
        let mut operands = vec![self.locate(node.operands[0])?, self.locate(node.operands[1])?];
        for value in [fused.bias, fused.addend, fused.aux].into_iter().flatten() {
            operands.push(self.operand(value, Reads::Dense, node, fused.node)?);
        }
        let made = [Some(fused.out), fused.kept, fused.sums.map(|(_, sum)| sum)];
        let made: Vec<ValueId> = made.into_iter().flatten().collect();
        let results: Vec<Located> =
            made.iter().map(|&value| self.place(value, Layout::dense(&self.sizes(value)))).collect();
        let kernel = FusedContract {
            contract: contract.clone(),
            bias: fused.bias.is_some(),
            addend: fused.addend.is_some(),
            activation: fused.activation,
            keeps: fused.kept.is_some(),
            sums: fused.sums.map(|(side, _)| side),
        };
        self.instructions.push(Draft {
            section: node.phase.into(),
            kernel: Kernel::Contract(Box::new(kernel)),
            operands,
            results: results.clone(),
            accumulates: false,
            parts: None,
            node: fused.node,
            origin: node.origin.clone(),
        });
        for (value, located) in made.into_iter().zip(results) {
            self.located[value] = Some(located);
            self.sum_up(value, node.phase.into());
        }
        Ok(())
    }

    /// Drafts a norm's gradient that adds: the addend is an operand more.
    pub(super) fn added(&mut self, added: &Added) -> Result<(), Diagnostic> {
        let module = self.module;
        let node = module.node(added.node);
        let mut operands = Vec::new();
        for &value in node.operands.iter().chain([&added.addend]) {
            operands.push(self.operand(value, Reads::Dense, node, added.node)?);
        }
        let made: Vec<ValueId> = [added.out].into_iter().chain(node.results[1..].iter().copied()).collect();
        let results: Vec<Located> = made
            .iter()
            .map(|&value| self.allocate(module.ty(value).dtype, Layout::dense(&self.sizes(value))))
            .collect();
        self.instructions.push(Draft {
            section: node.phase.into(),
            kernel: Kernel::Op(node.op.clone()),
            operands,
            results: results.clone(),
            accumulates: false,
            parts: None,
            node: added.node,
            origin: node.origin.clone(),
        });
        for (value, located) in made.into_iter().zip(results) {
            self.located[value] = Some(located);
            self.sum_up(value, node.phase.into());
        }
        Ok(())
    }
}
