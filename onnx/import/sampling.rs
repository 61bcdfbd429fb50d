//! Reading of images between their elements, at computed places: GridSample and RoiAlign, and the parts that DeformConv shares
//! with them. The number at a place is a weighted sum of its neighbours, whose weights are products over the spatial dims.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::elementwise::{Binary, Compare, Logical, Select, Unary};
use ir::ops::indexing::GatherNd;
use ir::ops::shape::Concat;
use ir::{DType, Dim, Type, ValueId, ensure};

/// The interpolation between neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interpolation {
    Nearest,
    Linear,
    /// Cubic, with the coefficient -3/4 (Keys, IEEE TASSP 29(6), 1981).
    Cubic,
}

/// The elements outside of the image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Outside {
    Zeros,
    /// The elements of the border, to which places outside are moved. Places at most `margin` outside are not moved.
    Border {
        margin: f64,
    },
    /// The image, mirrored at `margin` outside of its first and last elements.
    Reflection {
        margin: f64,
    },
}

/// A neighbour of each place along one dim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    /// The index of the neighbour: i64.
    index: ValueId,
    /// The weight, if it is not 1.
    weight: Option<ValueId>,
    /// Whether the neighbour is in the image; `None` if it always is.
    inside: Option<ValueId>,
}

/// GridSample (with other names of the modes in opset 16). `grid[n, o.., d]` has places from -1 to 1, the last dim first.
pub(super) fn grid_sample(cx: &mut Context, call: &Call) -> Outputs {
    let (x, grid) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let (image, laid) = (cx.ty(x).clone(), cx.ty(grid).clone());
    let wrong = || Problem::new(format!("the grid {laid} does not fit the image {image}"));
    let depth = image.ndim().checked_sub(2).filter(|&depth| depth > 0).ok_or_else(wrong)?;
    let [batch, out @ .., last] = &laid.dims[..] else { return Err(wrong()) };
    if last.size() != Some(depth as u64) || out.len() != depth || *batch != image.dims[0] {
        return Err(wrong());
    }
    let interpolation = match call.string("mode").unwrap_or("linear") {
        "nearest" => Interpolation::Nearest,
        "linear" | "bilinear" => Interpolation::Linear,
        "cubic" | "bicubic" => Interpolation::Cubic,
        other => return Err(Problem::new(format!("the interpolation mode `{other}` is unknown"))),
    };
    let align = call.int("align_corners").unwrap_or(0) != 0;
    let margin = if align { 0.0 } else { 0.5 };
    let outside = match call.string("padding_mode").unwrap_or("zeros") {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border { margin },
        "reflection" => Outside::Reflection { margin },
        other => return Err(Problem::new(format!("the padding mode `{other}` is unknown"))),
    };
    let count = out.iter().try_fold(Dim::known(1), |n, dim| n.product(dim)).ok_or_else(wrong)?;
    let places = [batch.clone(), count];
    let mut along = Vec::new();
    for dim in 0..depth {
        let size = cx.bound(x, dim as u32 + 2, "samples")?;
        let column = cx.b.slice(grid, depth as u32 + 1, (depth - 1 - dim) as u64, Dim::known(1))?;
        let column = cx.b.reshape(column, places.clone())?;
        // -1 and 1 are the first and the last element, or lie half an element outside of them.
        let half = (size as f64 - 1.0) / 2.0;
        let place = cx.build(column * (half + margin) + half)?;
        along.push(neighbours(cx, place, size, interpolation, outside)?);
    }
    let terms = read(cx, x, None, &along, &places)?;
    let sum = folded(cx, Binary::Add, terms)?;
    let moved = cx.b.transpose(sum, &[0, 2, 1])?;
    let dims = image.dims[..2].iter().chain(out).cloned();
    one(cx.b.reshape(moved, dims.collect::<Vec<_>>())?)
}

