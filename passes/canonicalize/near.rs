//! Near misses: places where a program has the shape of a pattern, but one condition keeps the rule from holding.
//!
//! A rule that has found its shape reports the conditions that fail here. If another spelling of the same value meets all conditions,
//! the pattern is found. If two conditions fail, the program probably means something else, and nothing is reported.

use super::graph::{Ask, ENode, Graph};
use crate::reports::NearMiss;
use egg::Id;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The matches and near misses of rules, by e-class and pattern.
#[derive(Debug, Default)]
pub(super) struct Seen {
    found: BTreeSet<(Id, &'static str)>,
    missed: BTreeMap<(Id, &'static str), String>,
    /// Softmaxes that a fused operator makes unnecessary.
    fused: BTreeSet<Id>,
}

/// Records that a fused operator contains the softmaxes of a class.
pub(super) fn fuses(g: &Graph, softmaxes: Id) {
    g.analysis.seen.borrow_mut().fused.insert(softmaxes);
}

/// Whether a fused operator contains the softmaxes of a class.
pub(super) fn is_fused(g: &Graph, softmaxes: Id) -> bool {
    let seen = g.analysis.seen.borrow();
    seen.fused.iter().any(|&class| g.find(class) == g.find(softmaxes))
}

/// Whether all conditions hold where a rule has found the shape of a pattern at `n`. If exactly one fails, it is kept for the user.
pub(super) fn holds(
    g: &Graph,
    n: &ENode,
    pattern: &'static str,
    unmet: impl IntoIterator<Item = Option<String>>,
) -> bool {
    let mut unmet = unmet.into_iter().flatten();
    let (first, more) = (unmet.next(), unmet.next().is_some());
    let holds = first.is_none();
    if let Some(class) = g.lookup(n.clone()) {
        let mut seen = g.analysis.seen.borrow_mut();
        match first {
            None => {
                seen.found.insert((class, pattern));
            }
            Some(reason) if !more => {
                seen.missed.entry((class, pattern)).or_insert(reason);
            }
            Some(_) => {}
        }
    }
    holds
}

/// Returns the reason if the condition does not hold.
pub(super) fn unless(holds: bool, reason: impl FnOnce() -> String) -> Option<String> {
    (!holds).then(reason)
}

/// Returns a reason unless a class is the number `expected`.
pub(super) fn number(g: &Graph, class: Id, expected: f64) -> Option<String> {
    unless(g.is(class, expected), || match g.number(class) {
        Some(number) => format!("it has the number {number} in place of {expected}"),
        None => format!("it has {} in place of the number {expected}", g.ty(class)),
    })
}

/// Returns a reason unless the classes are equal.
pub(super) fn one_value(g: &Graph, classes: &[Id], what: &str) -> Option<String> {
    let one = classes.windows(2).all(|pair| g.same(pair[0], pair[1]));
    unless(one, || format!("{what} do not read the same value"))
}

/// Returns the near misses in the classes `stood` of the original program, in the order of the patterns' names.
pub(super) fn report(
    g: &Graph,
    stood: impl Iterator<Item = Id>,
    origins: &BTreeMap<Id, Arc<str>>,
) -> Vec<NearMiss> {
    let stood: BTreeSet<Id> = stood.map(|class| g.find(class)).collect();
    let seen = g.analysis.seen.borrow();
    let found: BTreeSet<(Id, &str)> =
        seen.found.iter().map(|&(class, pattern)| (g.find(class), pattern)).collect();
    // A view of a found class is the same pattern in another spelling.
    let is_found = |class: Id, pattern: &'static str| {
        let views =
            g[class].nodes.iter().filter(|node| node.op().is_some_and(|op| op.movement().is_layout()));
        let sources = views.filter_map(|view| view.args.first().copied());
        std::iter::once(class).chain(sources).any(|class| found.contains(&(g.find(class), pattern)))
    };
    let missed = seen.missed.iter().filter(|((class, pattern), _)| !is_found(g.find(*class), pattern));
    let near = missed.map(|(&(class, pattern), reason)| (g.find(class), pattern, reason));
    let near = near.filter(|(class, ..)| stood.contains(class)).map(|(class, pattern, reason)| NearMiss {
        pattern,
        origin: origins.get(&class).map(ToString::to_string).unwrap_or_default(),
        reason: reason.clone(),
    });
    let mut near: Vec<NearMiss> = near.collect();
    near.sort();
    near.dedup_by(|a, b| (a.pattern, &a.origin) == (b.pattern, &b.origin));
    near
}
