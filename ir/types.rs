//! Types of values: element type, global dims, sharding.

use crate::{AxisId, DType, Dim, Dims, Mesh};
use smallvec::SmallVec;
use std::fmt;

/// What a value is: elements of `dtype` in a tensor of global `dims`, laid over the mesh by `sharding`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Global sizes, outermost first; a scalar has none.
    pub dims: Dims,
    /// How devices share the tensor.
    pub sharding: Sharding,
}

impl Type {
    /// A whole tensor.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Self {
        Self { dtype, dims: dims.into_iter().collect(), sharding: Sharding::default() }
    }

    /// A whole tensor of bound dims.
    pub fn of(dtype: DType, sizes: &[u64]) -> Self {
        Self::new(dtype, sizes.iter().copied().map(Dim::known))
    }

    /// A whole scalar.
    pub fn scalar(dtype: DType) -> Self {
        Self::new(dtype, [])
    }

    /// The same dims and sharding with other elements.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.dims.len()
    }

    /// The sizes, when all dims are bound.
    pub fn sizes(&self) -> Option<Vec<u64>> {
        self.dims.iter().map(Dim::size).collect()
    }

    /// Number of elements, when all dims are bound and the product fits.
    pub fn numel(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |n, dim| n.checked_mul(dim.size()?))
    }

    /// Bytes of the whole tensor, when all dims are bound and the product fits.
    pub fn bytes(&self) -> Option<u64> {
        self.numel()?.checked_mul(self.dtype.bytes())
    }

    /// Refuses a tensor whose bytes a signed number of 64 bits cannot count: sizes and offsets are such numbers.
    ///
    /// # Errors
    /// The type, which has more.
    pub fn check_size(&self) -> Result<(), TypeError> {
        let sizes = self.dims.iter().filter_map(Dim::size).filter(|&size| size > 0);
        let bytes = sizes.fold(self.dtype.bytes(), u64::saturating_mul);
        if i64::try_from(bytes).is_ok() || self.dims.iter().any(|dim| dim.size() == Some(0)) {
            return Ok(());
        }
        Err(TypeError::new(format!("{self} is larger than any memory")))
    }

    /// Whether `other` has the same elements and dims, whatever its sharding.
    pub fn same_shape(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.dims == other.dims
    }

    /// The part of the tensor one device holds: dims divided by the sizes of the axes that split them. `None`
    /// when a dim is unbound or does not divide. Only interp and lowering may ask.
    pub fn local(&self, mesh: &Mesh) -> Option<Vec<u64>> {
        let mut sizes = self.sizes()?;
        for (size, axes) in sizes.iter_mut().zip(&self.sharding.dims) {
            for &axis in axes {
                let parts = mesh.axes.get(axis)?.size;
                if *size % parts != 0 {
                    return None;
                }
                *size /= parts;
            }
        }
        Some(sizes)
    }

    /// Bytes of the part that one device holds. `None` where [`Type::local`] is, and for more bytes than 64 bits count.
    pub fn local_bytes(&self, mesh: &Mesh) -> Option<u64> {
        self.local(mesh)?.iter().try_fold(self.dtype.bytes(), |bytes, &size| bytes.checked_mul(size))
    }

    /// Where the part of a rank lies in the global tensor: for each dim its first index and the global size. As
    /// [`Type::local`] otherwise.
    pub fn spans(&self, mesh: &Mesh, rank: u64) -> Option<SmallVec<[Span; 4]>> {
        let (local, sizes) = (self.local(mesh)?, self.sizes()?);
        let place = |dim: usize| self.sharding.dims.get(dim).map_or(0, |axes| mesh.place(rank, axes));
        let span = |dim: usize| Span { start: place(dim) * local[dim], size: sizes[dim] };
        Some((0..sizes.len()).map(span).collect())
    }
}

/// Where a device's part of a tensor lies along a dim of the global one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Its first index there.
    pub start: u64,
    /// The size of the global dim.
    pub size: u64,
}

/// `f32[8, 128]`, without the sharding (whose axis names stand in the module's mesh).
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.dims.iter().map(Dim::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}

/// How a tensor is laid over the mesh. The default is: whole on every device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharding {
    /// For each dim the axes that split it, major first; empty when no dim is split.
    pub dims: SmallVec<[SmallVec<[AxisId; 1]>; 4]>,
    /// Axes over which each device holds one addend (or candidate) of the true value.
    pub partial: Option<(PartialKind, SmallVec<[AxisId; 2]>)>,
}

impl Sharding {
    /// The axes that split a dim, major first.
    pub fn axes(&self, dim: usize) -> &[AxisId] {
        self.dims.get(dim).map_or(&[], |axes| axes)
    }

    /// The axes over which the value is partial.
    pub fn partial_axes(&self) -> &[AxisId] {
        self.partial.as_ref().map_or(&[], |(_, axes)| axes)
    }

    /// Whether every device holds the whole, final value.
    pub fn is_whole(&self) -> bool {
        self.partial.is_none() && self.dims.iter().all(|axes| axes.is_empty())
    }
}

/// How the devices' parts of a partial value combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartialKind {
    /// The true value is the sum.
    Sum,
    /// The true value is the largest.
    Max,
    /// The true value is the smallest.
    Min,
}

/// Why an operator does not take these operands. Names the operand (from 0) where one is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeError {
    /// What is wrong, with the types concerned.
    pub message: String,
}

impl TypeError {
    /// A type error with that message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// The dims two operands broadcast to: aligned at the last dim, a dim of size one stretches.
pub fn broadcast(left: &[Dim], right: &[Dim]) -> Result<Dims, TypeError> {
    let ndim = left.len().max(right.len());
    let at = |dims: &[Dim], i: usize| (i + dims.len()).checked_sub(ndim).map(|i| dims[i].clone());
    let mut dims = Dims::new();
    for i in 0..ndim {
        dims.push(match (at(left, i), at(right, i)) {
            (Some(a), Some(b)) if a == b || b.is_one() => a,
            (Some(a), Some(b)) if a.is_one() => b,
            (Some(dim), None) | (None, Some(dim)) => dim,
            _ => return Err(TypeError::new(format!("dims {left:?} and {right:?} do not broadcast"))),
        });
    }
    Ok(dims)
}
