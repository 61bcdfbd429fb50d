//! Tensors of the file that are vectors although they have several dims. Weight decay treats them like biases.
//!
//! The author's shape decides: exporters add dims of size one to the scale of a group norm or to the slopes of a PRelu, and join
//! the biases of a recurrent layer. If the author's shape is not recorded, the tensor's role and its dims larger than one decide.

use crate::record::Record;
use crate::recorded::has_author_name;
use crate::{Graph, Node, Tensor, TensorSource};
use std::collections::{BTreeMap, BTreeSet};

/// Finds the names of these tensors.
pub(super) fn find(graph: &Graph, record: &Record, is_pytorch: bool) -> BTreeSet<String> {
    let mut vectors = biases_of_recurrent_layers(graph);
    let readers = readers(graph);
    let several = graph.tensors.iter().filter(|tensor| tensor.dtype.is_float() && tensor.dims.len() >= 2);
    let found = several.filter(|tensor| match author_ndim(tensor, record, is_pytorch) {
        Some(ndim) => ndim < 2,
        None => {
            tensor.dims.iter().filter(|&&size| size != 1).count() < 2 && !has_matrix_role(tensor, &readers)
        }
    });
    vectors.extend(found.map(|tensor| tensor.name.clone()));
    vectors
}

/// Returns the number of dims of the author's tensor, if the file tells it.
fn author_ndim(tensor: &Tensor, record: &Record, is_pytorch: bool) -> Option<usize> {
    if let Some(recorded) = record.tensors.get(&tensor.name) {
        let dims: Vec<u64> = tensor.dims.iter().map(|&size| size as u64).collect();
        return ir::view::sizes(recorded.view.as_ref()?, &dims).map(|sizes| sizes.len());
    }
    // A tensor with the author's name also has the author's shape.
    let keeps = is_pytorch && tensor.source == TensorSource::Initializer && has_author_name(tensor);
    keeps.then_some(tensor.dims.len())
}

/// Returns the tensors that recurrent layers read as biases, `[directions, 2·gates·hidden]`, or as peepholes. They are matrices
/// only because the vectors of several directions are stacked.
fn biases_of_recurrent_layers(graph: &Graph) -> BTreeSet<String> {
    let layers = graph.nodes.iter().filter(|node| matches!(node.op_type.as_str(), "GRU" | "LSTM" | "RNN"));
    let read = layers.flat_map(|node| [node.inputs.get(3), node.inputs.get(7)]).flatten();
    read.filter(|name| !name.is_empty()).cloned().collect()
}

/// Returns the nodes that read each value.
fn readers(graph: &Graph) -> BTreeMap<&str, Vec<&Node>> {
    let mut readers: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in &graph.nodes {
        node.inputs.iter().for_each(|name| readers.entry(name).or_default().push(node));
    }
    readers
}

/// Whether a node reads a tensor, perhaps after its elements were moved, in a role other than an operand of a norm or of
/// arithmetic: as the weight of a layer, which may have one output or one input, or as a table.
fn has_matrix_role(tensor: &Tensor, readers: &BTreeMap<&str, Vec<&Node>>) -> bool {
    let (mut stack, mut seen) = (vec![&tensor.name[..]], BTreeSet::new());
    while let Some(name) = stack.pop() {
        if !seen.insert(name) {
            continue;
        }
        for node in readers.get(name).into_iter().flatten() {
            match node.op_type.as_str() {
                "Add" | "Sub" | "Mul" | "Div" | "Pow" | "PRelu" => {}
                op if op.ends_with("Normalization") => {}
                "Reshape" | "Unsqueeze" | "Squeeze" | "Transpose" | "Identity" | "Cast" | "Expand"
                | "Flatten" => {
                    stack.extend(node.outputs.iter().map(String::as_str));
                }
                _ => return true,
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::{load, model, node};
    use crate::proto::{GraphProto, TensorProto};

    fn tensor(name: &str, dims: &[i64]) -> TensorProto {
        let count = dims.iter().product::<i64>() as usize;
        TensorProto {
            name: Some(name.into()),
            dims: dims.to_vec(),
            data_type: Some(1),
            raw_data: Some(vec![1; 4 * count].into()),
            ..TensorProto::default()
        }
    }

    #[test]
    fn without_a_record_the_role_and_the_large_dims_decide() {
        let mut file = model(vec![
            node("Mul", &["x", "scale"], &["a"]),
            node("Reshape", &["shift", "shape"], &["moved"]),
            node("Add", &["a", "moved"], &["b"]),
            node("Add", &["b", "table"], &["c"]),
            node("MatMul", &["c", "one_output"], &["d"]),
            node("PRelu", &["d", "layers.0.weight"], &["e"]),
            node("PRelu", &["e", "onnx::PRelu_7"], &["y"]),
        ]);
        let graph = file.graph.take().expect("a sample has a graph");
        let initializer = vec![
            tensor("scale", &[4, 1, 1]),
            tensor("shift", &[1, 4]),
            tensor("shape", &[3]),
            tensor("table", &[2, 4]),
            tensor("one_output", &[4, 1]),
            tensor("layers.0.weight", &[1, 4, 1]),
            tensor("onnx::PRelu_7", &[4, 1]),
        ];
        file.graph = Some(GraphProto { initializer, ..graph });
        let model = load(&file).expect("the model loads");
        let found =
            |is_pytorch| find(&model.graph, &model.record, is_pytorch).into_iter().collect::<Vec<_>>();
        assert_eq!(found(false), ["layers.0.weight", "onnx::PRelu_7", "scale", "shift"]);
        // A tensor with a PyTorch name is the author's tensor, which has the same dims.
        assert_eq!(found(true), ["onnx::PRelu_7"]);
    }
}
