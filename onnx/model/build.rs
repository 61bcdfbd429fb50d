//! The construction of a [`Graph`] from its messages: nodes and attributes are decoded, and functions inlined.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::constant;
use super::header::{self, Imports, canonical_domain};
use super::scope::{FunctionKey, Scope};
use super::{Graph, Node, Value, ValueType, types};
use crate::error::{Problem, Problems, quoted};
use crate::proto::{FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use crate::tensor::data::{metadata, tensor};
use crate::tensor::{ExternalFiles, Tensor, TensorSource};

/// The deepest nesting of subgraphs and calls.
pub(super) const DEPTH_LIMIT: usize = 64;
/// The most bytes (of names, nodes and converted tensors) that inlining may add. A file of a kilobyte can ask for 2^100.
const INLINE_LIMIT: usize = 128 << 20;

/// The builder of a model's graph.
pub(super) struct Builder<'a> {
    pub(super) functions: BTreeMap<FunctionKey<'a>, &'a FunctionProto>,
    pub(super) function_imports: BTreeMap<FunctionKey<'a>, Rc<Imports>>,
    /// All names of values in use. New names must differ from them.
    pub(super) taken: BTreeSet<String>,
    /// Values whose definition could not be read. They are not reported as undefined, which would be misleading.
    pub(super) broken: BTreeSet<String>,
    pub(super) problems: &'a mut Problems,
    /// The number of times that each new name was requested.
    pub(super) wanted: BTreeMap<String, usize>,
    pub(super) files: &'a mut ExternalFiles,
    inlined: usize,
    reported_domains: BTreeSet<String>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        functions: &'a [FunctionProto],
        imports: &Imports,
        files: &'a mut ExternalFiles,
        problems: &'a mut Problems,
    ) -> Self {
        let mut builder = Self {
            functions: BTreeMap::new(),
            function_imports: BTreeMap::new(),
            taken: BTreeSet::new(),
            broken: BTreeSet::new(),
            wanted: BTreeMap::new(),
            problems,
            files,
            inlined: 0,
            reported_domains: BTreeSet::new(),
        };
        for function in functions {
            builder.declare_function(function, imports);
        }
        builder
    }

    /// Builds the main graph.
    pub(super) fn model_graph(&mut self, proto: &'a GraphProto, imports: &Imports) -> Graph {
        collect_names(proto, &mut self.taken);
        let graph = self.graph(proto, &mut Scope::main(Rc::new(imports.clone())));
        for input in graph.inputs.iter().filter(|input| input.ty == ValueType::Undeclared) {
            let shown = quoted(&input.name);
            self.problems
                .push(Problem::new(format!("input {shown} has no type")).at(format!("input {shown}")));
        }
        graph
    }

    /// Builds a graph. The caller has declared its names in `scope`.
    pub(super) fn graph(&mut self, proto: &'a GraphProto, scope: &mut Scope<'a>) -> Graph {
        let mut graph = Graph { name: proto.name.clone().unwrap_or_default(), ..Graph::default() };
        for initializer in &proto.initializer {
            let name = initializer.name.as_deref().unwrap_or_default();
            if name.is_empty() {
                self.problems.push(Problem::new(format!(
                    "an initializer of graph {} has no name",
                    quoted(&graph.name)
                )));
                continue;
            }
            let source = if scope.is_main_graph() { TensorSource::Initializer } else { TensorSource::Inner };
            let name = self.resolve(name, scope, || "an initializer".to_owned());
            let tensor = self.tensor(initializer, &name, source, scope);
            self.add(tensor, &name, &mut graph);
        }
        for sparse in &proto.sparse_initializer {
            let name = sparse.values.as_ref().and_then(|values| values.name.as_deref()).unwrap_or_default();
            let problem = Problem::new(format!(
                "initializer {} is sparse; only dense tensors can be read",
                quoted(name)
            ));
            self.problems.push(problem.note("make the tensor dense before the export"));
            self.broken.insert(name.to_owned());
        }
        graph.inputs = self.values(&proto.input, scope);
        self.drop_inputs_with_initializers(&mut graph);
        for node in &proto.node {
            self.node(node, scope, &mut graph);
        }
        graph.outputs = self.values(&proto.output, scope);
        self.value_types(&proto.value_info, scope, &mut graph);
        graph
    }

    /// Adds the declared types of inner values. Types of unknown names are ignored.
    pub(super) fn value_types(&mut self, infos: &[ValueInfoProto], scope: &Scope<'a>, graph: &mut Graph) {
        for info in infos {
            let Some(name) = scope.lookup(info.name.as_deref().unwrap_or_default()) else { continue };
            if let Some(ty) = self.problems.keep(types::value_type(info)) {
                graph.value_types.insert(name, ty);
            }
        }
    }

    /// Removes inputs that have an initializer, as IR versions before 4 required. The declared type of such an input must fit.
    fn drop_inputs_with_initializers(&mut self, graph: &mut Graph) {
        let tensors: BTreeMap<&str, &Tensor> =
            graph.tensors.iter().map(|tensor| (&tensor.name[..], tensor)).collect();
        graph.inputs.retain(|input| {
            let Some(tensor) = tensors.get(&input.name[..]) else { return true };
            if let Some(declared) = input.ty.tensor().filter(|declared| !declared.describes(tensor)) {
                let message = format!(
                    "input {} is declared as {declared}, and its initializer has another type",
                    quoted(&input.name)
                );
                self.problems.push(Problem::new(message).at(tensor.label()));
            }
            false
        });
    }

    fn values(&mut self, infos: &[ValueInfoProto], scope: &Scope<'a>) -> Vec<Value> {
        let mut values = Vec::with_capacity(infos.len());
        for info in infos {
            let name = info.name.as_deref().unwrap_or_default();
            if name.is_empty() {
                self.problems.push(Problem::new("an input or output of a graph has no name"));
                continue;
            }
            let name = self.resolve(name, scope, || "the graph's inputs or outputs".to_owned());
            match self.problems.keep(types::value_type(info)) {
                Some(ty) => values.push(Value { name, ty }),
                None => self.broken.extend([name]),
            }
        }
        values
    }

    /// Returns the value of `name`, or reports a problem at the place that `asker` returns.
    pub(super) fn resolve(&mut self, name: &str, scope: &Scope<'a>, asker: impl Fn() -> String) -> String {
        scope.lookup(name).unwrap_or_else(|| {
            let function = scope.call.as_ref().map_or("", |call| &call.function);
            let message = format!("no node or input of function {function} defines {}", quoted(name));
            self.problems.push(Problem::new(message).at(asker()));
            self.broken.insert(name.to_owned());
            name.to_owned()
        })
    }

    /// Adds one node: a call is inlined, a `Constant` becomes a tensor, any other node a [`Node`].
    pub(super) fn node(&mut self, proto: &'a NodeProto, scope: &mut Scope<'a>, graph: &mut Graph) {
        let key = function_key(proto);
        if let Some(&function) = self.functions.get(&key) {
            return self.call(key, function, proto, scope, graph);
        }
        let Some(mut node) = self.plain_node(proto, scope) else { return };
        self.check_imported(&node, &scope.imports);
        if node.op_type == "Constant" && node.domain.is_empty() {
            let source = if scope.is_main_graph() { TensorSource::Constant } else { TensorSource::Inner };
            let tensor = constant::value(&mut node, source).map_err(|problem| problem.at(node.label()));
            let tensor = self.problems.keep(tensor);
            self.add(tensor, node.output(0).unwrap_or_default(), graph);
        } else {
            graph.nodes.push(node);
        }
    }

    /// Returns a node with its names resolved and its attributes decoded.
    pub(super) fn plain_node(&mut self, proto: &'a NodeProto, scope: &mut Scope<'a>) -> Option<Node> {
        let mut node = self.named_node(proto, scope)?;
        let label = node.label();
        let asker = || label.clone();
        node.inputs = proto.input.iter().map(|name| self.resolve(name, scope, asker)).collect();
        node.outputs = proto.output.iter().map(|name| self.resolve(name, scope, asker)).collect();
        for attribute in &proto.attribute {
            let name = attribute.name.clone().unwrap_or_default();
            match self.attribute(attribute, scope) {
                Ok(None) => {}
                Ok(Some(value)) => {
                    if node.attributes.insert(name.clone(), value).is_some() {
                        let message = format!("attribute {} is given twice", quoted(&name));
                        self.problems.push(Problem::new(message).at(&label));
                    }
                }
                Err(problem) => self.problems.push(Problem { origin: Some(label.clone()), ..problem }),
            }
        }
        Some(node)
    }

    /// Returns a node without its values and attributes.
    fn named_node(&mut self, proto: &NodeProto, scope: &Scope<'a>) -> Option<Node> {
        let domain = canonical_domain(proto.domain.as_deref().unwrap_or_default());
        let name = proto.name.as_deref().unwrap_or_default();
        let mut node = Node {
            name: name.to_owned(),
            op_type: proto.op_type.clone().unwrap_or_default(),
            domain: domain.to_owned(),
            overload: proto.overload.clone().unwrap_or_default(),
            opset: header::version(&scope.imports, domain).unwrap_or(0),
            outputs: proto.output.clone(),
            metadata: metadata(&proto.metadata_props),
            ..Node::default()
        };
        if let Some(call) = &scope.call {
            let own = if name.is_empty() { &node.op_type } else { &node.name };
            node.name = format!("{}/{own}", call.prefix);
            node.function = Some(call.function.clone());
            call.metadata.iter().for_each(|(key, value)| {
                node.metadata.entry(key.clone()).or_insert_with(|| value.clone());
            });
            let metadata: usize = call.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
            self.charge(256 + node.name.len() + call.function.len() + metadata + 32 * proto.attribute.len())?;
        }
        if node.op_type.is_empty() {
            self.problems.push(Problem::new("a node has no operator").at(node.label()));
        }
        Some(node)
    }

    /// Checks that the domain of an operator is imported, because only the import gives its version.
    fn check_imported(&mut self, node: &Node, imports: &Imports) {
        if header::version(imports, &node.domain).is_none()
            && self.reported_domains.insert(node.domain.clone())
        {
            let shown = if node.domain.is_empty() { "ai.onnx".to_owned() } else { quoted(&node.domain) };
            let message =
                format!("the file does not import the opset of domain {shown}, so its version is unknown");
            self.problems.push(
                Problem::new(message).at(node.label()).note("the exporter should list it in opset_import"),
            );
        }
    }

    /// Adds the tensor `name`, or marks it as broken if it could not be read.
    fn add(&mut self, tensor: Option<Tensor>, name: &str, graph: &mut Graph) {
        match tensor {
            Some(tensor) => graph.tensors.push(tensor),
            None => self.broken.extend([name.to_owned()]),
        }
    }

    fn tensor(
        &mut self,
        proto: &TensorProto,
        name: &str,
        source: TensorSource,
        scope: &Scope<'a>,
    ) -> Option<Tensor> {
        self.charge_tensor(proto, scope);
        self.problems.keep(tensor(proto, name, source, self.files))
    }

    /// Counts the bytes that inlining adds. `None` over the limit; the first time, a problem is reported.
    pub(super) fn charge(&mut self, bytes: usize) -> Option<()> {
        let before = self.inlined;
        self.inlined = before.saturating_add(bytes);
        if before <= INLINE_LIMIT && self.inlined > INLINE_LIMIT {
            let message =
                format!("the model's functions need more than {INLINE_LIMIT} bytes when they are inlined");
            self.problems.push(
                Problem::new(message)
                    .note("functions that call each other many times can grow without limit"),
            );
        }
        (self.inlined <= INLINE_LIMIT).then_some(())
    }

    /// Whether the limit of inlining is exceeded.
    pub(super) fn exhausted(&self) -> bool {
        self.inlined > INLINE_LIMIT
    }

    /// Counts the bytes of a converted tensor in a function's body. A tensor in `raw_data` needs no conversion.
    pub(super) fn charge_tensor(&mut self, proto: &TensorProto, scope: &Scope<'a>) {
        if scope.call.is_some() {
            let typed = proto.float_data.len() + proto.int32_data.len() + proto.string_data.len();
            let wide = proto.double_data.len() + proto.int64_data.len() + proto.uint64_data.len();
            let name = proto.name.as_ref().map_or(0, String::len);
            let _ = self.charge(128 + name + 8 * (proto.dims.len() + typed + wide));
        }
    }
}

/// Returns the key of the function that a node would call.
pub(super) fn function_key(node: &NodeProto) -> FunctionKey<'_> {
    (
        canonical_domain(node.domain.as_deref().unwrap_or_default()),
        node.op_type.as_deref().unwrap_or_default(),
        node.overload.as_deref().unwrap_or_default(),
    )
}

/// Collects all names of values in a graph and its subgraphs.
fn collect_names(graph: &GraphProto, names: &mut BTreeSet<String>) {
    let values = [&graph.input, &graph.output, &graph.value_info];
    names.extend(values.into_iter().flatten().filter_map(|info| info.name.clone()));
    names.extend(graph.initializer.iter().filter_map(|tensor| tensor.name.clone()));
    for node in &graph.node {
        names.extend(node.output.iter().cloned());
        for attribute in &node.attribute {
            if let Some(inner) = &attribute.g {
                collect_names(inner, names);
            }
            attribute.graphs.iter().for_each(|inner| collect_names(inner, names));
        }
    }
}
