//! Contractions: multiplications by cuBLASLt if it takes the matrices, else a kernel of their own.

mod unfused;

use super::source::{BLOCK, CONTRACT, KernelDraft, address, computed, is_aligned, layout};
use super::{Libraries, Multiprocessors, Step, Unplaced};
use crate::program::{Argument, Epilogue, Matrices, Multiply, ValueStart};
use ir::ops::contract::Contract;
use ir::{DType, Diagnostic, Op};
use program::contraction::{Batches, ContractionPlan, shifted};
use program::layout::Layout;
use program::{FusedContract, Instruction, View};

/// The most multiplications that a contraction may become. More would take longer to start than one kernel takes to run.
const MOST: usize = 16;

pub(super) fn steps(contract: &Contract, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    if let Some(steps) = dot(contract, instruction, on) {
        return steps;
    }
    let [lhs, rhs, out] = [&instruction.operands[0], &instruction.operands[1], &instruction.results[0]];
    let accumulates = instruction.accumulates;
    match multiplications(contract, [lhs, rhs, out]) {
        Some(all) => {
            let step = |multiply| Step::Multiply(Multiply { accumulates, ..multiply });
            all.into_iter().map(step).collect()
        }
        None => vec![Step::Kernel(kernel(contract, instruction))],
    }
}

/// Returns the kernels of a sum of products of tensors with one layout: each block sums its slice, then one block adds up the slices.
fn dot(contract: &Contract, instruction: &Instruction, on: Multiprocessors) -> Option<Vec<Step>> {
    let scratch = instruction.scratch.as_ref()?;
    let [x, y, to] = [&instruction.operands[0], &instruction.operands[1], &instruction.results[0]];
    let terms = terms(contract, [&x.layout, &y.layout, &to.layout])?;
    let computed = computed(to.dtype);
    let (blocks, width) = (slices(terms.len(), on), pack(&terms, [x, y]));
    let mut part = KernelDraft::of("dot", &CONTRACT);
    let (x, y) = (part.reads(x), part.reads(y));
    let sums = part.parameter(format!("{computed}*"), address(scratch));
    let packs = packs(terms, width);
    // Tensors of a single merged dim share a kernel, whatever their size.
    let places = if packs.sizes.len() == 1 { format!("Line<{width}>") } else { layout(&packs) };
    let count = part.parameter("i64", Argument::Number(packs.len() as i64));
    part.line(format!("dot<{places}, {width}, {computed}>({x}, {y}, {sums}, {count});"));
    let mut total = KernelDraft::of("dot_total", &CONTRACT);
    let sums = total.parameter(format!("const {computed}*"), address(scratch));
    let out = total.writes(to);
    let slices = total.parameter("i64", Argument::Number(blocks as i64));
    let adds = total.adds(instruction);
    total.line(format!("dot_total<{computed}>({sums}, {slices}, {out}, {adds});"));
    Some(vec![Step::Kernel(part.blocks(blocks, BLOCK)), Step::Kernel(total.blocks(1, BLOCK))])
}

/// Returns the layout of the products that a contraction of two tensors with one layout adds up, in the order of memory. `None` if it
/// makes more than one number, or if the tensors have no neighbours.
fn terms(contract: &Contract, layouts: [&Layout; 3]) -> Option<Layout> {
    let [x, y, to] = layouts;
    let alike = contract.lhs == contract.rhs && x.strides == y.strides && to.len() == 1;
    let runs = x.transpose(&x.by_distance()).collapsed();
    (alike && runs.last()?.1 == 1).then(|| Layout {
        sizes: runs.iter().map(|run| run.0).collect(),
        strides: runs.iter().map(|run| run.1).collect(),
        offset: 0,
    })
}

/// Returns the number of blocks that share the terms: few enough for one block to add up their sums. The number has few different
/// values, so that many tensors share a launch.
fn slices(terms: usize, on: Multiprocessors) -> usize {
    match terms.div_ceil(BLOCK as usize * 16) {
        0 | 1 => 1,
        2..=16 => 16,
        _ => on.blocks().max(16),
    }
}

/// Returns how many neighbours are read at once.
fn pack(terms: &Layout, views: [&View; 2]) -> usize {
    let bytes = views[0].dtype.bytes() as usize;
    let most = 16 / bytes;
    let (inner, outer) = terms.sizes.split_last().expect("they have neighbours");
    let rows_fit =
        terms.strides[..outer.len()].iter().all(|stride| stride.unsigned_abs().is_multiple_of(most));
    let fits = inner.is_multiple_of(most) && rows_fit && views.into_iter().all(|view| is_aligned(view, 16));
    if fits { most } else { 1 }
}

/// Returns the starts of packs of `width` neighbours.
fn packs(mut terms: Layout, width: usize) -> Layout {
    let last = terms.sizes.len() - 1;
    terms.sizes[last] /= width;
    terms.strides[last] *= width as isize;
    terms
}

/// Returns the f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced], on: Multiprocessors) -> usize {
    let Op::Contract(contract) = op else { unreachable!("the contract of contractions names this") };
    let layouts = [&operands[0].layout, &operands[1].layout, &results[0].layout];
    let width = if results[0].dtype == DType::F64 { 2 } else { 1 };
    terms(contract, layouts).map_or(0, |terms| slices(terms.len(), on) * width)
}

