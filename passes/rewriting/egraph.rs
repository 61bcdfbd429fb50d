//! What every pass that searches an e-graph needs: applying rules to the end, and choosing the cheapest program.
//!
//! A pass brings the heads of its nodes, what is known of a class, and its rules. What comes out is a function of what goes in: limits are
//! counts, ties go to the first, and nothing is iterated in the order of a hash map.

mod descent;
mod extract;
mod greedy;
mod problem;
mod saturate;
mod term;

pub(crate) use problem::Problem;
pub(crate) use saturate::{Limits, Rule, saturate};
pub(crate) use term::{ENode, Graph, Sound, Symbol, Term};
