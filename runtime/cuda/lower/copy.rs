//! Copies between layouts, and sums over microbatches: the kernels of `kernels/copy.cuh`.
//!
//! The dims of source and result are matched, and ordered as the result lies in memory. If the last of them has neighbours in both,
//! these move in packs of up to 16 bytes. If another dim has the source's neighbours, tiles go through shared memory.

use super::source::{COPY, KernelDraft, address, index_type, layout, word};
use crate::program::{Argument, CutDim};
use program::layout::Layout;
use program::{Instruction, View};
use smallvec::SmallVec;

/// The most bytes that a thread reads or writes at once.
const PACK: usize = 16;

/// The least size of both dims of a transpose: with a smaller dim, most of a tile would stay empty.
const LEAST: usize = 16;

/// Threads of a block that transposes: `WARPS` of the kernel.
const TRANSPOSING: u32 = 8 * 32;

/// Copies the first operand to the layout of the result, element by element in the order of its sizes.
pub(super) fn copy(instruction: &Instruction) -> KernelDraft {
    let from = &instruction.operands[0];
    moved(instruction, &from.layout, address(from))
}

/// Returns a copy to the result, from elements with this layout at an address.
pub(super) fn moved(instruction: &Instruction, from: &Layout, start: Argument) -> KernelDraft {
    between("copy", from, start, &instruction.results[0])
}

/// Returns a copy to a view, from elements with this layout at an address.
pub(super) fn between(name: &str, from: &Layout, start: Argument, to: &View) -> KernelDraft {
    let word = word(to.dtype);
    let mut run = KernelDraft::of(name, &COPY);
    let way = CopyMethod::of(from, &start, to);
    let source = run.parameter(format!("const {word}*"), start);
    let target = run.parameter(format!("{word}*"), address(to));
    way.write(run, &source, &target, "0")
}

/// Returns the kernel that stores the operand in a step's first microbatch, and adds it to the result in later ones.
pub(super) fn accumulate(instruction: &Instruction) -> KernelDraft {
    let (from, to) = (&instruction.operands[0], &instruction.results[0]);
    let mut run = KernelDraft::of("accumulate", &COPY);
    let way = CopyMethod::of(&from.layout, &address(from), to);
    let (source, target) = (run.reads(from), run.writes(to));
    let adds = run.parameter("i64", Argument::Adds);
    way.write(run, &source, &target, &adds)
}

/// A dim: its size and its stride.
type Dim = (usize, isize);

/// A dim of source and result: its size, and its stride in each of the two.
type Both = (usize, [isize; 2]);

/// The access pattern of a copy.
enum CopyMethod {
    /// A thread moves `width` neighbours of the result. In the source, `read` of them are neighbours as well.
    Packs { from: Layout, to: Layout, width: usize, read: usize, step: isize },
    /// The matrices of a batch, tile by tile.
    Tiles {
        from: Layout,
        to: Layout,
        /// The sizes of the dims whose elements are neighbours in the source, and in the result.
        sizes: [usize; 2],
        /// The strides of the second dim in the source, and of the first dim in the result.
        strides: [isize; 2],
        /// Whether as many elements as possible are read and written at once.
        packs: [bool; 2],
        side: usize,
    },
}

impl CopyMethod {
    fn of(from: &Layout, start: &Argument, to: &View) -> Self {
        let bytes = to.dtype.bytes() as usize;
        let aligned = [alignment(start), alignment(&address(to))].map(|aligned| aligned / bytes);
        match together(from, &to.layout) {
            Some(dims) => tiles(&dims, bytes, aligned).unwrap_or_else(|| {
                let side = |side: usize| dims.iter().map(|dim| (dim.0, dim.1[side])).collect::<Vec<Dim>>();
                packs(&side(0), &side(1), bytes, aligned)
            }),
            None => packs(&from.collapsed(), &to.layout.collapsed(), bytes, aligned),
        }
    }

    fn write(self, mut run: KernelDraft, source: &str, target: &str, adds: &str) -> KernelDraft {
        match self {
            Self::Packs { from, to, width, read, step } => {
                let count = to.len();
                let [from, to] = [from, to].map(|dims| layout(&dims));
                let index = index_type(count);
                let shape = format!("{from}, {to}, {index}, {width}, {read}, {step}");
                run.line(format!("copying::move<{shape}>({source}, {target}, {adds});"));
                run.threads(count)
            }
            Self::Tiles { from, to, sizes, strides, packs, side } => {
                let tiles: usize = sizes.iter().map(|size| size.div_ceil(side)).product();
                let count = from.len() * tiles;
                let [from, to] = [from, to].map(|dims| layout(&dims));
                let ([a, b], [from_b, to_a], [reads, writes]) = (sizes, strides, packs);
                let shape = format!("{from}, {to}, {a}, {b}, {from_b}, {to_a}, {reads}, {writes}");
                run.line(format!("copying::transpose<{shape}>({source}, {target}, {adds});"));
                run.blocks(count, TRANSPOSING)
            }
        }
    }
}

