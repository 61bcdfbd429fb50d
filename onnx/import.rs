//! The import of a model as a program of IR operators, at level `imported`.
//!
//! Shapes are computed here and never reach the IR (`integers`). A function found in `registry` converts every other operator to
//! one or a few IR operators. All nodes that cannot be imported are reported at once, each with its name, operator and opset. The
//! import does not decide which tensors of the file are trained.

mod activation;
mod arithmetic;
mod attention;
mod attention_mask;
mod batch_norm;
mod bits;
mod call;
mod columns;
mod composed_attention;
mod composed_norm;
mod composed_reduction;
mod context;
mod contraction;
mod contrib;
mod contrib_attention;
mod contrib_group_attention;
mod contrib_norm;
mod control_flow;
#[cfg(test)]
mod control_flow_tests;
mod conv;
mod deform_conv;
mod dropout;
mod einsum;
mod elementwise;
#[cfg(test)]
mod forms_tests;
mod functions;
mod gate;
mod generate;
mod heads;
mod honoured;
mod indexing;
mod integers;
mod known;
mod layout;
mod loss;
mod n_grams;
pub(crate) mod names;
mod norm;
mod pool;
mod quantization;
mod quantized;
mod quantized_model;
mod random;
mod ranking;
mod recurrent;
mod recurrent_attention;
mod recurrent_cell;
mod reduction;
mod registry;
mod report;
mod resampling;
mod resize;
mod rotary;
mod sampling;
mod scan;
mod scatter;
mod sequence;
mod shape;
#[cfg(test)]
mod shape_tests;
mod spectrum;
mod subgraph;
mod unpool;
mod vectors;
mod weighted_loss;

use crate::recorded::{self, Detached};
use crate::state_dict::StateDict;
use crate::{Dim as FileDim, Graph, Model, Tensor, TensorBytes, Value};
use call::Call;
use context::{Context, Entry, Problem};
use integers::Ints;
use ir::{At, Blob, Builder, Claim, DType, Data, Diagnostic, Dim, Dims, Module, Phase, Type, ValueId};
pub use names::cache_hint;
use report::Report;
use std::collections::{BTreeMap, BTreeSet};

/// The options of the import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Sizes of named dims.
    pub bindings: BTreeMap<String, u64>,
}

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The program, at level `imported`.
    pub module: Module,
    /// Other names of the file's tensors (rows of the data table), best first: module paths of renamed tensors.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// The author's names for tensors of the file, where the exporter recorded them.
    pub authors: BTreeMap<String, String>,
    /// The tensors of the author's module, as parts of tensors of the file.
    pub state_dict: StateDict,
    /// Tensors of the file that are vectors, although they have more than one dim.
    pub vectors: BTreeSet<String>,
    /// Warnings about the file.
    pub warnings: Vec<Diagnostic>,
    /// The reason why the program can be run but not trained: the file is quantized.
    pub untrainable: Option<Diagnostic>,
}

/// Returns the names of each float tensor of a model; the name in the file is first.
pub fn tensor_names(model: &Model) -> Vec<Vec<String>> {
    let aliases = names::aliases(&model.graph, &model.record);
    let mut aliases = with_author_names(aliases, &StateDict::of(model));
    let floats = model.graph.tensors.iter().filter(|tensor| tensor.dtype.is_float());
    let names = floats.map(|tensor| {
        let others = aliases.remove(&tensor.name).unwrap_or_default();
        std::iter::once(tensor.name.clone()).chain(others).collect()
    });
    names.collect()
}

