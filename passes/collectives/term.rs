//! Terms: what a rule says a class is equal to.

use super::graph::{Head, Place, TypeId, TypeIds};
use crate::egraph;
use ir::Op;
use ir::ops::collective::Collective;

/// What a rule says a class is equal to.
pub(super) type Term = egraph::Term<Head>;

impl Term {
    /// A collective over a term.
    pub(super) fn collective(collective: Collective, operand: Self, ty: TypeId, place: Place) -> Self {
        let types = TypeIds::from_slice(&[ty]);
        Self::Node(Head::Op(Op::Collective(collective), types, place), vec![operand])
    }
}
