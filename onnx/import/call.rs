//! One node of the graph, as the functions that import it ask about it.

use super::context::Problem;
use crate::error::quoted;
use crate::record::{self, TracedCall};
use crate::{ElementType, Graph, Node, Tensor};
use ir::{DType, Diagnostic};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A node with typed access to its attributes.
pub(super) struct Call<'a> {
    node: &'a Node,
    /// The first attribute that was asked for and is of another type.
    mistyped: Cell<Option<Diagnostic>>,
    /// The names of the attributes that were asked for.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Call<'a> {
    /// The call of a node.
    pub(super) fn new(node: &'a Node) -> Self {
        Self { node, mistyped: Cell::new(None), asked: RefCell::default() }
    }

    /// The operator's name.
    pub(super) fn op(&self) -> &'a str {
        &self.node.op_type
    }

    /// Whether the operator is of the standard set.
    pub(super) fn is_standard(&self) -> bool {
        matches!(self.node.domain.as_str(), "" | "ai.onnx")
    }

    /// The operator's domain; empty for `ai.onnx`.
    pub(super) fn domain(&self) -> &'a str {
        if self.is_standard() { "" } else { &self.node.domain }
    }

    /// The version of the operator's set.
    pub(super) fn opset(&self) -> i64 {
        self.node.opset
    }

    /// The call that the node was made from, if the exporter wrote it into the file.
    pub(super) fn traced(&self) -> Option<TracedCall<'a>> {
        record::call(self.node)
    }

    /// Where the node stands, for messages: `node "NAME" (OP, opset N)`.
    pub(super) fn origin(&self) -> String {
        self.node.label()
    }

    /// The node's name in quotes; of one without a name what it defines.
    pub(super) fn name(&self) -> String {
        let own = Some(self.node.name.as_str()).filter(|name| !name.is_empty());
        let defined = self.node.outputs.iter().map(String::as_str).find(|name| !name.is_empty());
        quoted(own.or(defined).unwrap_or_default())
    }

    /// The name of an input, unless it is left out.
    pub(super) fn input(&self, i: usize) -> Option<&'a str> {
        self.node.inputs.get(i).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The number of inputs, those left out in between included.
    pub(super) fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// The name of an output, unless it is left out.
    pub(super) fn output(&self, i: usize) -> Option<&'a str> {
        self.node.outputs.get(i).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The number of outputs.
    pub(super) fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// What is wrong with the attributes that were asked for: one of another type is not one left out.
    pub(super) fn mistyped(&self) -> Option<Diagnostic> {
        self.mistyped.take()
    }

    /// The attributes that nothing has asked for: to leave one aside could make the numbers wrong.
    pub(super) fn unasked(&self) -> Vec<&'a str> {
        let asked = self.asked.borrow();
        self.attributes().filter(|name| !asked.contains(*name)).collect()
    }

    /// Says of attributes that what is built is right whatever they are.
    pub(super) fn unneeded(&self, names: &[&str]) {
        self.asked.borrow_mut().extend(names.iter().map(|&name| name.to_owned()));
    }

    /// The node, of which an attribute is about to be read.
    fn asked(&self, name: &str) -> &'a Node {
        self.asked.borrow_mut().insert(name.to_owned());
        self.node
    }

    fn typed<T>(&self, attribute: Result<Option<T>, Diagnostic>) -> Option<T> {
        attribute.unwrap_or_else(|problem| {
            self.mistyped.set(self.mistyped.take().or(Some(problem)));
            None
        })
    }

    /// An integer attribute.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.typed(self.asked(name).int(name))
    }

    /// A float attribute: the shortest decimal that the file's f32 stands for, so that an epsilon of 1e-5 is 1e-5.
    pub(super) fn float(&self, name: &str) -> Option<f64> {
        Some(decimal(self.typed(self.asked(name).float(name))?))
    }

    /// A list of floats, each as [`Self::float`] reads it.
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f64>> {
        Some(self.typed(self.asked(name).floats(name))?.iter().copied().map(decimal).collect())
    }

    /// A list of texts.
    pub(super) fn strings(&self, name: &str) -> Option<&'a [String]> {
        self.typed(self.asked(name).strings(name))
    }

    /// A graph: the body of a loop, a branch.
    pub(super) fn graph(&self, name: &str) -> Result<&'a Graph, Problem> {
        let graph = self.typed(self.asked(name).graph(name));
        graph.ok_or_else(|| Problem::new(format!("the node has no graph `{name}`")))
    }

    /// The attributes that the node has.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &'a str> {
        self.node.attributes.keys().map(String::as_str)
    }

    /// A list of integers.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.typed(self.asked(name).ints(name)).map(<[i64]>::to_vec)
    }

    /// A text.
    pub(super) fn string(&self, name: &str) -> Option<&'a str> {
        self.typed(self.asked(name).string(name))
    }

    /// An attribute that is the number of an element type.
    pub(super) fn dtype(&self, name: &str) -> Result<DType, Problem> {
        let code = self.int(name).and_then(|code| i32::try_from(code).ok());
        let element = code.and_then(ElementType::from_code);
        element.and_then(ElementType::dtype).ok_or_else(|| {
            let what =
                element.map_or_else(|| "an unknown type".to_string(), |element| element.name().to_string());
            Problem::new(format!("a cast to {what} is not supported"))
        })
    }

    /// The type and the one element of a tensor attribute.
    pub(super) fn tensor_number(&self, name: &str) -> Result<Option<(DType, f64)>, Problem> {
        let Some(tensor) = self.typed(self.asked(name).tensor(name)) else { return Ok(None) };
        let wrong = || Problem::new(format!("`{name}` must be a tensor of one number"));
        let dtype = tensor.dtype.dtype().ok_or_else(wrong)?;
        Ok(Some((dtype, number(tensor, dtype).ok_or_else(wrong)?)))
    }
}

/// The shortest decimal that a float of the file stands for.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn number(tensor: &Tensor, dtype: DType) -> Option<f64> {
    let bytes = tensor.present()?;
    (tensor.element_count() == 1)
        .then(|| ir::Tensor::from_bytes(&ir::Type::of(dtype, &[1]), bytes))?
        .map(|t| t.item())
}