/// Imports a model. Errors: every node that cannot be imported, with the reason; inputs without a shape.
pub fn import(model: &Model, options: &ImportOptions) -> Result<Imported, Vec<Diagnostic>> {
    let graph = &model.graph;
    let mut module = Module::new(if graph.name.is_empty() { "model" } else { &graph.name });
    let mut problems = Report::default();
    let mut entries = BTreeMap::new();
    add_inputs(&mut module, graph, options, &mut entries, &mut problems);
    add_tensors(&mut module, model, &mut entries);
    let mut b = Builder::new(&mut module, "import");
    b.at(At::End(Phase::Forward));
    let mut context = Context { problems, ..Context::new(b, entries) };
    let detached = Detached::find(graph, &model.record);
    for node in &graph.nodes {
        context.detached = detached.inputs(node);
        import_node(&mut context, &Call::new(node));
    }
    let outputs = graph_outputs(&mut context, graph);
    if context.problems.is_empty() {
        unexplained(graph, &context.entries).into_iter().for_each(|problem| context.problems.push(problem));
    }
    let Context { b, dropouts, unrolled, problems, .. } = context;
    b.finish();
    let quantized = quantized_model::refusal(graph);
    if !problems.is_empty() {
        return Err(refused(problems, quantized));
    }
    for (name, value) in outputs {
        module.add_output(name, value);
    }
    let norms = [batch_norm::warning(&module), batch_norm::folded_warning(graph)];
    let warnings = [dropouts.warning(), unrolled.warning()].into_iter().chain(norms);
    let warnings = warnings.flatten();
    let state_dict = StateDict::of(model);
    let aliases = with_author_names(names::aliases(graph, &model.record), &state_dict);
    let recorded = model.record.warnings(graph, &aliases);
    let cache = cache_hint(graph)
        .map(|hint| Diagnostic::new("the model takes a cache of keys and values").note(hint));
    let warnings = warnings.chain(detached.warnings(graph)).chain(recorded).chain(cache).collect();
    let authors = model.record.tensors.iter().map(|(name, recorded)| (name.clone(), recorded.name.clone()));
    let vectors = vectors::find(graph, &model.record, model.producer.starts_with("pytorch"));
    let authors = authors.collect();
    Ok(Imported { module, aliases, authors, state_dict, vectors, warnings, untrainable: quantized })
}

/// Puts the author's names of a tensor before the names that its readers suggest.
fn with_author_names(
    mut aliases: BTreeMap<String, Vec<String>>,
    state_dict: &StateDict,
) -> BTreeMap<String, Vec<String>> {
    for (tensor, names) in state_dict.names() {
        let names: Vec<&str> = names.into_iter().filter(|name| *name != tensor).collect();
        if !names.is_empty() {
            let known = aliases.entry(tensor.to_owned()).or_default();
            known.retain(|name| !names.contains(&name.as_str()));
            known.splice(0..0, names.into_iter().map(str::to_owned));
        }
    }
    aliases
}

/// Returns all problems. For a quantized model, a single problem replaces those of its quantized operators.
fn refused(mut problems: Report, quantized: Option<Diagnostic>) -> Vec<Diagnostic> {
    if quantized.is_some() {
        problems.drop_operators(quantized_model::is_quantized);
    }
    quantized.into_iter().chain(problems.into_list()).collect()
}

/// Imports one node. Afterwards its outputs are in the entries, as `Failed` if the import failed.
fn import_node(cx: &mut Context, call: &Call) {
    let origin = call.origin();
    cx.b.origin(origin.as_str());
    let result = match registry::find(call) {
        Some(import) => import(cx, call),
        None => Err(Problem::new(format!("operator {} is not supported", call.op()))),
    };
    let result = match call.mistyped() {
        Some(problem) => Err(Problem::new(problem.message)),
        None => result.and_then(|results| {
            honoured::check(call)?;
            fits(cx, &results)?;
            Ok(results)
        }),
    };
    let results = match result {
        Ok(results) => results,
        Err(Problem::Reported) => vec![],
        Err(Problem::Wrong { message, note }) => {
            let diagnostic = Diagnostic::new(message).at(origin);
            cx.problems.of_node(call, note.into_iter().fold(diagnostic, Diagnostic::note));
            vec![]
        }
    };
    let mut results = results.into_iter();
    for i in 0..call.output_count() {
        let entry = cx.folded(results.next().unwrap_or(Entry::Failed));
        if let Some(name) = call.output(i) {
            cx.entries.insert(name.to_string(), entry);
        }
    }
}

