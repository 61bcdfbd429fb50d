//! The evidence of a tensor's uses: they show whether it is trained, or a mask, a table or a number.

use super::paths::{Paths, large_dims};
use crate::analysis::constants::{any_element, first_elements};
use ir::ops::elementwise::Binary;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::shape::Slice;
use ir::{Data, DataId, Definition, Module, Node, NodeId, Op, OperandRole, ValueId};
use smallvec::SmallVec;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// The evidence of one use, with the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// No use speaks for a parameter.
    None(String),
    /// The tensor is probably trained.
    Ambiguous(String),
    /// The tensor is trained.
    Parameter(String),
    /// The tensor is trained because it has a parameter's name; its uses do not tell.
    Named(String),
    /// The tensor is a constant, whatever its other uses say.
    Constant(String),
}

impl Evidence {
    /// Returns the rank of the evidence. The strongest of several decides.
    fn strength(&self) -> u8 {
        match self {
            Self::None(_) => 0,
            Self::Ambiguous(_) => 1,
            Self::Parameter(_) | Self::Named(_) => 2,
            Self::Constant(_) => 3,
        }
    }
}

/// The evidence of all uses of a tensor together.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The strongest evidence.
    pub evidence: Evidence,
    /// The number of nodes of the file that use it as a norm's scale or bias or as a bias. A model has its own tensor for each such
    /// node, so a number above one shows that tensors were merged.
    pub vector_uses: usize,
    /// Whether no gradient comes to it, because only comparisons and the like read it.
    pub is_compared: bool,
}

impl Finding {
    /// Whether the tensor is trained.
    pub fn is_parameter(&self) -> bool {
        matches!(self.evidence, Evidence::Parameter(_) | Evidence::Named(_) | Evidence::Ambiguous(_))
    }

    /// Returns the reason in words.
    pub fn reason(&self) -> &str {
        match &self.evidence {
            Evidence::None(why)
            | Evidence::Ambiguous(why)
            | Evidence::Parameter(why)
            | Evidence::Named(why)
            | Evidence::Constant(why) => why,
        }
    }
}

/// The largest number of a mask. Added to scores, it hides positions; no trained bias is as low.
const MASKED: f64 = -9999.0;

/// One use of a tensor: the node, the index of its operand, the value that it reads, and the slices before that value.
struct Use<'m> {
    node: &'m Node,
    operand: usize,
    value: ValueId,
    /// The number of the chain of slices between the tensor and the use, in [`SliceChains`].
    slices: usize,
}

/// Numbers of chains of slices, so that a long chain with many uses is not copied for each use. Number 0 is the empty chain.
#[derive(Default)]
struct SliceChains {
    /// The number of each chain, by the number of the chain without its last slice, and this slice.
    numbers: BTreeMap<(usize, Slice), usize>,
}

impl SliceChains {
    fn extended(&mut self, chain: usize, slice: &Slice) -> usize {
        let next = self.numbers.len() + 1;
        *self.numbers.entry((chain, slice.clone())).or_insert(next)
    }
}

/// The facts that a search asks for again and again.
pub(super) struct ModuleFacts<'m> {
    module: &'m Module,
    uses: cranelift_entity::SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
    paths: Paths,
    /// The names of tensors that repeat the same values for each sample.
    repeated: &'m BTreeSet<String>,
}

impl<'m> ModuleFacts<'m> {
    pub(super) fn new(module: &'m Module, repeated: &'m BTreeSet<String>) -> Self {
        Self { module, uses: module.uses(), paths: Paths::new(module), repeated }
    }

    fn varies(&self, value: ValueId) -> bool {
        self.paths.varies(value)
    }

