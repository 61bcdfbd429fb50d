//! What an e-graph is made of: nodes, and the terms that rules write.

use egg::{Analysis, Id, Language};
use smallvec::SmallVec;
use std::fmt::Debug;
use std::hash::Hash;

/// What stands at the head of a node.
pub(crate) trait Symbol: Clone + Debug + Ord + Hash {
    /// Its name, by which rules say what they look at.
    fn name(&self) -> &'static str;
}

/// A node over e-classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ENode<S> {
    pub(crate) head: S,
    pub(crate) args: SmallVec<[Id; 4]>,
}

impl<S> ENode<S> {
    /// A node over these classes.
    pub(crate) fn new(head: S, args: impl IntoIterator<Item = Id>) -> Self {
        Self { head, args: args.into_iter().collect() }
    }
}

impl<S: Symbol> Language for ENode<S> {
    type Discriminant = &'static str;

    fn discriminant(&self) -> Self::Discriminant {
        self.head.name()
    }

    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}

/// An e-graph of such nodes.
pub(crate) type Graph<S, N> = egg::EGraph<ENode<S>, N>;

/// What an analysis says of nodes and classes that rules come with.
pub(crate) trait Sound<S: Symbol>: Analysis<ENode<S>> {
    /// Whether a node may stand in the graph: an ill-typed one may not.
    fn admits(graph: &Graph<S, Self>, node: &ENode<S>) -> bool;
    /// Whether two classes may be one.
    fn alike(graph: &Graph<S, Self>, a: Id, b: Id) -> bool;
}

/// A tree over e-classes: what a rule says a class is equal to.
#[derive(Clone, Debug)]
pub(crate) enum Term<S> {
    /// A class that is there already.
    Class(Id),
    /// A node over terms.
    Node(S, Vec<Term<S>>),
}

impl<S> From<Id> for Term<S> {
    fn from(class: Id) -> Self {
        Self::Class(class)
    }
}

impl<S: Symbol> Term<S> {
    fn class(&self) -> Option<Id> {
        if let Self::Class(class) = self { Some(*class) } else { None }
    }

    /// The same, with a class in place of all that the graph has already.
    pub(crate) fn known<N: Analysis<ENode<S>>>(self, graph: &Graph<S, N>) -> Self {
        let Self::Node(head, args) = self else { return self };
        let args: Vec<Self> = args.into_iter().map(|arg| arg.known(graph)).collect();
        let Some(classes) = args.iter().map(Self::class).collect::<Option<_>>() else {
            return Self::Node(head, args);
        };
        let mut node = ENode { head, args: classes };
        graph.lookup(&mut node).map_or_else(|| Self::Node(node.head, args), Self::Class)
    }

    /// Adds it, and says which class it is. `None` when a node of it is not sound: then the rule does not apply.
    pub(crate) fn add<N: Sound<S>>(self, graph: &mut Graph<S, N>) -> Option<Id> {
        let Self::Node(head, args) = self else { return self.class() };
        let args = args.into_iter().map(|arg| arg.add(graph)).collect::<Option<_>>()?;
        let mut node = ENode { head, args };
        // What is in the graph was asked about when it came.
        if let Some(class) = graph.lookup(&mut node) {
            return Some(class);
        }
        N::admits(graph, &node).then(|| graph.add(node))
    }
}
