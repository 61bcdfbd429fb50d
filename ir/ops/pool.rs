//! Pooling: the largest element, or the mean, of windows that slide over the last dims.

mod places;

pub use places::{MaxPoolGradAt, MaxPoolIndices, MaxPoolOffsets, element_at, has_offsets, offset_of};

use super::*;
use crate::{DType, Dim, Dims};
use smallvec::SmallVec;

/// The way in which a window slides along one dim. Position `o` covers the elements `o·stride + k·dilation - before` for `k` below
/// `size`. Elements outside of the dim are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    /// The number of covered elements.
    pub size: u64,
    /// The distance between two positions.
    pub stride: u64,
    /// The distance between two covered elements.
    pub dilation: u64,
    /// The padding before the first element.
    pub before: u64,
    /// The padding after the last element.
    pub after: u64,
}

/// A window along each of the last dims, outermost first.
pub type Windows = SmallVec<[Window; 3]>;

/// The largest element of each window: operand `x[.., d]`, result `y[.., o]`, both with as many last dims as there are windows.
/// Padding is never the largest; a window with only padding gives −∞. NaN is larger than any number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaxPool {
    /// The windows.
    pub windows: Windows,
}

/// The gradient of [`MaxPool`]. The gradient of a window goes to the first of its largest elements, in row-major order. Operands:
/// `x, d y`. Result: `d x`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaxPoolGrad {
    /// As in [`MaxPool`].
    pub windows: Windows,
}

/// The mean of each window, with the windows of [`MaxPool`]. A window with only padding gives 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AvgPool {
    /// The windows.
    pub windows: Windows,
    /// Whether padding counts as zeros.
    pub count_padding: bool,
}

/// The gradient of [`AvgPool`]. Operand: `d y`. Result: `d x`, of the declared type, because several sizes of `x` can give the
/// same `y`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AvgPoolGrad {
    /// As in [`AvgPool`].
    pub windows: Windows,
    /// As in [`AvgPool`].
    pub count_padding: bool,
}

/// The text is `k3s2d1p0.1`: size, stride, dilation, padding before and after.
impl Attribute for Window {
    fn print(&self) -> String {
        let Self { size, stride, dilation, before, after } = self;
        format!("k{size}s{stride}d{dilation}p{before}.{after}")
    }

    fn parse(text: &str) -> Option<Self> {
        let (size, rest) = text.strip_prefix('k')?.split_once('s')?;
        let (stride, rest) = rest.split_once('d')?;
        let (dilation, rest) = rest.split_once('p')?;
        let (before, after) = rest.split_once('.')?;
        let number = |text: &str| text.parse().ok();
        let (size, stride, dilation) = (number(size)?, number(stride)?, number(dilation)?);
        Some(Self { size, stride, dilation, before: number(before)?, after: number(after)? })
    }
}

impl Window {
    /// Makes a window over so many consecutive elements, at every place where it fits whole.
    pub fn of(size: u64) -> Self {
        Self { size, stride: 1, dilation: 1, before: 0, after: 0 }
    }

    /// Returns the distance from the first covered element to the last, plus 1; `None` if it is not a valid length.
    pub fn extent(&self) -> Option<u64> {
        self.size.checked_sub(1)?.checked_mul(self.dilation.max(1))?.checked_add(1)
    }

    /// Returns the number of positions along a dim of this size; `None` if there is none.
    pub fn positions(&self, size: u64) -> Option<u64> {
        let padded = size.checked_add(self.before)?.checked_add(self.after)?;
        padded.checked_sub(self.extent()?)?.checked_div(self.stride)?.checked_add(1)
    }

