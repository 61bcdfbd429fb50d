//! The inference form of a model that was exported in training mode: batch norms normalise by their running statistics,
//! dropouts drop nothing, and no layer is left out at random.
//!
//! The messages are changed in place, so that names, metadata and everything else stay as the exporter wrote them. Outputs that
//! only the training form has are removed; their readers read the running statistics. Constants that only a changed node read are
//! removed too.
//!
//! The attribute or input that tells the training form depends on the opset, as in `import/batch_norm.rs` and `import/dropout.rs`.

mod stochastic_depth;

use std::collections::{BTreeMap, BTreeSet};

use self::stochastic_depth::{Numbers, number};
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
};

/// Changes a model to inference form. Returns the number of nodes that were in training form.
pub(super) fn to_inference_form(model: &mut ModelProto) -> usize {
    let opset = opset(&model.opset_import);
    let functions = model.functions.iter_mut().map(in_function).sum::<usize>();
    functions + model.graph.as_mut().map_or(0, |graph| in_graph(graph, opset, &FlagFacts::default()))
}

/// Returns the number of nodes that draw random numbers, including those of functions and subgraphs.
pub(super) fn drawing_nodes(model: &ModelProto) -> usize {
    fn count(nodes: &[NodeProto]) -> usize {
        let draws = |node: &NodeProto| {
            let op_type = node.op_type.as_deref().unwrap_or_default();
            op_type.starts_with("Random") || matches!(op_type, "Bernoulli" | "Multinomial")
        };
        let inner =
            nodes.iter().flat_map(|node| &node.attribute).filter_map(|attribute| attribute.g.as_ref());
        nodes.iter().filter(|node| draws(node)).count() + inner.map(|graph| count(&graph.node)).sum::<usize>()
    }
    let functions = model.functions.iter().map(|function| count(&function.node)).sum::<usize>();
    functions + model.graph.as_ref().map_or(0, |graph| count(&graph.node))
}

/// Returns the version of the operators of the domain `ai.onnx`.
fn opset(imports: &[OperatorSetIdProto]) -> i64 {
    let of_onnx =
        imports.iter().find(|import| matches!(import.domain.as_deref(), None | Some("" | "ai.onnx")));
    of_onnx.and_then(|import| import.version).unwrap_or(1)
}

/// Facts about the values of a graph that a training flag may depend on.
#[derive(Clone, Default)]
struct FlagFacts {
    /// Values that depend on an input of the graph, so that the caller decides about them.
    varying: BTreeSet<String>,
    /// Flags that are known to be false.
    off: BTreeSet<String>,
    /// Constants with a single number.
    numbers: Numbers,
}

impl FlagFacts {
    fn add_tensor(&mut self, name: &str, tensor: &TensorProto) {
        let is_zero = match &tensor.raw_data {
            Some(bytes) => bytes.iter().all(|&byte| byte == 0),
            None => !tensor.int32_data.is_empty() && tensor.int32_data.iter().all(|&number| number == 0),
        };
        if is_zero {
            self.off.insert(name.to_owned());
        }
        self.numbers.extend(number(tensor).map(|number| (name.to_owned(), number)));
    }

    fn add_nodes(&mut self, nodes: &[NodeProto]) {
        for node in nodes {
            let output = node.output.first().map_or("", String::as_str);
            let float =
                node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("value_float"));
            if let Some(number) = float.and_then(|attribute| attribute.f)
                && is_constant(node)
            {
                self.numbers.insert(output.to_owned(), number);
            }
            if let Some(tensor) = node.attribute.iter().find_map(|attribute| attribute.t.as_ref())
                && node.op_type.as_deref() == Some("Constant")
            {
                self.add_tensor(output, tensor);
            }
            // A subgraph may read any value of the outer graph.
            let has_graph = node.attribute.iter().any(|attribute| attribute.g.is_some());
            if has_graph || node.input.iter().any(|name| self.varying.contains(name)) {
                self.varying.extend(node.output.iter().cloned());
            }
        }
    }

    /// Whether a dropout with this flag drops elements.
    fn is_on(&self, flag: &str) -> bool {
        !flag.is_empty() && !self.off.contains(flag) && !self.varying.contains(flag)
    }
}

/// The values and initializers that lose their readers when nodes are changed.
#[derive(Default)]
struct Leftovers {
    /// For each removed output, the value that its readers read instead.
    outputs: BTreeMap<String, String>,
    /// Values that a changed node no longer reads.
    unread: BTreeSet<String>,
    /// Values whose type has changed.
    retyped: BTreeSet<String>,
    changed: usize,
}

fn in_graph(graph: &mut GraphProto, opset: i64, around: &FlagFacts) -> usize {
    let mut known = around.clone();
    let stored: BTreeSet<&str> =
        graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
    let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
    known.varying.extend(inputs.filter(|name| !stored.contains(name)).map(str::to_owned));
    for tensor in &graph.initializer {
        known.add_tensor(tensor.name.as_deref().unwrap_or_default(), tensor);
    }
    known.add_nodes(&graph.node);
    let results = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let leftovers = in_nodes(&mut graph.node, opset, &known, &results);
    if leftovers.changed == 0 {
        return 0;
    }
    rewire(&mut graph.node, &results, &leftovers.outputs);
    graph.value_info.retain(|value| {
        let name = value.name.as_deref().unwrap_or_default();
        let is_gone = leftovers.outputs.contains_key(name) && !results.contains(name);
        !is_gone && !leftovers.retyped.contains(name)
    });
    let mut read: BTreeSet<String> = results;
    read.extend(graph.input.iter().filter_map(|input| input.name.clone()));
    reads(&graph.node, &mut read);
    let is_unread = |name: &str| leftovers.unread.contains(name) && !read.contains(name);
    graph.initializer.retain(|tensor| !is_unread(tensor.name.as_deref().unwrap_or_default()));
    graph.node.retain(|node| !is_constant(node) || !node.output.iter().all(|name| is_unread(name)));
    graph.value_info.retain(|value| !is_unread(value.name.as_deref().unwrap_or_default()));
    leftovers.changed
}