/// The largest size of a tensor, in bytes. With this limit sums and products of sizes do not overflow, and no machine has as much
/// memory.
const LARGEST: u64 = 1 << 48;

/// Whether a type has bound dims and is larger than any memory.
fn too_large(ty: &Type) -> bool {
    ty.dims.iter().all(|dim| dim.size().is_some()) && ty.bytes().is_none_or(|bytes| bytes > LARGEST)
}

/// Refuses results that are larger than any memory.
fn fits(cx: &Context, results: &[Entry]) -> Result<(), Problem> {
    let mut types = results.iter().filter_map(|entry| match entry {
        Entry::Value(value) => Some(cx.ty(*value)),
        _ => None,
    });
    match types.find(|ty| too_large(ty)) {
        Some(ty) => Err(Problem::new(format!("the result {ty} is larger than any memory"))),
        None => Ok(()),
    }
}

/// Reports values that are read, but could not be made and have no reported reason: outputs that the import of an operator leaves
/// out, and tensors of a type that the IR does not have.
fn unexplained(graph: &Graph, entries: &BTreeMap<String, Entry>) -> Vec<Diagnostic> {
    let inputs = graph.nodes.iter().flat_map(|node| &node.inputs);
    let read: BTreeSet<&String> = inputs.chain(graph.outputs.iter().map(|output| &output.name)).collect();
    let missing = |name: &String| read.contains(name) && matches!(entries.get(name), Some(Entry::Failed));
    let tensors = graph.tensors.iter().filter(|tensor| missing(&tensor.name)).map(|tensor| {
        let message = format!("the element type {} is not supported", tensor.dtype);
        Diagnostic::new(message).at(tensor.label())
    });
    let outputs = graph.nodes.iter().flat_map(|node| {
        let missing = node.outputs.iter().enumerate().filter(|(_, name)| missing(name));
        missing.map(move |(i, _)| {
            Diagnostic::new(format!("output {i} of the node is not supported")).at(node.label())
        })
    });
    tensors.chain(outputs).collect()
}

fn graph_outputs(cx: &mut Context, graph: &Graph) -> Vec<(String, ValueId)> {
    let mut outputs = Vec::new();
    let mut seen = BTreeSet::new();
    // An output that is listed twice is the same value.
    for output in graph.outputs.iter().filter(|output| seen.insert(&output.name)) {
        match cx.entries.get(&output.name).cloned() {
            None => {
                cx.problems
                    .push(Diagnostic::new(format!("no node or tensor defines output `{}`", output.name)));
            }
            // A sequence cannot be an output. A failed value was already reported.
            Some(Entry::Failed | Entry::Sequence(_) | Entry::Absent) => {}
            Some(entry) => match cx.materialize(&entry) {
                Ok(value) => outputs.push((output.name.clone(), value)),
                Err(Problem::Wrong { message, .. }) => {
                    cx.problems.push(Diagnostic::new(format!("output `{}`: {message}", output.name)));
                }
                Err(Problem::Reported) => {}
            },
        }
    }
    outputs
}

