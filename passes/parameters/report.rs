//! The reports of the tensors of a file, and the set of trained tensors as options of the pass.

use super::{Decision, Parameters, Row, readers, views};
use crate::arguments::Arguments;
use crate::pass::{PassContext, Transform};
use crate::reports::{ParameterReport, RowRole, StateView, Tie};
use crate::rewriting::dead::remove_dead;
use ir::{
    At, Blob, Builder, Changed, Data, DataId, Definition, Diagnostic, Initializer, Module, Role, State,
    ViewStep,
};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A tensor of the file that is a parameter as a whole, with the tensors that are tied to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// The name in the file, which is also the name of its state.
    pub data: String,
    /// The tensors that are tied to it: their names, and the permutations of their dims.
    pub ties: Vec<Tie>,
}

/// Returns the set of trained tensors of a compiled program. Its reference gets the same set.
pub fn specs(reports: &[ParameterReport]) -> Vec<ParameterSpec> {
    let trained = reports.iter().filter(|report| report.role == RowRole::Parameter && !report.frozen);
    let (tied, whole): (Vec<_>, Vec<_>) = trained.partition(|report| report.tied.is_some());
    let ties_of = |name: &str| {
        let of = |report: &&ParameterReport| {
            let tie = report.tied.as_ref().filter(|tie| tie.data == name)?;
            Some(Tie { data: report.data.clone(), permutation: tie.permutation.clone() })
        };
        tied.iter().filter_map(of).collect()
    };
    whole
        .iter()
        .map(|report| ParameterSpec { data: report.data.clone(), ties: ties_of(&report.data) })
        .collect()
}

/// Reports every float tensor of the file.
pub(super) fn reports(module: &Module, decision: &Decision, cx: &PassContext) -> Vec<ParameterReport> {
    let mut reports: BTreeMap<DataId, ParameterReport> = BTreeMap::new();
    for row in &decision.rows {
        reports.insert(row.data, report(module, row, cx));
    }
    for tie in &decision.ties {
        let Some(main) = reports.get(&tie.to).cloned() else { continue };
        let (data, ty) = (&module.data[tie.data].name, &module.data[tie.data].ty);
        let through = |state: &StateView| {
            let moved = back_step(&tie.permutation).into_iter();
            StateView { state: state.state.clone(), view: moved.chain(state.view.iter().cloned()).collect() }
        };
        let states = main.states.iter().map(through).collect();
        let tied = Some(Tie { data: main.data.clone(), permutation: tie.permutation.clone() });
        let aliases = cx.aliases.get(data).cloned().unwrap_or_default();
        let reason = format!("same bytes as `{}`", main.data);
        let claim = module.data[tie.data].claim;
        let (data, ty) = (data.clone(), ty.clone());
        let report = ParameterReport { data, ty, aliases, reason, claim, states, tied, ..main };
        reports.insert(tie.data, report);
    }
    // The import has made states of the buffers that the model updates itself.
    for state in module.states.values().filter(|state| state.role == Role::Buffer) {
        if let Some(data) = state.initializer.data() {
            reports.entry(data).or_insert_with(|| buffer_report(module, data, state, cx));
        }
    }
    for (id, data) in module.data.iter() {
        if data.ty.dtype.is_float() && matches!(data.blob, Blob::File(_)) {
            reports.entry(id).or_insert_with(|| unread_report(data, cx));
        }
    }
    reports.into_values().collect()
}

/// Reports a tensor that no node reads as a tensor.
fn unread_report(data: &Data, cx: &PassContext) -> ParameterReport {
    let reason = if data.ty.ndim() == 0 { "a single number" } else { "no node reads it" };
    ParameterReport {
        data: data.name.clone(),
        ty: data.ty.clone(),
        aliases: cx.aliases.get(&data.name).cloned().unwrap_or_default(),
        role: RowRole::Constant,
        frozen: false,
        reason: reason.into(),
        claim: data.claim,
        states: vec![],
        tied: None,
    }
}

/// Reports a tensor that a microbatch changes although it is not trained.
fn buffer_report(module: &Module, data: DataId, state: &State, cx: &PassContext) -> ParameterReport {
    let row = &module.data[data];
    ParameterReport {
        data: row.name.clone(),
        ty: row.ty.clone(),
        aliases: cx.aliases.get(&row.name).cloned().unwrap_or_default(),
        role: RowRole::Buffer,
        frozen: false,
        reason: "running statistic of a norm".into(),
        claim: row.claim,
        states: vec![StateView { state: state.name.clone(), view: state.view.clone() }],
        tied: None,
    }
}

