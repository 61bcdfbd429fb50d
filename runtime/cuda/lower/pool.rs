//! Pooling over windows.

use super::source::{KernelDraft, POOL, address, stored};
use super::{Multiprocessors, Step, Unplaced};
use ir::Op;
use ir::ops::pool::{AvgPool, AvgPoolGrad, MaxPoolGrad, MaxPoolGradAt, Window, Windows};
use program::{Instruction, View};

pub(super) fn avg_pool(op: &AvgPool, instruction: &Instruction) -> KernelDraft {
    let (x, y) = (&instruction.operands[0], &instruction.results[0]);
    let slides = Slides::of(&op.windows, &x.layout.sizes, &y.layout.sizes);
    let mut run = KernelDraft::of("avg_pool", &POOL);
    let (source, target) = (run.reads(x), run.writes(y));
    let Slides { plane, planes, index, .. } = &slides;
    let (lanes, count_padding) = (slides.lanes(), op.count_padding);
    run.line(format!(
        "pool::avg_pool<{plane}, {planes}, {lanes}, {count_padding}, {index}>({source}, {target});"
    ));
    run.threads(y.layout.len() * lanes)
}

pub(super) fn avg_pool_grad(op: &AvgPoolGrad, instruction: &Instruction) -> KernelDraft {
    let (dy, dx) = (&instruction.operands[0], &instruction.results[0]);
    let slides = Slides::of(&op.windows, &dx.layout.sizes, &dy.layout.sizes);
    let mut run = KernelDraft::of("avg_pool_grad", &POOL);
    let (source, target) = (run.reads(dy), run.writes(dx));
    let Slides { plane, planes, index, .. } = &slides;
    let count_padding = op.count_padding;
    run.line(format!(
        "pool::avg_pool_grad<{plane}, {planes}, {count_padding}, {index}>({source}, {target});"
    ));
    run.threads(dx.layout.len())
}

/// Finds the largest element of each window, or its place. `name` is the name of the template.
pub(super) fn largest(name: &str, windows: &Windows, instruction: &Instruction) -> KernelDraft {
    let (x, found) = (&instruction.operands[0], &instruction.results[0]);
    let slides = Slides::of(windows, &x.layout.sizes, &found.layout.sizes);
    slides.largest(name, x, stored(found.dtype), found)
}

/// Returns two kernels: the first finds the places of the largest elements, and the second computes the gradient of each element.
pub(super) fn max_pool_grad(op: &MaxPoolGrad, instruction: &Instruction) -> Vec<Step> {
    let [x, dy] = [0, 1].map(|operand| &instruction.operands[operand]);
    let dx = &instruction.results[0];
    let slides = Slides::of(&op.windows, &x.layout.sizes, &dy.layout.sizes);
    let scratch = instruction.scratch.as_ref().expect("places of the largest are kept in scratch");
    let Slides { plane, planes, index, .. } = &slides;
    let mut gather = KernelDraft::of("max_pool_grad", &POOL);
    let places = gather.parameter(format!("const {index}*"), address(scratch));
    let (source, target) = (gather.reads(dy), gather.writes(dx));
    gather.line(format!("pool::max_pool_grad<{plane}, {planes}>({places}, {source}, {target});"));
    let find = slides.largest("max_pool_indices", x, index, scratch);
    vec![Step::Kernel(find), Step::Kernel(gather.threads(dx.layout.len()))]
}

/// Returns the kernel of the gradient, which reads the offsets that forward has found.
pub(super) fn max_pool_grad_at(op: &MaxPoolGradAt, instruction: &Instruction) -> KernelDraft {
    let [offsets, dy] = [0, 1].map(|operand| &instruction.operands[operand]);
    let dx = &instruction.results[0];
    let Slides { plane, planes, index, .. } = Slides::of(&op.windows, &dx.layout.sizes, &dy.layout.sizes);
    let mut run = KernelDraft::of("max_pool_grad_at", &POOL);
    let (offsets, source, target) = (run.reads(offsets), run.reads(dy), run.writes(dx));
    run.line(format!("pool::max_pool_grad_at<{plane}, {planes}, {index}>({offsets}, {source}, {target});"));
    run.threads(dx.layout.len())
}

/// Returns the f32 numbers of scratch that the kernels take: the place of each window's largest element.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    let Op::MaxPoolGrad(op) = op else { unreachable!("the contract of this gradient names this") };
    let [x, y] = [0, 1].map(|operand| &operands[operand].layout);
    let slides = Slides::of(&op.windows, &x.sizes, &y.sizes);
    y.len() * if slides.index == "i64" { 2 } else { 1 }
}

/// Windows over the last dims of a tensor.
struct Slides {
    /// The windows' type in CUDA C++.
    plane: String,
    /// The product of the other dims.
    planes: usize,
    /// The signed type that counts elements.
    index: &'static str,
    /// The number of elements of a window.
    size: u64,
    /// The number of elements of `y`.
    results: usize,
}

/// The most elements of a window of one thread; a warp shares a larger window.
const LARGE: u64 = 64;

impl Slides {
    /// Returns the windows over an `x` of these sizes, which is pooled to a `y` of these sizes.
    fn of(windows: &Windows, x: &[usize], y: &[usize]) -> Self {
        let (leading, lengths) = x.split_at(x.len() - windows.len());
        let positions = &y[leading.len()..];
        let along = windows.iter().zip(lengths).zip(positions);
        let types: Vec<String> =
            { along }.map(|((window, length), positions)| along_dim(window, *length, *positions)).collect();
        let padded =
            windows.iter().zip(lengths).map(|(window, &length)| length as u64 + window.before + window.after);
        let counts = [x, y].map(|sizes| sizes.iter().product::<usize>() as u64);
        let is_small = padded.chain(counts).all(|count| count < 1 << 30);
        Self {
            plane: format!("pool::Plane<{}>", types.join(", ")),
            planes: leading.iter().product(),
            index: if is_small { "i32" } else { "i64" },
            size: windows.iter().map(|window| window.size).product(),
            results: y.iter().product(),
        }
    }

    /// Returns the number of threads that share a window.
    fn lanes(&self) -> usize {
        if self.size > LARGE { 32 } else { 1 }
    }

    /// Returns the kernel of this name, which finds the largest element of each window and writes results of the type `ty`.
    fn largest(&self, name: &str, source: &View, ty: &str, target: &View) -> KernelDraft {
        let Self { plane, planes, index, .. } = self;
        let (mut run, lanes) = (KernelDraft::of(name, &POOL), self.lanes());
        let [from, to] = [run.reads(source), run.parameter(format!("{ty}*"), address(target))];
        run.line(format!("pool::{name}<{plane}, {planes}, {lanes}, {index}>({from}, {to});"));
        run.threads(self.results * lanes)
    }
}

/// Returns the type of a window. A stride between fewer than two positions, or a dilation between fewer than two elements, is set to 1.
fn along_dim(window: &Window, length: usize, positions: usize) -> String {
    let Window { size, stride, dilation, before, .. } = *window;
    let stride = if positions == 1 { 1 } else { stride };
    let dilation = if size == 1 { 1 } else { dilation };
    format!("pool::Window<{size}, {stride}, {dilation}, {before}, {length}, {positions}>")
}
