//! The parts that all passes with an e-graph share: saturation with rules, and the choice of the cheapest program.
//!
//! A pass brings the heads of its nodes, the facts about a class, and its rules. The result depends only on the input: limits are counts,
//! the first of equal candidates wins, and no iteration follows the order of a hash map.

mod descent;
mod extract;
mod greedy;
mod problem;
mod saturate;
mod term;

pub(crate) use problem::Problem;
pub(crate) use saturate::{Limits, Rule, saturate};
pub(crate) use term::{ENode, Graph, Sound, Symbol, Term};
