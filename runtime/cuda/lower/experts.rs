//! Multiplies each row by the matrix of its expert: f16 and bf16 on tensor cores, other types in tiles of plain sums.

use super::source::{BLOCK, EXPERTS, EXPERTS_MMA, KernelDraft, address, is_aligned};
use super::{Multiprocessors, Step, Unplaced};
use crate::program::Argument;
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::{DType, Op, Type};
use program::{Instruction, View};

/// The columns of a block's tile, as in the kernels.
const COLUMNS: usize = 128;

/// The elements of a pack of 16 bytes in f16 and bf16.
const PACK: usize = 8;

/// The rows of an expert from which on padding its last tile of 128 rows costs little.
const MANY_ROWS: usize = 512;

/// The kernel that multiplies, and the size of its tiles.
#[derive(Clone, Copy)]
enum Tiles {
    /// Tensor cores; a tile has 64 rows for each row of four warps.
    Matrices { down: usize },
    /// Plain sums, a tile of 64 rows.
    Elements,
}

impl Tiles {
    /// Returns the kernel for tensors whose rows have these widths. Tensor cores take halves whose rows consist of whole, aligned
    /// packs. `large` says whether tiles of 128 rows fit the problem.
    fn of(views: [&View; 3], widths: [usize; 2], large: bool) -> Self {
        let halves = matches!(views[0].dtype, DType::F16 | DType::BF16);
        let packs = widths.iter().all(|width| width.is_multiple_of(PACK));
        if halves && packs && views.into_iter().all(|view| is_aligned(view, 16)) {
            Self::Matrices { down: if large { 2 } else { 1 } }
        } else {
            Self::Elements
        }
    }

    fn rows(self) -> usize {
        match self {
            Self::Matrices { down } => 64 * down,
            Self::Elements => 64,
        }
    }

    /// Returns the kernel of this name, or its variant for tensor cores.
    fn run(self, name: &str) -> KernelDraft {
        match self {
            Self::Matrices { .. } => KernelDraft::of(format!("{name}_mma"), &EXPERTS_MMA),
            Self::Elements => KernelDraft::of(name, &EXPERTS),
        }
    }

    /// Returns a call of a template with these first parameters.
    fn call(self, function: &str, parameters: &str) -> String {
        match self {
            Self::Matrices { down } => format!("experts::{function}_mma<{parameters}, {down}>"),
            Self::Elements => format!("experts::{function}<{parameters}>"),
        }
    }

    /// Launches `count` blocks. Sums in registers leave room for 512 threads on a multiprocessor.
    fn blocks(self, run: KernelDraft, count: usize) -> KernelDraft {
        match self {
            Self::Matrices { down } => run.blocks(count, 128 * down as u32).together(4 / down as u32),
            Self::Elements => run.blocks(count, BLOCK),
        }
    }
}

pub(super) fn experts(op: &Experts, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let Instruction { operands, results, .. } = instruction;
    let ([x, weights, index], out) = ([0, 1, 2].map(|operand| &operands[operand]), &results[0]);
    let (rows, k, n) = (x.layout.sizes[0], x.layout.sizes[1], out.layout.sizes[1]);
    let experts = weights.layout.sizes[0];
    let whole = instruction.parts.as_ref().map(|parts| &parts.operands[1]);
    let across = n.div_ceil(COLUMNS);
    let large = rows >= MANY_ROWS * experts && rows / 128 * across >= on.blocks();
    let tiles = Tiles::of([x, weights, out], [k, n], large);
    let mut run = tiles.run("experts");
    let [x, weights] = [x, weights].map(|view| run.reads(view));
    let [order, starts] = sorted(&mut run, instruction, rows);
    let out = run.writes(out);
    let call = tiles.call("multiply_rows", &format!("{experts}, {k}, {n}, {}", op.transposed));
    run.line(format!("{call}({x}, {weights}, {order}, {starts}, {out});"));
    // The last tile of each expert may have few rows, and so may the last tile of the rows that no expert takes.
    let down = rows / tiles.rows() + (experts + 1).min(rows);
    let run = tiles.blocks(run, down * across);
    vec![sort(instruction, index, experts, whole), Step::Kernel(run)]
}

pub(super) fn experts_grad(_: &ExpertsGrad, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let Instruction { operands, results, .. } = instruction;
    let ([index, rows, columns], out) = ([0, 1, 2].map(|operand| &operands[operand]), &results[0]);
    let [experts, k, n] = [0, 1, 2].map(|dim| out.layout.sizes[dim]);
    let whole = instruction.parts.as_ref().map(|parts| &parts.results[0]);
    let across = n.div_ceil(COLUMNS);
    let large = experts * k.div_ceil(128) * across >= on.blocks();
    let tiles = Tiles::of([rows, columns, out], [k, n], large);
    let mut run = tiles.run("experts_grad");
    let [rows, columns] = [rows, columns].map(|view| run.reads(view));
    let [order, starts] = sorted(&mut run, instruction, index.layout.len());
    let out = run.writes(out);
    let adds = run.adds(instruction);
    let call = tiles.call("sum_of_rows", &format!("{experts}, {k}, {n}"));
    run.line(format!("{call}({rows}, {columns}, {order}, {starts}, {out}, {adds});"));
    let run = tiles.blocks(run, experts * k.div_ceil(tiles.rows()) * across);
    vec![sort(instruction, index, experts, whole), Step::Kernel(run)]
}

/// Sorts rows by expert. `whole` is the type of all the matrices, if they are split over devices.
fn sort(instruction: &Instruction, index: &View, experts: usize, whole: Option<&Type>) -> Step {
    let all = whole.and_then(|ty| ty.dims[0].size()).unwrap_or(experts as u64);
    let rows = index.layout.len();
    let mut run = KernelDraft::of("sort", &EXPERTS);
    let from = run.reads(index);
    let [order, starts] = sorted(&mut run, instruction, rows);
    let first = run.parameter("i64", super::indexing::start(whole, 0, experts));
    let all = run.parameter("i64", Argument::Number(all as i64));
    run.line(format!("experts::sort<{rows}, {experts}>({from}, {order}, {starts}, {first}, {all});"));
    Step::Kernel(run.blocks(experts + 1, BLOCK))
}

/// Returns the parts of scratch: the rows in their order, and the starts of the experts' rows.
fn sorted(run: &mut KernelDraft, instruction: &Instruction, rows: usize) -> [String; 2] {
    let scratch = instruction.scratch.as_ref().expect("rows are sorted in scratch");
    let mut starts = scratch.clone();
    starts.layout.offset += rows as isize;
    [scratch, &starts].map(|view| run.parameter("i32*", address(view)))
}

/// Returns the f32 numbers of scratch that the kernels of experts take.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    let (index, weights) = (&operands[2], &operands[1]);
    starts(index, weights)
}

/// Returns the f32 numbers of scratch that the kernels of the weights' gradient take.
pub(super) fn scratch_of_gradient(
    _: &Op,
    operands: &[Unplaced],
    results: &[Unplaced],
    _: Multiprocessors,
) -> usize {
    let (index, weights) = (&operands[0], &results[0]);
    starts(index, weights)
}

/// Returns the size of the scratch: a place for each row, the start of each expert's rows, the start of the rows that no expert takes,
/// and the end.
fn starts(index: &Unplaced, weights: &Unplaced) -> usize {
    index.layout.len() + weights.layout.sizes[0] + 2
}
