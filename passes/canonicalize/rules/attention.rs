//! Scaled dot-product attention as exporters spell it.
//!
//! The scores `scale · q·kᵀ + mask` go through a softmax, perhaps with the `IsNaN`/`Where` that turns fully masked rows
//! into zeros, and weigh `v`. A bias and a mask may both be added (T5); then their sum is the mask. The rules of `contraction` move
//! transposes into the labels, and the rules of `algebra` make scales one factor outside the contraction.

use super::Row;
use super::algebra::factor;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{fuses, holds, unless};
use crate::canonicalize::stored::{self, Pattern};
use crate::canonicalize::term::{Term, find, result, term, typed};
use egg::Id;
use ir::ops::Float;
use ir::ops::Labels;
use ir::ops::attention::Attention;
use ir::ops::contract::Contract;
use ir::ops::elementwise::Binary::{Add, Mul, Sub};
use ir::ops::elementwise::Unary::IsNan;
use ir::ops::shape::{Reshape, Transpose};
use ir::{Dim, Op, Type};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;

pub(super) const RULES: &[Row] = &[
    ("attention", &["contract"], attention),
    ("causal mask", &["attention"], causal_mask),
    ("stretched mask", &["attention"], stretched_mask),
    ("grouped key-value heads", &["attention"], grouped_heads),
];

/// The scores that a softmax turns into probabilities.
struct Scores {
    query: Id,
    key: Id,
    contract: Contract,
    scale: f64,
    /// Stored numbers that multiply the scores too.
    factors: Factors,
    masks: Masks,
}

/// Stored factors, the outermost first. Queries and keys may have been multiplied by one factor each.
type Factors = SmallVec<[Id; MOST_FACTORS]>;

const MOST_FACTORS: usize = 2;

/// The addends of the product, the last first; or one mask of bools. At most a bias and a mask.
type Masks = SmallVec<[Id; MOST_MASKS]>;

/// Exporters of attention add no more masks than these.
const MOST_MASKS: usize = 2;

fn attention(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Contract(weigh)) = n.op() else { return };
    let [probabilities, value] = n.args[..] else { return };
    let four = g.ty(probabilities).ndim() == 4 && matches!(g.ty(value).ndim(), 3 | 4);
    // A single head without a head dim stays a contraction, which any mesh can split; attention is split by its heads.
    let several = !four || g.ty(value).ndim() == 4 || !g.ty(probabilities).dims[1].is_one();
    let found = softmaxes(g, probabilities);
    if found.is_empty()
        && let viewed @ Some(_) = viewed_softmax(g, probabilities)
    {
        holds(g, n, PATTERN, [viewed]);
    }
    for Probabilities { softmax, scores: class, guarded } in found {
        let all_scores = all_scores(g, class);
        if let unfit @ Some(_) = unfit_mask(g, class).filter(|_| all_scores.is_empty()) {
            holds(g, n, PATTERN, [unfit]);
        }
        for scores in all_scores {
            let guarded = guarded || !scores.masks.iter().any(|&mask| may_hide_a_row(g, mask));
            let attention = fused(g, weigh, value, &scores).filter(|_| four && several);
            let unmet = [
                unless(four, || {
                    format!(
                        "its scores are {}, and they need four dims: batch, heads, queries and keys",
                        g.ty(class)
                    )
                }),
                unless(several, || "it has one head, and its values have no head dim".into()),
                unless(guarded, || {
                    "its mask may hide all keys of a query, and the softmax is not guarded against that"
                        .into()
                }),
                unless(!four || !several || attention.is_some(), || {
                    "its queries, keys and values do not have the dims of attention".into()
                }),
            ];
            if holds(g, n, PATTERN, unmet)
                && let Some(attention) = attention
            {
                fuses(g, softmax);
                out.push(attention);
            }
        }
    }
}

/// The name of the fused operator.
const PATTERN: &str = "attention";

/// Returns the fault of a mask that is added to scores but does not fit them.
fn unfit_mask(g: &Graph, class: Id) -> Option<String> {
    let mut unfit = None;
    for node in &g[class].nodes {
        find!(g, node, (% [Op::Binary(Add)] mask product) => {
            let mut products = Vec::new();
            scaled_products(g, product, &Masks::new(), &mut products);
            if !products.is_empty() {
                unfit = Some(format!("its mask {} does not broadcast to the scores {}", g.ty(mask), g.ty(class)));
            }
        });
    }
    unfit
}

