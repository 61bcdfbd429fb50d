//! The nodes of an e-graph, and the terms that rules make.

use egg::{Analysis, Id, Language};
use smallvec::SmallVec;
use std::fmt::Debug;
use std::hash::Hash;

/// The head of a node.
pub(crate) trait Symbol: Clone + Debug + Ord + Hash {
    /// Returns the name, by which rules select nodes.
    fn name(&self) -> &'static str;
}

/// A node over e-classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ENode<S> {
    pub(crate) head: S,
    pub(crate) args: SmallVec<[Id; 4]>,
}

impl<S> ENode<S> {
    /// Makes a node over these classes.
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

/// The judgement of an analysis on the nodes and classes of rules.
pub(crate) trait Sound<S: Symbol>: Analysis<ENode<S>> {
    /// Whether a node may be added to the graph. An ill-typed node may not.
    fn admits(graph: &Graph<S, Self>, node: &ENode<S>) -> bool;
    /// Whether two classes may be united.
    fn alike(graph: &Graph<S, Self>, a: Id, b: Id) -> bool;
}

/// A tree over e-classes: the right-hand side of a rule, which equals a class.
#[derive(Clone, Debug)]
pub(crate) enum Term<S> {
    /// A class of the graph.
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

    /// Returns the same term, with classes in place of the parts that the graph has already.
    pub(crate) fn known<N: Analysis<ENode<S>>>(self, graph: &Graph<S, N>) -> Self {
        let Self::Node(head, args) = self else { return self };
        let args: Vec<Self> = args.into_iter().map(|arg| arg.known(graph)).collect();
        let Some(classes) = args.iter().map(Self::class).collect::<Option<_>>() else {
            return Self::Node(head, args);
        };
        let mut node = ENode { head, args: classes };
        graph.lookup(&mut node).map_or_else(|| Self::Node(node.head, args), Self::Class)
    }

    /// Adds the term, and returns its class. `None` if one of its nodes is not sound: then the rule does not apply.
    pub(crate) fn add<N: Sound<S>>(self, graph: &mut Graph<S, N>) -> Option<Id> {
        let Self::Node(head, args) = self else { return self.class() };
        let args = args.into_iter().map(|arg| arg.add(graph)).collect::<Option<_>>()?;
        let mut node = ENode { head, args };
        // A node of the graph was checked when it was added.
        if let Some(class) = graph.lookup(&mut node) {
            return Some(class);
        }
        N::admits(graph, &node).then(|| graph.add(node))
    }
}
