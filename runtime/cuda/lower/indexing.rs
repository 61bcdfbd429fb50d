//! Reads at indices, and the rows that the indices of reads, of their gradients and of writes choose.

use super::source::{INDEXING, KernelDraft, address, index_type, is_aligned, word};
use crate::program::{Argument, ByRank, CutDim};
use ir::ops::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use ir::ops::scatter::{GatherElementsGrad, GatherNdGrad, ScatterElements, ScatterNd};
use ir::{Op, Type};
use program::{Instruction, View};
use smallvec::SmallVec;

/// The rows of the data that indices select.
pub(super) struct IndexedRows {
    /// The kernels' name for this access, without the counting type.
    name: String,
    /// How often the same indices are used, each time for other rows.
    pub(super) outer: usize,
    /// The rows that are read or written each time.
    pub(super) rows: usize,
    /// The rows of the data each time.
    pub(super) places: usize,
    /// Elements of a row.
    pub(super) width: usize,
    /// The dim of the data whose indices count across devices, if there is one.
    dim: Option<usize>,
}

impl IndexedRows {
    /// Returns the rows that the indices of an operator choose. The sizes are those of the data and of the indices.
    pub(super) fn of(op: &Op, sizes: [&[usize]; 2]) -> Self {
        match op {
            Op::Gather(Gather { dim, .. }) | Op::GatherGrad(GatherGrad { dim, .. }) => {
                Self::along(sizes, *dim)
            }
            Op::GatherElements(GatherElements { dim, .. })
            | Op::GatherElementsGrad(GatherElementsGrad { dim, .. })
            | Op::ScatterElements(ScatterElements { dim, .. }) => Self::elements(sizes, *dim),
            Op::GatherNd(GatherNd { batch_dims, .. })
            | Op::GatherNdGrad(GatherNdGrad { batch_dims, .. })
            | Op::ScatterNd(ScatterNd { batch_dims, .. }) => Self::coordinates(sizes, *batch_dims),
            other => unreachable!("`{}` has no indices", other.name()),
        }
    }

    /// Returns the rows of an access with one index for each position along a dim. The sizes are those of the data and of the indices.
    fn along([data, indices]: [&[usize]; 2], dim: u32) -> Self {
        let dim = dim as usize;
        let (size, rows) = (data[dim], indices.iter().product());
        let (outer, width) = (data[..dim].iter().product(), data[dim + 1..].iter().product());
        Self { name: format!("Along<{size}, {rows}"), outer, rows, places: size, width, dim: Some(dim) }
    }

    /// Returns the rows of an access with one index for each element.
    fn elements([data, indices]: [&[usize]; 2], dim: u32) -> Self {
        let dim = dim as usize;
        let inner: usize = data[dim + 1..].iter().product();
        let name = format!("Elements<{}, {}, {inner}", data[dim], indices[dim]);
        let (rows, places) = (indices.iter().product(), data.iter().product());
        Self { name, outer: 1, rows, places, width: 1, dim: Some(dim) }
    }

    /// Returns the rows of an access with a row of coordinates for each position.
    fn coordinates([data, indices]: [&[usize]; 2], batch_dims: u32) -> Self {
        let (batch, last) = (batch_dims as usize, indices.len() - 1);
        let used = batch + indices[last];
        let positions: usize = indices[batch..last].iter().product();
        let sizes: Vec<String> = data[batch..used].iter().map(usize::to_string).collect();
        let name = format!("Coordinates<{positions}, List<{}>", sizes.join(", "));
        let (rows, places) = (indices[..last].iter().product(), data[..used].iter().product());
        Self { name, outer: 1, rows, places, width: data[used..].iter().product(), dim: None }
    }

    /// Returns the kernels' name for this access.
    pub(super) fn name(&self, index: &str) -> String {
        format!("indexing::{}, {index}>", self.name)
    }

    /// Returns the arguments that say which part of the indexed dim the data has.
    pub(super) fn span(&self, run: &mut KernelDraft, ty: Option<&Type>, data: &View) -> [String; 2] {
        self.dim.map_or_else(|| ["0".into(), "0".into()], |dim| span(run, ty, data, dim).1)
    }
}

/// Returns whether a tensor has all of a dim, and, as arguments, the first index that it has and the size of the whole dim.
pub(super) fn span(run: &mut KernelDraft, ty: Option<&Type>, part: &View, dim: usize) -> (bool, [String; 2]) {
    let own = part.layout.sizes[dim];
    let split = ty.filter(|ty| !ty.sharding.axes(dim).is_empty());
    let Some(all) = split.and_then(|ty| ty.dims[dim].size()) else {
        return (true, ["0".into(), own.to_string()]);
    };
    let start = run.parameter("i64", start(ty, dim, own));
    (all == own as u64, [start, run.parameter("i64", Argument::Number(all as i64))])
}

/// Returns the first index of a rank's part of a tensor, along a dim of which each rank has `own` indices.
pub(super) fn start(ty: Option<&Type>, dim: usize, own: usize) -> Argument {
    match ty.filter(|ty| !ty.sharding.axes(dim).is_empty()) {
        Some(ty) => {
            let cuts = SmallVec::from_iter([CutDim::of(ty, dim, own)]);
            Argument::NumberByRank(Box::new(ByRank { first: 0, cuts }))
        }
        None => Argument::Number(0),
    }
}

/// Returns how many neighbours of rows of this width are read and written at once.
pub(super) fn neighbours(width: usize, views: &[&View]) -> usize {
    let bytes = views[0].dtype.bytes() as usize;
    let fits = |count: &usize| {
        width.is_multiple_of(*count) && views.iter().all(|view| is_aligned(view, count * bytes))
    };
    [16, 8, 4, 2].into_iter().filter(|count| count * bytes <= 16).find(fits).unwrap_or(1)
}

/// Reads the rows that an operator's indices choose. Launches a thread for each pack of the result.
pub(super) fn gather(op: &Op, instruction: &Instruction) -> KernelDraft {
    let ([data, indices], out) = (&instruction.operands[..], &instruction.results[0]) else {
        unreachable!("two operands");
    };
    let way = IndexedRows::of(op, [&data.layout.sizes, &indices.layout.sizes]);
    let (width, word) = (neighbours(way.width, &[data, out]), word(data.dtype));
    let (rows, packs) = (way.outer * way.rows, way.width / width);
    let index = index_type(out.layout.len());
    let mut run = KernelDraft::of("gather", &INDEXING);
    let source = run.parameter(format!("const {word}*"), address(data));
    let places = run.reads(indices);
    let target = run.parameter(format!("{word}*"), address(out));
    let ty = instruction.parts.as_ref().map(|parts| &parts.operands[0]);
    let [start, all] = way.span(&mut run, ty, data);
    let types = format!("{}, {rows}, {packs}, {width}, {index}", way.name(index));
    run.line(format!("indexing::gather<{types}>({source}, {places}, {target}, {start}, {all});"));
    run.threads(rows * packs)
}