/// RoiAlign (He et al., arXiv 1703.06870, section 3): `sampling_ratio` places per side in each bin of a region, averaged, or, in
/// ONNX's form of the maximum, the largest of their weighted neighbours.
pub(super) fn roi_align(cx: &mut Context, call: &Call) -> Outputs {
    let (x, regions, of) = (cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?);
    let (image, rows) = (cx.ty(x).clone(), cx.ty(of).clone());
    let wrong = || Problem::new(format!("the regions {rows} do not fit the images {image}"));
    if image.ndim() != 4 || rows.ndim() != 1 || cx.ty(regions).dims[..] != [rows.dims[0].clone(), 4.into()] {
        return Err(wrong());
    }
    let number = |name: &str, least: i64| {
        let number = call.int(name).unwrap_or(least);
        u64::try_from(number).ok().filter(|&n| n > 0 && n <= Context::MOST_COMPUTED).ok_or_else(|| {
            Problem::new(format!("{name} is {number}, so the number of sampled places depends on data"))
                .note("export with a sampling ratio of at least 1")
        })
    };
    let (out, samples) =
        ([number("output_height", 1)?, number("output_width", 1)?], number("sampling_ratio", 0)?);
    // Before opset 16 there was only one mode.
    let default = if call.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let shifted = match call.string("coordinate_transformation_mode").unwrap_or(default) {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(Problem::new(format!("the coordinate transformation `{other}` is unknown"))),
    };
    let scale = call.float("spatial_scale").unwrap_or(1.0);
    let row = rows.dims[0].clone();
    let mut along = Vec::new();
    for (dim, bins) in (0u32..).zip(out) {
        let corners = [1 - dim, 3 - dim].map(u64::from);
        let places =
            region_places(cx, regions, corners, [scale, if shifted { 0.5 } else { 0.0 }], [bins, samples])?;
        let size = cx.bound(x, dim + 2, "samples")?;
        let mut dims = vec![row.clone(), Dim::known(1), Dim::known(1)];
        dims[dim as usize + 1] = Dim::known(bins * samples);
        let places = cx.b.reshape(places, dims)?;
        along.push(region_neighbours(cx, places, size)?);
    }
    let [height, width] = out.map(|bins| Dim::known(bins * samples));
    let terms = read(cx, x, Some(of), &along, &[row.clone(), height, width])?;
    let (fold, reduce) = match call.string("mode").unwrap_or("avg") {
        "avg" => (Binary::Add, ir::ops::reduce::ReduceKind::Mean),
        "max" => (Binary::Max, ir::ops::reduce::ReduceKind::Max),
        other => return Err(Problem::new(format!("the pooling mode `{other}` is unknown"))),
    };
    let read = folded(cx, fold, terms)?;
    let (channels, samples, out) = (image.dims[1].clone(), Dim::known(samples), out.map(Dim::known));
    let bins = [&row, &out[0], &samples, &out[1], &samples, &channels].map(Clone::clone);
    let apart = cx.b.reshape(read, bins)?;
    let pooled = cx.reduced(reduce, apart, &[2, 4])?;
    let [height, width] = out;
    let pooled = cx.b.reshape(pooled, [row, height, width, channels])?;
    one(cx.b.transpose(pooled, &[0, 3, 1, 2])?)
}

/// Builds the places along one dim that are read for each region: `[regions, bins·samples]`.
fn region_places(
    cx: &mut Context,
    regions: ValueId,
    corners: [u64; 2],
    [scale, shift]: [f64; 2],
    [bins, samples]: [u64; 2],
) -> Built {
    let mut ends = Vec::new();
    for corner in corners {
        let column = cx.b.slice(regions, 1, corner, Dim::known(1))?;
        ends.push(cx.build(column * scale - shift)?);
    }
    let mut length = cx.build(ends[1] - ends[0])?;
    if shift == 0.0 {
        length = cx.build(Binary::Max.of(length, 1.0))?;
    }
    let dtype = cx.ty(regions).dtype;
    let count = cx.counted(dtype, 2, 1, Dim::known(bins * samples))?;
    cx.build(ends[0] + length * ((count + 0.5) / (bins * samples) as f64))
}

/// Returns the neighbours of a place in a region: border elements up to one element outside of the image, and none further out.
fn region_neighbours(cx: &mut Context, place: ValueId, size: u64) -> Result<Vec<Neighbour>, Problem> {
    let above = cx.build(Compare::GreaterEqual.of(place, -1.0))?;
    let inside = cx.build(Logical::And.of(above, Compare::LessEqual.of(place, size as f64)))?;
    let border = Outside::Border { margin: 0.0 };
    let mut neighbours = neighbours(cx, place, size, Interpolation::Linear, border)?;
    neighbours.iter_mut().for_each(|neighbour| neighbour.inside = Some(inside));
    Ok(neighbours)
}

