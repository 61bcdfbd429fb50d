//! The rules of canonicalize. All are directional. There is no rule for associativity or commutativity, with which the e-graph would
//! explode; a pattern tries both orders of a commutative operator instead.

mod activation;
mod algebra;
mod attention;
mod contraction;
mod experts;
mod norm;
mod rotary;
mod view;

use super::graph::{ENode, Graph, Head, Typing};
use super::term::Term;
use crate::rewriting::egraph::Rule;

/// Returns every rule, in the order in which they are tried.
pub(super) fn all<'m>() -> Vec<Rule<Head, Typing<'m>>> {
    [
        algebra::RULES,
        view::RULES,
        contraction::RULES,
        activation::RULES,
        norm::RULES,
        attention::RULES,
        rotary::RULES,
        experts::RULES,
    ]
    .into_iter()
    .flatten()
    .map(|&(name, roots, find)| Rule { name, roots, find })
    .collect()
}

/// A row of a rule table: the rule's name, the names of operators at the root of its pattern, its function.
type Row = (&'static str, &'static [&'static str], fn(&Graph, &ENode, &mut Vec<Term>));
