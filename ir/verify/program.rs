//! Level imported, the nodes: definitions, order, types, shardings. Invariants 5 to 8, with 19 in place of 7.

use super::Check;
use crate::lowered;
use crate::ops::Inference;
use crate::text::data_of;
use crate::{Definition, Phase};
use crate::{Level, Node, NodeId, Type, ValueId};
use cranelift_entity::EntitySet;

/// Checks invariants 5 to 8.
pub(super) fn check(c: &mut Check) {
    definitions(c);
    uses(c);
    if c.faults.is_empty() {
        phases(c);
        c.nodes().for_each(|(id, node)| types(c, id, node));
        shardings(c);
    }
}

/// Checks that every value is defined once, by its `definition`.
fn definitions(c: &mut Check) {
    let module = c.module;
    let inputs =
        module.inputs.iter().enumerate().map(|(i, input)| (input.value, Definition::Input(i as u32)));
    let states = module.states.iter().map(|(id, state)| (state.input, Definition::State(id)));
    let results = module.nodes().flat_map(|(id, node)| {
        node.results.iter().enumerate().map(move |(i, &value)| (value, Definition::Node(id, i as u32)))
    });
    let mut defined = EntitySet::new();
    for (value, definition) in inputs.chain(states).chain(results) {
        let name = c.names.value(value);
        if !defined.insert(value) {
            c.fault(format!("{name} is defined twice, the second time by {}", describe(c, definition)));
        }
        let said = module.value(value).definition;
        if said != definition {
            let (by, said) = (describe(c, definition), describe(c, said));
            c.fault(format!("{name} is defined by {by}, but it names {said}"));
        }
    }
}

fn describe(c: &Check, definition: Definition) -> String {
    match definition {
        Definition::Input(i) => format!("input {i}"),
        Definition::State(id) => format!("{id}"),
        Definition::Node(id, i) if c.module.nodes.is_valid(id) => {
            format!("result {i} of `{}`", c.names.node(c.module.node(id)))
        }
        Definition::Node(id, i) => format!("result {i} of {id}"),
    }
}

/// Checks that every value is defined before it is read.
fn uses(c: &mut Check) {
    let module = c.module;
    let set = |values: &mut dyn Iterator<Item = ValueId>| {
        let mut set = EntitySet::new();
        values.for_each(|value| {
            set.insert(value);
        });
        set
    };
    let defined = set(&mut c.values().map(|(value, _)| value));
    let inputs = module.inputs.iter().map(|input| input.value);
    let mut known = set(&mut inputs.chain(module.states.values().map(|state| state.input)));
    for (id, node) in module.nodes() {
        for &operand in node.operands.iter().filter(|&&operand| !known.contains(operand)) {
            let name = c.names.value(operand);
            let how = if defined.contains(operand) {
                "before it is defined"
            } else {
                "which no node in the order defines"
            };
            c.node_fault(id, format!("reads {name} {how}"));
        }
        for &result in &node.results {
            known.insert(result);
        }
    }
    for (what, value) in c.roots() {
        if !known.contains(value) {
            c.fault(format!("{what} is {}, which no node in the order defines", c.names.value(value)));
        }
    }
}

fn phases(c: &mut Check) {
    let name = |phase: Phase| Phase::ALL[phase as usize].1;
    let mut latest = Phase::Prepare;
    for (id, node) in c.nodes() {
        if node.phase < latest {
            c.node_fault(id, format!("a node of {} stands after one of {}", name(node.phase), name(latest)));
        }
        latest = latest.max(node.phase);
        if c.module.level == Level::Imported && node.phase > Phase::Forward {
            c.node_fault(id, format!("level imported has no phase {}", name(node.phase)));
        }
    }
}

/// Checks the operands and results of a node with its operator's `infer`.
fn types(c: &mut Check, id: NodeId, node: &Node) {
    let (level, signature) = (c.module.level, c.module.signature(node));
    let given = Inference { operands: &signature.operands, declared: &signature.results };
    let inferred = match lowered::infer(level, &node.op, &given) {
        Ok(inferred) => inferred,
        Err(error) => return c.node_fault(id, error.message),
    };
    if inferred.len() != signature.results.len() {
        let (gives, has) = (inferred.len(), signature.results.len());
        c.node_fault(id, format!("the operator gives {gives} results, and the node has {has}"));
    }
    for (i, (inferred, ty)) in inferred.iter().zip(&signature.results).enumerate() {
        if !lowered::fits(level, ty, inferred) {
            c.node_fault(id, format!("result {i} is {ty}, and the operator gives {inferred}"));
        }
    }
    if let (Some(data), [ty, ..]) = (data_of(node), &signature.results[..]) {
        let row = &c.module.data[data];
        if !ty.same_shape(&row.ty) {
            c.node_fault(id, format!("reads data `{}`, which is {}, as {ty}", row.name, row.ty));
        }
    }
}

fn shardings(c: &mut Check) {
    for (id, ty) in c.values() {
        if let Some(wrong) = malformed(ty) {
            c.fault(format!("{}: {wrong}", c.value(id)));
        }
    }
}

/// Returns the fault in the form of a sharding, if there is one.
fn malformed(ty: &Type) -> Option<String> {
    let (split, ndim) = (ty.sharding.dims.len(), ty.ndim());
    if split != 0 && split != ndim {
        return Some(format!("the sharding has {split} entries for {ndim} dims"));
    }
    let partial = ty.sharding.partial.iter().flat_map(|(_, axes)| axes);
    let mut seen = EntitySet::new();
    let twice = ty.sharding.dims.iter().flatten().chain(partial).any(|&axis| !seen.insert(axis));
    if twice {
        return Some("an axis occurs twice in the sharding".into());
    }
    let empty = ty.sharding.partial.as_ref().is_some_and(|(_, axes)| axes.is_empty());
    empty.then(|| "a partial value names its axes".into())
}