/// Returns the neighbours along a dim of `size` elements; place 0 is the first element.
pub(super) fn neighbours(
    cx: &mut Context,
    place: ValueId,
    size: u64,
    interpolation: Interpolation,
    outside: Outside,
) -> Result<Vec<Neighbour>, Problem> {
    ensure!(size != 0, "the image has no elements");
    let nearest = interpolation == Interpolation::Nearest;
    let place = if nearest { cx.build(Unary::Round.of(place))? } else { place };
    let place = outside.moved(cx, place, size)?;
    if nearest {
        return Ok(vec![neighbour(cx, place, None, size, outside)?]);
    }
    let left = cx.build(Unary::Floor.of(place))?;
    let ratio = cx.build(place - left)?;
    let (first, weights) = match interpolation {
        Interpolation::Cubic => (-1.0, cubic_weights(cx, ratio)?),
        _ => (0.0, vec![cx.build(1.0 - ratio)?, ratio]),
    };
    let mut all = Vec::new();
    for (i, weight) in weights.into_iter().enumerate() {
        let at = cx.build(left + (first + i as f64))?;
        all.push(neighbour(cx, at, Some(weight), size, outside)?);
    }
    Ok(all)
}

/// Returns the weights of the four neighbours; the place is `ratio` to the right of the second.
fn cubic_weights(cx: &mut Context, ratio: ValueId) -> Result<Vec<ValueId>, Problem> {
    const A: f64 = -0.75;
    // For a neighbour nearer than 1: (a + 2)x³ - (a + 3)x² + 1; for a farther one: ax³ - 5ax² + 8ax - 4a.
    let (near, far) = ([A + 2.0, -(A + 3.0), 0.0, 1.0], [A, -5.0 * A, 8.0 * A, -4.0 * A]);
    let unit = cx.b.splat_like(ratio, 1.0)?;
    let two = cx.b.splat_like(ratio, 2.0)?;
    let distances = [cx.build(ratio + unit)?, ratio, cx.build(unit - ratio)?, cx.build(two - ratio)?];
    let mut weights = Vec::new();
    for (x, polynomial) in distances.into_iter().zip([far, near, near, far]) {
        let mut sum = cx.build(x * polynomial[0])?;
        for &coefficient in &polynomial[1..3] {
            sum = cx.build(sum + coefficient)?;
            sum = cx.build(sum * x)?;
        }
        weights.push(cx.build(sum + polynomial[3])?);
    }
    Ok(weights)
}

/// Returns the neighbour at a whole-numbered place.
fn neighbour(
    cx: &mut Context,
    at: ValueId,
    weight: Option<ValueId>,
    size: u64,
    outside: Outside,
) -> Result<Neighbour, Problem> {
    let last = size as f64 - 1.0;
    let mut inside = None;
    let at = match outside {
        Outside::Zeros => {
            let above = cx.build(Compare::GreaterEqual.of(at, 0.0))?;
            inside = Some(cx.build(Logical::And.of(above, Compare::LessEqual.of(at, last)))?);
            at
        }
        Outside::Border { .. } => at,
        Outside::Reflection { .. } => outside.moved(cx, at, size)?,
    };
    let at = cx.build(Binary::Min.of(Binary::Max.of(at, 0.0), last))?;
    Ok(Neighbour { index: cx.b.cast(at, DType::I64)?, weight, inside })
}

impl Outside {
    /// Returns the place that is read instead of a place outside of the image.
    fn moved(self, cx: &mut Context, place: ValueId, size: u64) -> Built {
        let last = size as f64 - 1.0;
        match self {
            Self::Zeros => Ok(place),
            Self::Border { margin } => {
                let below = cx.build(Compare::Less.of(place, -margin))?;
                let above = cx.build(Compare::Greater.of(place, last + margin))?;
                let (start, end) = (cx.b.splat_like(place, 0.0)?, cx.b.splat_like(place, last)?);
                cx.build(Select.of(above, end, Select.of(below, start, place)))
            }
            // A triangle wave: rising over the image, falling over its mirror image.
            Self::Reflection { margin } => {
                let width = last + 2.0 * margin;
                if width == 0.0 {
                    return cx.build(place * 0.0);
                }
                let distance = cx.build(place + margin)?;
                let rest = cx.build(distance - Unary::Floor.of(distance / (2.0 * width)) * (2.0 * width))?;
                let down = cx.build(Unary::Abs.of(rest - width))?;
                cx.build(width - margin - down)
            }
        }
    }
}

