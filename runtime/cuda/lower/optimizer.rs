//! The updates of optimizers.

use super::source::{BLOCK, KernelDraft, OPTIMIZER, OPTIMIZER_8BIT, index_type, is_aligned, layout, stored};
use super::{Multiprocessors, Step};
use ir::Diagnostic;
use ir::Dim;
use ir::ops::optimizer::quantization::Blocks;
use ir::ops::optimizer::{Adagrad, Adam, Adam8bit, Lion, Sgd};
use program::{Instruction, View};

/// The most packs of neighbours that a thread updates, one after the other. A thread has several only if there are more packs than
/// threads fill the device.
const EACH: usize = 8;

pub(super) fn adam(op: &Adam, instruction: &Instruction, on: Multiprocessors) -> KernelDraft {
    let numbers = format!("{:?}, {:?}, {:?}", op.beta1.get(), op.beta2.get(), op.eps.get());
    update("adam", &format!("{}, ", op.decoupled), &numbers, &[0, 2, 3], &[4, 5, 6], instruction, on)
}

pub(super) fn adam_8bit(
    op: &Adam8bit,
    instruction: &Instruction,
    on: Multiprocessors,
) -> Result<Vec<Step>, Diagnostic> {
    let Instruction { operands, results, .. } = instruction;
    let (gradient, parameter) = (&operands[GRADIENT], &operands[0]);
    let dims: Vec<Dim> = parameter.layout.sizes.iter().map(|&size| Dim::known(size as u64)).collect();
    let Blocks { row, size, .. } = Blocks::of(&dims, op.block)?;
    let rows = parameter.layout.len() as u64 / row;
    let blocks = (rows * row.div_ceil(size)) as usize;
    let threads = (size as usize).next_multiple_of(32).min(BLOCK as usize);
    let ty = stored(parameter.dtype);
    let mut run = KernelDraft::of("adam_8bit", &OPTIMIZER_8BIT);
    let scalars: Vec<String> = operands[6..9].iter().map(|view| run.reads(view)).collect();
    let optional = optional_operands(&mut run, &operands[9..]);
    let [from, first, first_largest, second, second_largest] =
        [0, 2, 3, 4, 5].map(|operand| run.reads(&operands[operand]));
    let from_gradient = run.reads(gradient);
    run.line(format!(
        "const optimizer_8bit::States<const u8, const {ty}> old = {{{{{first}, {second}}}, {{{first_largest}, {second_largest}}}}};"
    ));
    let [to, first, first_largest, second, second_largest] =
        [0, 1, 2, 3, 4].map(|result| run.writes(&results[result]));
    run.line(format!(
        "const optimizer_8bit::States<u8, {ty}> states = {{{{{first}, {second}}}, {{{first_largest}, {second_largest}}}}};"
    ));
    let index = index_type(parameter.layout.len());
    let copy = copy_of_parameter(&mut run, &results[5..], index, 1);
    run.line(format!(
        "optimizer_8bit::adam_8bit<{}, {rows}, {row}, {size}, {threads}, {}, {index}>({:?}, {:?}, {:?}, {}, {optional}, \
         {from_gradient}, {from}, old, {to}, states, {copy});",
        op.decoupled,
        layout(&gradient.layout),
        op.beta1.get(),
        op.beta2.get(),
        op.eps.get(),
        scalars.join(", "),
    ));
    let resident = (on.threads() / threads).max(1);
    Ok(vec![Step::Kernel(run.blocks(blocks.min(resident), threads as u32))])
}

pub(super) fn adagrad(op: &Adagrad, instruction: &Instruction, on: Multiprocessors) -> KernelDraft {
    update("adagrad", "", &format!("{:?}", op.eps.get()), &[0, 2], &[3, 4], instruction, on)
}

pub(super) fn lion(op: &Lion, instruction: &Instruction, on: Multiprocessors) -> KernelDraft {
    let numbers = format!("{:?}, {:?}", op.beta1.get(), op.beta2.get());
    update("lion", "", &numbers, &[0, 2], &[3, 4], instruction, on)
}

