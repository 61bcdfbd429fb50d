//! Reductions. Neighbouring threads read neighbours in memory, which belong to one result or to several. If there are few results,
//! blocks share the work on each result, and a second kernel combines the partial results that they leave in scratch.

use super::rows::width;
use super::source::{KernelDraft, REDUCE, address, layout, stored};
use super::{Multiprocessors, Step, Unplaced};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{DType, Op};
use program::Instruction;
use program::layout::Layout;

/// Threads of a block.
const THREADS: usize = 256;

pub(super) fn steps(reduce: &Reduce, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let (from, to) = (&instruction.operands[0], &instruction.results[0]);
    let plan =
        |may_slice| ReductionPlan::of(from.dtype, Axes::of(reduce, &from.layout, &to.layout), may_slice, on);
    let sliced = plan(true);
    // Slices leave their partial results in scratch.
    let plan = if sliced.slices > 1 && instruction.scratch.is_none() { plan(false) } else { sliced };
    let combine = match reduce.kind {
        ReduceKind::Sum | ReduceKind::Mean => "Sum",
        ReduceKind::Max => "Largest",
        ReduceKind::Min => "Smallest",
    };
    let mut run = KernelDraft::of("reduce", &REDUCE);
    let source = run.reads(from);
    let mut steps = vec![];
    let (last, source, mut run) = match &instruction.scratch {
        Some(scratch) if plan.slices > 1 => {
            let sums = stored(sums(from.dtype));
            let target = run.parameter(format!("{sums}*"), address(scratch));
            run.line(plan.line([combine, sums, "1", "0"], &source, &target));
            steps.push(Step::Kernel(plan.launch(run)));
            let mut run = KernelDraft::of("reduce_slices", &REDUCE);
            let source = run.parameter(format!("const {sums}*"), address(scratch));
            (plan.of_slices(self::sums(from.dtype), on), source, run)
        }
        _ => (plan, source, run),
    };
    let target = run.writes(to);
    let adds = run.adds(instruction);
    let factor = match reduce.kind {
        ReduceKind::Mean => format!("1.0 / {}", from.layout.len() / to.layout.len()),
        _ => "1".into(),
    };
    run.line(last.line([combine, stored(sums(from.dtype)), &factor, &adds], &source, &target));
    steps.push(Step::Kernel(last.launch(run)));
    steps
}

/// Returns the type in which elements are combined.
pub(super) fn sums(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    }
}

/// Returns the f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced], on: Multiprocessors) -> usize {
    let Op::Reduce(reduce) = op else { unreachable!("the contract of reductions names this") };
    let (from, to) = (&operands[0], &results[0]);
    if to.layout.is_empty() {
        return 0;
    }
    match ReductionPlan::of(from.dtype, Axes::of(reduce, &from.layout, &to.layout), true, on).slices {
        1 => 0,
        slices => slices * to.layout.len() * words(from.dtype),
    }
}

/// Returns the size of a combined number, in f32 numbers.
pub(super) fn words(dtype: DType) -> usize {
    (sums(dtype).bytes() / DType::F32.bytes()) as usize
}

/// The dims of a reduction: the kept dims, in the operand and in the result, and the reduced dims. In each layout the largest strides
/// come first.
pub(super) struct Axes {
    kept: Layout,
    to: Layout,
    gone: Layout,
    offset: isize,
}

impl Axes {
    fn of(reduce: &Reduce, from: &Layout, to: &Layout) -> Self {
        let goes = |dim: usize| reduce.dims.contains(&(dim as u32));
        let (gone, kept): (Vec<usize>, Vec<usize>) = (0..from.sizes.len()).partition(|&dim| goes(dim));
        let of_result = |(index, &dim)| if reduce.keep { dim } else { index };
        let to_dims: Vec<usize> = kept.iter().enumerate().map(of_result).collect();
        Self::sorted(pick(from, &kept), pick(to, &to_dims), pick(from, &gone), from.offset)
    }

    /// Returns the axes of a reduction over `rows` rows at the distance `apart`, whose results are neighbours.
    pub(super) fn of_columns(rows: usize, columns: usize, apart: usize) -> Self {
        let one = |size: usize, stride: usize| Layout {
            sizes: [size].into_iter().collect(),
            strides: [stride as isize].into_iter().collect(),
            offset: 0,
        };
        Self { kept: one(columns, 1), to: one(columns, 1), gone: one(rows, apart), offset: 0 }
    }

    fn sorted(kept: Layout, to: Layout, gone: Layout, offset: isize) -> Self {
        let order = |layout: &Layout| {
            let mut dims: Vec<usize> = (0..layout.sizes.len()).collect();
            dims.sort_by_key(|&dim| std::cmp::Reverse(distance(layout, dim)));
            dims
        };
        let (order_of_kept, order_of_gone) = (order(&kept), order(&gone));
        let [kept, to] = [kept, to].map(|layout| layout.transpose(&order_of_kept));
        Self { kept, to, gone: gone.transpose(&order_of_gone), offset }
    }
}

/// Returns the layout of these dims alone. The pointer has the offset.
fn pick(layout: &Layout, dims: &[usize]) -> Layout {
    Layout { offset: 0, ..layout.transpose(dims) }
}

/// Returns the distance of neighbours along a dim. A dim without neighbours has the largest distance.
fn distance(layout: &Layout, dim: usize) -> usize {
    match (layout.sizes[dim], layout.strides[dim].unsigned_abs()) {
        (1, _) | (_, 0) => usize::MAX,
        (_, distance) => distance,
    }
}

fn nearest(layout: &Layout) -> usize {
    (0..layout.sizes.len()).map(|dim| distance(layout, dim)).min().unwrap_or(usize::MAX)
}

