//! Stochastic depth, which exporters spell out: `x · cast(uniform < p) / p`. In inference form nothing is drawn: the
//! product is `x · p / p`.
//!
//! The pattern is recognised only as a whole: the division by the same `p` tells a scaled dropout from other noise.

use std::collections::{BTreeMap, BTreeSet};

use super::reads;
use crate::proto::{NodeProto, TensorProto};
use crate::tensor::ElementType;

/// Single numbers of type f32 by the name of their tensor.
pub(super) type Numbers = BTreeMap<String, f32>;

/// The number that a tensor holds, if it is one f32.
pub(super) fn number(tensor: &TensorProto) -> Option<f32> {
    let single = tensor.dims.iter().all(|&size| size == 1);
    if !single || tensor.data_type != Some(ElementType::F32.code()) {
        return None;
    }
    match &tensor.raw_data {
        Some(bytes) => Some(f32::from_le_bytes(bytes[..].try_into().ok()?)),
        None => tensor.float_data.first().copied(),
    }
}

/// Replaces the draws by their mean `p`. Returns the values that have another type afterwards, two for each pattern.
/// `results` are values that are read outside of the nodes.
pub(super) fn replace(
    nodes: &mut [NodeProto],
    numbers: &Numbers,
    results: &BTreeSet<String>,
) -> BTreeSet<String> {
    let draws: Vec<Draw> = {
        let graph = Readers::new(nodes, results);
        (0..nodes.len()).filter_map(|at| graph.draw(at, numbers)).collect()
    };
    let mut retyped = BTreeSet::new();
    for draw in draws {
        let (uniform, compared) = (draw.uniform, draw.compared);
        // The shape of the draw in its place, and `p` in that shape in place of the comparison; the cast then has no effect.
        let [shape, whole] = [uniform, compared].map(|at| nodes[at].output[0].clone());
        nodes[uniform].op_type = Some("Shape".to_owned());
        nodes[compared].op_type = Some("Expand".to_owned());
        nodes[compared].input.reverse();
        [uniform, compared].into_iter().for_each(|at| nodes[at].attribute.clear());
        retyped.extend([shape, whole]);
    }
    retyped
}

/// The places of the nodes of one pattern.
struct Draw {
    uniform: usize,
    compared: usize,
}

struct Readers<'a> {
    nodes: &'a [NodeProto],
    /// The nodes that read a value as an input of theirs.
    of: BTreeMap<&'a str, Vec<usize>>,
    /// Values that are read by a subgraph or outside of the nodes.
    elsewhere: BTreeSet<String>,
}

impl<'a> Readers<'a> {
    fn new(nodes: &'a [NodeProto], results: &BTreeSet<String>) -> Self {
        let mut readers = Self { nodes, of: BTreeMap::new(), elsewhere: results.clone() };
        for (at, node) in nodes.iter().enumerate() {
            for input in &node.input {
                readers.of.entry(input).or_default().push(at);
            }
            let graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
            graphs.for_each(|graph| reads(&graph.node, &mut readers.elsewhere));
        }
        readers
    }

    fn is(&self, at: usize, op_type: &str) -> bool {
        let node = &self.nodes[at];
        node.op_type.as_deref() == Some(op_type)
            && matches!(node.domain.as_deref(), None | Some("" | "ai.onnx"))
    }

    /// The readers of a node's only output; none if it is read elsewhere too.
    fn readers(&self, at: usize) -> &[usize] {
        match &self.nodes[at].output[..] {
            [output] if !self.elsewhere.contains(output) => {
                self.of.get(&output[..]).map_or(&[], Vec::as_slice)
            }
            _ => &[],
        }
    }

    /// The pattern that begins with a node.
    fn draw(&self, uniform: usize, numbers: &Numbers) -> Option<Draw> {
        let node = &self.nodes[uniform];
        let bound = |name: &str, default: f32| {
            let given = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name));
            given.map_or(default, |attribute| attribute.f.unwrap_or(0.0))
        };
        if !self.is(uniform, "RandomUniformLike") || (bound("low", 0.0), bound("high", 1.0)) != (0.0, 1.0) {
            return None;
        }
        let &[compared] = self.readers(uniform) else { return None };
        let [drawn, limit] = &self.nodes[compared].input[..] else { return None };
        if !self.is(compared, "Less") || Some(drawn) != node.output.first() {
            return None;
        }
        let share = *numbers.get(limit)?;
        let &[cast] = self.readers(compared) else { return None };
        if !self.is(cast, "Cast") {
            return None;
        }
        let kept = self.nodes[cast].output.first();
        let divides = |&at: &usize| {
            let inputs = &self.nodes[at].input;
            self.is(at, "Div")
                && inputs.first() == kept
                && inputs.get(1).and_then(|name| numbers.get(name)) == Some(&share)
        };
        let scaled = self.readers(cast);
        (!scaled.is_empty() && scaled.iter().all(divides)).then_some(Draw { uniform, compared })
    }
}
