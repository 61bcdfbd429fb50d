//! Cross-entropy over a large vocabulary, without its probabilities in memory.

use super::indexing::span;
use super::source::{KernelDraft, LOSS, address, is_aligned, stored};
use super::{Multiprocessors, Step, Unplaced};
use crate::program::Argument;
use ir::Op;
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use program::{Instruction, View};

/// Logits as rows of classes, and the threads that share a row.
struct Rows {
    count: usize,
    classes: usize,
    team: u32,
}

impl Rows {
    fn of(logits: &View) -> Self {
        let classes = logits.layout.sizes.last().map_or(1, |&classes| classes.max(1));
        let team = match classes {
            0..=1024 => 32,
            1025..=16384 => 256,
            _ => 512,
        };
        Self { count: logits.layout.len() / classes, classes, team }
    }

    fn launch(&self, run: KernelDraft) -> KernelDraft {
        match self.team {
            32 => run.blocks(self.count.div_ceil(8), 256),
            threads => run.blocks(self.count, threads),
        }
    }
}

/// Returns the number of neighbours that are read at once. Wherever a row begins, its packs are aligned in the same way in all of these
/// tensors.
fn width(views: &[&View]) -> usize {
    let aligned = views.iter().all(|view| is_aligned(view, 16) && step(view) == step(views[0]));
    if aligned { 16 / views[0].dtype.bytes() as usize } else { 1 }
}

/// Returns the distance between rows, in elements.
fn step(rows: &View) -> usize {
    match rows.layout.collapsed()[..] {
        [.., (_, step), (_, 1)] => step.unsigned_abs(),
        _ => rows.layout.sizes.last().copied().unwrap_or(1),
    }
}

/// Returns the kernels of the loss: the first writes the loss of each row to scratch, and the second adds up these losses.
pub(super) fn cross_entropy(op: &CrossEntropy, instruction: &Instruction) -> Vec<Step> {
    let ([logits, labels], [sum, weight, logsumexps]) = (&instruction.operands[..], &instruction.results[..])
    else {
        unreachable!("two operands, three results");
    };
    let rows = Rows::of(logits);
    let Rows { count, classes, team } = rows;
    let losses = |run: &mut KernelDraft, pointer: &str| match &instruction.scratch {
        Some(scratch) => run.parameter(pointer, address(scratch)),
        None => "nullptr".into(),
    };
    let mut steps = vec![];
    if count > 0 {
        let mut run = KernelDraft::of("cross_entropy", &LOSS);
        let (x, y, to) = (run.reads(logits), run.reads(labels), run.writes(logsumexps));
        let scratch = losses(&mut run, "double*");
        let ignored = run.parameter("i64", Argument::Number(op.ignore_index));
        let (smoothing, width) = (op.label_smoothing.get(), width(&[logits]));
        let smooth = smoothing != 0.0;
        let step = step(logits);
        let types = format!("loss::Team<{team}>, {smooth}, {count}, {classes}, {step}, {width}");
        run.line(format!("loss::rows<{types}>({x}, {y}, {to}, {scratch}, {ignored}, {smoothing:?});"));
        steps.push(Step::Kernel(rows.launch(run)));
    }
    let mut run = KernelDraft::of("cross_entropy_total", &LOSS);
    let scratch = losses(&mut run, "const double*");
    let (y, sum, weight) = (run.reads(labels), run.writes(sum), run.writes(weight));
    let ignored = run.parameter("i64", Argument::Number(op.ignore_index));
    run.line(format!("loss::total<{count}, {classes}>({scratch}, {y}, {sum}, {weight}, {ignored});"));
    steps.push(Step::Kernel(run.blocks(1, 1024)));
    steps
}

pub(super) fn cross_entropy_grad(op: &CrossEntropyGrad, instruction: &Instruction) -> KernelDraft {
    let ([logits, labels, logsumexps, factor], [result]) =
        (&instruction.operands[..], &instruction.results[..])
    else {
        unreachable!("four operands, one result");
    };
    let rows = Rows::of(logits);
    let Rows { count, classes, team } = rows;
    let mut run = KernelDraft::of("cross_entropy_grad", &LOSS);
    let (x, y, from) = (run.reads(logits), run.reads(labels), run.reads(logsumexps));
    let (factor, to) = (run.reads(factor), run.writes(result));
    let ignored = run.parameter("i64", Argument::Number(op.ignore_index));
    let dim = logits.layout.sizes.len() - 1;
    let ty = instruction.parts.as_ref().map(|parts| &parts.operands[0]);
    let (whole, [start, all]) = span(&mut run, ty, logits, dim);
    let (smoothing, width) = (op.label_smoothing.get(), width(&[logits, result]));
    let (step, out_step) = (step(logits), step(result));
    let shape = format!("{count}, {classes}, {step}, {out_step}");
    let types = format!("loss::Team<{team}>, {shape}, {whole}, {width}, {}", stored(result.dtype));
    run.line(format!(
        "loss::gradient<{types}>({x}, {y}, {from}, {factor}, {to}, {ignored}, {smoothing:?}, {start}, {all});"
    ));
    rows.launch(run)
}

/// Returns the f32 numbers of scratch that the kernels of the loss take: an f64 for each row.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    operands[1].layout.len().saturating_mul(2)
}
