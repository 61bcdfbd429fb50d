//! Rows times the matrix of the expert each belongs to.

use super::source::{BLOCK, EXPERTS, Run, address};
use super::{Step, Unplaced};
use crate::cuda::program::Argument;
use crate::program::{Instruction, View};
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::{Diagnostic, Op, Type};

/// What a block multiplies at once, as in the kernels.
const ROWS: usize = 64;
const COLUMNS: usize = 128;

pub(super) fn experts(op: &Experts, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let Instruction { operands, results, .. } = instruction;
    let [x, weights, index] = [0, 1, 2].map(|operand| &operands[operand]);
    let (rows, k, n) = (x.layout.sizes[0], x.layout.sizes[1], results[0].layout.sizes[1]);
    let experts = weights.layout.sizes[0];
    let whole = instruction.parts.as_ref().map(|parts| &parts.operands[1]);
    let mut run = Run::of("experts", &EXPERTS);
    let [x, weights] = [x, weights].map(|view| run.reads(view));
    let [order, starts] = sorted(&mut run, instruction, rows);
    let out = run.writes(&results[0]);
    run.line(format!(
        "experts::multiply_rows<{experts}, {k}, {n}, {}>({x}, {weights}, {order}, {starts}, {out});",
        op.transposed
    ));
    // The last tile of each expert may have few rows, and so may that of the rows that none takes.
    let tiles = rows / ROWS + (experts + 1).min(rows);
    let run = run.blocks(tiles * n.div_ceil(COLUMNS), BLOCK);
    Ok(vec![sort(instruction, index, experts, whole), Step::Run(run)])
}

pub(super) fn experts_grad(_: &ExpertsGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let Instruction { operands, results, .. } = instruction;
    let [index, rows, columns] = [0, 1, 2].map(|operand| &operands[operand]);
    let sizes = &results[0].layout.sizes;
    let (experts, k, n) = (sizes[0], sizes[1], sizes[2]);
    let whole = instruction.parts.as_ref().map(|parts| &parts.results[0]);
    let mut run = Run::of("experts_grad", &EXPERTS);
    let [rows, columns] = [rows, columns].map(|view| run.reads(view));
    let [order, starts] = sorted(&mut run, instruction, index.layout.len());
    let out = run.writes(&results[0]);
    let adds = run.adds(instruction);
    run.line(format!(
        "experts::sum_of_rows<{experts}, {k}, {n}>({rows}, {columns}, {order}, {starts}, {out}, {adds});"
    ));
    let run = run.blocks(experts * k.div_ceil(ROWS) * n.div_ceil(COLUMNS), BLOCK);
    Ok(vec![sort(instruction, index, experts, whole), Step::Run(run)])
}

/// Sorts rows by expert. `whole` is the type of all the matrices, if they are split over devices.
fn sort(instruction: &Instruction, index: &View, experts: usize, whole: Option<&Type>) -> Step {
    let all = whole.and_then(|ty| ty.dims[0].size()).unwrap_or(experts as u64);
    let rows = index.layout.len();
    let mut run = Run::of("sort", &EXPERTS);
    let from = run.reads(index);
    let [order, starts] = sorted(&mut run, instruction, rows);
    let first = run.parameter("i64", super::indexing::start(whole, 0, experts));
    let all = run.parameter("i64", Argument::Number(all as i64));
    run.line(format!("experts::sort<{rows}, {experts}>({from}, {order}, {starts}, {first}, {all});"));
    Step::Run(run.blocks(experts + 1, BLOCK))
}

/// The scratch: the rows in their order, then where those of each expert start.
fn sorted(run: &mut Run, instruction: &Instruction, rows: usize) -> [String; 2] {
    let scratch = instruction.scratch.as_ref().expect("rows are sorted in scratch");
    let mut starts = scratch.clone();
    starts.layout.offset += rows as isize;
    [scratch, &starts].map(|view| run.parameter("i32*", address(view)))
}

/// The f32 numbers of scratch that the kernels take: a place for each row, and the start of each expert's rows, of those
/// that none takes, and the end.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let (index, weights) = match op {
        Op::Experts(_) => (&operands[2], &operands[1]),
        _ => (&operands[0], &results[0]),
    };
    index.layout.len() + weights.layout.sizes[0] + 2
}