fn in_function(function: &mut FunctionProto) -> usize {
    let mut known = FlagFacts::default();
    known.varying.extend(function.input.iter().cloned());
    known.add_nodes(&function.node);
    let results: BTreeSet<String> = function.output.iter().cloned().collect();
    let leftovers = in_nodes(&mut function.node, opset(&function.opset_import), &known, &results);
    function.value_info.retain(|value| {
        let name = value.name.as_deref().unwrap_or_default();
        !leftovers.outputs.contains_key(name) && !leftovers.retyped.contains(name)
    });
    rewire(&mut function.node, &results, &leftovers.outputs);
    let mut read = results;
    reads(&function.node, &mut read);
    let is_unread = |name: &String| leftovers.unread.contains(name) && !read.contains(name);
    function.node.retain(|node| !is_constant(node) || !node.output.iter().all(is_unread));
    leftovers.changed
}

/// Changes nodes. `results` are the outputs of their graph.
fn in_nodes(nodes: &mut [NodeProto], opset: i64, known: &FlagFacts, results: &BTreeSet<String>) -> Leftovers {
    let retyped = stochastic_depth::replace(nodes, &known.numbers, results);
    let mut leftovers = Leftovers { changed: retyped.len() / 2, retyped, ..Leftovers::default() };
    for node in nodes {
        let graphs = node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut());
        leftovers.changed += graphs.map(|graph| in_graph(graph, opset, known)).sum::<usize>();
        if !matches!(node.domain.as_deref(), None | Some("" | "ai.onnx")) {
            continue;
        }
        let changed = match node.op_type.as_deref() {
            Some("BatchNormalization") => batch_norm(node, opset, &mut leftovers),
            Some("Dropout") => dropout(node, opset, known, &mut leftovers),
            _ => false,
        };
        leftovers.changed += usize::from(changed);
    }
    leftovers
}

/// Keeps only the first output. The others are replaced by the running statistics, which inference does not change.
fn batch_norm(node: &mut NodeProto, opset: i64, leftovers: &mut Leftovers) -> bool {
    let trains = match opset {
        ..=6 => integer(node, "is_test") == Some(0),
        7..=13 => node.output.iter().skip(1).any(|output| !output.is_empty()),
        _ => integer(node, "training_mode") == Some(1),
    };
    if !trains {
        return false;
    }
    match opset {
        ..=6 => set_integer(node, "is_test", 1),
        7..=13 => {}
        _ => set_integer(node, "training_mode", 0),
    }
    // Outputs 1 and 2 are the running statistics; 3 and 4 (up to opset 13) are the statistics of the batch.
    for (i, output) in node.output.drain(1.min(node.output.len())..).enumerate() {
        if let Some(statistic) = node.input.get(3 + i % 2).filter(|_| !output.is_empty()) {
            let statistic = leftovers.outputs.get(statistic).unwrap_or(statistic).clone();
            leftovers.outputs.insert(output, statistic);
        }
    }
    true
}

/// Removes the flag; without it a dropout is in inference form. The mask, if it is read, is then all true.
fn dropout(node: &mut NodeProto, opset: i64, known: &FlagFacts, leftovers: &mut Leftovers) -> bool {
    match opset {
        ..=6 if integer(node, "is_test") == Some(0) => set_integer(node, "is_test", 1),
        12.. if node.input.get(2).is_some_and(|flag| known.is_on(flag)) => {
            leftovers.unread.extend(node.input.drain(2..));
        }
        _ => return false,
    }
    true
}

fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))?.i
}

fn set_integer(node: &mut NodeProto, name: &str, value: i64) {
    let attribute = node.attribute.iter_mut().find(|attribute| attribute.name.as_deref() == Some(name));
    if let Some(AttributeProto { i, .. }) = attribute {
        *i = Some(value);
    }
}

fn is_constant(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("Constant")
}

/// Makes the readers of `gone` outputs read the values that replace them. A result of the graph keeps its name.
fn rewire(nodes: &mut Vec<NodeProto>, results: &BTreeSet<String>, gone: &BTreeMap<String, String>) {
    for node in nodes.iter_mut() {
        rewire_node(node, gone);
    }
    for (output, statistic) in gone.iter().filter(|(output, _)| results.contains(*output)) {
        nodes.push(NodeProto {
            input: vec![statistic.clone()],
            output: vec![output.clone()],
            op_type: Some("Identity".to_owned()),
            ..NodeProto::default()
        });
    }
}

fn rewire_node(node: &mut NodeProto, gone: &BTreeMap<String, String>) {
    for input in &mut node.input {
        if let Some(statistic) = gone.get(input) {
            input.clone_from(statistic);
        }
    }
    let graphs = node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut());
    for graph in graphs {
        let results = graph.output.iter().filter_map(|output| output.name.clone()).collect();
        rewire(&mut graph.node, &results, gone);
    }
}

/// Adds the values that nodes read, including those of their subgraphs.
pub(super) fn reads(nodes: &[NodeProto], read: &mut BTreeSet<String>) {
    for node in nodes {
        read.extend(node.input.iter().cloned());
        for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            read.extend(graph.output.iter().filter_map(|output| output.name.clone()));
            reads(&graph.node, read);
        }
    }
}
