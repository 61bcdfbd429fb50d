//! Bytes that never change: constants of the file, tensors of equal elements, and indices.

use super::draft::{BufferKind, Drafts, Located};
use crate::layout::{Layout, Sizes};
use bytes::Bytes;
use ir::ops::constant::{Constant, Iota, Splat};
use ir::{AxisId, DType, Diagnostic, Node, NodeId, Tensor, Type};

impl Drafts<'_> {
    /// Places the bytes of a row of the data table.
    pub(super) fn constant(
        &mut self,
        id: NodeId,
        node: &Node,
        constant: &Constant,
    ) -> Result<(), Diagnostic> {
        let row = &self.module.data[constant.data];
        let ty = self.module.ty(node.results[0]);
        let whole = row.bytes().filter(|bytes| row.ty.bytes() == Some(bytes.len() as u64));
        let Some(bytes) = whole.cloned() else {
            let message = format!("the bytes of constant `{}` are missing", row.name);
            return Err(Diagnostic::new(message)
                .at(node.origin.to_string())
                .note("put the model's external data file into the model's folder"));
        };
        let sizes: Sizes = ty.sizes().unwrap_or_default().into_iter().map(|size| size as usize).collect();
        let whole = self.constant_bytes(row.ty.dtype, bytes, Layout::dense(&sizes));
        let dims: Vec<(usize, &[AxisId])> = (0..ty.ndim()).map(|dim| (dim, ty.sharding.axes(dim))).collect();
        self.located[node.results[0]] = Some(self.part(whole, &dims, id, node));
        Ok(())
    }

    /// Places a tensor of equal elements as one element, repeated by strides of 0.
    pub(super) fn splat(&mut self, node: &Node, splat: &Splat) {
        let (dtype, sizes) = (self.module.ty(node.results[0]).dtype, self.sizes(node.results[0]));
        let one = Tensor::splat(dtype, vec![], splat.value.get()).to_bytes();
        let located = self.constant_bytes(dtype, one.into(), Layout::dense(&[]).broadcast(&sizes));
        self.located[node.results[0]] = Some(located);
    }

    /// Places the indices along one dim, repeated along the other dims by strides of 0.
    ///
    /// # Errors
    /// The memory of this machine has no room for the numbers.
    pub(super) fn iota(&mut self, id: NodeId, node: &Node, iota: &Iota) -> Result<(), Diagnostic> {
        let (ty, sizes, dim) =
            (self.module.ty(node.results[0]), self.sizes(node.results[0]), iota.dim as usize);
        let (dtype, axes) = (ty.dtype, ty.sharding.axes(dim));
        let count = sizes[dim] * self.module.mesh.size(axes) as usize;
        // The numbers as f64 or i64, and their bytes in the type.
        let needed = (count as u64).saturating_mul(8 + dtype.bytes());
        if let Some(free) = files::memory::available().filter(|&free| needed > free) {
            let [needed, free] = [needed, free].map(ir::units::bytes_in_tenths);
            let error = format!(
                "the numbers from 0 to {count} take {needed} of memory; this machine has {free} free"
            );
            return Err(Diagnostic::new(error).at(node.origin.to_string()));
        }
        let indices = 0..count;
        let tensor = if dtype.is_float() {
            Tensor::float(dtype, vec![count], indices.map(|i| i as f64).collect())
        } else {
            Tensor::int(dtype, vec![count], indices.map(|i| i as i64).collect())
        };
        let whole = self.constant_bytes(dtype, tensor.to_bytes().into(), Layout::dense(&[count]));
        let part = self.part(whole, &[(0, axes)], id, node);
        let mut line = vec![1; sizes.len()];
        line[dim] = sizes[dim];
        let layout = Layout::dense(&line).broadcast(&sizes);
        self.located[node.results[0]] = Some(Located { layout, ..part });
        Ok(())
    }

    /// Returns the place of these bytes. Equal bytes are stored once.
    fn constant_bytes(&mut self, dtype: DType, bytes: Bytes, layout: Layout) -> Located {
        let known = self.constants.iter().position(|constant| constant.1 == bytes);
        let buffer = known.map(|index| self.constants[index].0).unwrap_or_else(|| {
            let ty = Type::of(dtype, &[bytes.len() as u64 / dtype.bytes()]);
            let buffer =
                self.buffer(BufferKind::Constant(self.constants.len()), ty.bytes().unwrap_or_default());
            self.constants.push((buffer, bytes));
            buffer
        });
        Located::whole(buffer, dtype, layout)
    }
}
