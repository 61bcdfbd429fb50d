//! Inlining: a call of a function of the model becomes the nodes of its body. Invariants: an inner value gets a unique name;
//! recursion and unbounded growth are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::build::{Builder, DEPTH_LIMIT};
use super::header::{self, Imports, canonical_domain};
use super::scope::{Call, FunctionKey, Scope};
use super::{Attribute, Graph, Node};
use crate::error::{Problem, quoted};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};

impl<'a> Builder<'a> {
    /// Declares a function that nodes may call.
    pub(super) fn declare_function(&mut self, function: &'a FunctionProto, model: &Imports) {
        let key: FunctionKey = (
            canonical_domain(function.domain.as_deref().unwrap_or_default()),
            function.name.as_deref().unwrap_or_default(),
            function.overload.as_deref().unwrap_or_default(),
        );
        let place = format!("function {}", shown(key));
        if key.1.is_empty() {
            self.problems.push(Problem::new("a function has no name").at(place));
            return;
        }
        let mut imports = model.clone();
        imports.extend(header::imports(&function.opset_import, &place, self.problems));
        self.function_imports.insert(key, Rc::new(imports));
        if self.functions.insert(key, function).is_some() {
            self.problems.push(Problem::new(format!("function {} is defined twice", shown(key))).at(place));
        }
    }

    /// Inlines one call.
    pub(super) fn call(
        &mut self,
        key: FunctionKey<'a>,
        function: &'a FunctionProto,
        proto: &'a NodeProto,
        scope: &mut Scope<'a>,
        graph: &mut Graph,
    ) {
        if self.exhausted() {
            return;
        }
        let Some(caller) = self.plain_node(proto, scope) else { return };
        let mut stack = scope.call.as_ref().map(|call| call.stack.clone()).unwrap_or_default();
        if let Err(problem) = check_call(key, function, &caller, &stack, scope.depth) {
            self.problems.push(problem.at(caller.label()));
            self.broken.extend(caller.outputs);
            return;
        }
        stack.push(key);
        let attributes = self.arguments(function, &caller, scope);
        let prefix = match &caller.name[..] {
            "" => caller.outputs.iter().find(|output| !output.is_empty()).unwrap_or(&caller.op_type).clone(),
            name => name.to_owned(),
        };
        let imports = self.function_imports[&key].clone();
        let names = self.bind(function, &caller, &prefix, &imports, graph);
        let call = Call { function: shown(key), stack, prefix, attributes, metadata: caller.metadata };
        let depth = scope.depth + 1;
        let in_subgraph = scope.in_subgraph;
        let mut inner = Scope { imports, names: Some(vec![names]), call: Some(call), depth, in_subgraph };
        for node in &function.node {
            self.node(node, &mut inner, graph);
        }
        self.value_types(&function.value_info, &inner, graph);
    }

    /// Returns the function's attributes for this call: the caller's value, the default, or `None`.
    fn arguments(
        &mut self,
        function: &'a FunctionProto,
        caller: &Node,
        scope: &mut Scope<'a>,
    ) -> BTreeMap<String, Option<Attribute>> {
        let given = |name: &str| caller.attributes.get(name).cloned();
        let mut arguments: BTreeMap<String, Option<Attribute>> =
            function.attribute.iter().map(|name| (name.clone(), given(name))).collect();
        for default in &function.attribute_proto {
            let name = default.name.clone().unwrap_or_default();
            let value = given(&name).or_else(|| self.default(default, caller, scope));
            arguments.insert(name, value);
        }
        let weight = arguments.values().flatten().map(Attribute::weight).sum();
        self.charge(weight);
        arguments
    }

    fn default(
        &mut self,
        proto: &'a AttributeProto,
        caller: &Node,
        scope: &mut Scope<'a>,
    ) -> Option<Attribute> {
        let value = self.attribute(proto, scope).map_err(|problem| problem.at(caller.label()));
        self.problems.keep(value).flatten()
    }

