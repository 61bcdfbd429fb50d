//! Gradients in 16 bits: each rank rounds its addend to bf16, keeps the error of the rounding, and adds it to the next addend.
//!
//! `Mᵢ = Gᵢ + Eᵢ`, `Ĝ = Σᵢ bf16(Mᵢ)`, `Eᵢ' = Mᵢ − bf16(Mᵢ)`. The sum over the ranks is in bf16 as well, and no rank corrects the
//! rounding of this sum.

use super::States;
use ir::{DType, TypeError, ValueId};

/// Builds the nodes for a tensor. Returns `Ĝ` in bf16.
pub(super) fn build(states: &mut States, gradient: ValueId, ranks: u64) -> Result<ValueId, TypeError> {
    let sizes = states.b.ty(gradient).sizes();
    let sizes = sizes.ok_or_else(|| TypeError::new("a gradient has dims that are not bound"))?;
    let (sum, errors) = states.with_errors(gradient, ranks, &sizes)?;
    let b = &mut *states.b;
    let narrow = b.cast(sum, DType::BF16)?;
    let whole = b.sum(narrow, &[0])?;
    let seen = b.cast(narrow, super::FULL)?;
    let unseen = b.build(sum - seen)?;
    states.set(errors, unseen);
    Ok(whole)
}
