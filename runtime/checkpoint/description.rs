//! `checkpoint.json`: what the values of a checkpoint belong to.

use super::fingerprint::{self, DataFingerprint};
use crate::data::DataPosition;
use ir::{Module, Role, State, visible};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the format; it changes when an older program could not read, or would misread, a newer file.
pub const FORMAT: u64 = 1;

/// Everything of a checkpoint but the values of its states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The version of the format.
    pub format: u64,
    /// The module's name.
    pub module: String,
    /// The fingerprint of the set of parameters: [`super::of_parameters`].
    pub parameters: String,
    /// Where in the data the next step begins, and so how many steps are done.
    pub position: DataPosition,
    /// The training data.
    pub data: DataFingerprint,
    /// The state table.
    pub states: Vec<StateRow>,
}

/// A row of the state table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRow {
    /// The state's name.
    pub name: String,
    /// Its element type, as in the text of a module.
    pub dtype: String,
    /// Its global sizes without padding, outermost first.
    pub dims: Vec<u64>,
    /// What it is for, as in the text of a module.
    pub role: String,
    /// How it is cut out of the file's tensor, before padding, as in the text of a module; empty if it is that tensor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub view: String,
}

impl Description {
    /// The description of a checkpoint of `module` at a place in the data.
    pub fn new(module: &Module, position: DataPosition, data: DataFingerprint) -> Self {
        Self {
            format: FORMAT,
            module: module.name.clone(),
            parameters: fingerprint::of_parameters(module),
            position,
            data,
            states: StateRow::table(module),
        }
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.position.step
    }
}

impl StateRow {
    /// The rows of a module's state table, in its order.
    pub fn table(module: &Module) -> Vec<Self> {
        module.states.values().map(Self::of).collect()
    }

    fn of(state: &State) -> Self {
        let role = Role::ALL.into_iter().find(|(role, _)| *role == state.role);
        // The mesh may not show: a run goes on on another, with other padding.
        let sizes: Option<Vec<u64>> = state.ty.sizes();
        let (padding, dims) = ir::view::padding(&state.view, sizes.as_deref().unwrap_or_default());
        let unbound = || state.ty.dims.iter().map(|dim| dim.size().unwrap_or(u64::MAX)).collect();
        Self {
            name: state.name.clone(),
            dtype: state.ty.dtype.to_string(),
            // Programs that are lowered have no unbound dims; a symbol would never equal a number.
            dims: if sizes.is_some() { dims } else { unbound() },
            role: role.map(|(_, name)| name.to_owned()).unwrap_or_default(),
            view: ir::text::view_text(&state.view[..state.view.len() - padding.len()]),
        }
    }

    /// Type, role and view.
    pub(super) fn what(&self) -> String {
        let view = if self.view.is_empty() { String::new() } else { format!(" view {}", self.view) };
        visible(&format!("{}{:?} {}{view}", self.dtype, self.dims, self.role)).into_owned()
    }
}

/// `` `h.0.attn.weight` f32[768, 768] ``
impl fmt::Display for StateRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}{:?}", visible(&self.name), visible(&self.dtype), self.dims)
    }
}
