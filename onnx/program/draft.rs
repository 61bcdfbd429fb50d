//! The graph under construction: nodes and tensors without names.
//!
//! The functions that write operators add nodes here. Nodes that no output needs are left out at the end, so a function may
//! compute more than necessary. Names are given at the end, in `finish`.

use super::reach::Reach;
use super::{Absent, Form};
use crate::proto::{AttributeProto, TensorProto};
use bytes::Bytes;
use ir::{DType, Diagnostic, Dim, Dims, Module, Node, NodeId, Type, ValueId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The index of a tensor of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TensorId(usize);

impl TensorId {
    /// Makes the id of the tensor at an index of [`Draft::tensors`].
    pub(super) fn at(index: usize) -> Self {
        Self(index)
    }

    /// Returns the index in [`Draft::tensors`].
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// The origin of a tensor, which determines its name.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// An input of the program, a state or a row of the data table, with its name.
    Named(String),
    /// A result of a node of the program.
    Value(ValueId),
    /// An intermediate tensor of a node of the program, with the operator that makes it.
    Between(Option<NodeId>, String),
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(super) struct DraftTensor {
    /// The origin of the tensor.
    pub(super) source: Source,
    /// The type, for values of the program.
    pub(super) ty: Option<Type>,
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub(super) struct DraftNode {
    /// The operator's name.
    pub(super) operator: String,
    /// Whether the operator is of the domain `trainyard`.
    pub(super) is_own: bool,
    /// The tensors that the node reads; `None` for an optional input that is left out.
    pub(super) inputs: Vec<Option<TensorId>>,
    /// The tensors that the node defines.
    pub(super) outputs: Vec<TensorId>,
    /// The attributes.
    pub(super) attributes: Vec<AttributeProto>,
    /// The node of the program for which it was written.
    pub(super) node: Option<NodeId>,
}

/// The graph under construction.
pub(super) struct Draft<'m> {
    /// The program.
    pub(super) module: &'m Module,
    /// The part of the program that the file has.
    pub(super) reach: &'m Reach,
    /// The form in which the program is written.
    pub(super) form: Form,
    /// The treatment of tensors without bytes.
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
    /// The newest operator set that a node needs.
    needed_opset: i64,
    /// Whether a node draws random tensors.
    pub(super) draws: bool,
    /// The size of each symbol, `i64[1]`.
    pub(super) sizes: BTreeMap<Arc<str>, TensorId>,
    /// The vectors of integers.
    pub(super) integers: BTreeMap<Vec<i64>, TensorId>,
    /// The scalars, by type and bits.
    pub(super) numbers: BTreeMap<(DType, u64), TensorId>,
    /// The data rows written so far.
    pub(super) rows: BTreeMap<ir::DataId, TensorId>,
    values: Vec<Option<TensorId>>,
    node: Option<NodeId>,
}

/// The operator set of written models: the first with Attention, RMSNormalization and RotaryEmbedding.
pub(super) const OPSET: i64 = 23;
/// The operator set of models that draw random tensors and have no operator of a newer set: ONNX Runtime does not support the
/// random operators of opset 22.
const OPSET_OF_DRAWS: i64 = 21;

impl<'m> Draft<'m> {
    /// Makes an empty graph for a program.
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

    /// Whether the file needs a value of the program.
    pub(super) fn is_read(&self, value: ValueId) -> bool {
        self.reach.has_value(value)
    }

    /// Sets the node of the program for which the next nodes are written.
    pub(super) fn at(&mut self, node: NodeId) {
        self.node = Some(node);
    }

    /// Returns the type of a value of the program.
    pub(super) fn ty(&self, value: ValueId) -> &'m Type {
        self.module.ty(value)
    }

    /// Adds a tensor that a node or a table defines.
    pub(super) fn tensor(&mut self, source: Source, ty: Option<Type>) -> TensorId {
        self.tensors.push(DraftTensor { source, ty });
        TensorId(self.tensors.len() - 1)
    }

    /// Sets the tensor of a value of the program.
    pub(super) fn define(&mut self, value: ValueId, tensor: Option<TensorId>) {
        let Some(tensor) = tensor else { return };
        self.values[value.as_u32() as usize] = Some(tensor);
        let draft = &mut self.tensors[tensor.0];
        if let Source::Between(..) = draft.source {
            draft.source = Source::Value(value);
            draft.ty = Some(self.module.ty(value).clone());
        }
    }

    /// Returns the tensor of a value of the program.
    ///
    /// # Errors
    /// The ONNX form of the operator does not have this result.
    pub(super) fn value(&self, value: ValueId) -> Result<TensorId, Diagnostic> {
        self.values[value.as_u32() as usize].ok_or_else(|| {
            let error = Diagnostic::new("the program reads a result that the operator does not have in ONNX");
            match self.module.producer(value) {
                Some(node) => {
                    error.at(node.origin.to_string()).note(format!("the operator is `{}`", node.op.name()))
                }
                None => error,
            }
        })
    }

    /// Returns the tensor of an operand of a node.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn operand(&self, node: &Node, index: usize) -> Result<TensorId, Diagnostic> {
        self.value(node.operands[index])
    }

    /// Returns the tensors of all operands of a node.
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

    /// Adds a node of `ai.onnx` with several outputs. Inputs may be left out.
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

    /// Records that an operator, or its form, needs this operator set.
    pub(super) fn needs_opset(&mut self, opset: i64) {
        self.needed_opset = self.needed_opset.max(opset);
    }

    /// Returns the operator set of the file.
    pub(super) fn opset(&self) -> i64 {
        if self.draws { self.needed_opset } else { self.needed_opset.max(OPSET) }
    }
}

/// Returns a size as an integer of ONNX.
///
/// # Errors
/// The size is above 2⁶³ - 1.
pub(super) fn size(size: u64) -> Result<i64, Diagnostic> {
    i64::try_from(size)
        .map_err(|_| Diagnostic::new(format!("the size {size} is above 2^63 - 1, the largest size in ONNX")))
}

/// Returns the product of dims.
///
/// # Errors
/// The product does not fit in 64 bits.
pub(super) fn product(dims: &[Dim]) -> Result<Dim, Diagnostic> {
    let product = dims.iter().try_fold(Dim::known(1), |product, dim| product.product(dim));
    product.ok_or_else(|| {
        Diagnostic::new(format!("the number of elements of the dims {dims:?} does not fit in 64 bits"))
    })
}

/// Returns dims with a further dim at the end.
pub(super) fn with_last(dims: &[Dim], last: Dim) -> Dims {
    dims.iter().cloned().chain([last]).collect()
}
