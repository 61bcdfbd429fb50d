//! Slots: with a capacity, each expert has a fixed number of slots in each group, and tokens without a slot are dropped.
//!
//! First choices take slots before second ones, and earlier tokens before later ones (GShard, algorithm 1).

use super::Moe;
use super::route::{Choice, Sizes, known};
use ir::ops::constant::Iota;
use ir::ops::elementwise::{Compare, Logical, Select};
use ir::ops::indexing::{GatherElements, GatherNd};
use ir::ops::ranking::TopK;
use ir::ops::reduce::CumulativeSum;
use ir::ops::scatter::{ScatterElements, ScatterKind, ScatterNd};
use ir::ops::softmax::Softmax;
use ir::{Builder, DType, Dim, Type, TypeError, ValueId};

/// The tokens in the slots of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// The slots of an expert in a group.
    pub(super) of_expert: u64,
    /// The token in each slot, `i64[groups, experts · slots]`. Empty slots have the first token; nothing reads their results.
    tokens: ValueId,
    /// The way of the results back to the tokens.
    back: Back,
}

/// The way from the results of slots to those of tokens.
#[derive(Clone, Copy, Debug)]
enum Back {
    /// Each choice of a token reads its slot, `i64[groups, top · tokens]`. A choice without a slot reads the first slot, and its gate is 0.
    /// The gates are `[groups, top, tokens]`.
    Read { slots: ValueId, gates: ValueId },
    /// Each slot adds its result, times its gate `[groups, experts · slots]`, to its token.
    Add { gates: ValueId },
}

/// Returns the slots of an expert in each group: the tokens that it would have if all experts had equally many, times the capacity,
/// rounded up; at most the number of tokens.
pub(super) fn of_expert(moe: &Moe, capacity: f64, sizes: Sizes) -> u64 {
    let choices = if moe.routing.by_experts { 1 } else { moe.routing.top };
    let even = (sizes.tokens * choices) as f64 / moe.experts as f64;
    ((even * capacity).ceil() as u64).clamp(1, sizes.tokens)
}

/// Builds the slots for the choices of tokens. Also returns 1 for each choice that has a slot, else 0: `f32[groups, top · tokens]`.
///
/// The place of a choice at its expert is the number of earlier choices of this expert: an exclusive running sum over one-hot rows. The
/// choice has a slot if the place is less than `of_expert`. For example, with one slot for each expert, the choices 0, 1, 0 have the
/// places 0, 0, 1, so the third choice has no slot.
pub(super) fn of_tokens(
    b: &mut Builder,
    moe: &Moe,
    of_expert: u64,
    choice: Choice,
    sizes: Sizes,
) -> Result<(Slots, ValueId), TypeError> {
    let Sizes { groups, tokens, .. } = sizes;
    let (top, experts) = (moe.routing.top, moe.experts);
    // The first choices of all tokens come first, then the second ones.
    let in_turn = |b: &mut Builder, x: ValueId| b.transpose(x, &[0, 2, 1]);
    let choices = known(&[groups, top * tokens]);
    let expert = in_turn(b, choice.experts)?;
    let expert = b.reshape(expert, choices.clone())?;
    let mut one_hot = one_hot(b, expert, experts, [groups, top * tokens])?;
    let mut is_taken = None;
    if let Some(taken) = choice.taken {
        let taken = in_turn(b, taken)?;
        let taken = b.reshape(taken, choices)?;
        let counts = b.cast(taken, DType::I64)?;
        let counts = b.reshape(counts, known(&[groups, top * tokens, 1]))?;
        one_hot = b.build(one_hot * counts)?;
        is_taken = Some(taken);
    }
    let earlier = b.one(CumulativeSum { dim: 1, exclusive: true, reverse: false }, &[one_hot])?;
    let place = b.sum(earlier * one_hot, &[2])?;
    let fits = b.build(Compare::Less.of(place, of_expert as f64))?;
    let has_slot = match is_taken {
        Some(is_taken) => b.build(Logical::And.of(fits, is_taken))?,
        None => fits,
    };
    let slot = b.build(expert * of_expert as f64 + place)?;
    // Choices without a slot write into an extra slot, which is cut off: indices stay within the tensor, as ONNX demands.
    let all = experts * of_expert;
    let written = b.build(Select.of(has_slot, slot, all as f64))?;
    let token = b.one_typed(Iota { dim: 2 }, &[], Type::of(DType::I64, &[groups, top, tokens]))?;
    let token = b.reshape(token, known(&[groups, top * tokens]))?;
    let empty = b.splat(Type::of(DType::I64, &[groups, all + 1]), 0.0)?;
    let tokens_of = b.one(ScatterElements { dim: 1, kind: ScatterKind::Set }, &[empty, written, token])?;
    let tokens_of = b.slice(tokens_of, 1, 0, Dim::known(all))?;
    let slots = b.build(Select.of(has_slot, slot, 0.0))?;
    let kept = b.cast(has_slot, DType::F32)?;
    let of_choices = b.reshape(kept, known(&[groups, top, tokens]))?;
    let gates = in_turn(b, choice.gates)?;
    let gates = b.build(gates * of_choices)?;
    Ok((Slots { of_expert, tokens: tokens_of, back: Back::Read { slots, gates } }, kept))
}

