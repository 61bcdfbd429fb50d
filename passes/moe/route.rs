//! The router: scores of tokens for experts, the experts that a token chooses, and the factors of their results.
//!
//! Scores, probabilities and gates are f32, even if a step runs in half precision (Fedus et al., arXiv 2101.03961, section 2.4).

use super::{Affinity, Gates, GroupLimit, Moe};
use crate::{dropout, router_bias};
use ir::ops::constant::Iota;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Compare, Logical, Select, Unary};
use ir::ops::indexing::GatherElements;
use ir::ops::random::RandomUniform;
use ir::ops::ranking::TopK;
use ir::ops::softmax::Softmax;
use ir::{Builder, DType, Dim, Initializer, Role, Type, TypeError, ValueId};

/// The sizes of a block's tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The groups in which tokens compete for slots: the samples.
    pub(super) groups: u64,
    /// The tokens of a group.
    pub(super) tokens: u64,
    /// The features of a token.
    pub(super) features: u64,
}

/// Scores of tokens for experts: `f32[groups, tokens, experts]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scores {
    /// The results of the router's multiplication.
    pub(super) logits: ValueId,
    /// The numbers by which tokens choose, and from which the gates are computed.
    pub(super) affinities: ValueId,
    /// The affinities, divided by their sum over the experts.
    pub(super) probabilities: ValueId,
}

/// The experts of each token: `[groups, tokens, top]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The experts, `i64`.
    pub(super) experts: ValueId,
    /// The factors of their results, `f32`; 0 where a choice is not taken.
    pub(super) gates: ValueId,
    /// Whether a choice is taken, `bool`; `None` if all choices are.
    pub(super) taken: Option<ValueId>,
}

pub(super) fn known(sizes: &[u64]) -> Vec<Dim> {
    sizes.iter().copied().map(Dim::known).collect()
}

/// Builds the scores of tokens `[groups, tokens, features]`. The router's parameter `NAME.weight` is a matrix `[features, experts]` that
/// starts normal with deviation √(0.1 / features), as in [`super::Start::Fresh`].
pub(super) fn scores(
    b: &mut Builder,
    moe: &Moe,
    tokens: ValueId,
    sizes: Sizes,
    router: &str,
) -> Result<Scores, TypeError> {
    let ty = Type::of(DType::F32, &[sizes.features, moe.experts]);
    let std = fresh(sizes.features);
    let name = format!("{router}.weight");
    let id = b.tables().add_state(name, ty, Role::Parameter, Initializer::Normal { std, data: None });
    let weight = b.module().states[id].input;
    let mut x = b.cast(tokens, DType::F32)?;
    let jitter = moe.routing.jitter;
    if jitter > 0.0 {
        let all = Type::of(DType::F32, &[sizes.groups, sizes.tokens, sizes.features]);
        let uniform = uniform(b, moe, all, sizes)?;
        x = b.build(x * (uniform * (2.0 * jitter) + (1.0 - jitter)))?;
    }
    let logits = b.one(Contract::linear(3, false), &[x, weight])?;
    match moe.routing.affinity {
        Affinity::Softmax => {
            let probabilities = b.one(Softmax { dim: 2 }, &[logits])?;
            Ok(Scores { logits, affinities: probabilities, probabilities })
        }
        Affinity::Sigmoid => {
            let affinities = b.build(Unary::Sigmoid.of(logits))?;
            let probabilities = divided_by_sum(b, affinities, sizes)?;
            Ok(Scores { logits, affinities, probabilities })
        }
    }
}

/// Divides numbers `[groups, tokens, n]` by their sums over the last dim.
fn divided_by_sum(b: &mut Builder, x: ValueId, sizes: Sizes) -> Result<ValueId, TypeError> {
    let sum = b.sum(x, &[2])?;
    let sum = b.reshape(sum, known(&[sizes.groups, sizes.tokens, 1]))?;
    b.build(x / sum)
}

/// Returns the bits of the deviation of fresh weights whose sums have `fan_in` terms.
pub(super) fn fresh(fan_in: u64) -> u64 {
    (0.1 / fan_in.max(1) as f64).sqrt().to_bits()
}