/// Adds the graph's inputs. A tensor of the file that is also listed as an input (IR 3) is not an input.
fn add_inputs(
    module: &mut Module,
    graph: &Graph,
    options: &ImportOptions,
    entries: &mut BTreeMap<String, Entry>,
    problems: &mut Report,
) {
    let stored: BTreeSet<&str> = graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut seen = BTreeSet::new();
    let mut types = Vec::new();
    for input in graph.inputs.iter().filter(|input| !stored.contains(input.name.as_str())) {
        let checked = |ty: Type| match ty.check_size() {
            Ok(()) => Ok(ty),
            Err(error) => Err(Diagnostic::from(error)),
        };
        match input_type(input, options, &mut seen).and_then(checked) {
            Ok(ty) => types.push((input.name.clone(), ty)),
            Err(problem) => {
                entries.insert(input.name.clone(), Entry::Failed);
                problems.push(problem.at(format!("input {:?}", input.name)));
            }
        }
    }
    let batch = match first_batch(graph, &stored) {
        Ok(name) => name.and_then(|name| types.iter().find(|(input, _)| input == name)),
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    let batch = batch.or(types.iter().find(|(_, ty)| ty.ndim() > 0)).map(|(_, ty)| ty.dims[0].clone());
    for (name, ty) in types {
        let batched = ty.dims.first().is_some_and(|dim| Some(dim) == batch.as_ref());
        let value = module.add_input(name.clone(), ty, batched);
        entries.insert(name, Entry::Value(value));
    }
    for name in options.bindings.keys().filter(|name| !seen.contains(*name)) {
        // A static export has no names for its dims. The pass `bind` changes the batch under the name `batch`.
        if name != "batch" && problems.is_empty() {
            let known: Vec<_> = seen.iter().map(|name| format!("`{name}`")).collect();
            let what =
                if known.is_empty() { "no named dims".into() } else { format!("only {}", known.join(", ")) };
            let note = "a batch of fixed size can be changed with --bind batch=SIZE";
            problems.push(Diagnostic::new(format!("--bind {name}: the model has {what}")).note(note));
        }
    }
}

/// Returns the first input whose dim 0 is named as a batch. Fails if the only dims with such names are others, because dim 0,
/// which counts the samples, would then be something else, such as the steps of a sequence.
fn first_batch<'g>(graph: &'g Graph, stored: &BTreeSet<&str>) -> Result<Option<&'g str>, Diagnostic> {
    let is_batch = |dim: &FileDim| match dim {
        FileDim::Named(name) => {
            let is_word = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
            is_word && name.to_lowercase().contains("batch")
        }
        FileDim::Known(_) | FileDim::Unknown => false,
    };
    let given = graph.inputs.iter().filter(|input| !stored.contains(input.name.as_str()));
    let batches: Vec<(&Value, usize)> = given
        .filter_map(|input| Some((input, input.ty.tensor()?.dims.as_ref()?.iter().position(is_batch)?)))
        .collect();
    match (batches.iter().find(|(_, dim)| *dim == 0), batches.first()) {
        (Some((input, _)), _) => Ok(Some(&input.name)),
        (None, None) => Ok(None),
        (None, Some((input, dim))) => {
            let message =
                format!("the batch is dim {dim} of {}; it must be dim 0, which counts the samples", input.ty);
            let note =
                "export the model with the batch first (batch_first=True, or a transpose in the model)";
            Err(Diagnostic::new(message).at(format!("input {:?}", input.name)).note(note))
        }
    }
}

fn input_type(
    input: &Value,
    options: &ImportOptions,
    seen: &mut BTreeSet<String>,
) -> Result<Type, Diagnostic> {
    let wrong = |message: String| {
        Diagnostic::new(message).note("export the model with tensors of known shapes as inputs")
    };
    let tensor =
        input.ty.tensor().ok_or_else(|| wrong(format!("the input is {}, not a tensor", input.ty)))?;
    let dtype = tensor.dtype.dtype().ok_or_else(|| {
        wrong(format!("the input has elements of type {}, which is not supported", tensor.dtype))
    })?;
    let dims =
        tensor.dims.as_ref().ok_or_else(|| wrong("the file declares no shape for the input".into()))?;
    let mut sizes = Dims::new();
    for (i, dim) in dims.iter().enumerate() {
        // Some files declare the batch as -1 or without a name.
        let name = match dim {
            FileDim::Known(size) => {
                sizes.push(Dim::known(*size as u64));
                continue;
            }
            FileDim::Named(name) => name.clone(),
            FileDim::Unknown if i == 0 => "batch".into(),
            FileDim::Unknown => format!("{}_dim_{i}", input.name),
        };
        // An exporter may write an expression, such as `batch*seq`; it is treated as one name.
        sizes.push(options.bindings.get(&name).map_or_else(|| Dim::symbol(&name), |&size| Dim::known(size)));
        seen.insert(name);
    }
    let ty = Type::new(dtype, sizes);
    if too_large(&ty) {
        return Err(wrong(format!("the input {ty} is larger than any memory")));
    }
    Ok(ty)
}