/// Returns the step from the other tensor back to a tied one. Dim `i` of the tied tensor is dim `permutation[i]` of the other.
fn back_step(permutation: &[u32]) -> Option<ViewStep> {
    let mut inverse: SmallVec<[u32; 4]> = SmallVec::from_slice(permutation);
    permutation.iter().enumerate().for_each(|(i, &p)| inverse[p as usize] = i as u32);
    let moves = inverse.iter().copied().ne(0..inverse.len() as u32);
    moves.then_some(ViewStep::Transpose(inverse))
}

fn report(module: &Module, row: &Row, cx: &PassContext) -> ParameterReport {
    let data = &module.data[row.data];
    let of = |state: &super::NewState| {
        let view = &state.cut.view;
        // Rows with separate states do not stand for each other, although a fresh model has equal numbers in them.
        let stands_for_all = row.states.iter().all(|other| other.cut.view.first() == view.first());
        let views = if stands_for_all { views::copies(data, view) } else { vec![view.clone()] };
        views.into_iter().map(|view| StateView { state: state.name.clone(), view }).collect::<Vec<_>>()
    };
    ParameterReport {
        data: data.name.clone(),
        ty: data.ty.clone(),
        aliases: cx.aliases.get(&data.name).cloned().unwrap_or_default(),
        role: if row.finding.is_parameter() { RowRole::Parameter } else { RowRole::Constant },
        frozen: row.frozen,
        reason: row.finding.reason().to_string(),
        claim: data.claim,
        states: row.states.iter().flat_map(of).collect(),
        tied: None,
    }
}

/// Makes exactly these tensors parameters, each as a whole.
pub(super) fn apply_specs(module: &mut Module, specs: &[ParameterSpec]) -> Result<Changed, Diagnostic> {
    let rows: BTreeMap<String, DataId> =
        module.data.iter().map(|(id, data)| (data.name.clone(), id)).collect();
    let row = |name: &String| {
        let found = rows.get(name).copied();
        found.ok_or_else(|| Diagnostic::new(format!("the program has no tensor `{name}` to train")))
    };
    let readers = readers(module);
    let mut b = Builder::new(module, Parameters::NAME);
    for spec in specs {
        let data = row(&spec.data)?;
        let ty = b.module().data[data].ty.clone();
        let id = b.tables().add_state(&spec.data, ty, Role::Parameter, Initializer::Data(data));
        let state = b.module().states[id].input;
        let identity = (0..b.ty(state).ndim() as u32).collect::<Vec<_>>();
        let mut reads = vec![(data, identity)];
        for tie in &spec.ties {
            reads.push((row(&tie.data)?, tie.permutation.clone()));
        }
        for (data, permutation) in reads {
            for &value in readers.get(&data).into_iter().flatten() {
                let Definition::Node(node, _) = b.module().value(value).definition else { continue };
                b.at(At::Before(node));
                let read = b.transpose(state, &permutation)?;
                let read = b.reshape(read, b.ty(value).dims.clone())?;
                b.replace(value, read);
                b.remove(node);
            }
        }
    }
    let changed = b.finish();
    Ok(changed.or(remove_dead(module, Parameters::NAME)))
}

/// Writes specs as options: `data=NAME`, each followed by its ties, `tie=NAME, permuted=1x0`.
pub(super) fn print_specs(specs: &[ParameterSpec], arguments: &mut Arguments) {
    for spec in specs {
        arguments.push("data", &spec.data);
        for tie in &spec.ties {
            arguments.push("tie", &tie.data);
            let dims: Vec<String> = tie.permutation.iter().map(u32::to_string).collect();
            arguments.push("permuted", dims.join("x"));
        }
    }
}

/// Reads the options that [`print_specs`] wrote.
pub(super) fn parse_specs(arguments: &mut Arguments) -> Result<Vec<ParameterSpec>, String> {
    let mut specs: Vec<ParameterSpec> = Vec::new();
    for (key, value) in arguments.take_rest() {
        match (key.as_str(), specs.last_mut()) {
            ("data", _) => specs.push(ParameterSpec { data: value, ties: vec![] }),
            ("tie", Some(spec)) => spec.ties.push(Tie { data: value, permutation: vec![] }),
            ("permuted", Some(ParameterSpec { ties, .. })) => {
                let dims: Result<_, _> = value.split('x').map(str::parse).collect();
                let tie = ties.last_mut().ok_or("`permuted` stands after a `tie`")?;
                tie.permutation = dims.map_err(|_| format!("`{value}` is not a permutation such as 1x0"))?;
            }
            _ => return Err(format!("`{key}` does not stand after a `data`")),
        }
    }
    Ok(specs)
}
