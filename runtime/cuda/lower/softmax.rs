//! Softmax along any dim, its logarithm, its gradient.

use super::rows::{RegisterBudget, Shape, unplaced};
use super::source::{KernelDraft, SOFTMAX, computed};
use super::{Multiprocessors, Step};
use ir::Diagnostic;
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use program::Instruction;

pub(super) fn softmax(
    op: &Softmax,
    instruction: &Instruction,
    on: Multiprocessors,
) -> Result<Vec<Step>, Diagnostic> {
    Ok(by_rows("softmax", op.dim, instruction, RegisterBudget::ONE, on))
}

pub(super) fn log_softmax(
    op: &LogSoftmax,
    instruction: &Instruction,
    on: Multiprocessors,
) -> Result<Vec<Step>, Diagnostic> {
    Ok(by_rows("log_softmax", op.dim, instruction, RegisterBudget::ONE, on))
}

pub(super) fn softmax_grad(
    op: &SoftmaxGrad,
    instruction: &Instruction,
    on: Multiprocessors,
) -> Result<Vec<Step>, Diagnostic> {
    Ok(by_rows("gradient", op.dim, instruction, RegisterBudget::TWO, on))
}

/// Returns a kernel that reads a row of each operand and writes a row of the result.
fn by_rows(
    way: &str,
    dim: u32,
    instruction: &Instruction,
    held: RegisterBudget,
    on: Multiprocessors,
) -> Vec<Step> {
    let views = instruction.operands.iter().chain(&instruction.results);
    let tensors: Vec<_> = views.map(unplaced).collect();
    let shape = Shape::of(&tensors.iter().collect::<Vec<_>>(), dim as usize, held, on);
    let mut run = KernelDraft::of(way.replace("gradient", "softmax_grad"), &SOFTMAX);
    let sources: Vec<String> = instruction.operands.iter().map(|operand| run.reads(operand)).collect();
    let target = run.writes(&instruction.results[0]);
    let (name, sums) = (&shape.name, computed(instruction.results[0].dtype));
    run.line(format!("softmax::{way}<{name}, {sums}>({}, {target});", sources.join(", ")));
    vec![Step::Kernel(run.blocks(shape.blocks, shape.threads))]
}
