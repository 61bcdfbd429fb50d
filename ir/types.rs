//! Types of values: element type, global dims, sharding.

use crate::{AxisId, DType, Dim, Dims, Mesh};
use smallvec::SmallVec;
use std::fmt;

/// The type of a value: elements of `dtype` in a tensor of global `dims`, laid out over the mesh by `sharding`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Type {
    /// The element type.
    pub dtype: DType,
    /// Global sizes, outermost first; a scalar has none.
    pub dims: Dims,
    /// The division of the tensor among devices.
    pub sharding: Sharding,
}

impl Type {
    /// Makes the type of a whole tensor.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Self {
        Self { dtype, dims: dims.into_iter().collect(), sharding: Sharding::default() }
    }

    /// Makes the type of a whole tensor with bound dims.
    pub fn of(dtype: DType, sizes: &[u64]) -> Self {
        Self::new(dtype, sizes.iter().copied().map(Dim::known))
    }

    /// Makes the type of a whole scalar.
    pub fn scalar(dtype: DType) -> Self {
        Self::new(dtype, [])
    }

    /// Returns the type with the same dims and sharding and another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// Returns the number of dims.
    pub fn ndim(&self) -> usize {
        self.dims.len()
    }

    /// Returns the sizes, if all dims are bound.
    pub fn sizes(&self) -> Option<Vec<u64>> {
        self.dims.iter().map(Dim::size).collect()
    }

    /// Returns the number of elements, if all dims are bound and the product fits.
    pub fn numel(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |n, dim| n.checked_mul(dim.size()?))
    }

    /// Returns the bytes of the whole tensor, if all dims are bound and the product fits.
    pub fn bytes(&self) -> Option<u64> {
        self.numel()?.checked_mul(self.dtype.bytes())
    }

    /// Refuses a tensor whose number of bytes does not fit in an i64, because sizes and offsets are computed as such numbers.
    ///
    /// # Errors
    /// The type has more bytes.
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

    /// Returns the sizes of the part that one device holds: dims divided by the sizes of the axes that split them. `None` if a dim
    /// is unbound or does not divide. Only `interp` and lowering may call this.
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

    /// Returns the bytes of the part that one device holds. `None` in the cases of [`Type::local`], or if the bytes do not fit in
    /// a u64.
    pub fn local_bytes(&self, mesh: &Mesh) -> Option<u64> {
        self.local(mesh)?.iter().try_fold(self.dtype.bytes(), |bytes, &size| bytes.checked_mul(size))
    }

    /// Returns the place of a rank's part in the global tensor: for each dim, its first index and the global size. `None` in the
    /// cases of [`Type::local`].
    pub fn spans(&self, mesh: &Mesh, rank: u64) -> Option<SmallVec<[Span; 4]>> {
        let (local, sizes) = (self.local(mesh)?, self.sizes()?);
        let place = |dim: usize| self.sharding.dims.get(dim).map_or(0, |axes| mesh.place(rank, axes));
        let span = |dim: usize| Span { start: place(dim) * local[dim], size: sizes[dim] };
        Some((0..sizes.len()).map(span).collect())
    }
}

/// The place of a device's part of a tensor along a dim of the global tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first index of the part in the global dim.
    pub start: u64,
    /// The size of the global dim.
    pub size: u64,
}

/// Writes `f32[8, 128]`, without the sharding, because the names of its axes are in the module's mesh.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.dims.iter().map(Dim::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}

/// The layout of a tensor over the mesh. By default the tensor is whole on every device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharding {
    /// For each dim, the axes that split it, major first; empty when no dim is split.
    pub dims: SmallVec<[SmallVec<[AxisId; 1]>; 4]>,
    /// Axes over which each device holds one addend (or candidate) of the true value.
    pub partial: Option<(PartialKind, SmallVec<[AxisId; 2]>)>,
}

impl Sharding {
    /// Returns the axes that split a dim, major first.
    pub fn axes(&self, dim: usize) -> &[AxisId] {
        self.dims.get(dim).map_or(&[], |axes| axes)
    }

    /// Returns the axes over which the value is partial.
    pub fn partial_axes(&self) -> &[AxisId] {
        self.partial.as_ref().map_or(&[], |(_, axes)| axes)
    }

    /// Whether every device holds the whole, final value.
    pub fn is_whole(&self) -> bool {
        self.partial.is_none() && self.dims.iter().all(|axes| axes.is_empty())
    }
}

/// The reduction that combines the devices' parts of a partial value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartialKind {
    /// The true value is the sum.
    Sum,
    /// The true value is the maximum.
    Max,
    /// The true value is the minimum.
    Min,
}

/// The reason why an operator does not accept its operands. The message names the operand (from 0) that is at fault, if there is
/// one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeError {
    /// The fault, with the types concerned.
    pub message: String,
}

impl TypeError {
    /// Makes a type error with that message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// Returns a [`TypeError`] with this message from the function, unless the condition holds. The function's error type implements
/// `From<TypeError>`.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::TypeError::new(format!($($message)+)).into());
        }
    };
}

/// Returns the dims to which two operands are broadcast: aligned at the last dim, a dim of size one stretches.
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

/// Types of a node's operands and results.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// Types of the operands.
    pub operands: Vec<Type>,
    /// Types of the results.
    pub results: Vec<Type>,
}

impl Signature {
    /// Returns the types of the parts that one device holds, each as a whole tensor. `None` when a dim is unbound or does not
    /// divide.
    pub fn local(&self, mesh: &Mesh) -> Option<Self> {
        let part = |ty: &Type| ty.local(mesh).map(|sizes| Type::of(ty.dtype, &sizes));
        let parts = |types: &[Type]| types.iter().map(part).collect::<Option<_>>();
        Some(Self { operands: parts(&self.operands)?, results: parts(&self.results)? })
    }
}
