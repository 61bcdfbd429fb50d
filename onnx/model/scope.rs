//! The meaning of names at a place: unchanged in the main graph, renamed in a function's body.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Attribute;
use super::header::Imports;

/// The surroundings of a node during the construction of a graph.
pub(super) struct Scope<'a> {
    /// The operator sets that nodes use.
    pub(super) imports: Rc<Imports>,
    /// Names by scope, innermost last; `None` in the main graph, whose names are not changed.
    pub(super) names: Option<Vec<BTreeMap<String, String>>>,
    /// The call that is being inlined; `None` in the main graph.
    pub(super) call: Option<Call<'a>>,
    /// The number of subgraphs and calls around this place.
    pub(super) depth: usize,
    /// Whether the place is in a subgraph of the main graph or of the function.
    pub(super) in_subgraph: bool,
}

/// A call of a function.
pub(super) struct Call<'a> {
    /// The function's name in messages.
    pub(super) function: String,
    /// Functions being inlined, this one last, as (domain, name, overload).
    pub(super) stack: Vec<FunctionKey<'a>>,
    /// The prefix of the names of its nodes and values.
    pub(super) prefix: String,
    /// The function's attributes; `None` if the caller left one out and it has no default.
    pub(super) attributes: BTreeMap<String, Option<Attribute>>,
    /// The metadata of the call, which its nodes inherit.
    pub(super) metadata: BTreeMap<String, String>,
}

/// The key of a function: domain, name, overload.
pub(super) type FunctionKey<'a> = (&'a str, &'a str, &'a str);

impl<'a> Scope<'a> {
    /// Returns the scope of the main graph.
    pub(super) fn main(imports: Rc<Imports>) -> Self {
        Self { imports, names: None, call: None, depth: 0, in_subgraph: false }
    }

    /// Returns the value of `name` here; `None` if there is none.
    pub(super) fn lookup(&self, name: &str) -> Option<String> {
        match &self.names {
            _ if name.is_empty() => Some(String::new()),
            None => Some(name.to_owned()),
            Some(scopes) => scopes.iter().rev().find_map(|names| names.get(name)).cloned(),
        }
    }

    /// Whether tensors defined here can be replaced when the model is written.
    pub(super) fn is_main_graph(&self) -> bool {
        self.call.is_none() && !self.in_subgraph
    }
}
