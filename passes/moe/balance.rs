//! Balance: the losses that keep tokens spread over experts, and the metrics of the routing.

use super::route::{Choice, Scores, Sizes, known};
use super::slots::one_hot;
use super::{Affinity, Moe};
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::softmax::LogSoftmax;
use ir::{Builder, DType, Dim, Scalar, ScalarPart, StepOutput, TypeError, ValueId};

/// The scalars of all mixtures, one of each kind for each mixture.
#[derive(Debug, Default)]
pub(super) struct BalanceScalars {
    /// The balance losses and z-losses, each with its factor.
    penalties: Vec<ValueId>,
    /// E · Σ (share of the tokens · mean probability): 1 if all experts have equally many tokens.
    balances: Vec<ValueId>,
    /// The number of choices without a slot, and of all choices.
    dropped: Vec<[ValueId; 2]>,
    /// Means over tokens of the entropy of the router's probabilities.
    entropies: Vec<ValueId>,
    /// The choices that fell on each expert, `f32[experts]`, by the name of the router.
    pub(super) loads: Vec<(String, ValueId)>,
}

/// Adds the scalars of a mixture whose tokens choose experts, and returns its load. `kept` is 1 for each choice that has a slot, else 0:
/// `f32[groups, top · tokens]`.
pub(super) fn of_choices(
    b: &mut Builder,
    moe: &Moe,
    parts: &mut BalanceScalars,
    scores: Scores,
    choice: Choice,
    kept: Option<ValueId>,
    sizes: Sizes,
) -> Result<ValueId, TypeError> {
    of_scores(b, moe, parts, scores, sizes)?;
    let Sizes { groups, tokens, .. } = sizes;
    let (experts, top) = (moe.experts, moe.routing.top);
    // GShard's loss counts first choices only.
    let counted = if moe.routing.random_second { 1 } else { top };
    // The choices stand in the order of the slots, so that both read the same marks.
    let chosen = b.slice(choice.experts, 2, 0, Dim::known(counted))?;
    let chosen = b.transpose(chosen, &[0, 2, 1])?;
    let chosen = b.reshape(chosen, known(&[groups, counted * tokens]))?;
    let is_chosen = one_hot(b, chosen, experts, [groups, counted * tokens])?;
    let counts = b.sum(is_chosen, &[1])?;
    let counts = b.cast(counts, DType::F32)?;
    let sums = b.sum(scores.probabilities, &[1])?;
    let product = b.sum(counts * sums, &[0, 1])?;
    // counts / (tokens · counted) · sums / tokens, the mean over groups.
    let mean = 1.0 / (tokens as f64 * counted as f64 * tokens as f64 * groups as f64);
    let balance = b.build(product * (mean * experts as f64))?;
    parts.balances.push(balance);
    if moe.routing.balance > 0.0 {
        // Switch Transformers multiply by the number of experts (equation 4), GShard divides by it (section 2.2).
        let by_paper = if moe.routing.random_second { (experts as f64).powi(-2) } else { 1.0 };
        parts.penalties.push(b.build(balance * (moe.routing.balance * by_paper))?);
    }
    let of_all = b.sum(counts, &[0])?;
    if let Some(kept) = kept {
        let taken = match choice.taken {
            Some(taken) => {
                let taken = b.cast(taken, DType::F32)?;
                b.sum(taken, &[0, 1, 2])?
            }
            None => b.scalar(DType::F32, (groups * tokens * top) as f64)?,
        };
        let kept = b.sum(kept, &[0, 1])?;
        let dropped = b.build(taken - kept)?;
        parts.dropped.push([dropped, taken]);
    }
    Ok(of_all)
}

/// Adds the scalars that depend only on scores.
pub(super) fn of_scores(
    b: &mut Builder,
    moe: &Moe,
    parts: &mut BalanceScalars,
    scores: Scores,
    sizes: Sizes,
) -> Result<(), TypeError> {
    let tokens = sizes.groups as f64 * sizes.tokens as f64;
    let logs = match moe.routing.affinity {
        Affinity::Softmax => b.one(LogSoftmax { dim: 2 }, &[scores.logits])?,
        Affinity::Sigmoid => {
            // 0 · log 0 counts as 0.
            b.build(Unary::Log.of(Binary::Max.of(scores.probabilities, f64::from(f32::MIN_POSITIVE))))?
        }
    };
    let sum = b.sum(scores.probabilities * logs, &[0, 1, 2])?;
    parts.entropies.push(b.build(sum * (-1.0 / tokens))?);
    if moe.routing.z > 0.0 {
        // log Σ exp x = x - log softmax x, for any expert. The first one is taken.
        let first = |b: &mut Builder, x| b.slice(x, 2, 0, Dim::known(1));
        let (logit, log) = (first(b, scores.logits)?, first(b, logs)?);
        let sizes = b.build(logit - log)?;
        let sum = b.sum(sizes * sizes, &[0, 1, 2])?;
        parts.penalties.push(b.build(sum * (moe.routing.z / tokens))?);
    }
    Ok(())
}

/// Adds the outputs: `loss.penalty`, the means over mixtures as metrics, and the load of each mixture.
pub(super) fn add_outputs(b: &mut Builder, parts: &BalanceScalars) -> Result<(), TypeError> {
    b.at(ir::At::End(ir::Phase::Forward)).origin("moe");
    if let Some(penalty) = sum(b, &parts.penalties)? {
        b.tables().add_output(StepOutput::Penalty, penalty);
    }
    for (name, values) in [("moe.balance", &parts.balances), ("moe.entropy", &parts.entropies)] {
        if let Some(sum) = sum(b, values)? {
            let weight = b.splat_like(sum, values.len() as f64)?;
            metric(b, name, sum, weight);
        }
    }
    let [dropped, all] = [0, 1].map(|i| parts.dropped.iter().map(|pair| pair[i]).collect::<Vec<_>>());
    if let (Some(dropped), Some(all)) = (sum(b, &dropped)?, sum(b, &all)?) {
        metric(b, "moe.dropped", dropped, all);
    }
    for (router, load) in &parts.loads {
        b.tables().add_output(StepOutput::Load(router), *load);
    }
    Ok(())
}

fn metric(b: &mut Builder, name: &str, sum: ValueId, weight: ValueId) {
    let output = |part| StepOutput::Part { scalar: Scalar::Metric(name), class: 0, part };
    b.tables().add_output(output(ScalarPart::Sum), sum);
    b.tables().add_output(output(ScalarPart::Weight), weight);
}

fn sum(b: &mut Builder, values: &[ValueId]) -> Result<Option<ValueId>, TypeError> {
    let Some((&first, rest)) = values.split_first() else { return Ok(None) };
    let mut sum = first;
    for &value in rest {
        sum = b.build(sum + value)?;
    }
    Ok(Some(sum))
}
