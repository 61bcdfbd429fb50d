//! Bytes that never change: constants of the file, equal elements, indices.

use super::draft::{BufferKind, Drafts, Located};
use crate::layout::Layout;
use bytes::Bytes;
use ir::ops::constant::{Constant, Iota, Splat};
use ir::{DType, Diagnostic, Node, Tensor, Type, ValueId};

impl Drafts<'_> {
    /// A row of the data table.
    pub(super) fn constant(&mut self, node: &Node, constant: &Constant) -> Result<(), Diagnostic> {
        let row = &self.module.data[constant.data];
        let sizes = self.sizes(node.results[0]);
        let whole = row.bytes().filter(|bytes| row.ty.bytes() == Some(bytes.len() as u64));
        let Some(bytes) = whole.cloned() else {
            let message = format!("the bytes of constant `{}` are not here", row.name);
            return Err(Diagnostic::new(message)
                .at(node.origin.to_string())
                .note("put the model's external data file beside it"));
        };
        self.locate_constant(node.results[0], row.ty.dtype, bytes, Layout::dense(&sizes));
        Ok(())
    }

    /// One element, repeated by strides of 0.
    pub(super) fn splat(&mut self, node: &Node, splat: &Splat) {
        let (dtype, sizes) = (self.module.ty(node.results[0]).dtype, self.sizes(node.results[0]));
        let one = Tensor::splat(dtype, vec![], splat.value.get()).to_bytes();
        self.locate_constant(node.results[0], dtype, one.into(), Layout::dense(&[]).broadcast(&sizes));
    }

    /// The indices along one dim, repeated along the others by strides of 0.
    pub(super) fn iota(&mut self, node: &Node, iota: &Iota) {
        let (dtype, sizes) = (self.module.ty(node.results[0]).dtype, self.sizes(node.results[0]));
        let count = sizes[iota.dim as usize];
        let indices = 0..count;
        let tensor = if dtype.is_float() {
            Tensor::float(dtype, vec![count], indices.map(|i| i as f64).collect())
        } else {
            Tensor::int(dtype, vec![count], indices.map(|i| i as i64).collect())
        };
        let mut line = vec![1; sizes.len()];
        line[iota.dim as usize] = count;
        let layout = Layout::dense(&line).broadcast(&sizes);
        self.locate_constant(node.results[0], dtype, tensor.to_bytes().into(), layout);
    }

    /// Equal bytes are kept once.
    fn locate_constant(&mut self, value: ValueId, dtype: DType, bytes: Bytes, layout: Layout) {
        let known = self.constants.iter().position(|constant| constant.1 == bytes);
        let buffer = known.map(|index| self.constants[index].0).unwrap_or_else(|| {
            let ty = Type::of(dtype, &[bytes.len() as u64 / dtype.bytes()]);
            let buffer =
                self.buffer(BufferKind::Constant(self.constants.len()), ty.bytes().unwrap_or_default());
            self.constants.push((buffer, bytes));
            buffer
        });
        self.located[value] = Some(Located { buffer, dtype, layout });
    }
}
