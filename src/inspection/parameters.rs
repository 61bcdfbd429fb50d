//! The role of each float tensor of the file, with the reason.

use ir::{Module, Role, State};
use onnx::StateDict;
use passes::reports::{ParameterReport, RowRole, StateView, Tie};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The float tensors that the program reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParameterFacts {
    /// The number of tensors of the file that are parameters. Tied tensors count once.
    pub count: usize,
    /// Elements that are trained.
    pub trained: u64,
    /// Elements of parameters that are frozen.
    pub frozen: u64,
    /// Every tensor, in the order of the file.
    pub tensors: Vec<TensorRow>,
}

/// A float tensor of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorRow {
    /// Its name in the file.
    pub name: String,
    /// Its type in the file.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its role.
    pub role: RowRole,
    /// Whether it is a parameter that the user excluded from training.
    pub frozen: bool,
    /// The reason for its role.
    pub reason: String,
    /// Its names in the author's module. It has several if it holds several of the author's tensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub author: Vec<String>,
    /// Other names that patterns and weights files may use.
    pub aliases: Vec<String>,
    /// The states that hold it.
    pub states: Vec<PartFacts>,
    /// The tensor to which it is tied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tied: Option<Tie>,
}

/// A state that holds a tensor or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartFacts {
    /// Its name.
    pub state: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// The view from the tensor to the state, as in the text of a program. Empty if the state is the whole tensor.
    pub view: String,
}

impl ParameterFacts {
    pub(super) fn of(reports: &[ParameterReport], module: &Module, state_dict: &StateDict) -> Self {
        let names = state_dict.names();
        let parameters = reports.iter().filter(|report| report.role == RowRole::Parameter);
        let frozen = parameters.clone().filter(|report| report.frozen && report.tied.is_none());
        let frozen = frozen.flat_map(|report| &report.states).map(|part| &part.state);
        // A state may hold several parts.
        let frozen: BTreeSet<&String> = frozen.collect();
        let states: States = module.states.values().map(|state| (state.name.as_str(), state)).collect();
        let frozen = frozen.into_iter().filter_map(|name| states.get(name.as_str()).copied());
        Self {
            count: parameters.filter(|report| report.tied.is_none()).count(),
            trained: elements(Role::Parameter, module.states.values()),
            frozen: elements(Role::Buffer, frozen),
            tensors: reports.iter().map(|report| TensorRow::of(report, &states, &names)).collect(),
        }
    }

    /// The tensors of a role, ties left out.
    pub(super) fn of_role(&self, role: RowRole) -> impl Iterator<Item = &TensorRow> {
        self.tensors.iter().filter(move |row| row.role == role && row.tied.is_none())
    }
}

/// The number of elements of the states of a role that hold tensors of the file.
fn elements<'a>(role: Role, states: impl Iterator<Item = &'a State>) -> u64 {
    let states = states.filter(|state| state.role == role && state.initializer.data().is_some());
    states.filter_map(|state| state.ty.numel()).fold(0, u64::saturating_add)
}

/// The states of a program by name.
type States<'a> = BTreeMap<&'a str, &'a State>;

impl TensorRow {
    fn of(report: &ParameterReport, states: &States, names: &BTreeMap<&str, Vec<&str>>) -> Self {
        let part = |part: &StateView| PartFacts {
            state: part.state.clone(),
            ty: states.get(part.state.as_str()).map(|state| state.ty.to_string()).unwrap_or_default(),
            view: ir::text::view_text(&part.view),
        };
        let author = names.get(report.data.as_str()).into_iter().flatten();
        Self {
            name: report.data.clone(),
            ty: report.ty.to_string(),
            role: report.role,
            frozen: report.frozen,
            reason: report.reason.clone(),
            author: author.map(|name| name.to_string()).collect(),
            aliases: report.aliases.clone(),
            states: report.states.iter().map(part).collect(),
            tied: report.tied.clone(),
        }
    }

    /// All its names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let others = self.aliases.iter().chain(self.states.iter().map(|part| &part.state));
        std::iter::once(&self.name).chain(others).map(String::as_str)
    }

    /// Whether one state, which has a name of the tensor, holds the whole tensor.
    pub(super) fn is_plain(&self) -> bool {
        let own = |state: &String| *state == self.name || self.aliases.contains(state);
        matches!(&self.states[..], [part] if part.view.is_empty() && own(&part.state))
    }
}
