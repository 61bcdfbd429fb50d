//! The updates of optimizers.

use super::source::{BLOCK, KernelDraft, OPTIMIZER, index_type, is_aligned, layout, stored};
use super::{Multiprocessors, Step};
use crate::program::{Instruction, View};
use ir::Diagnostic;
use ir::ops::optimizer::{Adagrad, Adam, Sgd};

/// The most packs of neighbours that a thread updates, one after the other, if there are more packs than threads fill the device.
const EACH: usize = 8;

pub(super) fn adam(
    op: &Adam,
    instruction: &Instruction,
    on: Multiprocessors,
) -> Result<Vec<Step>, Diagnostic> {
    let numbers = format!("{:?}, {:?}, {:?}", op.beta1.get(), op.beta2.get(), op.eps.get());
    Ok(update("adam", &format!("{}, ", op.decoupled), &numbers, &[0, 2, 3], &[4, 5, 6], instruction, on))
}

pub(super) fn adagrad(
    op: &Adagrad,
    instruction: &Instruction,
    on: Multiprocessors,
) -> Result<Vec<Step>, Diagnostic> {
    Ok(update("adagrad", "", &format!("{:?}", op.eps.get()), &[0, 2], &[3, 4], instruction, on))
}

pub(super) fn sgd(op: &Sgd, instruction: &Instruction, on: Multiprocessors) -> Result<Vec<Step>, Diagnostic> {
    let numbers = format!("{:?}", op.momentum.get());
    Ok(update("sgd", &format!("{}, ", op.nesterov), &numbers, &[0, 2], &[3, 4], instruction, on))
}

/// The index of the gradient among the operands.
const GRADIENT: usize = 1;

/// Updates `tensors`, the parameter and its moments, by the gradient. `flags` and `numbers` are the rule's, as template
/// arguments and as arguments; `scalars` are the operands that are f64 scalars, which `scale` and `skip` may follow. One result
/// more than there are tensors is a half-precision copy of the parameter.
fn update(
    rule: &str,
    flags: &str,
    numbers: &str,
    tensors: &[usize],
    scalars: &[usize],
    instruction: &Instruction,
    on: Multiprocessors,
) -> Vec<Step> {
    let Instruction { operands, results, .. } = instruction;
    let old: Vec<&View> = tensors.iter().map(|&operand| &operands[operand]).collect();
    let gradient = &operands[GRADIENT];
    let count = gradient.layout.len();
    let (results, copies) = results.split_at(old.len());
    let width = neighbours(&old, gradient, results);
    let mut run = KernelDraft::of(rule, &OPTIMIZER);
    let optional = &operands[1 + tensors.len() + scalars.len()..];
    let scalars: Vec<String> = scalars.iter().map(|&operand| run.reads(&operands[operand])).collect();
    let optional = optional_operands(&mut run, optional);
    let from: Vec<String> = old.iter().map(|view| run.reads(view)).collect();
    let from_gradient = run.reads(gradient);
    let to: Vec<String> = results.iter().map(|view| run.writes(view)).collect();
    let (ty, tensors) = (stored(gradient.dtype), to.len());
    let [scalars, from, to] = [scalars, from, to].map(|names| names.join(", "));
    let (in_packs, gradient) = (is_in_packs(gradient, width), layout(&gradient.layout));
    let index = index_type(count);
    let copy = match copies.first() {
        Some(copy) => {
            let to = run.writes(copy);
            let (half, places, copied_in_packs) =
                (stored(copy.dtype), layout(&copy.layout), is_in_packs(copy, width));
            format!("optimizer::Copy<{half}, {places}, {index}, {copied_in_packs}>{{{to}}}")
        }
        None => "optimizer::NoCopy{}".into(),
    };
    run.line(format!("const optimizer::Tensors<const {ty}, {tensors}> from = {{{{{from}}}}};"));
    run.line(format!("const optimizer::Tensors<{ty}, {tensors}> to = {{{{{to}}}}};"));
    run.line(format!(
        "optimizer::{rule}<{flags}{gradient}, {index}, {width}, {in_packs}>({numbers}, {scalars}, {optional}, {from_gradient}, from, to, {copy});"
    ));
    let packs = count / width;
    let each = (packs / on.threads()).clamp(1, EACH);
    vec![Step::Kernel(run.blocks(packs.div_ceil(BLOCK as usize * each), BLOCK))]
}

/// The operands `scale` and `skip`, as far as there are any, in C++.
fn optional_operands(run: &mut KernelDraft, operands: &[View]) -> String {
    let names: Vec<String> = operands.iter().map(|view| run.reads(view)).collect();
    let of = operands.first().map_or("", |scale| stored(scale.dtype));
    match &names[..] {
        [] => "optimizer::Always{}".into(),
        [scale] => format!("optimizer::Scaled<{of}>{{{scale}}}"),
        names => format!("optimizer::Skippable<{of}>{{{}}}", names.join(", ")),
    }
}

/// Returns whether every pack of so many elements of a tensor lies together, at an aligned place.
fn is_in_packs(tensor: &View, width: usize) -> bool {
    let [ref outer @ .., (inner, 1)] = tensor.layout.collapsed()[..] else { return false };
    let steps_fit = outer.iter().all(|(_, stride)| stride.unsigned_abs().is_multiple_of(width));
    inner.is_multiple_of(width) && steps_fit && is_aligned(tensor, width * tensor.dtype.bytes() as usize)
}

/// How many neighbours are read and written at once: 16 bytes of them, if everything allows it.
fn neighbours(old: &[&View], gradient: &View, results: &[View]) -> usize {
    let width = 16 / gradient.dtype.bytes() as usize;
    let dense = gradient.layout.collapsed().len() == 1 && gradient.layout.is_dense();
    let moved = old.iter().copied().chain(results).chain(dense.then_some(gradient));
    let fits = gradient.layout.len().is_multiple_of(width) && { moved }.all(|view| is_aligned(view, 16));
    if fits { width } else { 1 }
}
