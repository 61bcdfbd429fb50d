//! Quantized models. Their weights are rounded to integers, through which no gradient passes. They can be imported, as far as
//! their operators are supported, but not trained.

use crate::{Attribute, Graph, Node};
use ir::Diagnostic;
use std::collections::BTreeMap;

/// Operators of `ai.onnx` that quantize, or compute with quantized numbers.
const STANDARD: &[&str] = &[
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
];

/// Operators of `com.microsoft` that do so, besides all whose name starts with `QLinear`.
const CONTRIBUTED: &[&str] = &[
    "DequantizeBFP",
    "DequantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulBnb4",
    "MatMulFpQ4",
    "MatMulInteger16",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "MulInteger",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
    "QMoE",
    "QOrderedAttention",
    "QOrderedGelu",
    "QOrderedLayerNormalization",
    "QOrderedLongformerAttention",
    "QOrderedMatMul",
    "QuantizeBFP",
    "QuantizeLinear",
    "ReduceSumInteger",
];

/// Whether an operator occurs only in quantized models.
pub(super) fn is_quantized(domain: &str, operator: &str) -> bool {
    match domain {
        "" | "ai.onnx" => STANDARD.contains(&operator),
        "com.microsoft" => operator.starts_with("QLinear") || CONTRIBUTED.contains(&operator),
        _ => false,
    }
}

/// Returns the reason why a model cannot be trained, if it is quantized: each quantized operator with its number of nodes and the
/// first of them.
pub(super) fn refusal(graph: &Graph) -> Option<Diagnostic> {
    let mut found: BTreeMap<(&str, &str), (usize, &Node)> = BTreeMap::new();
    collect(graph, &mut found);
    let count: usize = found.values().map(|(count, _)| count).sum();
    let first = found.values().next()?.1;
    let counted = if count == 1 { "1 node quantizes".into() } else { format!("{count} nodes quantize") };
    let message = format!("the model is quantized and cannot be trained: {counted} or compute with integers");
    let mut refusal = Diagnostic::new(message).at(first.label());
    for ((domain, operator), (count, node)) in found {
        let domain = if domain.is_empty() { String::new() } else { format!("{domain}.") };
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times, first") };
        refusal = refusal.note(format!("{domain}{operator}, {times} at {}", node.label()));
    }
    Some(refusal.note("export the float model, train it, and quantize it again"))
}

fn collect<'g>(graph: &'g Graph, found: &mut BTreeMap<(&'g str, &'g str), (usize, &'g Node)>) {
    for node in &graph.nodes {
        if is_quantized(&node.domain, &node.op_type) {
            found.entry((&node.domain, &node.op_type)).or_insert((0, node)).0 += 1;
        }
        let inner = node.attributes.values().flat_map(Attribute::graphs);
        inner.for_each(|graph| collect(graph, found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_in_one_report_with_its_count_and_first_node() {
        let node = |name: &str, domain: &str, op: &str| Node {
            name: name.into(),
            domain: domain.into(),
            op_type: op.into(),
            opset: 20,
            ..Node::default()
        };
        let nodes = vec![
            node("q0", "", "QuantizeLinear"),
            node("gelu", "com.microsoft", "QuickGelu"),
            node("q1", "", "QuantizeLinear"),
            node("add", "com.microsoft", "QLinearAdd"),
        ];
        let graph = Graph { nodes, ..Graph::default() };
        let refusal = refusal(&graph).expect("the graph is quantized");
        assert!(refusal.message.contains("3 nodes quantize"), "{refusal}");
        assert_eq!(refusal.notes.len(), 3, "{refusal}");
        assert!(refusal.notes[0].contains("QuantizeLinear, 2 times, first at node \"q0\""), "{refusal}");
        assert!(refusal.notes[1].contains("com.microsoft.QLinearAdd, once at node \"add\""), "{refusal}");
        assert!(refusal.notes[2].contains("export the float model"), "{refusal}");
        assert_eq!(
            super::refusal(&Graph {
                nodes: vec![node("g", "com.microsoft", "QuickGelu")],
                ..Graph::default()
            }),
            None
        );
    }
}
