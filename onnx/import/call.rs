//! A node of the graph, with the accessors that import functions use.

use super::context::Problem;
use crate::error::quoted;
use crate::record::TracedCall;
use crate::recorded;
use crate::{ElementType, Graph, Node, Tensor};
use ir::{DType, Diagnostic};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A node with typed access to its attributes.
pub(super) struct Call<'a> {
    node: &'a Node,
    /// The first requested attribute that has another type.
    mistyped: Cell<Option<Diagnostic>>,
    /// The names of all requested attributes.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Call<'a> {
    /// Wraps a node.
    pub(super) fn new(node: &'a Node) -> Self {
        Self { node, mistyped: Cell::new(None), asked: RefCell::default() }
    }

    /// Returns the name of the operator.
    pub(super) fn op(&self) -> &'a str {
        &self.node.op_type
    }

    /// Whether the operator belongs to the standard set.
    pub(super) fn is_standard(&self) -> bool {
        matches!(self.node.domain.as_str(), "" | "ai.onnx")
    }

    /// Returns the operator's domain; empty for `ai.onnx`.
    pub(super) fn domain(&self) -> &'a str {
        if self.is_standard() { "" } else { &self.node.domain }
    }

    /// Returns the version of the operator set.
    pub(super) fn opset(&self) -> i64 {
        self.node.opset
    }

    /// Returns the call from which the node was made, if the exporter recorded it in the file.
    pub(super) fn traced(&self) -> Option<TracedCall<'a>> {
        recorded::call(self.node)
    }

    /// Returns the place of the node, for messages: `node "NAME" (OP, opset N)`.
    pub(super) fn origin(&self) -> String {
        self.node.label()
    }

    /// Returns the node's name in quotes, or the name of its first output if it has no name.
    pub(super) fn name(&self) -> String {
        let own = Some(self.node.name.as_str()).filter(|name| !name.is_empty());
        let defined = self.node.outputs.iter().map(String::as_str).find(|name| !name.is_empty());
        quoted(own.or(defined).unwrap_or_default())
    }

    /// Returns the name of an input, unless it is left out.
    pub(super) fn input(&self, i: usize) -> Option<&'a str> {
        self.node.inputs.get(i).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the number of inputs, including inputs left out in between.
    pub(super) fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Returns the name of an output, unless it is left out.
    pub(super) fn output(&self, i: usize) -> Option<&'a str> {
        self.node.outputs.get(i).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the number of outputs.
    pub(super) fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// Returns the problem of the first requested attribute with a wrong type. Such an attribute must not count as left out.
    pub(super) fn mistyped(&self) -> Option<Diagnostic> {
        self.mistyped.take()
    }

    /// Returns the attributes that the import has not requested. Ignoring one of them could make the numbers wrong.
    pub(super) fn unasked(&self) -> Vec<&'a str> {
        let asked = self.asked.borrow();
        self.attributes().filter(|name| !asked.contains(*name)).collect()
    }

    /// Marks attributes that the import may ignore, because the result is correct for any value of them.
    pub(super) fn unneeded(&self, names: &[&str]) {
        self.asked.borrow_mut().extend(names.iter().map(|&name| name.to_owned()));
    }

    /// Records that an attribute is requested, and returns the node.
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

    /// Returns an integer attribute.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.typed(self.asked(name).int(name))
    }

    /// Returns a float attribute: the shortest decimal that rounds to the file's f32, so that an epsilon of 1e-5 is 1e-5.
    pub(super) fn float(&self, name: &str) -> Option<f64> {
        Some(decimal(self.typed(self.asked(name).float(name))?))
    }

    /// Returns a list of floats, each read as by [`Self::float`].
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f64>> {
        Some(self.typed(self.asked(name).floats(name))?.iter().copied().map(decimal).collect())
    }

    /// Returns a list of texts.
    pub(super) fn strings(&self, name: &str) -> Option<&'a [String]> {
        self.typed(self.asked(name).strings(name))
    }

    /// Returns a graph: the body of a loop, or a branch.
    pub(super) fn graph(&self, name: &str) -> Result<&'a Graph, Problem> {
        let graph = self.typed(self.asked(name).graph(name));
        graph.ok_or_else(|| Problem::new(format!("the node has no graph `{name}`")))
    }

    /// Returns the names of the node's attributes.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &'a str> {
        self.node.attributes.keys().map(String::as_str)
    }

    /// Returns a list of integers.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.typed(self.asked(name).ints(name)).map(<[i64]>::to_vec)
    }

    /// Returns a text.
    pub(super) fn string(&self, name: &str) -> Option<&'a str> {
        self.typed(self.asked(name).string(name))
    }

    /// Returns the element type whose number an attribute has.
    pub(super) fn dtype(&self, name: &str) -> Result<DType, Problem> {
        let code = self.int(name).and_then(|code| i32::try_from(code).ok());
        let element = code.and_then(ElementType::from_code);
        element.and_then(ElementType::dtype).ok_or_else(|| {
            let what =
                element.map_or_else(|| "an unknown type".to_string(), |element| element.name().to_string());
            Problem::new(format!("a cast to {what} is not supported"))
        })
    }

    /// Returns the type and the number of a tensor attribute with one element.
    pub(super) fn tensor_number(&self, name: &str) -> Result<Option<(DType, f64)>, Problem> {
        let Some(tensor) = self.typed(self.asked(name).tensor(name)) else { return Ok(None) };
        let wrong = || Problem::new(format!("`{name}` must be a tensor of one number"));
        let dtype = tensor.dtype.dtype().ok_or_else(wrong)?;
        Ok(Some((dtype, number(tensor, dtype).ok_or_else(wrong)?)))
    }
}

/// Returns the shortest decimal that rounds to a float of the file.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn number(tensor: &Tensor, dtype: DType) -> Option<f64> {
    let bytes = tensor.present()?;
    (tensor.element_count() == 1)
        .then(|| ir::Tensor::from_bytes(&ir::Type::of(dtype, &[1]), bytes))?
        .map(|t| t.item())
}