pub(super) fn sgd(op: &Sgd, instruction: &Instruction, on: Multiprocessors) -> KernelDraft {
    let numbers = format!("{:?}", op.momentum.get());
    update("sgd", &format!("{}, ", op.nesterov), &numbers, &[0, 2], &[3, 4], instruction, on)
}

/// The index of the gradient among the operands.
const GRADIENT: usize = 1;

/// Updates `tensors`, the parameter and its moments, by the gradient. `flags` are the rule's template arguments and `numbers` its
/// arguments; `scalars` are the operands that are f64 scalars, which `scale` and `skip` may follow. A result beyond those of the
/// tensors is a half-precision copy of the parameter.
fn update(
    rule: &str,
    flags: &str,
    numbers: &str,
    tensors: &[usize],
    scalars: &[usize],
    instruction: &Instruction,
    on: Multiprocessors,
) -> KernelDraft {
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
    let (ty, of_states, tensors) = (stored(gradient.dtype), stored(results[1].dtype), to.len());
    let scalars = scalars.join(", ");
    let [from, to] = [from, to].map(|names| format!("{{{}, {{{}}}}}", names[0], names[1..].join(", ")));
    let (in_packs, gradient) = (is_in_packs(gradient, width), layout(&gradient.layout));
    let index = index_type(count);
    let copy = copy_of_parameter(&mut run, copies, index, width);
    run.line(format!("const optimizer::Tensors<const {ty}, const {of_states}, {tensors}> from = {from};"));
    run.line(format!("const optimizer::Tensors<{ty}, {of_states}, {tensors}> to = {to};"));
    run.line(format!(
        "optimizer::{rule}<{flags}{gradient}, {index}, {width}, {in_packs}>({numbers}, {scalars}, {optional}, {from_gradient}, from, to, {copy});"
    ));
    let packs = count / width;
    let each = (packs / on.threads()).clamp(1, EACH);
    run.blocks(packs.div_ceil(BLOCK as usize * each), BLOCK)
}

/// Returns the half-precision copy of the parameter, if there is one, in C++. `width` neighbours are written at once.
fn copy_of_parameter(run: &mut KernelDraft, copies: &[View], index: &str, width: usize) -> String {
    let Some(copy) = copies.first() else { return "optimizer::NoCopy{}".into() };
    let to = run.writes(copy);
    let (half, places) = (stored(copy.dtype), layout(&copy.layout));
    format!("optimizer::Copy<{half}, {places}, {index}, {}>{{{to}}}", is_in_packs(copy, width))
}

/// Returns the operands `scale` and `skip`, if there are any, in C++.
fn optional_operands(run: &mut KernelDraft, operands: &[View]) -> String {
    let names: Vec<String> = operands.iter().map(|view| run.reads(view)).collect();
    let of = operands.first().map_or("", |scale| stored(scale.dtype));
    match &names[..] {
        [] => "optimizer::Always{}".into(),
        [scale] => format!("optimizer::Scaled<{of}>{{{scale}}}"),
        names => format!("optimizer::Skippable<{of}>{{{}}}", names.join(", ")),
    }
}

/// Returns whether every pack of `width` elements of a tensor is contiguous and aligned.
fn is_in_packs(tensor: &View, width: usize) -> bool {
    let [ref outer @ .., (inner, 1)] = tensor.layout.collapsed()[..] else { return false };
    let steps_fit = outer.iter().all(|(_, stride)| stride.unsigned_abs().is_multiple_of(width));
    inner.is_multiple_of(width) && steps_fit && is_aligned(tensor, width * tensor.dtype.bytes() as usize)
}

/// Returns how many neighbours are read and written at once: 16 bytes of them if all tensors allow it, else one.
fn neighbours(old: &[&View], gradient: &View, results: &[View]) -> usize {
    let width = 16 / gradient.dtype.bytes() as usize;
    let dense = gradient.layout.collapsed().len() == 1 && gradient.layout.is_dense();
    let moved = old.iter().copied().chain(results).chain(dense.then_some(gradient));
    let fits = gradient.layout.len().is_multiple_of(width) && { moved }.all(|view| is_aligned(view, 16));
    if fits { width } else { 1 }
}
