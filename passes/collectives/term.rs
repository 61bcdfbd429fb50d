//! Terms: what a rule says a class is equal to.

use super::graph::{ENode, Graph, Head, Place, Program, TypeId, TypeIds};
use crate::egraph::Equal;
use egg::Id;
use ir::Op;
use ir::ops::collective::Collective;

/// A tree over e-classes.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // lives only from a match to its application
pub(super) enum Term {
    /// A class that is there already.
    Class(Id),
    /// A node over terms.
    Node(Head, Vec<Term>),
}

impl Term {
    /// A collective over a term.
    pub(super) fn collective(collective: Collective, operand: Self, ty: TypeId, place: Place) -> Self {
        let types = TypeIds::from_slice(&[ty]);
        Self::Node(Head::Op(Op::Collective(collective), types, place), vec![operand])
    }
}

impl<'m> Equal<ENode, Program<'m>> for Term {
    fn add(&self, graph: &mut Graph<'m>) -> Option<Id> {
        match self {
            Self::Class(id) => Some(*id),
            Self::Node(head, args) => {
                let args: Option<Vec<Id>> = args.iter().map(|arg| arg.add(graph)).collect();
                Some(graph.add(ENode::new(head.clone(), args?)))
            }
        }
    }
}
