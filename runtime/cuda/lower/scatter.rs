//! Writes at indices, and gradients of reads at indices, in a fixed order: updates are sorted by their places, then the updates of one
//! place are combined.
//!
//! Scratch has the keys of the updates, 8 bytes each, twice if one block is not enough to sort them. Then it has the partial results of
//! threads that combine only some of the updates of a place.

use super::copy::{copy, moved};
use super::indexing::{IndexedRows, neighbours};
use super::source::{INDEXING, KernelDraft, SCATTER, address, computed, index_type, word};
use super::{Multiprocessors, Step, Unplaced};
use crate::program::{Argument, TouchedBytes};
use ir::ops::scatter::ScatterKind;
use ir::{DType, Op, Type};
use program::{Instruction, View};

/// Keys that a thread sorts, and the most threads of a block that sorts.
const EACH: usize = 4;
const MOST_THREADS: usize = 1024;
/// Updates that a thread combines; `RUN` of the kernels.
const RUN: usize = 64;

/// The parts of scratch, in f32 numbers from its start.
struct ScratchParts {
    /// The start of the keys that are sorted, and of the keys that are merged.
    keys: [usize; 2],
    /// The start of the partial results of runs.
    left: usize,
    end: usize,
}

impl ScratchParts {
    fn of(way: &IndexedRows, kind: ScatterKind, dtype: DType) -> Self {
        // The keys take multiples of 16 bytes.
        let keys = way.rows.saturating_mul(2).next_multiple_of(4);
        let second = if way.rows > EACH * MOST_THREADS { keys } else { 0 };
        let left = keys.saturating_add(second);
        let runs = way.rows.div_ceil(RUN);
        let leaves = if runs > 1 && kind != ScatterKind::Set { runs * 2 } else { 0 };
        let width = way.width * number(kind, dtype).1;
        let end = left.saturating_add(leaves.saturating_mul(width).saturating_mul(way.outer));
        Self { keys: [0, second], left, end }
    }
}

/// Returns the type in which updates are combined, and its size in f32 numbers.
fn number(kind: ScatterKind, dtype: DType) -> (&'static str, usize) {
    match dtype {
        DType::F64 => (computed(dtype), 2),
        dtype if dtype.is_float() => (computed(dtype), 1),
        // Sums and products wrap, and integers compare in the widest signed type.
        _ if matches!(kind, ScatterKind::Max | ScatterKind::Min) => ("i64", 2),
        _ => ("u64", 2),
    }
}

/// Returns the f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let (kind, indices) = kind(op);
    let way = IndexedRows::of(op, [&results[0].layout.sizes, &operands[indices].layout.sizes]);
    ScratchParts::of(&way, kind, results[0].dtype).end
}

/// Returns the way in which an operator combines updates, and the number of the operand with the indices.
fn kind(op: &Op) -> (ScatterKind, usize) {
    match op {
        Op::GatherGrad(_) | Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => (ScatterKind::Add, 0),
        Op::ScatterElements(op) => (op.kind, 1),
        Op::ScatterNd(op) => (op.kind, 1),
        other => unreachable!("`{}` scatters nothing", other.name()),
    }
}

/// Updates that are written into a result.
struct Scatter<'a> {
    way: IndexedRows,
    kind: ScatterKind,
    indices: &'a View,
    updates: &'a View,
    result: &'a View,
    scratch: Option<&'a View>,
    /// The type of the whole result, if this is a part of it.
    whole: Option<&'a Type>,
    /// The argument that says whether updates are combined with previous values. `None` if they never are.
    adds: Option<Argument>,
}