/// Returns the reason why a class cannot be the probabilities of an attention, if it is a view of a softmax of scores.
fn viewed_softmax(g: &Graph, class: Id) -> Option<String> {
    g[class].nodes.iter().filter(|node| node.op().is_some_and(|op| op.movement().is_layout())).find_map(
        |view| {
            let source = *view.args.first()?;
            let mut scores = softmaxes(g, source).into_iter();
            scores.any(|found| !all_scores(g, found.scores).is_empty()).then(|| {
                let (from, to) = (g.ty(source), g.ty(class));
                format!(
                    "its probabilities {from} are read as {to}, and its values are not read in the same way"
                )
            })
        },
    )
}

/// A softmax over the last dim.
struct Probabilities {
    softmax: Id,
    scores: Id,
    /// Whether rows of NaN become zeros after the softmax.
    guarded: bool,
}

/// Finds the softmaxes in a class, with or without a guard against NaN.
fn softmaxes(g: &Graph, class: Id) -> Vec<Probabilities> {
    let mut found = Vec::new();
    let Some(last) = (g.ty(class).ndim() as u32).checked_sub(1) else { return found };
    find!(@arg g, class, ([Op::Softmax(softmax)] scores) => {
        if softmax.dim == last { found.push(Probabilities { softmax: class, scores, guarded: false }) }
    });
    find!(@arg g, class, ([Op::Select(_)] ([Op::Unary(IsNan)] tested) zero kept) => {
        if g.same(tested, kept) && g.choice(zero) == Some(0.0) {
            find!(@arg g, kept, ([Op::Softmax(softmax)] scores) => {
                if softmax.dim == last { found.push(Probabilities { softmax: kept, scores, guarded: true }) }
            });
        }
    });
    found
}

/// Finds the ways to read a class as `scale · q·kᵀ + mask`.
fn all_scores(g: &Graph, class: Id) -> Vec<Scores> {
    let mut found = Vec::new();
    sums(g, class, &Masks::new(), &mut found);
    for node in &g[class].nodes {
        find!(g, node, ([Op::Select(_)] kept product hidden) => {
            if hides(g, hidden, kept) && mask_fits(g, kept, class) {
                scaled_products(g, product, &smallvec![kept], &mut found);
            }
        });
    }
    found
}

/// Finds the ways to read a class as a scaled product with addends. `masks` has the addends that were found before.
fn sums(g: &Graph, class: Id, masks: &Masks, found: &mut Vec<Scores>) {
    scaled_products(g, class, masks, found);
    if masks.len() == MOST_MASKS {
        return;
    }
    for node in &g[class].nodes {
        find!(g, node, (% [Op::Binary(Add)] mask rest) => {
            if mask_fits(g, mask, class) {
                let masks = masks.iter().copied().chain([mask]).collect();
                sums(g, rest, &masks, found);
            }
        });
    }
}

/// Whether scores of this number are hidden. A finite number hides as -∞ does only if each row shows some key.
fn hides(g: &Graph, hidden: Id, kept: Id) -> bool {
    g.choice(hidden).is_some_and(|number| {
        let each_row_shows = || stored::mask(g, kept).is_some_and(|mask| !mask.hides_a_row);
        number == f64::NEG_INFINITY || number <= stored::HIDDEN && each_row_shows()
    })
}

/// Whether a class can be a mask on these scores: every dim but the last may have size one, and leading dims may be missing.
fn mask_fits(g: &Graph, mask: Id, scores: Id) -> bool {
    let (dims, scores) = (&g.ty(mask).dims, &g.ty(scores).dims);
    let stretches = |(m, s): (&Dim, &Dim)| m == s || m.is_one();
    let missing = scores.len().saturating_sub(dims.len());
    let whole_rows = dims.len() <= scores.len() && !dims.is_empty() && dims.last() == scores.last();
    whole_rows && dims.iter().zip(&scores[missing..]).all(stretches)
}

fn scaled_products(g: &Graph, class: Id, masks: &Masks, found: &mut Vec<Scores>) {
    let mut pending = vec![(class, None, Factors::new())];
    while let Some((class, scale, factors)) = pending.pop() {
        find!(@arg g, class, ([Op::Contract(contract)] query key) => {
            let (contract, masks, factors) = (contract.clone(), masks.clone(), factors.clone());
            found.push(Scores { query, key, contract, scale: scale.unwrap_or(1.0), factors, masks });
        });
        find!(@arg g, class, (% [Op::Binary(Mul)] factor scores) => {
            match g.number(factor) {
                // Numbers in the program are already merged into one, which is outermost.
                Some(number) if scale.is_none() && factors.is_empty() => {
                    pending.push((scores, Some(number), Factors::new()));
                }
                None if factors.len() < MOST_FACTORS && g.choice(factor).is_some() => {
                    pending.push((scores, scale, factors.iter().copied().chain([factor]).collect()));
                }
                _ => {}
            }
        });
    }
}