/// Adds the file's tensors to the entries: small integers as known numbers, all others as rows of the data table.
fn add_tensors(module: &mut Module, model: &Model, entries: &mut BTreeMap<String, Entry>) {
    for tensor in &model.graph.tensors {
        let entry = match tensor.dtype.dtype() {
            Some(dtype) => {
                let asked = model.asked.contains(&tensor.name);
                let claim = if asked { Some(Claim::Asked) } else { recorded::claim(model, tensor) };
                tensor_entry(module, tensor, dtype, claim.filter(|_| dtype.is_float()))
            }
            None => Entry::Failed,
        };
        entries.insert(tensor.name.clone(), entry);
    }
}

fn tensor_entry(module: &mut Module, tensor: &Tensor, dtype: DType, claim: Option<Claim>) -> Entry {
    let ty = Type::new(dtype, tensor.dims.iter().map(|&size| Dim::known(size as u64)));
    let bytes = match &tensor.bytes {
        TensorBytes::Present(bytes) => Some(bytes.clone()),
        _ => None,
    };
    if !dtype.is_float()
        && tensor.element_count() <= Ints::LIMIT
        && let Some(values) = bytes.as_ref().and_then(|bytes| ir::Tensor::from_bytes(&ty, bytes))
        && let Some(ints) = Ints::of(&values)
    {
        return Entry::Ints(ints, dtype);
    }
    Entry::Stored(module.add_data(Data { name: tensor.name.clone(), ty, blob: Blob::File(bytes), claim }))
}

/// Returns the number that all elements of a value equal, if the value is a splat or a constant of one element.
fn constant_number(cx: &Context, value: ValueId) -> Option<f64> {
    // Looks through casts and layouts. This is a loop, because a file may have very long chains of them.
    let (mut value, mut truncated) = (value, false);
    loop {
        let node = cx.b.module().producer(value)?;
        let number = match &node.op {
            ir::Op::Splat(splat) => splat.value.get(),
            ir::Op::Constant(constant) => {
                let row = &cx.b.module().data[constant.data];
                (row.ty.numel() == Some(1)).then(|| ir::interp::file_tensor(row))??.item()
            }
            op if op.movement().is_layout() => {
                value = *node.operands.first()?;
                continue;
            }
            ir::Op::Cast(cast) if cast.to != DType::Bool => {
                truncated |= cast.to.is_integer();
                value = *node.operands.first()?;
                continue;
            }
            _ => return None,
        };
        return Some(if truncated { number.trunc() } else { number });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attribute, Node};

    #[test]
    fn an_attribute_of_the_wrong_type_is_not_taken_for_one_left_out() {
        let mut module = Module::new("m");
        let x = module.add_input("x", Type::of(DType::F32, &[2, 3]), true);
        let entries = BTreeMap::from([("x".to_string(), Entry::Value(x))]);
        let mut context = Context::new(Builder::new(&mut module, "import"), entries);
        let node = Node {
            op_type: "Softmax".into(),
            opset: 20,
            inputs: vec!["x".into()],
            outputs: vec!["y".into()],
            attributes: BTreeMap::from([("axis".to_string(), Attribute::Float(0.0))]),
            ..Node::default()
        };
        import_node(&mut context, &Call::new(&node));
        let problems = std::mem::take(&mut context.problems).into_list();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.contains("\"axis\" must be INT; it is FLOAT"), "{}", problems[0]);
        assert!(matches!(context.entries["y"], Entry::Failed));
    }
}