impl<'a> Scatter<'a> {
    fn of(
        op: &Op,
        instruction: &'a Instruction,
        [indices, updates]: [&'a View; 2],
        adds: Option<Argument>,
    ) -> Self {
        let result = &instruction.results[0];
        Self {
            way: IndexedRows::of(op, [&result.layout.sizes, &indices.layout.sizes]),
            kind: kind(op).0,
            indices,
            updates,
            result,
            scratch: instruction.scratch.as_ref(),
            whole: instruction.parts.as_ref().map(|parts| &parts.results[0]),
            adds,
        }
    }

    /// Returns the number of bits that number the rows of updates.
    fn bits(&self) -> u32 {
        usize::BITS - (self.way.rows - 1).leading_zeros()
    }

    /// Returns a pointer into the scratch, `numbers` f32 numbers from its start.
    fn pointer(&self, run: &mut KernelDraft, ty: &str, numbers: usize) -> String {
        match self.scratch {
            Some(scratch) => {
                let Argument::Address(region, start) = address(scratch) else { unreachable!("an address") };
                run.parameter(ty, Argument::Address(region, start + 4 * numbers as i64))
            }
            None => "nullptr".into(),
        }
    }

    fn adds(&self, run: &mut KernelDraft) -> String {
        self.adds.clone().map_or_else(|| "0".into(), |adds| run.parameter("i64", adds))
    }

    /// Returns the kernels that sort the updates and combine those of one place. There are none without updates.
    fn steps(&self) -> Vec<Step> {
        if self.way.rows == 0 {
            return vec![];
        }
        let room = ScratchParts::of(&self.way, self.kind, self.result.dtype);
        let mut steps = vec![self.keys()];
        let sorted = self.sort(room.keys, &mut steps);
        if self.kind == ScatterKind::Set {
            steps.push(self.set(sorted));
            return steps;
        }
        steps.push(self.combine("fold", sorted, room.left));
        if self.way.rows > RUN {
            steps.push(self.combine("join", sorted, room.left));
        }
        steps
    }

    /// Returns the kernel that sets the result to zero, unless updates are added to its previous values.
    fn clear(&self) -> KernelDraft {
        let mut run = KernelDraft::of("clear", &SCATTER);
        let (target, adds) = (run.writes(self.result), self.adds(&mut run));
        let count = self.result.layout.len();
        let neighbours = neighbours(count, &[self.result]);
        let packs = count / neighbours;
        run.line(format!("scatter::clear<{packs}, {neighbours}>({target}, {adds});"));
        run.threads(packs)
    }

    /// Returns the kernel that computes the keys, in the order of the updates.
    fn keys(&self) -> Step {
        let IndexedRows { rows, places, .. } = self.way;
        let mut run = KernelDraft::of("keys", &INDEXING);
        let (indices, keys) = (run.reads(self.indices), self.pointer(&mut run, "u64*", 0));
        let [start, all] = self.way.span(&mut run, self.whole, self.result);
        let (index, bits) = (index_type(rows), self.bits());
        let types = format!("{}, {rows}, {places}, {bits}, {index}", self.way.name(index));
        run.line(format!("indexing::keys<{types}>({indices}, {keys}, {start}, {all});"));
        Step::Kernel(run.threads(rows))
    }

    /// Sorts the keys. Returns the start of the sorted keys.
    fn sort(&self, [mut from, mut to]: [usize; 2], steps: &mut Vec<Step>) -> usize {
        let rows = self.way.rows;
        let threads = rows.div_ceil(EACH).next_multiple_of(32).min(MOST_THREADS);
        let mut run = KernelDraft::of("sort", &SCATTER);
        let keys = self.pointer(&mut run, "u64*", from);
        run.line(format!("scatter::sort<{threads}, {EACH}, {rows}>({keys});"));
        steps.push(Step::Kernel(run.blocks(rows.div_ceil(EACH * threads), threads as u32)));
        let mut length = EACH * threads;
        while length < rows {
            let mut run = KernelDraft::of("merge", &SCATTER);
            let source = self.pointer(&mut run, "const u64*", from);
            let target = self.pointer(&mut run, "u64*", to);
            let sorted = run.parameter("i64", Argument::Number(length as i64));
            let index = index_type(2 * rows);
            run.line(format!("scatter::merge<{rows}, {index}>({source}, {target}, {sorted});"));
            steps.push(Step::Kernel(run.threads(rows)));
            (from, to, length) = (to, from, 2 * length);
        }
        from
    }

    /// Returns the type `Sorted` of the kernels, and the number of neighbours that a thread takes.
    fn sorted(&self) -> (String, usize) {
        let IndexedRows { outer, rows, places, width, .. } = self.way;
        let most = match self.kind {
            ScatterKind::Set => 16,
            // A thread has 32 bytes in the type of the computation.
            _ => 8 / number(self.kind, self.result.dtype).1,
        };
        let neighbours = neighbours(width, &[self.updates, self.result]).min(most);
        let (bits, index) = (self.bits(), index_type(self.updates.layout.len()));
        let name =
            format!("scatter::Sorted<{rows}, {bits}, {places}, {width}, {outer}, {neighbours}, {index}>");
        (name, neighbours)
    }

    /// Launches a thread for each key and pack, or for the partial result of each run.
    fn combine(&self, name: &str, keys: usize, left: usize) -> Step {
        let combine = match self.kind {
            ScatterKind::Set | ScatterKind::Add => "Sum",
            ScatterKind::Mul => "scatter::Product",
            ScatterKind::Max => "Largest",
            ScatterKind::Min => "Smallest",
        };
        let number = number(self.kind, self.result.dtype).0;
        let mut run = KernelDraft::of(name, &SCATTER);
        let (sorted, neighbours) = self.sorted();
        let keys = self.pointer(&mut run, "const u64*", keys);
        let left = self.pointer(&mut run, &format!("{number}*"), left);
        let (result, adds) = (run.writes(self.result), self.adds(&mut run));
        let columns = self.way.width / neighbours * self.way.outer;
        if name == "join" {
            let types = format!("{combine}, {sorted}, {number}");
            run.line(format!("scatter::join<{types}>({keys}, {left}, {result}, {adds});"));
            return Step::Kernel(run.threads(columns * self.way.rows.div_ceil(RUN)));
        }
        let updates = run.reads(self.updates);
        run.line(format!(
            "scatter::fold<{combine}, {sorted}, {number}>({keys}, {updates}, {result}, {left}, {adds});"
        ));
        Step::Kernel(run.threads(columns * self.way.rows))
    }

    /// Launches a thread for each key and pack. The last update of a place stays.
    fn set(&self, keys: usize) -> Step {
        let word = word(self.result.dtype);
        let mut run = KernelDraft::of("set", &SCATTER);
        let (sorted, neighbours) = self.sorted();
        let keys = self.pointer(&mut run, "const u64*", keys);
        let updates = run.parameter(format!("const {word}*"), address(self.updates));
        let result = run.parameter(format!("{word}*"), address(self.result));
        run.line(format!("scatter::set<{sorted}>({keys}, {updates}, {result});"));
        Step::Kernel(run.threads(self.way.width / neighbours * self.way.rows))
    }
}

/// Returns the gradient of reading: the sums of updates, and zeros where no update goes. A further operand is added to the sums.
pub(super) fn sums(op: &Op, instruction: &Instruction) -> Vec<Step> {
    let ([indices, updates, addend @ ..], result) = (&instruction.operands[..], &instruction.results[0])
    else {
        unreachable!("two operands");
    };
    let adds = instruction.accumulates.then_some(Argument::Adds);
    let adds = if addend.is_empty() { adds } else { Some(Argument::Number(1)) };
    let scatter = Scatter::of(op, instruction, [indices, updates], adds);
    let mut steps = match addend {
        [] => vec![Step::Kernel(scatter.clear())],
        [addend] if TouchedBytes::of(addend) == TouchedBytes::of(result) => vec![],
        [addend, ..] => vec![Step::Kernel(moved(instruction, &addend.layout, address(addend)))],
    };
    steps.extend(scatter.steps());
    steps
}

/// Returns the data, changed by updates.
pub(super) fn changed(op: &Op, instruction: &Instruction) -> Vec<Step> {
    let [_, indices, updates] = &instruction.operands[..] else { unreachable!("three operands") };
    let scatter = Scatter::of(op, instruction, [indices, updates], Some(Argument::Number(1)));
    let mut steps = vec![Step::Kernel(copy(instruction))];
    steps.extend(scatter.steps());
    steps
}