/// The division of a reduction among threads.
pub(super) struct ReductionPlan {
    axes: Axes,
    way: ReductionThreads,
    /// The number of neighbours that are read at once.
    width: usize,
    /// The number of parts of a result that are combined by blocks of their own.
    slices: usize,
}

/// The assignment of threads to results.
enum ReductionThreads {
    /// Neighbours are combined, and `group` threads share a result.
    Along { group: usize },
    /// Neighbours belong to different results. Of a block's threads, `across` have neighbours, and `down` share a result.
    Across { across: usize, down: usize },
}

impl ReductionPlan {
    /// Plans a reduction. It has one slice, unless it `may_slice`.
    pub(super) fn of(dtype: DType, axes: Axes, may_slice: bool, on: Multiprocessors) -> Self {
        let along = nearest(&axes.gone) <= nearest(&axes.kept);
        let (inner, other) = if along { (&axes.gone, &axes.kept) } else { (&axes.kept, &axes.gone) };
        // Slices leave few partial results. Each thread reads one at a time, so that there are many threads.
        let width = if may_slice { width_of(dtype, inner, other, axes.offset) } else { 1 };
        let (kept, gone) = (axes.kept.len(), axes.gone.len());
        let (way, slices) =
            if along { along_way(kept, gone / width, on) } else { across_way(kept / width, gone, on) };
        let terms = if along { gone / width } else { gone };
        let slices = if may_slice { slices.clamp(1, terms.max(1)) } else { 1 };
        // The number of slices may shrink, so that no slice is empty when all but the last have equally many terms.
        let slices = terms.max(1).div_ceil(terms.max(1).div_ceil(slices));
        Self { axes, way, width, slices }
    }

    /// Returns the plan that combines the partial results of this plan's slices.
    fn of_slices(&self, sums: DType, on: Multiprocessors) -> Self {
        let Axes { kept, to, .. } = &self.axes;
        let results = Layout::dense(&kept.sizes);
        let gone = Axes::of_columns(self.slices, 1, kept.len()).gone;
        Self::of(sums, Axes { kept: results, to: to.clone(), gone, offset: 0 }, false, on)
    }

    /// Returns the kernel's line. `how` has the combining function, its type, a factor, and whether results are added to previous
    /// values.
    pub(super) fn line(&self, how: [&str; 4], source: &str, target: &str) -> String {
        let [combine, sums, factor, adds] = how;
        let Axes { kept, to, gone, .. } = &self.axes;
        let to = if self.slices > 1 { layout(&Layout::dense(&kept.sizes)) } else { layout(to) };
        let (width, slices) = (self.width, self.slices);
        let (way, kept, gone, threads) = match self.way {
            ReductionThreads::Along { group } => {
                ("along", layout(kept), layout(&packs(gone, width)), group.to_string())
            }
            ReductionThreads::Across { across, down } => {
                ("across", layout(&packs(kept, width)), layout(gone), format!("{across}, {down}"))
            }
        };
        format!(
            "reduce::{way}<{combine}, {kept}, {gone}, {to}, {width}, {threads}, {slices}, {sums}>({source}, {target}, \
             ({sums})({factor}), {adds});"
        )
    }

    pub(super) fn launch(&self, run: KernelDraft) -> KernelDraft {
        let results = self.axes.kept.len();
        let blocks = match self.way {
            ReductionThreads::Along { group } => results.div_ceil(THREADS / group),
            ReductionThreads::Across { across, .. } => (results / self.width).div_ceil(across),
        };
        run.blocks(blocks, THREADS as u32).blocks_along_y(self.slices)
    }
}

/// Chooses the threads of a result: few if it has few packs, at most a warp if there are many results, and at most a block otherwise.
fn along_way(results: usize, packs: usize, on: Multiprocessors) -> (ReductionThreads, usize) {
    let most = if packs >= 1024 || results * 32 < on.blocks() * THREADS { THREADS } else { 32 };
    let group = packs.div_ceil(4).next_power_of_two().min(most);
    let blocks = results.div_ceil(THREADS / group);
    let slices = (2 * on.blocks() / blocks.max(1)).min(packs / (4 * THREADS));
    (ReductionThreads::Along { group }, if group == THREADS { slices } else { 1 })
}

/// Chooses the threads of a block so that a warp reads neighbours, if there are enough.
fn across_way(packs: usize, rows: usize, on: Multiprocessors) -> (ReductionThreads, usize) {
    let most = THREADS / packs.next_power_of_two().min(32);
    let down = rows.div_ceil(4).next_power_of_two().min(most);
    let across = THREADS / down;
    let slices = (2 * on.blocks() / packs.div_ceil(across).max(1)).min(rows / (8 * down));
    (ReductionThreads::Across { across, down }, slices)
}

/// Returns how many neighbours along `inner` can be read at once, at any place along the dims of `other`.
fn width_of(dtype: DType, inner: &Layout, other: &Layout, offset: isize) -> usize {
    let runs = inner.collapsed();
    let Some((&(size, 1), outer)) = runs.split_last() else { return 1 };
    let strides = outer.iter().map(|run| run.1).chain(other.collapsed().into_iter().map(|run| run.1));
    let steps: Vec<usize> = strides.chain([offset]).map(isize::unsigned_abs).chain([size]).collect();
    width(dtype, |width| steps.iter().all(|step| step.is_multiple_of(width)))
}

/// Returns the packs of a layout whose innermost run has neighbours.
fn packs(layout: &Layout, width: usize) -> Layout {
    let mut runs = layout.collapsed();
    if let Some(inner) = runs.last_mut().filter(|_| width > 1) {
        *inner = (inner.0 / width, width as isize);
    }
    Layout {
        sizes: runs.iter().map(|run| run.0).collect(),
        strides: runs.iter().map(|run| run.1).collect(),
        offset: 0,
    }
}