    /// Returns the elements of a dim of this size that a position covers: the first element, and their number; they are `dilation`
    /// apart.
    pub fn covers(&self, position: usize, size: usize) -> (usize, usize) {
        let start = position as u64 * self.stride;
        let first = self.before.saturating_sub(start).div_ceil(self.dilation);
        let end = (size as u64 + self.before).saturating_sub(start).div_ceil(self.dilation).min(self.size);
        match end.checked_sub(first) {
            None | Some(0) => (0, 0),
            Some(count) => ((start + first * self.dilation - self.before) as usize, count as usize),
        }
    }

    /// Returns the dim of the positions.
    fn slide(&self, dim: &Dim) -> Option<Dim> {
        match dim.size() {
            Some(size) => self.positions(size).filter(|_| size > 0).map(Dim::known),
            // The size of an unbound dim is known only if the window leaves it unchanged.
            None => {
                let padding = self.before.checked_add(self.after)?.checked_add(1);
                (self.stride == 1 && padding == self.extent()).then(|| dim.clone())
            }
        }
    }
}

/// Returns the dims of the windows' positions over the last dims of `x`, after its leading dims.
fn positions(windows: &Windows, x: &Type) -> Result<Dims, TypeError> {
    let count = windows.len();
    ensure!(
        x.dtype.is_float() && count != 0 && x.ndim() >= count,
        "slides {count} windows over the last dims of floats, not of {x}"
    );
    let first = x.ndim() - count;
    let mut dims = x.dims.clone();
    for (i, (dim, window)) in dims[first..].iter_mut().zip(windows).enumerate() {
        let fits = window.slide(dim).filter(|_| window.dilation > 0);
        let at = first + i;
        let error = || {
            let Some(size) = dim.size() else {
                return format!("dim {at} must be bound, since windows do not keep its size: {x}");
            };
            let padded = size.saturating_add(window.before).saturating_add(window.after);
            match window.extent() {
                Some(extent) if extent > padded => {
                    format!(
                        "dim {at} has {padded} elements with its pads, fewer than a window of {extent}: {x}"
                    )
                }
                _ => format!("no window {} slides over dim {at} of {x}", window.print()),
            }
        };
        *dim = fits.ok_or_else(|| TypeError::new(error()))?;
    }
    Ok(dims)
}

/// Checks that a gradient `d y` has the type of `y`.
fn expect(dy: &Type, x: &Type, dims: &Dims) -> Result<(), TypeError> {
    if dy.dtype == x.dtype && dy.dims == *dims {
        return Ok(());
    }
    let expected = Type::new(x.dtype, dims.clone());
    Err(TypeError::new(format!("the gradient of the result for {x} is {dy}, not {expected}")))
}

/// Returns the words of a tensor over whose last dims the windows slide. These dims cannot be split.
fn words(windows: &Windows, name: &str) -> String {
    let words = (0..windows.len()).map(|i| format!(" {name}{i}^"));
    std::iter::once("*".to_string()).chain(words).collect()
}

/// Returns the factor rule between the tensor over which windows slide and the tensor of their positions.
fn factors(windows: &Windows, signature: &Signature, rule: impl Fn(&str, &str) -> String) -> Factors {
    let [slid, positions] = ["d", "o"].map(|name| words(windows, name));
    Factors::rule(&rule(&slid, &positions), signature)
}

/// Returns the cost with one operation for every element of every window.
fn cost(windows: &Windows, signature: &Signature, positions: &Type) -> Cost {
    let covered = windows.iter().fold(1, |covered: u64, window| covered.saturating_mul(window.size));
    Cost::per_element(signature, positions, covered)
}

/// Returns, for every position of the windows in row-major order, the offsets of its elements in a tensor of these sizes, in
/// row-major order and without padding. Without windows there is one position with the offset 0.
pub fn covered(windows: &[Window], sizes: &[usize], positions: &[usize]) -> Vec<Vec<usize>> {
    let mut covered = vec![vec![0]];
    for ((window, &size), &positions) in windows.iter().zip(sizes).zip(positions) {
        let along = |outer: &[usize], position: usize| -> Vec<usize> {
            let (first, count) = window.covers(position, size);
            let inner = (0..count).map(move |k| first + k * window.dilation as usize);
            outer.iter().flat_map(|row| inner.clone().map(move |i| row * size + i)).collect()
        };
        covered = covered.iter().flat_map(|outer| (0..positions).map(move |at| along(outer, at))).collect();
    }
    covered
}

