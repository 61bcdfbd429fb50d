//! Level imported, the tables: ids, names, data rows, states, inputs. Invariants 1 to 4.

use super::Check;
use crate::text::data_of;
use crate::{Blob, Diagnostic, Initializer, Module, State, StateId, Type, view};
use cranelift_entity::EntitySet;
use std::collections::BTreeSet;

/// Checks invariant 1. No other check can run before it holds.
pub(super) fn ids_out_of_range(module: &Module) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    let mut fault = |message: String| faults.push(Diagnostic::new(message));
    let mut ordered = EntitySet::new();
    for &id in &module.order {
        if !module.nodes.is_valid(id) {
            fault(format!("the order lists {id}, but there are {} nodes", module.nodes.len()));
        } else if !ordered.insert(id) {
            fault(format!("the order lists {id} twice"));
        }
    }
    for &id in module.order.iter().filter(|&&id| module.nodes.is_valid(id)) {
        let node = &module.nodes[id];
        for value in
            node.operands.iter().chain(&node.results).filter(|&&value| !module.values.is_valid(value))
        {
            fault(format!(
                "{id} (`{}`) names {value}, but there are {} values",
                node.op.name(),
                module.values.len()
            ));
        }
        if let Some(data) = data_of(node).filter(|&data| !module.data.is_valid(data)) {
            fault(format!("{id} reads {data}, but there are {} rows of data", module.data.len()));
        }
    }
    let inputs = module.inputs.iter().map(|input| (&input.name, Some(input.value)));
    let outputs = module.outputs.iter().map(|output| (&output.name, Some(output.value)));
    let states = module.states.values().flat_map(|s| [(&s.name, Some(s.input)), (&s.name, s.output)]);
    for (name, value) in inputs.chain(outputs).chain(states) {
        if let Some(value) = value.filter(|&value| !module.values.is_valid(value)) {
            fault(format!("`{name}` names {value}, but there are {} values", module.values.len()));
        }
    }
    for state in module.states.values() {
        if let Some(data) = state.initializer.data().filter(|&data| !module.data.is_valid(data)) {
            fault(format!(
                "state `{}` names {data}, but there are {} rows of data",
                state.name,
                module.data.len()
            ));
        }
        if let Initializer::CopyOf(source) = state.initializer
            && !module.states.is_valid(source)
        {
            fault(format!(
                "state `{}` names {source}, but there are {} states",
                state.name,
                module.states.len()
            ));
        }
    }
    let types = module.values.values().map(|value| &value.ty);
    let types = types.chain(module.states.values().map(|state| &state.ty));
    for ty in types.chain(module.data.values().map(|data| &data.ty)) {
        let axes = ty.sharding.dims.iter().flatten();
        let partial = ty.sharding.partial.iter().flat_map(|(_, axes)| axes);
        if let Some(axis) = axes.chain(partial).find(|&&axis| !module.mesh.axes.is_valid(axis)) {
            fault(format!("a value of type {ty} names {axis}, but the mesh is {}", module.mesh));
        }
    }
    faults
}

/// Checks invariants 2 to 4.
pub(super) fn check(c: &mut Check) {
    names(c);
    data(c);
    for (id, state) in c.module.states.iter() {
        types(c, state);
        initializer(c, id, state);
    }
    for input in c.module.inputs.iter().filter(|input| input.batched) {
        let ty = c.module.ty(input.value);
        if ty.ndim() == 0 {
            c.fault(format!("input `{}` is batched, but {ty} has no dim 0 to count samples", input.name));
        }
    }
}

fn names(c: &mut Check) {
    let module = c.module;
    unique(c, "data rows", module.data.values().map(|data| &data.name));
    unique(c, "states", module.states.values().map(|state| &state.name));
    unique(c, "inputs", module.inputs.iter().map(|input| &input.name));
    unique(c, "outputs", module.outputs.iter().map(|output| &output.name));
    unique(c, "axes", module.mesh.axes.values().map(|axis| &axis.name));
    if let Some(axis) = module.mesh.axes.values().find(|axis| axis.size == 0) {
        c.fault(format!("axis `{}` has no device", axis.name));
    }
}

fn unique<'m>(c: &mut Check, what: &str, names: impl Iterator<Item = &'m String>) {
    let mut seen = BTreeSet::new();
    for name in names.filter(|&name| !seen.insert(name)) {
        c.fault(format!("two {what} are called `{name}`"));
    }
}

fn data(c: &mut Check) {
    for data in c.module.data.values() {
        let (name, ty) = (&data.name, c.ty(&data.ty));
        let Some(size) = data.ty.bytes() else {
            c.fault(format!("data `{name}` is {ty}, whose size does not fit in 64 bits"));
            continue;
        };
        if !data.ty.sharding.is_whole() {
            c.fault(format!("data `{name}` is {ty}: a row of the data table must not be sharded"));
        }
        if let Blob::Inline(bytes) | Blob::File(Some(bytes)) = &data.blob
            && bytes.len() as u64 != size
        {
            c.fault(format!("data `{name}` has {} bytes, and {ty} needs {size}", bytes.len()));
        }
    }
}

/// Checks that a state's input value and new value fit the state's type.
fn types(c: &mut Check, state: &State) {
    let (name, ty) = (&state.name, &state.ty);
    let input = c.module.ty(state.input);
    if input != ty {
        c.fault(format!("state `{name}` is {}, and its value is {}", c.ty(ty), c.value(state.input)));
    }
    if let Some(output) = state.output.filter(|&output| !c.module.ty(output).same_shape(ty)) {
        c.fault(format!("state `{name}` is {}, and its new value is {}", c.ty(ty), c.value(output)));
    }
}

/// Checks that a state's initializer fits the state.
fn initializer(c: &mut Check, id: StateId, state: &State) {
    let name = &state.name;
    if let Initializer::CopyOf(source) = state.initializer {
        let from = &c.module.states[source];
        if source >= id {
            c.fault(format!("state `{name}` copies `{}`, which does not stand before it", from.name));
        } else if from.ty.dims != state.ty.dims {
            c.fault(format!(
                "state `{name}` is {}, and it copies `{}`: {}",
                c.ty(&state.ty),
                from.name,
                c.ty(&from.ty)
            ));
        }
    }
    let Some(row) = state.initializer.data().map(|data| &c.module.data[data]) else { return };
    let (Some(from), Some(to)) = (row.ty.sizes(), state.ty.sizes()) else {
        c.fault(format!("state `{name}` is {}, a view of `{}`: dims must be bound", state.ty, row.name));
        return;
    };
    let seen =
        view::sizes(&state.view, &from).map(|sizes| Type::of(view::dtype(&state.view, row.ty.dtype), &sizes));
    match seen {
        None => c.fault(format!("the view of state `{name}` does not fit `{}`: {}", row.name, row.ty)),
        Some(seen) if !seen.same_shape(&Type::of(state.ty.dtype, &to)) => {
            c.fault(format!(
                "state `{name}` is {}, and its view of `{}` gives {seen}",
                c.ty(&state.ty),
                row.name
            ));
        }
        Some(_) => {}
    }
}
