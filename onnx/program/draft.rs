//! The graph in progress: nodes and tensors that have no names yet.
//!
//! The functions that write operators add nodes here. A node that nothing reads in the end is left out, so a function may
//! compute more than a program needs. Names are given at the end, in `finish`.

use super::reach::Reach;
use super::{Absent, Form};
use crate::proto::{AttributeProto, TensorProto};
use bytes::Bytes;
use ir::{DType, Diagnostic, Dim, Dims, Module, Node, NodeId, Type, ValueId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a tensor of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TensorId(usize);

impl TensorId {
    /// The tensor at a place in [`Draft::tensors`].
    pub(super) fn at(index: usize) -> Self {
        Self(index)
    }

    /// The place in [`Draft::tensors`].
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// The origin of a tensor, from which its name follows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// An input of the program, a state or a row of the data table, with its name.
    Named(String),
    /// A result of a node of the program.
    Value(ValueId),
    /// A tensor on the way to the results of a node of the program, with its own operator.
    Between(Option<NodeId>, String),
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(super) struct DraftTensor {
    /// Where it comes from.
    pub(super) source: Source,
    /// Its type, for the values of the program.
    pub(super) ty: Option<Type>,
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub(super) struct DraftNode {
    /// The operator.
    pub(super) operator: String,
    /// Whether the operator is of the domain `trainyard`.
    pub(super) is_own: bool,
    /// Tensors read; `None` for an optional input that is left out.
    pub(super) inputs: Vec<Option<TensorId>>,
    /// Tensors defined.
    pub(super) outputs: Vec<TensorId>,
    /// Attributes.
    pub(super) attributes: Vec<AttributeProto>,
    /// The node of the program that it was written for.
    pub(super) node: Option<NodeId>,
}

/// The graph in progress.
pub(super) struct Draft<'m> {
    /// The program.
    pub(super) module: &'m Module,
    /// The part of it that the file has.
    pub(super) reach: &'m Reach,
    /// The form that is written.
    pub(super) form: Form,
    /// Tensors without bytes.
    pub(super) absent: Absent,
    /// New bytes of tensors, by name.
    pub(super) bytes: &'m BTreeMap<String, Bytes>,
    /// All tensors.
    pub(super) tensors: Vec<DraftTensor>,
    /// The nodes, in order.
    pub(super) nodes: Vec<DraftNode>,
    /// The inputs, in order.
    pub(super) inputs: Vec<TensorId>,
    /// The initializers, in order, without names.
    pub(super) initializers: Vec<(TensorId, TensorProto)>,
    /// The operator set that the nodes need.
    needed_opset: i64,
    /// Whether a node draws random tensors.
    pub(super) draws: bool,
    /// The size of each symbol of a dim, `i64[1]`.
    pub(super) sizes: BTreeMap<Arc<str>, TensorId>,
    /// Vectors of integers.
    pub(super) integers: BTreeMap<Vec<i64>, TensorId>,
    /// Scalars, by type and bits.
    pub(super) numbers: BTreeMap<(DType, u64), TensorId>,
    /// The data rows written so far.
    pub(super) rows: BTreeMap<ir::DataId, TensorId>,
    values: Vec<Option<TensorId>>,
    node: Option<NodeId>,
}

/// The operator set of written models: the first with Attention, RMSNormalization and RotaryEmbedding.
pub(super) const OPSET: i64 = 23;
/// The operator set of models that draw random tensors, if they have no operator of a newer one: ONNX Runtime does not draw in the form of
/// opset 22.
const OPSET_OF_DRAWS: i64 = 21;

impl<'m> Draft<'m> {
    /// An empty graph for a program.
    pub(super) fn new(
        module: &'m Module,
        reach: &'m Reach,
        form: Form,
        absent: Absent,
        bytes: &'m BTreeMap<String, Bytes>,
    ) -> Self {
        Self {
            module,
            reach,
            form,
            absent,
            bytes,
            tensors: vec![],
            nodes: vec![],
            inputs: vec![],
            initializers: vec![],
            needed_opset: OPSET_OF_DRAWS,
            draws: false,
            sizes: BTreeMap::new(),
            integers: BTreeMap::new(),
            numbers: BTreeMap::new(),
            rows: BTreeMap::new(),
            values: vec![None; module.value_count()],
            node: None,
        }
    }

    /// Whether the file reads a value of the program.
    pub(super) fn is_read(&self, value: ValueId) -> bool {
        self.reach.has_value(value)
    }

    /// Says that the next nodes are written for this node of the program.
    pub(super) fn at(&mut self, node: NodeId) {
        self.node = Some(node);
    }

    /// The type of a value of the program.
    pub(super) fn ty(&self, value: ValueId) -> &'m Type {
        self.module.ty(value)
    }

    /// A tensor that a node or a table defines.
    pub(super) fn tensor(&mut self, source: Source, ty: Option<Type>) -> TensorId {
        self.tensors.push(DraftTensor { source, ty });
        TensorId(self.tensors.len() - 1)
    }

    /// Enters the tensor of a value of the program.
    pub(super) fn define(&mut self, value: ValueId, tensor: Option<TensorId>) {
        let Some(tensor) = tensor else { return };
        self.values[value.as_u32() as usize] = Some(tensor);
        let draft = &mut self.tensors[tensor.0];
        if let Source::Between(..) = draft.source {
            draft.source = Source::Value(value);
            draft.ty = Some(self.module.ty(value).clone());
        }
    }

    /// The tensor of a value of the program.
    ///
    /// # Errors
    /// A result that the form of its operator in ONNX does not have.
    pub(super) fn value(&self, value: ValueId) -> Result<TensorId, Diagnostic> {
        self.values[value.as_u32() as usize].ok_or_else(|| {
            let error = Diagnostic::new("a result of an operator that ONNX does not give is read");
            match self.module.producer(value) {
                Some(node) => {
                    error.at(node.origin.to_string()).note(format!("the operator is `{}`", node.op.name()))
                }
                None => error,
            }
        })
    }

    /// The tensor of an operand of a node.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn operand(&self, node: &Node, index: usize) -> Result<TensorId, Diagnostic> {
        self.value(node.operands[index])
    }

    /// The tensors of all operands of a node.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn operands(&self, node: &Node) -> Result<Vec<TensorId>, Diagnostic> {
        node.operands.iter().map(|&value| self.value(value)).collect()
    }

    /// Adds a node of `ai.onnx` with one output.
    pub(super) fn push(
        &mut self,
        operator: &str,
        inputs: &[TensorId],
        attributes: impl Into<Vec<AttributeProto>>,
    ) -> TensorId {
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        self.push_many(operator, &inputs, 1, attributes)[0]
    }

    /// Adds a node of `ai.onnx` with so many outputs; inputs may be left out.
    pub(super) fn push_many(
        &mut self,
        operator: &str,
        inputs: &[Option<TensorId>],
        outputs: usize,
        attributes: impl Into<Vec<AttributeProto>>,
    ) -> Vec<TensorId> {
        self.add(operator, false, inputs, outputs, attributes.into())
    }

    /// Adds a node of the domain `trainyard`.
    pub(super) fn push_own(
        &mut self,
        operator: &str,
        inputs: &[TensorId],
        outputs: usize,
        attributes: Vec<AttributeProto>,
    ) -> Vec<TensorId> {
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        self.add(operator, true, &inputs, outputs, attributes)
    }

    fn add(
        &mut self,
        operator: &str,
        is_own: bool,
        inputs: &[Option<TensorId>],
        outputs: usize,
        attributes: Vec<AttributeProto>,
    ) -> Vec<TensorId> {
        let node = self.node;
        let source = || Source::Between(node, operator.to_owned());
        let outputs: Vec<TensorId> = (0..outputs).map(|_| self.tensor(source(), None)).collect();
        self.nodes.push(DraftNode {
            operator: operator.to_owned(),
            is_own,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            attributes,
            node,
        });
        outputs
    }

    /// Notes that an operator is of this operator set, or has its form since then.
    pub(super) fn needs_opset(&mut self, opset: i64) {
        self.needed_opset = self.needed_opset.max(opset);
    }

    /// The operator set of the file.
    pub(super) fn opset(&self) -> i64 {
        if self.draws { self.needed_opset } else { self.needed_opset.max(OPSET) }
    }
}

/// A size as ONNX has it.
///
/// # Errors
/// A size above 2⁶³ - 1.
pub(super) fn size(size: u64) -> Result<i64, Diagnostic> {
    i64::try_from(size).map_err(|_| Diagnostic::new(format!("the size {size} is larger than ONNX can say")))
}

/// The product of dims.
///
/// # Errors
/// A product above 64 bits.
pub(super) fn product(dims: &[Dim]) -> Result<Dim, Diagnostic> {
    let product = dims.iter().try_fold(Dim::known(1), |product, dim| product.product(dim));
    product.ok_or_else(|| Diagnostic::new(format!("the dims {dims:?} have more elements than 64 bits count")))
}

/// Dims with one put in or replaced.
pub(super) fn with_last(dims: &[Dim], last: Dim) -> Dims {
    dims.iter().cloned().chain([last]).collect()
}