/// The windows over a call's tensors, plane by plane. A plane consists of the last dims.
struct Planes {
    /// The sizes of the result of pooling.
    sizes: Vec<usize>,
    /// The number of elements of a plane of `x`.
    len: usize,
    /// The elements of a plane that each position covers.
    covered: Vec<Vec<usize>>,
}

impl Planes {
    /// Lays the windows over an `x` of these sizes.
    fn new(windows: &Windows, x: &[usize]) -> Self {
        let (leading, plane) = x.split_at(x.len() - windows.len());
        let slide = |(window, &size): (&Window, &usize)| window.positions(size as u64).unwrap_or(0) as usize;
        let positions: Vec<usize> = windows.iter().zip(plane).map(slide).collect();
        let covered = covered(windows, plane, &positions);
        Self { sizes: [leading, &positions].concat(), len: plane.iter().product(), covered }
    }
}

/// Returns the sizes of the result of pooling, and the results of `of` for each plane of `x` and the elements that a position
/// covers.
fn pooled<T>(windows: &Windows, x: &Tensor, of: impl Fn(&[f64], &[usize]) -> T) -> (Vec<usize>, Vec<T>) {
    let planes = Planes::new(windows, &x.sizes);
    let mut out = Vec::new();
    for plane in x.floats().chunks_exact(planes.len) {
        out.extend(planes.covered.iter().map(|covered| of(plane, covered)));
    }
    (planes.sizes, out)
}

/// Returns the first of the largest elements; NaN is larger than any number. `None` if no element is covered.
fn first_largest(plane: &[f64], covered: &[usize]) -> Option<usize> {
    let larger = |x: f64, best: f64| x > best || (x.is_nan() && !best.is_nan());
    covered.iter().copied().reduce(|best, i| if larger(plane[i], plane[best]) { i } else { best })
}

/// Returns the divisor of the sum over a window.
fn divisor(windows: &Windows, count_padding: bool, covered: &[usize]) -> f64 {
    if count_padding {
        windows.iter().map(|window| window.size as f64).product()
    } else {
        covered.len().max(1) as f64
    }
}

impl Operator for MaxPool {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        Ok(vec![Type::new(x.dtype, positions(&self.windows, x)?)])
    }

    /// `"* d0^ d1^ -> * o0^ o1^"`
    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule(&format!("{} -> {}", words(&self.windows, "d"), words(&self.windows, "o")), signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, op) = (node.operands[0], MaxPoolGrad { windows: self.windows.clone() });
        Ok(vec![d[0].map(|dy| b.one(op, &[x, dy])).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(&self.windows, signature, &signature.results[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let largest = |plane: &[f64], covered: &[usize]| first_largest(plane, covered).map(|i| plane[i]);
        let (sizes, out) = pooled(&self.windows, cx.operands[0], |plane, covered| {
            largest(plane, covered).unwrap_or(f64::NEG_INFINITY)
        });
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}

impl Operator for MaxPoolGrad {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Gradient]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, dy] = types.operands()?;
        expect(dy, x, &positions(&self.windows, x)?)?;
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(&self.windows, signature, |x, y| format!("{x}, {y} -> {x}")).linear_in(&[1])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(&self.windows, signature, &signature.operands[1])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, dy) = (cx.operands[0], cx.operands[1].floats());
        let planes = Planes::new(&self.windows, &x.sizes);
        let mut dx = vec![0.0; x.len()];
        let of_plane = x.floats().chunks_exact(planes.len).zip(dx.chunks_exact_mut(planes.len));
        for ((x, dx), dy) in of_plane.zip(dy.chunks_exact(planes.covered.len())) {
            for (covered, dy) in planes.covered.iter().zip(dy) {
                if let Some(i) = first_largest(x, covered) {
                    dx[i] += dy;
                }
            }
        }
        vec![Tensor::float(cx.results[0].dtype, x.sizes.clone(), dx)]
    }
}