/// Builds the slots that experts fill with the tokens of the highest scores. `logits` are `[groups, tokens, experts]`. The gates are the
/// probabilities over experts (Zhou et al., arXiv 2202.09368, section 3.2).
pub(super) fn of_experts(
    b: &mut Builder,
    moe: &Moe,
    of_expert: u64,
    logits: ValueId,
    sizes: Sizes,
) -> Result<Slots, TypeError> {
    let probabilities = b.one(Softmax { dim: 2 }, &[logits])?;
    let by_expert = b.transpose(probabilities, &[0, 2, 1])?;
    let tokens = b.one(TopK { dim: 2, count: of_expert, largest: true }, &[by_expert])?;
    let gates = b.one(GatherElements { dim: 2 }, &[by_expert, tokens])?;
    let all = known(&[sizes.groups, moe.experts * of_expert]);
    let (tokens, gates) = (b.reshape(tokens, all.clone())?, b.reshape(gates, all)?);
    Ok(Slots { of_expert, tokens, back: Back::Add { gates } })
}

/// Builds the one-hot form of numbers: `i64[dims.., classes]`, which is 1 at the number's own class and 0 elsewhere, from `i64[dims..]`.
pub(super) fn one_hot(
    b: &mut Builder,
    numbers: ValueId,
    classes: u64,
    dims: [u64; 2],
) -> Result<ValueId, TypeError> {
    let class = b.one_typed(Iota { dim: 2 }, &[], Type::of(DType::I64, &[1, 1, classes]))?;
    let numbers = b.reshape(numbers, known(&[dims[0], dims[1], 1]))?;
    b.build(Compare::Equal.of(numbers, class).cast(DType::I64))
}

impl Slots {
    /// Moves the tokens `[groups, tokens, features]` to their slots, `[experts, groups · slots, features]`. The rows of an expert lie
    /// together, so that they are one multiplication.
    pub(super) fn dispatch(
        &self,
        b: &mut Builder,
        moe: &Moe,
        x: ValueId,
        sizes: Sizes,
    ) -> Result<ValueId, TypeError> {
        let index = b.reshape(self.tokens, known(&[sizes.groups, moe.experts * self.of_expert, 1]))?;
        let slots = b.one(GatherNd { batch_dims: 1 }, &[x, index])?;
        let features = b.ty(x).dims[2].clone();
        let dims = known(&[sizes.groups, moe.experts, self.of_expert]).into_iter().chain([features.clone()]);
        let slots = b.reshape(slots, dims)?;
        let slots = b.transpose(slots, &[1, 0, 2, 3])?;
        b.reshape(slots, known(&[moe.experts, sizes.groups * self.of_expert]).into_iter().chain([features]))
    }

    /// Sums the results of each token's slots, times their gates: `[groups, tokens, features]`. A token without a slot gets zeros.
    pub(super) fn combine(
        &self,
        b: &mut Builder,
        moe: &Moe,
        y: ValueId,
        sizes: Sizes,
    ) -> Result<ValueId, TypeError> {
        let Sizes { groups, tokens, .. } = sizes;
        let (dtype, features) = (b.ty(y).dtype, b.ty(y).dims[2].clone());
        let with_features =
            |sizes: &[u64]| known(sizes).into_iter().chain([features.clone()]).collect::<Vec<Dim>>();
        let places = moe.experts * self.of_expert;
        let y = b.reshape(y, with_features(&[moe.experts, groups, self.of_expert]))?;
        let y = b.transpose(y, &[1, 0, 2, 3])?;
        let y = b.reshape(y, with_features(&[groups, places]))?;
        match self.back {
            Back::Read { slots, gates } => {
                let top = moe.routing.top;
                let index = b.reshape(slots, known(&[groups, top * tokens, 1]))?;
                let read = b.one(GatherNd { batch_dims: 1 }, &[y, index])?;
                let read = b.reshape(read, with_features(&[groups, top, tokens]))?;
                let gates = b.cast(gates, dtype)?;
                let gates = b.reshape(gates, known(&[groups, top, tokens, 1]))?;
                b.sum(read * gates, &[1])
            }
            Back::Add { gates } => {
                let gates = b.cast(gates, dtype)?;
                let gates = b.reshape(gates, known(&[groups, places, 1]))?;
                let weighted = b.build(y * gates)?;
                let index = b.reshape(self.tokens, known(&[groups, places, 1]))?;
                let zeros = b.splat(Type::new(dtype, with_features(&[groups, tokens])), 0.0)?;
                b.one(ScatterNd { batch_dims: 1, kind: ScatterKind::Add }, &[zeros, index, weighted])
            }
        }
    }
}
