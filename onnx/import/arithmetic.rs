//! Short forms for building several nodes: formulas, reductions, counting, constants.

use super::context::{Context, Problem};
use bytes::Bytes;
use ir::ops::Float;
use ir::ops::constant::{Constant, Iota};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::shape::Pad;
use ir::{Blob, DType, Data, Dim, Dims, Formula, Tensor, Type, ValueId};
use smallvec::SmallVec;

/// The result of building an expression of several nodes.
pub(super) type Built = Result<ValueId, Problem>;

impl Context<'_> {
    /// Builds a formula.
    pub(super) fn build(&mut self, formula: impl Into<Formula>) -> Built {
        Ok(self.b.build(formula)?)
    }

    /// Builds a reduction over these dims, given in any order. They are kept with size one.
    pub(super) fn reduced(&mut self, kind: ReduceKind, x: impl Into<Formula>, dims: &[u32]) -> Built {
        let x = self.build(x)?;
        let mut dims: SmallVec<[u32; 4]> = SmallVec::from_slice(dims);
        dims.sort_unstable();
        dims.dedup();
        if dims.is_empty() {
            return Ok(x);
        }
        Ok(self.b.one(Reduce { kind, dims, keep: true }, &[x])?)
    }

    /// Builds the indices along a dim, as a tensor of `ndim` dims. All other dims have size one.
    pub(super) fn counted(&mut self, dtype: DType, ndim: usize, dim: u32, size: Dim) -> Built {
        let mut dims: Dims = std::iter::repeat_n(Dim::known(1), ndim).collect();
        let place = dims.get_mut(dim as usize);
        *place.ok_or_else(|| {
            Problem::new(format!("there is no dim {dim} to count along: the value has {ndim} dims"))
        })? = size;
        Ok(self.b.one_typed(Iota { dim }, &[], Type::new(dtype, dims))?)
    }

    /// Returns the size of a dim, or an error if it is not bound. `doing` is the use of the size by the node, for the error.
    pub(super) fn bound(&self, x: ValueId, dim: u32, doing: &str) -> Result<u64, Problem> {
        let ty = self.ty(x);
        ty.dims.get(dim as usize).and_then(Dim::size).ok_or_else(|| {
            Problem::new(format!("the node {doing} dim {dim} of {ty}, and the size of this dim is not bound"))
                .note("bind the dim with --bind NAME=SIZE")
        })
    }

    /// Removes a dim of size one.
    pub(super) fn without(&mut self, x: ValueId, dim: u32) -> Built {
        let mut dims = self.ty(x).dims.clone();
        dims.remove(dim as usize);
        Ok(self.b.reshape(x, dims)?)
    }

    /// Inserts a dim of size one before dim `dim`.
    pub(super) fn with_dim(&mut self, x: ValueId, dim: u32) -> Built {
        let mut dims = self.ty(x).dims.clone();
        dims.insert(dim as usize, Dim::known(1));
        Ok(self.b.reshape(x, dims)?)
    }

    /// Pads a dim with a number, before and after its elements.
    pub(super) fn padded(&mut self, x: ValueId, dim: u32, [before, after]: [u64; 2], value: f64) -> Built {
        if before == 0 && after == 0 {
            return Ok(x);
        }
        let size = self.bound(x, dim, "pads")?;
        let padded = before.checked_add(after).and_then(|n| n.checked_add(size));
        let padded = padded.ok_or_else(|| {
            Problem::new(format!("the padding makes {} larger than any memory", self.ty(x)))
        })?;
        let mut ty = self.ty(x).clone();
        ty.dims[dim as usize] = Dim::known(padded);
        Ok(self.b.one_typed(Pad { dim, before, value: Float::new(value) }, &[x], ty)?)
    }

    /// Adds a tensor that the import computed. It is always a constant, because it is not a tensor of the file.
    pub(super) fn computed(&mut self, tensor: Tensor) -> Built {
        let ty = tensor.ty();
        let name = format!("computed.{}", self.b.module().data.len());
        let blob = Blob::Inline(Bytes::from(tensor.to_bytes()));
        let data = self.b.tables().add_data(Data { name, ty: ty.clone(), blob, claim: None });
        Ok(self.b.one_typed(Constant { data }, &[], ty)?)
    }

    /// The most elements of a tensor that the import computes: a MiB of the widest type, which text still writes inline.
    pub(super) const MOST_COMPUTED: u64 = Data::INLINE_BYTES as u64 / 8;
}
