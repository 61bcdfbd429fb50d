//! Softmax along any dim, its logarithm, its gradient.

use super::Multiprocessors;
use super::rows::{RegisterBudget, Shape, unplaced};
use super::source::{KernelDraft, SOFTMAX, computed};
use program::Instruction;

/// Returns a kernel that reads a row of each operand and writes a row of the result.
pub(super) fn by_rows(way: &str, dim: u32, instruction: &Instruction, on: Multiprocessors) -> KernelDraft {
    // A row of each operand is in registers.
    let held = if instruction.operands.len() == 1 { RegisterBudget::ONE } else { RegisterBudget::TWO };
    let views = instruction.operands.iter().chain(&instruction.results);
    let tensors: Vec<_> = views.map(unplaced).collect();
    let shape = Shape::of(&tensors.iter().collect::<Vec<_>>(), dim as usize, held, on);
    let mut run = KernelDraft::of(way.replace("gradient", "softmax_grad"), &SOFTMAX);
    let sources: Vec<String> = instruction.operands.iter().map(|operand| run.reads(operand)).collect();
    let target = run.writes(&instruction.results[0]);
    let (name, sums) = (&shape.name, computed(instruction.results[0].dtype));
    run.line(format!("softmax::{way}<{name}, {sums}>({}, {target});", sources.join(", ")));
    run.blocks(shape.blocks, shape.threads)
}
