//! Reading the bytes of constants through views, for rules that ask what a table holds.

use super::graph::{Ask, Graph};
use crate::analysis::constants::any_element;
use egg::Id;
use ir::ops::Interp;
use ir::tensor::Elements;
use ir::{Op, Operator, Tensor, Type};
use std::collections::{BTreeMap, BTreeSet};

/// Tables larger than this are not read: no rule needs it, and a model's weights are larger.
const LIMIT_BYTES: u64 = 1 << 26;

/// What is known of tables, by class; found out once, since what is stored never changes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    masks: BTreeMap<Id, Option<Mask>>,
    pairs: BTreeMap<(Id, bool), Option<bool>>,
}

/// What a stored attention mask does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mask {
    /// Which keys it shows, if it does nothing but show and hide.
    pub(super) pattern: Option<Pattern>,
    /// Whether it makes all scores of some row -∞.
    pub(super) hides_a_row: bool,
}

/// Which keys a mask shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Those up to the query's own.
    Causal,
    /// All.
    Open,
}

/// What a class does as a mask, if it is stored and its bytes are here.
pub(super) fn mask(g: &Graph, class: Id) -> Option<Mask> {
    let class = g.find(class);
    if let Some(known) = g.analysis.tables.borrow().masks.get(&class) {
        return *known;
    }
    let found = seen_through(g, class, &mut BTreeSet::new()).and_then(|table| read_mask(&table));
    g.analysis.tables.borrow_mut().masks.insert(class, found);
    found
}

/// Whether the second half of a stored table's last dim equals the first, or, of neighbours, each second number the one
/// before; `None` if it is not stored.
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

/// Whether a class is a stored table of finite numbers, as weights are; one whose bytes are not here is taken for that.
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

/// Additive masks at or below this hide: e to that power is 0 in every float type.
pub(super) const HIDDEN: f64 = -1e4;

fn read_mask(table: &Tensor) -> Option<Mask> {
    let [.., queries, keys] = table.sizes[..] else { return None };
    // Shown and hidden; a float mask that does anything else has no pattern.
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

/// The bytes of a class, if it is stored. `tried` has the classes that were looked at: one that was found not to be
/// stored, or that is being looked at, is not tried again on another path.
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