/// Returns every neighbour times its weight: `[rows, places, channels]` each, for an image `[batch, channels, space..]`.
///
/// `along` has the neighbours along each spatial dim, in dims that broadcast to `dims`: the rows, then the dims of the places. Row
/// i reads image i, or the image whose number is in `of`.
pub(super) fn read(
    cx: &mut Context,
    x: ValueId,
    of: Option<ValueId>,
    along: &[Vec<Neighbour>],
    dims: &[Dim],
) -> Result<Vec<ValueId>, Problem> {
    let ty = cx.ty(x).clone();
    let product = |dims: &[Dim]| dims.iter().try_fold(Dim::known(1), |n, dim| n.product(dim));
    let wrong = || Problem::new(format!("{ty} cannot be sampled"));
    let (space, places) = (product(&ty.dims[2..]).ok_or_else(wrong)?, product(&dims[1..]).ok_or_else(wrong)?);
    let flat = cx.b.reshape(x, [ty.dims[0].clone(), ty.dims[1].clone(), space])?;
    let flat = cx.b.transpose(flat, &[0, 2, 1])?;
    let columns = [dims[0].clone(), places, Dim::known(1)];
    let image = of.map(|of| numbered(cx, of, &columns)).transpose()?;
    let mut terms = Vec::new();
    for neighbour in combined(cx, &ty, along)? {
        let column = |cx: &mut Context, value: ValueId| -> Built {
            let wide = cx.b.broadcast(value, dims.to_vec())?;
            Ok(cx.b.reshape(wide, columns.clone())?)
        };
        let index = column(cx, neighbour.index)?;
        let mut value = match image {
            Some(image) => {
                let pair = cx.b.one(Concat { dim: 2 }, &[image, index])?;
                cx.b.one(GatherNd { batch_dims: 0 }, &[flat, pair])?
            }
            None => cx.b.one(GatherNd { batch_dims: 1 }, &[flat, index])?,
        };
        if let Some(weight) = neighbour.weight {
            let weight = column(cx, weight)?;
            let weight = cx.b.cast(weight, ty.dtype)?;
            value = cx.build(value * weight)?;
        }
        if let Some(inside) = neighbour.inside {
            let inside = column(cx, inside)?;
            value = cx.build(Select.of(inside, value, 0.0))?;
        }
        terms.push(value);
    }
    Ok(terms)
}

/// Returns the number of each row's image, for every place of the row.
fn numbered(cx: &mut Context, of: ValueId, columns: &[Dim; 3]) -> Built {
    let of = cx.b.cast(of, DType::I64)?;
    let of = cx.b.reshape(of, [columns[0].clone(), Dim::known(1), Dim::known(1)])?;
    Ok(cx.b.broadcast(of, columns.clone())?)
}

/// Combines each neighbour along the first dim with each along the next, and so on. The indices are those of the flattened space.
fn combined(cx: &mut Context, image: &Type, along: &[Vec<Neighbour>]) -> Result<Vec<Neighbour>, Problem> {
    let mut all: Vec<Neighbour> = along.first().cloned().unwrap_or_default();
    for (dim, next) in along.iter().enumerate().skip(1) {
        let size = image.dims.get(dim + 2).and_then(Dim::size);
        let size = size.ok_or_else(|| Problem::new(format!("{image} has no dim {} to sample", dim + 2)))?;
        let mut wider = Vec::new();
        for outer in &all {
            let row = cx.build(outer.index * size as f64)?;
            for inner in next {
                wider.push(Neighbour {
                    index: cx.build(row + inner.index)?,
                    weight: both(outer.weight, inner.weight, |x, y| cx.build(x * y))?,
                    inside: both(outer.inside, inner.inside, |x, y| cx.build(Logical::And.of(x, y)))?,
                });
            }
        }
        all = wider;
    }
    Ok(all)
}

/// Combines two optional values; returns the only one if one is missing.
fn both(
    x: Option<ValueId>,
    y: Option<ValueId>,
    mut make: impl FnMut(ValueId, ValueId) -> Built,
) -> Result<Option<ValueId>, Problem> {
    match (x, y) {
        (Some(x), Some(y)) => make(x, y).map(Some),
        (x, y) => Ok(x.or(y)),
    }
}

/// Combines all terms by an operator of two operands.
pub(super) fn folded(cx: &mut Context, op: Binary, terms: Vec<ValueId>) -> Built {
    let mut terms = terms.into_iter();
    let first = terms.next().ok_or_else(|| Problem::new("reads nothing"))?;
    terms.try_fold(first, |sum, term| cx.build(op.of(sum, term)))
}