/// Adds uniform numbers of each sample, drawn in training. An evaluation uses their mean.
fn uniform(b: &mut Builder, moe: &Moe, ty: Type, sizes: Sizes) -> Result<ValueId, TypeError> {
    let id = dropout::next_id(b.module());
    let numbers = dropout::numbers_of_samples(b, sizes.groups)?;
    b.one_typed(RandomUniform { id, seed: moe.seed, dim: 0 }, &[numbers], ty)
}

/// Keeps the numbers by which tokens choose for experts in the groups that a token takes. All other experts get the least f32.
fn of_groups(
    b: &mut Builder,
    moe: &Moe,
    limit: GroupLimit,
    ranked: ValueId,
    sizes: Sizes,
) -> Result<ValueId, TypeError> {
    let GroupLimit { groups, taken } = limit;
    let (in_group, Sizes { groups: samples, tokens, .. }) = (moe.experts / groups, sizes);
    let by_group = b.reshape(ranked, known(&[samples, tokens, groups, in_group]))?;
    let highest = b.one(TopK { dim: 3, count: in_group.min(2), largest: true }, &[by_group])?;
    let highest = b.one(GatherElements { dim: 3 }, &[by_group, highest])?;
    let sums = b.sum(highest, &[3])?;
    let chosen = b.one(TopK { dim: 2, count: taken, largest: true }, &[sums])?;
    let chosen = b.reshape(chosen, known(&[samples, tokens, taken, 1]))?;
    let group = b.one_typed(Iota { dim: 3 }, &[], Type::of(DType::I64, &[1, 1, 1, groups]))?;
    let is_chosen = b.sum(Compare::Equal.of(chosen, group).cast(DType::I64), &[2])?;
    let is_chosen = b.cast(is_chosen, DType::Bool)?;
    let is_chosen = b.reshape(is_chosen, known(&[samples, tokens, groups, 1]))?;
    b.reshape(Select.of(is_chosen, by_group, f64::from(f32::MIN)), known(&[samples, tokens, moe.experts]))
}

/// Builds the choice of experts of each token. With a bias, the router's buffer `NAME.bias` of each expert is added where experts are
/// compared, and not in gates; [`crate::router_bias`] changes it.
pub(super) fn choose(
    b: &mut Builder,
    moe: &Moe,
    scores: Scores,
    sizes: Sizes,
    router: &str,
) -> Result<Choice, TypeError> {
    let routing = &moe.routing;
    let mut ranked = scores.affinities;
    if routing.bias > 0.0 {
        let ty = Type::of(DType::F32, &[moe.experts]);
        let id = b.tables().add_state(router_bias::name(router), ty, Role::Buffer, Initializer::Zeros);
        ranked = b.build(ranked + b.module().states[id].input)?;
    }
    if let Some(limit) = routing.limit {
        ranked = of_groups(b, moe, limit, ranked, sizes)?;
    }
    let experts = b.one(TopK { dim: 2, count: routing.top, largest: true }, &[ranked])?;
    let mut gates = b.one(GatherElements { dim: 2 }, &[scores.affinities, experts])?;
    if routing.gates == Gates::Renormalized {
        gates = divided_by_sum(b, gates, sizes)?;
    }
    if !routing.random_second {
        return Ok(Choice { experts, gates, taken: None });
    }
    // GShard takes the second choice with the probability 2 · gate (Lepikhin et al., arXiv 2006.16668, algorithm 1, line 17).
    let one_choice = Type::of(DType::F32, &[sizes.groups, sizes.tokens, 1]);
    let drawn = uniform(b, moe, one_choice, sizes)?;
    let is_drawn = b.build(Compare::Less.of(drawn, gates * 2.0))?;
    let number = b.one_typed(Iota { dim: 2 }, &[], Type::of(DType::I64, &[1, 1, 2]))?;
    let is_first = b.build(Compare::Equal.of(number, 0.0))?;
    let taken = b.build(Logical::Or.of(is_drawn, is_first))?;
    let gates = b.build(Select.of(taken, gates, 0.0))?;
    Ok(Choice { experts, gates, taken: Some(taken) })
}