/// Returns the dims of source and result, outermost of the result first, merged where both allow it. `None` if the sizes of one cut
/// across those of the other, as in a reshape of a transposed matrix.
fn together(from: &Layout, to: &Layout) -> Option<Vec<Both>> {
    let [mut from, mut to] = [from, to].map(Layout::collapsed);
    let mut dims: Vec<Both> = Vec::new();
    while let (Some(&source), Some(&target)) = (from.last(), to.last()) {
        let size = source.0.min(target.0);
        if !source.0.is_multiple_of(size) || !target.0.is_multiple_of(size) {
            return None;
        }
        dims.push((size, [source.1, target.1]));
        for (runs, (left, stride)) in [(&mut from, source), (&mut to, target)] {
            runs.pop();
            runs.extend((left != size).then_some((left / size, stride * size as isize)));
        }
    }
    // The loop runs innermost first, so its order is reversed; the sort keeps it for equal distances.
    dims.reverse();
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.1[1].unsigned_abs()));
    let mut merged: Vec<Both> = Vec::new();
    for (size, strides) in dims {
        match merged.last_mut() {
            Some(last) if last.1 == strides.map(|stride| stride * size as isize) => {
                *last = (last.0 * size, strides);
            }
            _ => merged.push((size, strides)),
        }
    }
    Some(merged)
}

/// Returns tiles, if a dim other than the result's innermost has the source's neighbours. `aligned` are the numbers of elements of
/// which the first addresses are multiples.
fn tiles(dims: &[Both], bytes: usize, aligned: [usize; 2]) -> Option<CopyMethod> {
    let (&(b, [from_b, 1]), outer) = dims.split_last()? else { return None };
    let index = outer.iter().position(|(_, [from, _])| *from == 1)?;
    let (a, [_, to_a]) = outer[index];
    if a.min(b) < LEAST || from_b.unsigned_abs() <= 1 {
        return None;
    }
    let batch: Vec<&Both> =
        outer.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, dim)| dim).collect();
    // A thread moves two elements at once if they have fewer than 4 bytes.
    let width = if bytes < 4 { 2 } else { 1 };
    let fits = |side: usize, size: usize, stride: isize| {
        let strides = batch.iter().map(|dim| dim.1[side]).chain([stride]);
        let all_fit = strides.into_iter().all(|stride| stride.unsigned_abs().is_multiple_of(width));
        size.is_multiple_of(width) && aligned[side].is_multiple_of(width) && all_fit
    };
    let packs = [fits(0, a, from_b), fits(1, b, to_a)];
    let matrices = |side: usize| {
        let dims: Vec<Dim> = batch.iter().map(|dim| (dim.0, dim.1[side])).collect();
        of_dims(&dims)
    };
    let (from, to) = (matrices(0), matrices(1));
    Some(CopyMethod::Tiles { from, to, sizes: [a, b], strides: [from_b, to_a], packs, side: 32 * width })
}

/// Returns packs of the widest width that sizes, strides and addresses of the result allow. As many elements of a pack are read at once
/// as the source allows.
fn packs(from: &[Dim], to: &[Dim], bytes: usize, aligned: [usize; 2]) -> CopyMethod {
    let step = from.last().map_or(1, |dim| dim.1);
    // Neighbours that move at once wherever a thread begins.
    let fits = |dims: &[Dim], aligned: usize, width: usize| match dims.split_last() {
        Some((&(size, 1), outer)) => {
            let fits = |dim: &Dim| dim.1.unsigned_abs().is_multiple_of(width);
            size.is_multiple_of(width) && aligned.is_multiple_of(width) && outer.iter().all(fits)
        }
        _ => false,
    };
    let widths =
        || std::iter::successors(Some(PACK / bytes), |width| Some(width / 2)).take_while(|width| *width > 1);
    let divides = |width: usize| from.last().is_some_and(|dim| dim.0.is_multiple_of(width));
    let width = widths().find(|&width| divides(width) && fits(to, aligned[1], width)).unwrap_or(1);
    let read = widths().find(|&read| read <= width && fits(from, aligned[0], read)).unwrap_or(1);
    let [from, to] = [from, to].map(|dims| {
        let mut dims = dims.to_vec();
        if let Some((size, stride)) = dims.last_mut() {
            *size /= width;
            *stride *= width as isize;
        }
        of_dims(&dims)
    });
    CopyMethod::Packs { from, to, width, read, step }
}

fn of_dims(dims: &[Dim]) -> Layout {
    let (sizes, strides) = dims.iter().copied().unzip::<_, _, SmallVec<_>, SmallVec<_>>();
    Layout { sizes, strides, offset: 0 }
}

/// Returns the number of bytes of which an address is a multiple on every rank, at most [`PACK`]. Memory itself begins at a multiple of
/// 256.
fn alignment(start: &Argument) -> usize {
    let power = |byte: i64| if byte == 0 { PACK } else { PACK.min(1 << byte.trailing_zeros().min(8)) };
    match start {
        Argument::Address(_, byte) => power(*byte),
        Argument::AddressByRank(_, places) => {
            let step =
                |cut: &CutDim| power(cut.part as i64 * cut.step).min(power(cut.whole as i64 * cut.step));
            places.cuts.iter().map(step).fold(power(places.first), usize::min)
        }
        _ => unreachable!("a view is at an address"),
    }
}