    /// Weighs the uses of `values`, each of which is the whole tensor `data`.
    pub(super) fn finding(&mut self, data: DataId, values: &[ValueId]) -> Finding {
        let data = Tensor::of(&self.module.data[data]);
        let is_compared = !values.iter().any(|&value| self.paths.reaches_a_result(value));
        let mut finding =
            Finding { evidence: Evidence::None("no node reads it".into()), vector_uses: 0, is_compared };
        let mut vector_uses: BTreeMap<usize, BTreeSet<(&str, Option<usize>)>> = BTreeMap::new();
        let uses = self.final_uses(values);
        for (i, found) in uses.iter().enumerate() {
            let evidence = self.evidence(&data, found);
            let is_vector = matches!(
                found.node.op,
                Op::LayerNorm(_) | Op::RmsNorm(_) | Op::BatchNorm(_) | Op::Binary(Binary::Add)
            );
            if is_vector && matches!(evidence, Evidence::Parameter(_)) {
                // The nodes of an unrolled loop come from one node of the file, which reads its tensor in every step.
                let origin = &*found.node.origin;
                let place = (origin, origin.is_empty().then_some(i));
                vector_uses.entry(found.slices).or_default().insert(place);
            }
            if i == 0 || evidence.strength() > finding.evidence.strength() {
                finding.evidence = evidence;
            }
        }
        finding.vector_uses = vector_uses.into_values().map(|uses| uses.len()).max().unwrap_or(0);
        finding
    }

