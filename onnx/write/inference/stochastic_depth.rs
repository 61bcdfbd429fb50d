//! Random masks that exporters write as several nodes: stochastic depth, and dropout by hand. The mask is `cast(uniform < p)` or
//! `floor(uniform + p)`, and the product of `x` and the mask is divided by `p`, in any order (as in `passes/dropout/mask.rs`,
//! which trains them). In inference form nothing is drawn: the mask is `p` everywhere.
//!
//! Only the whole pattern is recognised: the division by the same `p` distinguishes a scaled dropout from other noise.

use std::collections::{BTreeMap, BTreeSet};

use super::reads;
use crate::proto::{AttributeProto, NodeProto, TensorProto};
use crate::tensor::ElementType;

/// Single numbers of type f32, by the name of their tensor.
pub(super) type Numbers = BTreeMap<String, f32>;

/// `AttributeProto.AttributeType` of a tensor and of a list of integers.
const TENSOR: i32 = 4;
const INTS: i32 = 7;

/// Returns the number of a tensor, if it has one f32.
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

/// Replaces masks by the kept share. Returns the values whose type has changed, two for each mask. `results` are values that are
/// read outside of the nodes.
pub(super) fn replace(
    nodes: &mut [NodeProto],
    numbers: &Numbers,
    results: &BTreeSet<String>,
) -> BTreeSet<String> {
    let masks: Vec<Mask> = {
        let graph = Graph::new(nodes, numbers, results);
        (0..nodes.len()).filter_map(|at| graph.mask(at)).collect()
    };
    let mut retyped = BTreeSet::new();
    for Mask { uniform, decides, rounds, kept } in masks {
        // The draw becomes the shape of its result, and the decision a tensor of this shape filled with the share. A following
        // cast has no effect.
        let [shape, whole] = [uniform, decides].map(|at| nodes[at].output[0].clone());
        let draw = &mut nodes[uniform];
        let is_like = draw.op_type.as_deref() == Some("RandomUniformLike");
        let given = std::mem::take(&mut draw.attribute);
        if is_like {
            draw.op_type = Some("Shape".to_owned());
        } else {
            let sizes = given.into_iter().find(|attribute| attribute.name.as_deref() == Some("shape"));
            let ints = sizes.map(|sizes| sizes.ints).unwrap_or_default();
            let name = Some("value_ints".to_owned());
            draw.op_type = Some("Constant".to_owned());
            draw.attribute =
                vec![AttributeProto { name, ints, r#type: Some(INTS), ..AttributeProto::default() }];
        }
        let value = TensorProto {
            dims: vec![1],
            data_type: Some(ElementType::F32.code()),
            raw_data: Some(kept.to_le_bytes().to_vec().into()),
            ..TensorProto::default()
        };
        let (name, t) = (Some("value".to_owned()), Some(Box::new(value)));
        nodes[decides].op_type = Some("ConstantOfShape".to_owned());
        nodes[decides].input = vec![shape.clone()];
        nodes[decides].attribute =
            vec![AttributeProto { name, t, r#type: Some(TENSOR), ..AttributeProto::default() }];
        if let Some(floor) = rounds {
            nodes[floor].op_type = Some("Identity".to_owned());
        }
        retyped.extend([shape, whole]);
    }
    retyped
}

/// A mask: the indices of its nodes, and its mean.
struct Mask {
    /// The random numbers.
    uniform: usize,
    /// The comparison with the share, or the addition of the share.
    decides: usize,
    /// The rounding after the addition, if the mask has one.
    rounds: Option<usize>,
    /// The kept share, by which the model divides.
    kept: f32,
}

/// The nodes of a graph, with the readers and the definitions of its values.
struct Graph<'a> {
    nodes: &'a [NodeProto],
    numbers: &'a Numbers,
    /// The nodes that read a value as an input.
    readers: BTreeMap<&'a str, Vec<usize>>,
    /// The node that defines a value.
    producers: BTreeMap<&'a str, usize>,
    /// Values that are read by a subgraph or outside of the nodes.
    elsewhere: BTreeSet<String>,
}

impl<'a> Graph<'a> {
    fn new(nodes: &'a [NodeProto], numbers: &'a Numbers, results: &BTreeSet<String>) -> Self {
        let (readers, producers) = (BTreeMap::new(), BTreeMap::new());
        let mut graph = Self { nodes, numbers, readers, producers, elsewhere: results.clone() };
        for (at, node) in nodes.iter().enumerate() {
            for input in &node.input {
                graph.readers.entry(input).or_default().push(at);
            }
            graph.producers.extend(node.output.iter().map(|output| (&output[..], at)));
            let subgraphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
            subgraphs.for_each(|subgraph| reads(&subgraph.node, &mut graph.elsewhere));
        }
        graph
    }

    fn is(&self, at: usize, op_types: &[&str]) -> bool {
        let node = &self.nodes[at];
        node.op_type.as_deref().is_some_and(|op_type| op_types.contains(&op_type))
            && matches!(node.domain.as_deref(), None | Some("" | "ai.onnx"))
    }

    /// Returns the readers of a value; empty if it is also read elsewhere.
    fn readers(&self, value: &str) -> &[usize] {
        if self.elsewhere.contains(value) {
            return &[];
        }
        self.readers.get(value).map_or(&[], Vec::as_slice)
    }

    /// Returns the only reader of a node's first output, and that output.
    fn only_reader(&self, at: usize) -> Option<(usize, &'a str)> {
        let output = self.nodes[at].output.first()?;
        match self.readers(output) {
            [reader] => Some((*reader, output)),
            _ => None,
        }
    }

    /// Returns the number of a constant value; looks through casts.
    fn number(&self, mut value: &'a str) -> Option<f32> {
        // A valid graph has no cycles; the bound ends the loop in a broken one.
        for _ in 0..self.nodes.len() {
            if let Some(&number) = self.numbers.get(value) {
                return Some(number);
            }
            let producer = *self.producers.get(value)?;
            if !self.is(producer, &["Cast", "CastLike", "Identity"]) {
                return None;
            }
            value = self.nodes[producer].input.first()?;
        }
        None
    }

    /// Returns the mask that begins with a node, if there is one.
    fn mask(&self, uniform: usize) -> Option<Mask> {
        let node = &self.nodes[uniform];
        let bound = |name: &str, default: f32| {
            let given = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name));
            given.map_or(default, |attribute| attribute.f.unwrap_or(0.0))
        };
        let draws = self.is(uniform, &["RandomUniformLike", "RandomUniform"]);
        if !draws || (bound("low", 0.0), bound("high", 1.0)) != (0.0, 1.0) {
            return None;
        }
        let drawn = node.output.first()?;
        // The share may be cast to the type of the draw.
        let takes_its_type =
            |at: &usize| self.is(*at, &["CastLike"]) && self.nodes[*at].input.get(1) == Some(drawn);
        let (casts, readers): (Vec<usize>, Vec<usize>) =
            self.readers(drawn).iter().copied().partition(takes_its_type);
        let [decides] = readers[..] else { return None };
        if casts.iter().any(|&cast| self.only_reader(cast).is_none_or(|(reader, _)| reader != decides)) {
            return None;
        }
        let [left, right] = &self.nodes[decides].input[..] else { return None };
        let share = self.number(if left == drawn { right } else { left })?;
        let (last, rounds, kept) = if self.is(decides, &["Add"]) {
            let (floor, _) = self.only_reader(decides).filter(|(at, _)| self.is(*at, &["Floor"]))?;
            (floor, Some(floor), share)
        } else {
            let (below, above) = (&["Less", "LessOrEqual"], &["Greater", "GreaterOrEqual"]);
            let is_below = self.is(decides, if left == drawn { below } else { above });
            if !is_below && !self.is(decides, if left == drawn { above } else { below }) {
                return None;
            }
            let (cast, compared) = self.only_reader(decides)?;
            let is_cast = self.is(cast, &["Cast", "CastLike"]);
            if !is_cast || self.nodes[cast].input.first().is_none_or(|input| input != compared) {
                return None;
            }
            (cast, None, if is_below { share } else { 1.0 - share })
        };
        let mask = self.nodes[last].output.first()?;
        let scaled = self.readers(mask).iter().map(|&reader| self.divisor(mask, reader, kept));
        let divisors: Vec<f32> = scaled.collect::<Option<_>>()?;
        Some(Mask { uniform, decides, rounds, kept: *divisors.first()? })
    }

    /// Returns the share by which a reader of the mask divides: `mask / share`, `x · mask / share` or `x / share · mask`.
    fn divisor(&self, mask: &'a str, reader: usize, kept: f32) -> Option<f32> {
        if let Some(share) = self.divides(reader, mask, kept) {
            return Some(share);
        }
        let node = &self.nodes[reader];
        let x = node.input.iter().find(|input| *input != mask).filter(|_| self.is(reader, &["Mul"]))?;
        if let Some((after, product)) = self.only_reader(reader)
            && let Some(share) = self.divides(after, product, kept)
        {
            return Some(share);
        }
        let before = *self.producers.get(&x[..])?;
        self.nodes[before].input.iter().find_map(|input| self.divides(before, input, kept))
    }

    /// Returns the share by which a node divides `x`, as `x / share` or `x · (1 / share)`. `None` if it differs from `kept` by
    /// more than rounding.
    fn divides(&self, at: usize, x: &str, kept: f32) -> Option<f32> {
        let [left, right] = &self.nodes[at].input[..] else { return None };
        let share = if self.is(at, &["Div"]) && left == x {
            self.number(right)?
        } else if self.is(at, &["Mul"]) {
            1.0 / self.number(if left == x { right } else { left })?
        } else {
            return None;
        };
        ((share - kept).abs() <= 1e-6 * kept).then_some(share)
    }
}