/// Returns a mask with the four dims that the fused operator takes.
fn with_four_dims(g: &Graph, mask: Id) -> Term {
    let ty = g.ty(mask);
    if ty.ndim() == 4 {
        return mask.into();
    }
    let ones = (ty.ndim()..4).map(|_| Dim::known(1));
    typed(Reshape, [mask.into()], Type::new(ty.dtype, ones.chain(ty.dims.iter().cloned())))
}

/// Returns the fused operator, with transposes that bring operands and result into its order of dims. Keys and values without
/// a head dim, which all queries share (Shazeer, arXiv 1911.02150), get a head dim of size one.
fn fused(g: &Graph, weigh: &Contract, value: Id, scores: &Scores) -> Option<Term> {
    let [b, h, s, t] = scores.contract.out.0[..] else { return None };
    let [d] = scores.contract.roles().summed[..] else { return None };
    let lhs = (scores.query, &scores.contract.lhs);
    let rhs = (scores.key, &scores.contract.rhs);
    let ((query, query_labels), (key, key_labels)) =
        if lhs.1.0.contains(&s) { (lhs, rhs) } else { (rhs, lhs) };
    let [wb, wh, ws, wt] = weigh.lhs.0[..] else { return None };
    let weigh_roles = weigh.roles();
    let [e] = weigh_roles.columns[..] else { return None };
    if weigh_roles.summed != [wt] {
        return None;
    }
    // A stored number may be a trained temperature, so it stays a factor, of the queries.
    let scaled = |query, &number: &Id| term(Mul, [factor(g, number), query]);
    let query = scores.factors.iter().fold(ordered(query, query_labels, &[b, h, s, d])?, scaled);
    let each_head = (ordered(key, key_labels, &[b, h, t, d]), ordered(value, &weigh.rhs, &[wb, wh, wt, e]));
    let (key, value) = match each_head {
        (Some(key), Some(value)) => (key, value),
        (None, None) => (
            for_all_heads(g, key, key_labels, &[b, t, d])?,
            for_all_heads(g, value, &weigh.rhs, &[wb, wt, e])?,
        ),
        _ => return None,
    };
    let mut operands = vec![query, key, value];
    let masks = scores.masks.iter().rev().map(|&mask| with_four_dims(g, mask));
    operands.extend(masks.reduce(|sum, mask| term(Add, [sum, mask])));
    let attention = Attention { scale: Float::new(scores.scale), causal: false };
    let out = result(0, term(attention, operands));
    let order = Labels([wb, wh, ws, e].into_iter().collect());
    transposed(out, &order, &weigh.out.0)
}

/// Returns a class whose dims have these labels, with its dims in the given order.
fn ordered(class: Id, labels: &Labels, order: &[u8]) -> Option<Term> {
    (labels.0.len() == order.len()).then(|| transposed(class.into(), labels, order))?
}

/// Returns keys or values that all heads share in the given order, with a head dim of size one.
fn for_all_heads(g: &Graph, class: Id, labels: &Labels, order: &[u8; 3]) -> Option<Term> {
    let shared = ordered(class, labels, order)?;
    let dim = |label: &u8| labels.0.iter().position(|l| l == label).map(|i| g.ty(class).dims[i].clone());
    let [batch, keys, width] = [dim(&order[0])?, dim(&order[1])?, dim(&order[2])?];
    let ty = Type::new(g.ty(class).dtype, [batch, Dim::known(1), keys, width]);
    Some(typed(Reshape, [shared], ty))
}

fn transposed(x: Term, labels: &Labels, order: &[u8]) -> Option<Term> {
    let place = |label: &u8| labels.0.iter().position(|l| l == label).map(|i| i as u32);
    let permutation: smallvec::SmallVec<[u32; 4]> = order.iter().map(place).collect::<Option<_>>()?;
    let same = permutation.iter().copied().eq(0..order.len() as u32);
    Some(if same { x } else { term(Transpose { permutation }, [x]) })
}

/// Whether a mask might hide all keys of some row. There a plain softmax gives NaN and the fused operator gives zeros, so the two are
/// equal only with the exporter's guard. A finite mask never makes a NaN.
fn may_hide_a_row(g: &Graph, mask: Id) -> bool {
    stored::mask(g, mask).map_or_else(|| !is_finite(g, mask, &mut BTreeSet::new()), |mask| mask.hides_a_row)
}