    /// Binds each name in the function's body to a value: the caller's inputs and outputs, and new names for all other values. An
    /// output that the body only passes on becomes an Identity.
    fn bind(
        &mut self,
        function: &FunctionProto,
        caller: &Node,
        prefix: &str,
        imports: &Imports,
        graph: &mut Graph,
    ) -> BTreeMap<String, String> {
        let mut names = BTreeMap::new();
        for (index, formal) in function.input.iter().enumerate() {
            names.insert(formal.clone(), caller.input(index).unwrap_or_default().to_owned());
        }
        let defined: BTreeSet<&String> = function.node.iter().flat_map(|node| &node.output).collect();
        for (index, formal) in function.output.iter().enumerate() {
            let actual = caller.output(index);
            match (names.get(formal), actual) {
                (Some(source), Some(actual)) if !source.is_empty() => {
                    graph.nodes.push(identity(caller, source, actual, imports));
                }
                (Some(_), _) => {}
                (None, _) if !defined.contains(formal) => {
                    let message =
                        format!("no node of the function's body defines its output {}", quoted(formal));
                    self.problems.push(Problem::new(message).at(caller.label()));
                    self.broken.extend(actual.map(str::to_owned));
                }
                (None, Some(actual)) => drop(names.insert(formal.clone(), actual.to_owned())),
                (None, None) => drop(names.insert(formal.clone(), self.fresh(prefix, formal))),
            }
        }
        for name in defined.into_iter().filter(|name| !name.is_empty()) {
            if !names.contains_key(name) {
                let fresh = self.fresh(prefix, name);
                names.insert(name.clone(), fresh);
            }
        }
        names
    }

    /// Makes new names for the values of a subgraph within a function.
    pub(super) fn declare_subgraph_names(&mut self, proto: &GraphProto, scope: &mut Scope<'a>) {
        let (Some(scopes), Some(call)) = (&mut scope.names, &scope.call) else { return };
        let inputs = proto.input.iter().filter_map(|info| info.name.as_ref());
        let tensors = proto.initializer.iter().filter_map(|tensor| tensor.name.as_ref());
        let values = proto.node.iter().flat_map(|node| &node.output);
        let mut names = BTreeMap::new();
        for name in inputs.chain(tensors).chain(values).filter(|name| !name.is_empty()) {
            if !names.contains_key(name) {
                let fresh = self.fresh(&call.prefix, name);
                names.insert(name.clone(), fresh);
            }
        }
        scopes.push(names);
    }

    /// Returns `prefix/name`, followed by a number if such a value already exists.
    fn fresh(&mut self, prefix: &str, name: &str) -> String {
        self.charge(3 * (prefix.len() + name.len()) + 64);
        let wanted = format!("{prefix}/{name}");
        let times = self.wanted.entry(wanted.clone()).or_insert(0);
        let mut candidate = wanted.clone();
        while self.taken.contains(&candidate) {
            *times += 1;
            candidate = format!("{wanted}_{times}");
        }
        self.taken.insert(candidate.clone());
        candidate
    }
}

/// Returns the name of a function in messages: `domain.name`, followed by a colon and its overload.
fn shown((domain, name, overload): FunctionKey<'_>) -> String {
    let domain = if domain.is_empty() { "ai.onnx" } else { domain };
    let overload = if overload.is_empty() { String::new() } else { format!(":{overload}") };
    let name = quoted(&format!("{domain}.{name}{overload}"));
    name.trim_matches('"').to_owned()
}

fn check_call(
    key: FunctionKey<'_>,
    function: &FunctionProto,
    caller: &Node,
    stack: &[FunctionKey<'_>],
    depth: usize,
) -> Result<(), Problem> {
    let name = shown(key);
    if stack.contains(&key) {
        let chain: Vec<String> = stack.iter().map(|&key| shown(key)).chain([name]).collect();
        return Err(Problem::new(format!("functions call themselves: {}", chain.join(" -> "))));
    }
    if depth >= DEPTH_LIMIT {
        return Err(Problem::new(format!(
            "graphs and functions are nested more than {DEPTH_LIMIT} levels deep"
        )));
    }
    let (given, taken) = (caller.inputs.len(), function.input.len());
    if given > taken {
        return Err(Problem::new(format!("function {name} has {taken} inputs, and the call gives {given}")));
    }
    let (wanted, had) = (caller.outputs.len(), function.output.len());
    if wanted > had {
        return Err(Problem::new(format!(
            "function {name} has {had} outputs, and the call asks for {wanted}"
        )));
    }
    Ok(())
}

fn identity(caller: &Node, source: &str, target: &str, imports: &Imports) -> Node {
    Node {
        name: caller.name.clone(),
        op_type: "Identity".to_owned(),
        opset: imports.get("").copied().unwrap_or(header::OPSETS.1),
        inputs: vec![source.to_owned()],
        outputs: vec![target.to_owned()],
        metadata: caller.metadata.clone(),
        function: caller.function.clone(),
        ..Node::default()
    }
}
