//! Scaled dot-product attention as exporters spell it.
//!
//! The scores `scale · q·kᵀ + mask` go through a softmax, perhaps with the `IsNaN`/`Where` that turns fully masked rows
//! into zeros, and weigh `v`. A bias and a mask may both be added (T5); the sum of the two is the mask then. Transposes
//! are in the labels by then (rules of `contraction`), scales are one factor outside the contraction (rules of `algebra`).

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

/// The scores behind probabilities.
struct Scores {
    query: Id,
    key: Id,
    contract: Contract,
    scale: f64,
    /// Stored numbers that multiply them as well.
    factors: Factors,
    masks: Masks,
}

/// The outermost first: queries and keys may have been multiplied by one each.
type Factors = SmallVec<[Id; MOST_FACTORS]>;

const MOST_FACTORS: usize = 2;

/// What is added to the product, the last first; or one mask of bools. At most a bias and a mask.
type Masks = SmallVec<[Id; MOST_MASKS]>;

/// A sum of more is no attention of an exporter.
const MOST_MASKS: usize = 2;

fn attention(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Contract(weigh)) = n.op() else { return };
    let [probabilities, value] = n.args[..] else { return };
    let four = g.ty(probabilities).ndim() == 4 && matches!(g.ty(value).ndim(), 3 | 4);
    // One head that has no dim is left to contractions, which any mesh splits: attention is split by its heads.
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

/// What is wrong with the mask that scores have, if nothing else is.
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

/// What stands between a softmax of scores and a contraction that reads it through one view.
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
    /// Whether rows of NaN become zeros after it.
    guarded: bool,
}

/// The softmaxes that a class is, perhaps with a guard.
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

/// The readings of a class as `scale · q·kᵀ + mask`.
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

/// The readings of a class as a scaled product with something added, to which `masks` are added as well.
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

/// Whether scores of this number are hidden. A finite one hides as -∞ does only where each row shows something.
fn hides(g: &Graph, hidden: Id, kept: Id) -> bool {
    g.choice(hidden).is_some_and(|number| {
        let each_row_shows = || stored::mask(g, kept).is_some_and(|mask| !mask.hides_a_row);
        number == f64::NEG_INFINITY || number <= stored::HIDDEN && each_row_shows()
    })
}

/// Whether a class is a mask on these scores, of size one where it stretches; leading dims may be missing.
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
                // Written numbers are one already, the outermost.
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

/// A mask with the four dims that the fused operator takes.
fn with_four_dims(g: &Graph, mask: Id) -> Term {
    let ty = g.ty(mask);
    if ty.ndim() == 4 {
        return mask.into();
    }
    let ones = (ty.ndim()..4).map(|_| Dim::known(1));
    typed(Reshape, [mask.into()], Type::new(ty.dtype, ones.chain(ty.dims.iter().cloned())))
}

/// The fused operator, with transposes that bring operands and result into its order of dims. Keys and values without
/// a dim of heads, which all queries share (Shazeer, arXiv 1911.02150), get one of size one.
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
    // A stored number may be a temperature that is trained: it stays what it is, on the queries.
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

/// A class whose dims have these labels, with its dims in that order.
fn ordered(class: Id, labels: &Labels, order: &[u8]) -> Option<Term> {
    (labels.0.len() == order.len()).then(|| transposed(class.into(), labels, order))?
}

/// The same of keys or values that all heads share, with one head.
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

/// Whether a mask might leave nothing of some row. Then a plain softmax gives NaN there and the fused operator zeros,
/// so the two are one only if the exporter's guard is there. A finite mask never makes a NaN.
fn may_hide_a_row(g: &Graph, mask: Id) -> bool {
    stored::mask(g, mask).map_or_else(|| !is_finite(g, mask, &mut BTreeSet::new()), |mask| mask.hides_a_row)
}

/// Whether a class has finite elements alone: it chooses between finite numbers, or is looked up in a table of weights
/// or multiplied by a matrix, as biases that are trained are, or is made of weights and integers, as a bias by
/// distance is. `tried` has the classes that were looked at.
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

/// A constant mask that shows every key up to the query's own is the attribute `causal`; one that hides nothing goes.
/// Either may be added to a bias, which stays.
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

/// A mask is stretched by the operator itself.
fn stretched_mask(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Attention(attention)] query key value ([Op::Broadcast(_)] mask)) => {
        if g.ty(mask).ndim() == 4 && g.ty(mask).dims[3] == g.ty(key).dims[2] {
            out.push(term(attention.clone(), [query.into(), key.into(), value.into(), mask.into()]));
        }
    });
}

/// Keys and values that repeat heads (`repeat_kv`: a dim of one, stretched and merged) are read unrepeated.
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

/// `x[b, g, s, d]` for a class `[b, g·r, s, d]` that is x with each head repeated r times.
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
