//! What a name means at one place: in the main graph itself, in a function's body the value it was renamed to.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Attribute;
use super::header::Imports;

/// The surroundings of a node while the graph is built.
pub(super) struct Scope<'a> {
    /// The operator sets that nodes are written against.
    pub(super) imports: Rc<Imports>,
    /// Names by scope, innermost last; `None` in the main graph, whose names stay as they are.
    pub(super) names: Option<Vec<BTreeMap<String, String>>>,
    /// The call that is being inlined; `None` in the main graph.
    pub(super) call: Option<Call<'a>>,
    /// Subgraphs and calls around this place.
    pub(super) depth: usize,
    /// Whether this is inside a subgraph of the main graph or of the function.
    pub(super) in_subgraph: bool,
}

/// One call of a function.
pub(super) struct Call<'a> {
    /// The function, as it is called in messages.
    pub(super) function: String,
    /// Functions being inlined, this one last, as (domain, name, overload).
    pub(super) stack: Vec<FunctionKey<'a>>,
    /// What stands in front of the names of its nodes and values.
    pub(super) prefix: String,
    /// The function's attributes; `None`: left out by the caller, without a default.
    pub(super) attributes: BTreeMap<String, Option<Attribute>>,
    /// The metadata of the call, which its nodes inherit.
    pub(super) metadata: BTreeMap<String, String>,
}

/// What identifies a function: domain, name, overload.
pub(super) type FunctionKey<'a> = (&'a str, &'a str, &'a str);

impl<'a> Scope<'a> {
    /// The scope of the main graph.
    pub(super) fn main(imports: Rc<Imports>) -> Self {
        Self { imports, names: None, call: None, depth: 0, in_subgraph: false }
    }

    /// The value that `name` means here; `None`: nothing of that name is in sight.
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
