//! Terms, which are the right-hand sides of rules; and the macro that finds patterns.

use super::graph::Head;
use crate::rewriting::egraph;
use ir::ops::Float;
use ir::ops::constant::Splat;
use ir::{DType, Op, Type};
use std::rc::Rc;

/// A term that a rule makes equal to a class.
pub(super) type Term = egraph::Term<Head>;

/// Makes an operator over terms.
pub(super) fn term(op: impl Into<Op>, args: impl Into<Vec<Term>>) -> Term {
    Term::Node(Head::Op(Rc::new(op.into()), None), args.into())
}

/// Makes an operator over terms that reads its result type.
pub(super) fn typed(op: impl Into<Op>, args: impl Into<Vec<Term>>, ty: Type) -> Term {
    Term::Node(Head::Op(Rc::new(op.into()), Some(Rc::new(ty))), args.into())
}

/// Makes one result of an operator with several results.
pub(super) fn result(index: u32, tuple: Term) -> Term {
    Term::Node(Head::Result(index), vec![tuple])
}

/// Makes a scalar. Rounding errors of computed numbers are removed, so that two ways to compute a number give equal terms.
pub(super) fn scalar(like: &Type, value: f64) -> Term {
    let value = if like.dtype == DType::F64 { value } else { crate::analysis::numbers::rounded(value) };
    let splat = Splat { value: Float::new(value) };
    typed(splat, [], Type::scalar(like.dtype))
}

/// `find!(graph, node, ([PATTERN] argument …) => { … })` runs the block for every match below one e-node. `PATTERN` is an ordinary Rust
/// pattern on [`Op`]. An argument is a name, which is bound to a class, or again a `([PATTERN] …)` that some node of the class must
/// match. `%` before the pattern tries both orders of two arguments.
macro_rules! find {
    ($g:expr, $n:expr, (% $($p:tt)*) => $k:block) => { find!(@both $g, $n, ($($p)*) => $k) };
    ($g:expr, $n:expr, ([$p:pat] $($sub:tt)*) => $k:block) => {
        if let (Some($p), args) = ($n.op(), &$n.args[..]) { find!(@args $g, args, [$($sub)*] => $k) }
    };
    (@args $g:expr, $rest:expr, [] => $k:block) => { if $rest.is_empty() { $k } };
    (@args $g:expr, $rest:expr, [$h:tt $($t:tt)*] => $k:block) => {
        if let [head, rest @ ..] = $rest { find!(@arg $g, *head, $h => { find!(@args $g, rest, [$($t)*] => $k) }) }
    };
    (@arg $g:expr, $id:expr, $v:ident => $k:block) => { { let $v: egg::Id = $id; $k } };
    (@arg $g:expr, $id:expr, (% $($p:tt)*) => $k:block) => {
        for n in &$g[$id].nodes { find!(@both $g, n, ($($p)*) => $k) }
    };
    (@arg $g:expr, $id:expr, ($($p:tt)*) => $k:block) => { for n in &$g[$id].nodes { find!($g, n, ($($p)*) => $k) } };
    (@both $g:expr, $n:expr, ([$p:pat] $a:tt $b:tt) => $k:block) => {
        if let (Some($p), &[x, y]) = ($n.op(), &$n.args[..]) {
            for (x, y) in [(x, y), (y, x)] { find!(@arg $g, x, $a => { find!(@arg $g, y, $b => $k) }) }
        }
    };
}
pub(super) use find;