/// Whether a class has only finite elements: a choice between finite numbers, a lookup in a table of weights or a product with a
/// matrix (as in trained biases), or arithmetic on weights and integers (as in a bias by distance). `tried` has the classes that
/// were visited.
fn is_finite(g: &Graph, class: Id, tried: &mut BTreeSet<Id>) -> bool {
    let finite = |number: Option<f64>| number.is_some_and(f64::is_finite);
    let mut found = false;
    find!(@arg g, class, ([Op::Select(_)] _condition x y) => { found |= finite(g.choice(x)) && finite(g.choice(y)) });
    find!(@arg g, class, (% [Op::Binary(Mul)] factor _other) => { found |= finite(g.number(factor)) });
    found
        || tried.insert(g.find(class))
            && g[class].nodes.iter().any(|node| match node.op() {
                Some(Op::Contract(_)) => true,
                Some(Op::Gather(_)) => stored::is_finite(g, node.args[0]),
                Some(Op::Constant(_)) => stored::is_finite(g, class),
                Some(Op::Cast(_)) => !g.ty(node.args[0]).dtype.is_float(),
                Some(Op::Binary(Mul | Add | Sub)) => {
                    node.args.iter().all(|&factor| is_finite(g, factor, tried))
                }
                Some(op) if op.movement().is_layout() => is_finite(g, node.args[0], tried),
                _ => false,
            })
}

/// Turns a constant mask that shows the keys up to the query's own into the attribute `causal`, and removes a mask that hides nothing.
/// The mask may be added to a bias, which stays.
fn causal_mask(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Attention(attention)) = n.op() else { return };
    let [query, key, value, mask] = n.args[..] else { return };
    let mut without = |mask: Id, rest: Option<Id>| {
        let causal =
            match stored::mask(g, mask).filter(|_| g.ty(mask).ndim() == 4).and_then(|mask| mask.pattern) {
                Some(Pattern::Causal) => true,
                Some(Pattern::Open) => attention.causal,
                None => return,
            };
        let operands = [query, key, value].into_iter().chain(rest).map(Term::from).collect::<Vec<_>>();
        out.push(term(Attention { causal, ..attention.clone() }, operands));
    };
    without(mask, None);
    find!(@arg g, mask, (% [Op::Binary(Add)] mask bias) => {
        if g.ty(bias).ndim() == 4 && g.ty(bias).dims[3] == g.ty(key).dims[2] { without(mask, Some(bias)) }
    });
}

/// Removes the broadcast of a mask: the operator broadcasts it itself.
fn stretched_mask(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Attention(attention)] query key value ([Op::Broadcast(_)] mask)) => {
        if g.ty(mask).ndim() == 4 && g.ty(mask).dims[3] == g.ty(key).dims[2] {
            out.push(term(attention.clone(), [query.into(), key.into(), value.into(), mask.into()]));
        }
    });
}

/// Removes the repetition of key and value heads (`repeat_kv`: a dim of one, stretched and merged).
fn grouped_heads(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Attention(attention)) = n.op() else { return };
    let [query, key, value, ref mask @ ..] = n.args[..] else { return };
    for key in unrepeated(g, key) {
        for value in unrepeated(g, value) {
            if g.ty(key).dims[1] == g.ty(value).dims[1] {
                let operands: Vec<Term> =
                    [query, key, value].into_iter().chain(mask.iter().copied()).map(Term::from).collect();
                out.push(term(attention.clone(), operands));
            }
        }
    }
}

/// Finds each `x[b, g, s, d]` of which a class `[b, g·r, s, d]` repeats every head r times.
fn unrepeated(g: &Graph, class: Id) -> Vec<Id> {
    let mut found = Vec::new();
    find!(@arg g, class, ([Op::Reshape(_)] stretched) => {
        find!(@arg g, stretched, ([Op::Broadcast(_)] single) => {
            find!(@arg g, single, ([Op::Reshape(_)] x) => {
                let (x_dims, one, many) = (&g.ty(x).dims, &g.ty(single).dims, &g.ty(stretched).dims);
                let apart = x_dims.len() == 4 && one.len() == 5 && one[2].is_one();
                if apart && one[..2] == x_dims[..2] && one[3..] == x_dims[2..]
                    && many[..2] == one[..2] && many[3..] == one[3..]
                    && g.ty(class).ndim() == 4 && many[1].product(&many[2]).as_ref() == Some(&g.ty(class).dims[1])
                {
                    found.push(x);
                }
            });
        });
    });
    found
}
