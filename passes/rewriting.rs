//! Changes of a program that several passes make: rewrites of single nodes, removal of dead nodes, stages of added nodes, other forms of
//! activations while they wait for backward, and the search of an e-graph for the cheapest program.

pub mod dead;
pub(crate) mod egraph;
pub(crate) mod kept;
pub(crate) mod local;
pub(crate) mod settle;
