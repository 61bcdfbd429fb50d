//! Layer norm and RMS norm, and their gradients.
//!
//! Blocks of a gradient's kernel go through the rows. Each block leaves its sums for scale and bias in scratch, where a second kernel
//! adds them up.

use super::reduce::{Axes, ReductionPlan, sums, words};
use super::rows::{DenseRows, RegisterBudget, unplaced};
use super::source::{KernelDraft, NORM, REDUCE, address, computed, stored};
use super::{Multiprocessors, Step, Unplaced};
use ir::Op;
use program::Instruction;

pub(super) fn forward(name: &str, eps: f64, instruction: &Instruction, on: Multiprocessors) -> KernelDraft {
    let Instruction { operands, results, .. } = instruction;
    let tensors: Vec<Unplaced> = operands.iter().chain(&results[..1]).map(unplaced).collect();
    let along = along(&tensors, RegisterBudget::ONE, on);
    let mut run = KernelDraft::of(name, &NORM);
    let mut arguments: Vec<String> = operands.iter().map(|operand| run.reads(operand)).collect();
    arguments.extend(results.iter().map(|result| run.writes(result)));
    let (shape, computed) = (along.name(), computed(operands[0].dtype));
    run.line(format!("norms::{name}<{shape}, {computed}>({}, ({computed}){eps:e});", arguments.join(", ")));
    run.blocks(along.rows.div_ceil(along.groups), along.threads())
}

/// Returns the rows of the first of these tensors, which have the same layout except for their offsets.
fn along(tensors: &[Unplaced], held: RegisterBudget, on: Multiprocessors) -> DenseRows {
    let (last, leading) = tensors[0].layout.sizes.split_last().expect("`infer` has found a last dim");
    DenseRows::of(&tensors.iter().collect::<Vec<_>>(), leading.iter().product(), *last, held, on)
}

/// The blocks of a gradient's kernel.
struct Blocks {
    along: DenseRows,
    count: usize,
    /// The sums of a column that each block leaves.
    sums: usize,
}

impl Blocks {
    fn of(op: [&Unplaced; 4], centred: bool, on: Multiprocessors) -> Self {
        // Besides two rows a thread has its columns' sums: with 24 elements of each it takes 164 registers on sm_100a.
        let held = RegisterBudget { by_warp: 16, by_block: 16, threads: 512 };
        let along = along(&op.map(Unplaced::clone), held, on);
        let rounds = along.rows.div_ceil(along.groups);
        // Enough blocks to keep the device busy, or to add up at most 64 terms each; but few sums to add up later.
        let least = if along.own() <= 8 { 2 * on.blocks() } else { on.blocks() };
        let most = if along.held { least } else { least.min(along.rows.div_ceil(4)) };
        Self { count: rounds.min(most.max(rounds.div_ceil(64))), along, sums: if centred { 2 } else { 1 } }
    }
}

/// Returns the kernels of a gradient.
pub(super) fn gradient(name: &str, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let Instruction { operands: views, results, .. } = instruction;
    let centred = results.len() == 3;
    // The operands with mean, rstd and d y. RMS norm has no mean: nothing reads the operand in its place.
    let operands = if centred { [2, 3, 4] } else { [2, 2, 3] };
    let tensors = [&views[0], &views[1], &views[operands[2]], &results[0]].map(unplaced);
    let blocks = Blocks::of(tensors.each_ref(), centred, on);
    let mut steps = vec![];
    let Some(scratch) = &instruction.scratch else { unreachable!("sums go there") };
    let dtype = views[0].dtype;
    let computed = computed(dtype);
    if blocks.count > 0 {
        let mut run = KernelDraft::of(name, &NORM);
        let places = [0, 1, operands[0], operands[1], operands[2]];
        let mut sources: Vec<String> = places.iter().map(|&place| run.reads(&views[place])).collect();
        // A further operand is added to d x. Without it, nothing reads the argument in its place.
        let added = views.get(operands[2] + 1);
        let stands = sources[0].clone();
        sources.push(added.map_or(stands, |view| run.reads(view)));
        let target = run.writes(&results[0]);
        let partial = run.parameter(format!("{computed}*"), address(scratch));
        let (shape, sources) = (blocks.along.name(), sources.join(", "));
        run.line(format!(
            "norms::gradient<{shape}, {centred}, {}, {computed}>({sources}, {target}, {partial});",
            added.is_some()
        ));
        steps.push(Step::Kernel(run.blocks(blocks.count, blocks.along.threads())));
    }
    let size = blocks.along.size;
    let plan =
        ReductionPlan::of(sums(dtype), Axes::of_columns(blocks.count, size, blocks.sums * size), false, on);
    let mut run = KernelDraft::of(format!("{name}_sums"), &REDUCE);
    let source = run.parameter(format!("const {}*", stored(sums(dtype))), address(scratch));
    let targets: Vec<String> = results[1..].iter().map(|result| run.writes(result)).collect();
    // The sums that a block adds up.
    let source = format!("{source} + blockIdx.y * {size}");
    let target = match &targets[..] {
        [scale, bias] => format!("blockIdx.y == 0 ? {scale} : {bias}"),
        targets => targets.join(""),
    };
    run.line(plan.line(["Sum", computed, "1", "0"], &source, &target));
    steps.push(Step::Kernel(plan.launch(run).blocks_along_y(blocks.sums)));
    steps
}

/// Returns the f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced], on: Multiprocessors) -> usize {
    let centred = matches!(op, Op::LayerNormGrad(_));
    let dy = &operands[if centred { 4 } else { 3 }];
    let blocks = Blocks::of([&operands[0], &operands[1], dy, &results[0]], centred, on);
    blocks.count.max(1) * blocks.sums * blocks.along.size * words(operands[0].dtype)
}