    /// Returns the uses of values and of their views, without the views themselves.
    fn final_uses(&self, values: &[ValueId]) -> Vec<Use<'m>> {
        let mut stack: Vec<(ValueId, usize)> = values.iter().map(|&value| (value, 0)).collect();
        let (mut found, mut seen, mut chains) = (Vec::new(), BTreeSet::new(), SliceChains::default());
        while let Some((value, slices)) = stack.pop() {
            let uses = if seen.insert(value) { &self.uses[value][..] } else { &[] };
            for &id in uses {
                let node = self.module.node(id);
                if node.op.movement().is_view() || self.joins_tensors(node) {
                    let longer = match &node.op {
                        Op::Slice(slice) => chains.extended(slices, slice),
                        _ => slices,
                    };
                    stack.push((node.results[0], longer));
                    continue;
                }
                let reads = node.operands.iter().enumerate().filter(|(_, operand)| **operand == value);
                found.extend(reads.map(|(operand, _)| Use { node, operand, value, slices }));
            }
        }
        found
    }

    /// Whether a node concatenates tensors of the file. An exporter does so with the gates of a cell that come in another order.
    fn joins_tensors(&self, node: &Node) -> bool {
        matches!(node.op, Op::Concat(_)) && !node.operands.iter().any(|&operand| self.varies(operand))
    }

    fn evidence(&self, data: &Tensor, found: &Use) -> Evidence {
        let node = found.node;
        let place = if node.origin.is_empty() { String::new() } else { format!(", {}", node.origin) };
        let other = || node.operands[1 - found.operand];
        let parameter = |what: &str| Evidence::Parameter(format!("{what}{place}"));
        match (&node.op, node.role(found.operand)) {
            (Op::Rotary(_), OperandRole::Cosines | OperandRole::Sines) => {
                Evidence::Constant(format!("rotary table{place}"))
            }
            (Op::Attention(_), OperandRole::Mask) => on_scores(data, &place),
            (Op::Attention(_), _) => Evidence::Ambiguous(format!("read as a query, key or value{place}")),
            (Op::BatchNorm(_), OperandRole::Mean | OperandRole::Variance) => {
                Evidence::Constant(format!("running statistic of a norm{place}"))
            }
            (Op::LayerNorm(_) | Op::RmsNorm(_) | Op::BatchNorm(_), OperandRole::Scale) => {
                parameter("scale of a norm")
            }
            (Op::LayerNorm(_) | Op::BatchNorm(_), OperandRole::Bias) => parameter("bias of a norm"),
            (Op::Conv(_) | Op::ConvGradInput(_), OperandRole::Weight) if self.varies(other()) => {
                parameter("weight of a convolution")
            }
            (Op::Contract(_), _) if !self.varies(other()) => {
                Evidence::None(format!("combined only with constants{place}"))
            }
            (Op::Contract(_), _) if self.turns_into_angles(node, other()) => {
                Evidence::Constant(format!("frequencies of a rotary table{place}"))
            }
            (Op::Contract(_), _) => parameter("weight of a contraction"),
            (Op::Experts(_), OperandRole::Weight) => parameter("matrices of experts"),
            (Op::Recurrent(_), OperandRole::Weight) => parameter("weight of a recurrent layer"),
            (Op::Recurrent(_), OperandRole::Bias) => parameter("bias of a recurrent layer"),
            (Op::Recurrent(_), OperandRole::Hidden | OperandRole::CellState) if !data.is_zero() => {
                parameter("first state of a recurrent layer")
            }
            (Op::Gather(_), OperandRole::Data) if self.is_rotary_lookup(node) && data.may_be_rotary() => {
                Evidence::Constant(format!(
                    "table that is looked up and multiplied, as a rotary table is{place}"
                ))
            }
            (Op::Gather(_), OperandRole::Data) if self.weighs_classes(node) => {
                Evidence::Constant(format!("weights of classes in a loss{place}"))
            }
            (Op::Gather(_), OperandRole::Data) => parameter("table of a gather"),
            (Op::Binary(Binary::Sub | Binary::Div | Binary::Mul), _) if self.normalises_input(found) => {
                Evidence::Constant(format!("normalises an input{place}"))
            }
            // A product made of a norm of the file whose scale has other dims than the normalised ones.
            (Op::Binary(Binary::Mul), _) if is_norm(node) && self.varies(other()) => {
                parameter("scale of a norm")
            }
            (Op::Binary(Binary::Add), _) if is_norm(node) && self.varies(other()) => {
                parameter("bias of a norm")
            }
            (Op::Binary(Binary::Add), _) => self.added(data, found, other(), &place),
            (Op::Binary(Binary::Mul), _) => self.multiplied(data, found, other(), &place),
            (Op::Concat(_), _) if !data.is_zero() => Evidence::Ambiguous(format!(
                "concatenated with activations, as a folded class token is{place}"
            )),
            (op, _) => Evidence::None(format!("read only by `{}`{place}", op.name())),
        }
    }

    /// Returns the evidence of `x + tensor`: a bias, a mask, a number, or position embeddings that the exporter folded.
    fn added(&self, data: &Tensor, found: &Use, other: ValueId, place: &str) -> Evidence {
        if data.holds_masked() {
            return mask(place);
        }
        if !self.varies(other) {
            return Evidence::None(format!("combined only with constants{place}"));
        }
        if self.paths.are_scores(other) && self.paths.feeds_only_softmax(found.node.results[0]) {
            return on_scores(data, place);
        }
        let large = large_dims(self.module, found.value);
        match large[..] {
            _ if self.is_repeated(data) => {
                Evidence::Ambiguous(format!("added to activations, once for each sample{place}"))
            }
            [] if !self.paths.is_contraction(other) && !self.is_convolution(other) => {
                Evidence::None(format!("a single number{place}"))
            }
            [] | [0] => Evidence::Parameter(format!("bias{place}")),
            [dim] if self.is_convolution(other) && dim + 2 == self.module.ty(other).ndim() => {
                Evidence::Parameter(format!("bias of channels{place}"))
            }
            _ => {
                Evidence::Ambiguous(format!("added to activations, as folded position embeddings are{place}"))
            }
        }
    }

    /// Returns the evidence of `x · tensor`: the scale of a norm that was not recognised, a table, or weights of the terms of a loss.
    fn multiplied(&self, data: &Tensor, found: &Use, other: ValueId, place: &str) -> Evidence {
        let large = large_dims(self.module, found.value);
        let ndim = self.module.ty(found.node.results[0]).ndim();
        let factor = self.viewed(other);
        let is_log_softmax = |id| matches!(self.module.node(id).op, Op::LogSoftmax(_));
        if !self.varies(other) {
            Evidence::None(format!("combined only with constants{place}"))
        } else if self.turns_into_angles(found.node, other) {
            Evidence::Constant(format!("frequencies of a rotary table{place}"))
        } else if matches!(factor, Definition::Input(_)) {
            Evidence::None(format!("multiplies an input{place}"))
        } else if matches!(factor, Definition::Node(id, _) if is_log_softmax(id)) {
            Evidence::Constant(format!("weights of classes in a loss{place}"))
        } else if self.is_repeated(data) {
            Evidence::None(format!("multiplies activations, once for each sample{place}"))
        } else if large[..] == [0] {
            Evidence::Parameter(format!("scale of the last dim{place}"))
        } else if large.len() == 1 && ndim >= 3 && large[0] + 2 == ndim {
            Evidence::Parameter(format!("scale of channels{place}"))
        } else {
            Evidence::None(format!("a table that multiplies activations{place}"))
        }
    }

    /// Whether the file repeats the tensor for each sample. In a batch of one its dims then do not show its role.
    fn is_repeated(&self, tensor: &Tensor) -> bool {
        self.repeated.contains(&tensor.data.name)
    }

    /// Whether a use is the mean or the deviation in `(input - mean) / deviation`.
    fn normalises_input(&self, found: &Use) -> bool {
        let is_centred = |node: &Node| {
            matches!(node.op, Op::Binary(Binary::Sub))
                && matches!(self.viewed(node.operands[0]), Definition::Input(_))
                && !self.varies(node.operands[1])
        };
        let is_scaled = |node: &Node| {
            let constant = node.operands.get(1).is_some_and(|&factor| !self.varies(factor));
            matches!(node.op, Op::Binary(Binary::Div | Binary::Mul)) && constant
        };
        if is_centred(found.node) {
            let readers = self.readers(found.node, |_| false);
            return !readers.is_empty() && readers.iter().all(|(reader, _)| is_scaled(reader));
        }
        let from = self.viewed(found.node.operands[0]);
        is_scaled(found.node) && matches!(from, Definition::Node(id, _) if is_centred(self.module.node(id)))
    }

    /// Returns the nodes that read the result of a node, directly or through views, concatenations and the operators of `through`.
    fn readers(&self, node: &Node, through: impl Fn(&Op) -> bool) -> Vec<(&'m Node, ValueId)> {
        let (mut readers, mut stack, mut seen) = (Vec::new(), vec![node.results[0]], BTreeSet::new());
        while let Some(value) = stack.pop() {
            let uses = if seen.insert(value) { &self.uses[value][..] } else { &[] };
            for &id in uses {
                let reader = self.module.node(id);
                let is_view = reader.op.movement().is_view();
                if is_view || matches!(reader.op, Op::Concat(_)) || through(&reader.op) {
                    stack.push(reader.results[0]);
                } else {
                    readers.push((reader, value));
                }
            }
        }
        readers
    }

    /// Whether a node multiplies positions by frequencies: `positions` comes from integers, and only sines and cosines read the product. In
    /// a network with sines, they read products of activations, and the frequencies are trained.
    fn turns_into_angles(&self, node: &Node, positions: ValueId) -> bool {
        self.paths.feeds_only_angles(node.results[0]) && self.paths.comes_from_integers(positions)
    }

    /// Whether the looked-up rows rotate queries and keys: as the table of a rotary operator, or as factors of activations.
    fn is_rotary_lookup(&self, gather: &Node) -> bool {
        let readers = self.readers(gather, |_| false);
        let turns = |(reader, value): &(&Node, ValueId)| match &reader.op {
            Op::Rotary(_) => reader[OperandRole::Data] != *value,
            Op::Binary(Binary::Mul) => {
                let other = reader.operands[usize::from(reader.operands[0] == *value)];
                other != *value && self.varies(other) && !large_dims(self.module, other).is_empty()
            }
            _ => false,
        };
        !readers.is_empty() && readers.iter().all(turns)
    }

    /// Whether the looked-up value is a number for each label that weighs the terms of a loss, or is added up.
    fn weighs_classes(&self, gather: &Node) -> bool {
        let numbers = self.module.ty(gather[OperandRole::Data]).ndim() == 1;
        let labels = matches!(self.viewed(gather[OperandRole::Indices]), Definition::Input(_));
        let readers = self.readers(gather, |op| matches!(op, Op::Select(_)));
        let weighs = |(reader, _): &(&Node, ValueId)| {
            matches!(&reader.op, Op::Binary(Binary::Mul) | Op::Reduce(Reduce { kind: ReduceKind::Sum, .. }))
        };
        numbers && labels && !readers.is_empty() && readers.iter().all(weighs)
    }

    /// Returns the definition of the value that this one is a view of.
    fn viewed(&self, value: ValueId) -> Definition {
        self.module.value(self.paths.viewed(value)).definition
    }

    /// Whether a value is the result of a convolution.
    fn is_convolution(&self, value: ValueId) -> bool {
        let Definition::Node(id, _) = self.module.value(value).definition else { return false };
        matches!(self.module.node(id).op, Op::Conv(_) | Op::ConvGradInput(_))
    }
}