impl Operator for AvgPool {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        Ok(vec![Type::new(x.dtype, positions(&self.windows, x)?)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(&self.windows, signature, |x, y| format!("{x} -> {y}")).linear_in(&[0])
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let ty = b.ty(node.operands[0]);
        let ty = Type::new(ty.dtype, ty.dims.clone());
        let op = AvgPoolGrad { windows: self.windows.clone(), count_padding: self.count_padding };
        Ok(vec![d[0].map(|dy| b.one_typed(op, &[dy], ty)).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(&self.windows, signature, &signature.results[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (sizes, out) = pooled(&self.windows, cx.operands[0], |plane, covered| {
            let sum: f64 = covered.iter().map(|&i| plane[i]).sum();
            sum / divisor(&self.windows, self.count_padding, covered)
        });
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}

impl Operator for AvgPoolGrad {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Gradient]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([dy], x) = (types.operands()?, types.declared()?);
        expect(dy, x, &positions(&self.windows, x)?)?;
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(&self.windows, signature, |x, y| format!("{y} -> {x}")).linear_in(&[0])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(&self.windows, signature, &signature.operands[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let planes = Planes::new(&self.windows, &sizes);
        let mut dx = vec![0.0; sizes.iter().product()];
        let of_plane = dx.chunks_exact_mut(planes.len);
        for (dx, dy) in of_plane.zip(cx.operands[0].floats().chunks_exact(planes.covered.len())) {
            for (covered, dy) in planes.covered.iter().zip(dy) {
                let share = dy / divisor(&self.windows, self.count_padding, covered);
                covered.iter().for_each(|&i| dx[i] += share);
            }
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, dx)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_cover_what_lies_within_the_dim() {
        let window = Window { size: 3, stride: 2, dilation: 2, before: 3, after: 2 };
        assert_eq!((window.extent(), window.positions(4)), (Some(5), Some(3)));
        // The windows cover the elements -3 -1 1, -1 1 3, 1 3 5.
        assert_eq!([0, 1, 2].map(|at| window.covers(at, 4)), [(1, 1), (1, 2), (1, 2)]);
        assert_eq!(Window { dilation: u64::MAX, ..Window::of(1) }.covers(1, 2), (1, 1));
        assert_eq!(Window { before: 5, ..Window::of(2) }.covers(1, 3), (0, 0));
    }

    #[test]
    fn windows_that_fit_nowhere_are_refused() {
        let x = Type::of(crate::DType::F32, &[2, 3]);
        let infer = |window: Window| {
            MaxPool { windows: SmallVec::from_slice(&[window]) }
                .infer(&Inference { operands: std::slice::from_ref(&x), declared: &[] })
        };
        let wrong = [
            Window::of(4),
            Window::of(0),
            Window { stride: 0, ..Window::of(1) },
            Window { dilation: 0, ..Window::of(1) },
            Window { dilation: u64::MAX, ..Window::of(3) },
            Window { before: u64::MAX, ..Window::of(1) },
        ];
        assert!(wrong.into_iter().all(|window| infer(window).is_err()));
        assert_eq!(infer(Window::of(3)).unwrap()[0].to_string(), "f32[2, 1]");
    }

    #[test]
    fn a_nan_is_the_largest() {
        let plane = [1.0, f64::NAN, 3.0, f64::NAN];
        assert_eq!(first_largest(&plane, &[0, 1, 2, 3]), Some(1));
        assert_eq!(first_largest(&[f64::NEG_INFINITY; 2], &[0, 1]), Some(0));
        assert_eq!(first_largest(&plane, &[]), None);
    }
}
