//! Updates of parameters, in place if the memory plan says so.

mod adagrad;
mod adam;
mod adam_8bit;
mod lion;
mod sgd;

pub(super) use adagrad::adagrad;
pub(super) use adam::adam;
pub(super) use adam_8bit::adam_8bit;
pub(super) use lion::lion;
pub(super) use sgd::sgd;

use super::PARALLEL;
use super::copy::memory_order;
use crate::call::{Call, Source};
use crate::element::Element;
use crate::math::{Float, Real};
use crate::storage::Scratch;
use crate::walk::Walk;
use rayon::prelude::*;

/// The number of elements that a task updates at a time.
const BLOCK: usize = 1 << 12;

/// The optional last operands of every update: the scalar `scale` and the bool `skip`.
struct Optional<T> {
    /// The factor of the gradient. It is 1 without the operand, so that products keep all bits.
    scale: T,
    skips: bool,
}

impl<T: Real> Optional<T> {
    /// Reads the operands from index `first` on.
    fn of<S: Float<Real = T>>(call: &Call, first: usize) -> Self {
        let count = call.operands.len();
        let scale = if first < count { call.scalar::<S>(first).widen() } else { T::ONE };
        let skips = first + 1 < count && call.scalar::<u8>(first + 1) != 0;
        Self { scale, skips }
    }
}

/// The gradient, whose layout may differ from the parameter's.
struct Gradient<'a, T> {
    elements: &'a [T],
    walk: Option<Walk>,
}

impl<'a, T: Element> Gradient<'a, T> {
    fn of(call: &Call<'a>) -> Self {
        let Source { elements, layout } = call.source::<T>(1);
        let order = memory_order(&call.result_view(0).layout);
        let walk = (!layout.is_dense()).then(|| Walk::new(&layout, &order));
        Self { elements, walk }
    }

    fn block(&self, start: usize, len: usize) -> std::borrow::Cow<'a, [T]> {
        let Some(walk) = &self.walk else { return self.elements[start..start + len].into() };
        let mut block = vec![T::from_i64(0); len];
        walk.load(self.elements, start, &mut block);
        block.into()
    }
}

/// Calls `block` for blocks of the results, which hold the old values. These are copied from the operands with the indices `old`, unless
/// the results lie in their place. If the update is skipped, the old values remain. A block is given as bytes, with the number of its first
/// element.
fn for_blocks<const N: usize>(
    call: &mut Call,
    old: [usize; N],
    skips: bool,
    block: impl Fn(usize, [&mut [u8]; N]) + Sync,
) {
    let old = old.map(|index| call.dense_or_in_place::<u8>(index));
    let len = call.result_view(0).layout.len();
    let size = if len < PARALLEL { len } else { BLOCK };
    let widths: [usize; N] = std::array::from_fn(|i| call.result_view(i).dtype.bytes() as usize);
    let mut parts: Vec<Vec<&mut [u8]>> = (0..len.div_ceil(size)).map(|_| Vec::with_capacity(N)).collect();
    for (result, width) in call.take_results::<N>().into_iter().zip(widths) {
        result.chunks_mut(size * width).zip(&mut parts).for_each(|(chunk, part)| part.push(chunk));
    }
    parts.into_par_iter().enumerate().for_each(|(index, mut part)| {
        let start = index * size;
        for ((old, new), width) in old.iter().zip(&mut part).zip(widths) {
            if let Some(old) = old {
                new.copy_from_slice(&old[start * width..][..new.len()]);
            }
        }
        if let (false, Ok(part)) = (skips, part.try_into()) {
            block(start, part);
        }
    });
}

/// Updates a parameter and its only state, which are the results 0 and 1, block by block. `update` gets a block of the gradient, of the
/// parameter and of the state, in the type in which they are computed.
fn update_with_state<S: Float>(
    call: &mut Call,
    skips: bool,
    update: impl Fn(&[S::Real], &mut [S::Real], &mut [S::Real]) + Sync,
) {
    let gradient = Gradient::<S>::of(call);
    for_blocks(call, [0, 2], skips, |start, results| {
        let [parameter, state] = results.map(bytemuck::cast_slice_mut::<u8, S>);
        let (gradient, mut wide) = (gradient.block(start, parameter.len()), Scratch::new());
        let gradient = wide.read(&gradient);
        let [mut wide_parameter, mut wide_state] = [Scratch::new(), Scratch::new()];
        wide_parameter.update(parameter, |parameter| {
            wide_state.update(state, |state| update(gradient, parameter, state));
        });
    });
}