/// Whether a node was made from a norm of the file whose operator could not take the operand.
fn is_norm(node: &Node) -> bool {
    ["(LayerNormalization,", "(RMSNormalization,"].iter().any(|operator| node.origin.contains(operator))
}

/// A tensor whose uses are weighed, with facts about its numbers. Each fact is computed once.
struct Tensor<'m> {
    data: &'m Data,
    masked: OnceCell<bool>,
    zero: OnceCell<bool>,
    rotary: OnceCell<bool>,
}

impl<'m> Tensor<'m> {
    fn of(data: &'m Data) -> Self {
        Self { data, masked: OnceCell::new(), zero: OnceCell::new(), rotary: OnceCell::new() }
    }

    /// Whether it holds numbers so low that a sum with them loses the other operand.
    fn holds_masked(&self) -> bool {
        *self.masked.get_or_init(|| any_element(self.data, |x| x <= MASKED) == Some(true))
    }

    /// Whether its bytes are here, and all of its numbers are zero.
    fn is_zero(&self) -> bool {
        *self.zero.get_or_init(|| any_element(self.data, |x| x != 0.0) == Some(false))
    }

    /// Whether it may be a table of sines and cosines.
    fn may_be_rotary(&self) -> bool {
        *self.rotary.get_or_init(|| may_be_rotary(self.data))
    }
}

/// Whether a table may hold sines and cosines: no number is above 1, and those of position 0 are zeros and ones. True for a table whose
/// bytes are not here.
fn may_be_rotary(data: &Data) -> bool {
    let first = first_elements(data, 1);
    let starts = first.is_none_or(|row| row.floats().iter().all(|&x| x == 0.0 || x == 1.0));
    starts && any_element(data, |x| x.abs() > 1.0 + 1e-3) != Some(true)
}

fn mask(place: &str) -> Evidence {
    Evidence::Constant(format!("mask: holds numbers below {MASKED}{place}"))
}

/// Returns the evidence of a tensor that is added to attention scores: a mask, or a bias, which the exporter may have folded (T5's).
fn on_scores(data: &Tensor, place: &str) -> Evidence {
    if data.holds_masked() {
        mask(place)
    } else if data.is_zero() {
        Evidence::Constant(format!("mask: zeros added to attention scores{place}"))
    } else {
        Evidence::Ambiguous(format!("a bias on attention scores, or a mask{place}"))
    }
}