/// Returns the steps of a contraction with an epilogue: one multiplication, by the construction of [`FusedContract`], or a
/// multiplication and kernels if cuBLASLt does not take the epilogue.
pub(super) fn fused(
    fused: &FusedContract,
    instruction: &Instruction,
    on: Multiprocessors,
    libraries: &mut dyn Libraries,
) -> Result<Vec<Step>, Diagnostic> {
    let [lhs, rhs] = [&instruction.operands[0], &instruction.operands[1]];
    let into = |view: &View| match multiplications(&fused.contract, [lhs, rhs, view]).as_deref() {
        Some([one]) => Ok(one.clone()),
        _ => Err(super::missing("a contraction with an epilogue whose matrices are not in row order")),
    };
    let like_result = |view: &View| into(view).map(|multiply| multiply.out);
    let mut operands = instruction.operands[2..].iter();
    let mut results = instruction.results.iter();
    let mut multiply = into(results.next().expect("it makes something"))?;
    multiply.epilogue = Epilogue {
        bias: fused.bias.then(|| operands.next().map(ValueStart::of)).flatten(),
        addend: fused.addend.then(|| operands.next().map(like_result)).flatten().transpose()?,
        activation: fused.activation,
        aux: if fused.keeps { results.next() } else { operands.next() }.map(like_result).transpose()?,
        sums: fused.sums.and_then(|side| Some((side, ValueStart::of(results.next()?)))),
    };
    if multiply.epilogue.is_addition() || libraries.takes(&multiply) {
        return Ok(vec![Step::Multiply(multiply)]);
    }
    Ok(unfused::steps(multiply, instruction, on))
}

/// Returns the multiplications of a contraction of left side, right side and result, if cuBLASLt takes them.
fn multiplications(contract: &Contract, views: [&View; 3]) -> Option<Vec<Multiply>> {
    let [dtype, out_dtype] = [views[0].dtype, views[2].dtype];
    let plan = ContractionPlan::of(contract, views.map(|view| view.layout.clone()));
    let batches = batches(&plan).filter(|_| dtype.is_float())?;
    let count = batches.count();
    let Batches { strides, batch, loops } = batches;
    let sizes = [plan.rows.size, plan.summed.size, plan.columns.size];
    let multiply = |step: usize| {
        let starts = shifted(plan.offsets, &loops, step);
        let matrices = |tensor: usize| Matrices {
            region: views[tensor].region,
            start: views[tensor].base as i64 + starts[tensor] as i64 * views[tensor].dtype.bytes() as i64,
            strides: strides[tensor],
            apart: batch.strides[tensor] as i64,
        };
        Multiply {
            sizes,
            batch: batch.size,
            lhs: matrices(0),
            rhs: matrices(1),
            out: matrices(2),
            dtype,
            out_dtype,
            accumulates: false,
            epilogue: Epilogue::default(),
        }
    };
    Some((0..count).map(multiply).collect())
}

/// Returns a contraction of floats as multiplications by cuBLASLt. `None` if cuBLASLt does not take the matrices, if there would be too
/// many multiplications, or if there is nothing to multiply.
pub(crate) fn batches(plan: &ContractionPlan) -> Option<Batches> {
    let sizes = [plan.rows.size, plan.summed.size, plan.columns.size];
    let batches = plan.batches().filter(|_| !sizes.contains(&0))?;
    let count = batches.count();
    (count > 0 && count <= MOST && batches.batch.size > 0).then_some(batches)
}

/// Returns the kernel with a thread for each element of the result.
fn kernel(contract: &Contract, instruction: &Instruction) -> KernelDraft {
    let [lhs, rhs] = [&instruction.operands[0], &instruction.operands[1]];
    let to = &instruction.results[0];
    let dim = |labels: &ir::ops::Labels, view: &View, label: u8| {
        let at = labels.0.iter().position(|own| *own == label)?;
        Some((view.layout.sizes[at], view.layout.strides[at]))
    };
    let size = |label: u8| {
        let found = dim(&contract.lhs, lhs, label).or_else(|| dim(&contract.rhs, rhs, label));
        found.map_or(1, |(size, _)| size)
    };
    // An operand's layout over other labels. Its stride is 0 along a label that it lacks.
    let over = |labels: &ir::ops::Labels, view: &View, over: &[u8]| Layout {
        sizes: over.iter().map(|&label| size(label)).collect(),
        strides: over.iter().map(|&label| dim(labels, view, label).map_or(0, |(_, stride)| stride)).collect(),
        offset: 0,
    };
    let (made, summed) = (&contract.out.0, contract.roles().summed);
    let layouts = [
        over(&contract.lhs, lhs, made),
        over(&contract.rhs, rhs, made),
        to.layout.clone(),
        over(&contract.lhs, lhs, &summed),
        over(&contract.rhs, rhs, &summed),
    ];
    let layouts: Vec<String> = layouts.iter().map(layout).collect();
    let sums = if to.dtype.is_float() { computed(to.dtype) } else { computed(DType::I64) };
    let mut run = KernelDraft::of("contract", &CONTRACT);
    let (x, y, out) = (run.reads(lhs), run.reads(rhs), run.writes(to));
    let adds = run.adds(instruction);
    run.line(format!("contract<{}, {sums}>({x}, {y}, {out}, {adds});", layouts.join(", ")));
    run.threads(to.layout.len())
}
