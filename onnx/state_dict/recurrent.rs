//! LSTM, GRU and RNN. ONNX stores the weights of all directions in one tensor, and has a different order of gates.
//!
//! | | PyTorch's gates | ONNX's gates |
//! | --- | --- | --- |
//! | LSTM | input, forget, cell, output | input, output, forget, cell |
//! | GRU | reset, update, new | update, reset, new |

use ir::{View, ViewStep};
use smallvec::smallvec;
use std::collections::BTreeMap;

use super::{EntryCollector, StateDictEntry, TensorPart};
use crate::recorded::module_path;
use crate::{Node, Tensor};

/// Returns the place of each of PyTorch's gates among ONNX's gates.
fn gates(op_type: &str) -> Option<&'static [u64]> {
    Some(match op_type {
        "LSTM" => &[0, 2, 3, 1],
        "GRU" => &[1, 0, 2],
        "RNN" => &[0],
        _ => return None,
    })
}

/// Whether a node is a recurrent layer.
pub(super) fn is_recurrent(node: &Node) -> bool {
    gates(&node.op_type).is_some()
}

/// Adds the weights of recurrent nodes, as far as they are tensors of the file. The dynamo exporter computes large ones from the
/// author's tensors, which kept their names. `recorded` has the weights of each node's call, by the node's name.
pub(super) fn find(found: &mut EntryCollector, recorded: &BTreeMap<String, Vec<String>>) {
    let graph = found.graph;
    // The input weights of each module's layers so far. They distinguish a new layer from a second use of a layer.
    let mut layers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.domain.is_empty()) {
        let (Some(order), Some(weight)) = (gates(&node.op_type), node.input(1)) else { continue };
        let path = module_path(node).unwrap_or_default();
        let seen = layers.entry(path.clone()).or_default();
        if seen.iter().any(|known| *known == weight || found.are_equal(known, weight)) {
            continue;
        }
        let index = seen.len();
        seen.push(weight);
        let Some(layer) = Layer::of(node, order) else { continue };
        let names = recorded.get(&node.name);
        let name = |direction: usize, kind: usize| {
            let kinds = if node.input(3).is_some() { 4 } else { 2 };
            let place = (index * layer.directions as usize + direction) * kinds + kind;
            names.and_then(|names| names.get(place).cloned()).unwrap_or_else(|| {
                let kind = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"][kind];
                let reverse = if direction == 1 { "_reverse" } else { "" };
                let dot = if path.is_empty() { "" } else { "." };
                format!("{path}{dot}{kind}_l{index}{reverse}")
            })
        };
        layer.entries(found, node, name).into_iter().for_each(|entry| found.add(entry));
    }
}

/// A recurrent node.
struct Layer {
    directions: u64,
    hidden: u64,
    /// The place of each of PyTorch's gates among ONNX's gates.
    order: &'static [u64],
}

impl Layer {
    fn of(node: &Node, order: &'static [u64]) -> Option<Self> {
        let directions = match node.string("direction").ok()?.unwrap_or("forward") {
            "forward" => 1,
            "bidirectional" => 2,
            // PyTorch has no layer that runs only backwards.
            _ => return None,
        };
        let hidden = u64::try_from(node.int("hidden_size").ok()??).ok()?;
        hidden.checked_mul(2 * order.len() as u64)?;
        Some(Self { directions, hidden, order })
    }

    /// Returns the author's tensors, direction by direction. The arguments of `name` are the direction, and the index in
    /// `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`.
    fn entries(
        &self,
        found: &EntryCollector,
        node: &Node,
        name: impl Fn(usize, usize) -> String,
    ) -> Vec<StateDictEntry> {
        let width = self.order.len() as u64 * self.hidden;
        // The inputs of the node are `[directions, width, features]`, `[directions, width, hidden]` and `[directions, 2 · width]`,
        // which has the biases of the input before those of the state.
        let rows = [(1, width), (2, width), (3, 2 * width)];
        let fits = |(input, rows): (usize, u64)| {
            found.unnamed(node, input).filter(|tensor| {
                let dims = tensor.dims.iter().map(|&size| size as u64);
                tensor.dims.len() == if input == 3 { 2 } else { 3 }
                    && dims.take(2).eq([self.directions, rows])
            })
        };
        let [of_input, of_state, bias] = rows.map(fits);
        let mut entries = Vec::new();
        for direction in 0..self.directions {
            let kinds = [(of_input, 0), (of_state, 0), (bias, 0), (bias, width)];
            for (kind, (tensor, first_row)) in kinds.into_iter().enumerate() {
                let Some(tensor) = tensor else { continue };
                let parts = self.order.iter().map(|gate| TensorPart {
                    tensor: tensor.name.clone(),
                    view: self.view(tensor, direction, first_row + gate * self.hidden),
                });
                entries.push(StateDictEntry { name: name(direction as usize, kind), parts: parts.collect() });
            }
        }
        entries
    }

    /// Returns the rows of one gate.
    fn view(&self, tensor: &Tensor, direction: u64, row: u64) -> View {
        smallvec![
            ViewStep::Slice { dim: 0, start: direction, length: 1 },
            ViewStep::Reshape(tensor.dims[1..].iter().map(|&size| size as u64).collect()),
            ViewStep::Slice { dim: 0, start: row, length: self.hidden },
        ]
    }
}
