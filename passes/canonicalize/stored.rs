//! Reads the bytes of constants through views, for rules that depend on the content of a table.

use super::graph::{Ask, Graph};
use crate::analysis::constants::any_element;
use egg::Id;
use ir::ops::Interp;
use ir::tensor::Elements;
use ir::{Op, Operator, Tensor, Type};
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes of a table that is read: no rule needs larger ones, and a model's weights are larger.
const LIMIT_BYTES: u64 = 1 << 26;

/// The facts about stored tables, by class. They are computed once, since stored bytes never change.
#[derive(Debug, Default)]
pub(super) struct Tables {
    masks: BTreeMap<Id, Option<Mask>>,
    pairs: BTreeMap<(Id, bool), Option<bool>>,
}

/// The effect of a stored attention mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mask {
    /// The keys that the mask shows, if it does nothing but show and hide.
    pub(super) pattern: Option<Pattern>,
    /// Whether the mask makes all scores of some row -∞.
    pub(super) hides_a_row: bool,
}

/// The keys that a mask shows to each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// The keys up to the query's own position.
    Causal,
    /// All keys.
    Open,
}

/// Returns the effect of a class as a mask, if it is stored and its bytes are here.
pub(super) fn mask(g: &Graph, class: Id) -> Option<Mask> {
    let class = g.find(class);
    if let Some(known) = g.analysis.tables.borrow().masks.get(&class) {
        return *known;
    }
    let found = seen_through(g, class, &mut BTreeSet::new()).and_then(|table| read_mask(&table));
    g.analysis.tables.borrow_mut().masks.insert(class, found);
    found
}

/// Whether the pairs of a stored table's last dim are equal: the second half equals the first, or, with `neighbours`, each second
/// number equals the number before it. `None` if the table is not stored.
pub(super) fn has_equal_pairs(g: &Graph, class: Id, neighbours: bool) -> Option<bool> {
    let class = g.find(class);
    if let Some(known) = g.analysis.tables.borrow().pairs.get(&(class, neighbours)) {
        return *known;
    }
    let found = seen_through(g, class, &mut BTreeSet::new()).map(|table| {
        let width = table.sizes.last().copied().unwrap_or(1).max(1);
        let Elements::Float(elements) = &table.elements else { return false };
        elements.chunks(width).all(|row| {
            if neighbours {
                row.chunks(2).all(|pair| pair[0] == pair[pair.len() - 1])
            } else {
                row[..row.len() / 2] == row[row.len() / 2..]
            }
        })
    });
    g.analysis.tables.borrow_mut().pairs.insert((class, neighbours), found);
    found
}

/// Whether a class is a stored table of finite numbers, as weights are. A table whose bytes are not here counts as finite.
pub(super) fn is_finite(g: &Graph, class: Id) -> bool {
    g[class].nodes.iter().any(|node| match node.op() {
        Some(Op::Constant(constant)) => {
            any_element(&g.analysis.module.data[constant.data], |x| !x.is_finite()) != Some(true)
        }
        _ => false,
    })
}

/// Whether a class is a tensor of the file seen through views.
pub(super) fn is_stored(g: &Graph, class: Id) -> bool {
    let (mut pending, mut tried) = (vec![g.find(class)], BTreeSet::new());
    while let Some(class) = pending.pop() {
        for node in g[class].nodes.iter().filter(|_| !tried.contains(&class)) {
            match node.op() {
                Some(Op::Constant(_)) => return true,
                Some(op) if op.movement().is_layout() => {
                    pending.push(g.find(node.args[0]));
                }
                _ => {}
            }
        }
        tried.insert(class);
    }
    false
}

/// An additive mask hides where it is at or below this number: e to that power is 0 in every float type.
pub(super) const HIDDEN: f64 = -1e4;

fn read_mask(table: &Tensor) -> Option<Mask> {
    let [.., queries, keys] = table.sizes[..] else { return None };
    // Whether each score is shown. A float mask that does more than show and hide has no pattern.
    let shown: Option<Vec<bool>> = match &table.elements {
        Elements::Bool(shown) => Some(shown.clone()),
        Elements::Float(x) => {
            let shown = |&x: &f64| if x == 0.0 { Some(true) } else { (x <= HIDDEN).then_some(false) };
            x.iter().map(shown).collect()
        }
        Elements::Int(_) => return None,
    };
    let hides_a_row = match &table.elements {
        Elements::Bool(shown) => shown.chunks(keys.max(1)).any(|row| !row.contains(&true)),
        Elements::Float(x) => x.chunks(keys.max(1)).any(|row| row.iter().all(|&x| x == f64::NEG_INFINITY)),
        Elements::Int(_) => return None,
    };
    let pattern = shown.and_then(|shown| {
        let causal = |(i, &shown): (usize, &bool)| shown == (i % keys <= i / keys % queries);
        if shown.iter().all(|&shown| shown) {
            Some(Pattern::Open)
        } else {
            (queries == keys && shown.iter().enumerate().all(causal)).then_some(Pattern::Causal)
        }
    });
    Some(Mask { pattern, hides_a_row })
}

/// Computes a class from stored bytes, if it is made of nothing else. `tried` has the classes that were visited: a class that is known
/// not to be stored, or that is being visited, is not tried again on another path.
fn seen_through(g: &Graph, class: Id, tried: &mut BTreeSet<Id>) -> Option<Tensor> {
    if !tried.insert(g.find(class)) || g.ty(class).bytes()? > LIMIT_BYTES {
        return None;
    }
    g[class].nodes.iter().find_map(|node| {
        let op = node.op()?;
        let operands = match op {
            Op::Constant(constant) => {
                g.analysis.module.data[constant.data].bytes()?;
                vec![]
            }
            Op::Splat(_) | Op::Iota(_) => vec![],
            op if op.movement().is_layout() => {
                vec![seen_through(g, node.args[0], tried)?]
            }
            _ => return None,
        };
        let operands: Vec<&Tensor> = operands.iter().collect();
        let results: Vec<Type> = g[class].data.types.clone();
        Some(
            op.interp(&Interp {
                operands: &operands,
                results: &results,
                data: &g.analysis.module.data,
                parts: None,
            })
            .swap_remove(0),
        )
    })
}
