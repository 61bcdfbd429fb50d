//! Changes of a program that several passes make: rewrites of one node, removal of dead nodes, the stages of added nodes, and the search
//! of an e-graph for the cheapest program.

pub mod dead;
pub(crate) mod egraph;
pub(crate) mod local;
pub(crate) mod settle;
