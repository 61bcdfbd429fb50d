//! The arguments of a kernel: slices of the arena, with types and layouts.

use super::bf16::Bf16Products;
use super::element::Element;
use ir::{DType, Mesh, Span, Type};
use program::layout::Layout;
use program::{Instruction, View};
use smallvec::SmallVec;

/// An instruction with its memory.
pub(super) struct Call<'a> {
    pub(super) instruction: &'a Instruction,
    /// The bytes that each operand spans. `None` if the operand lies in the place of a result.
    pub(super) operands: SmallVec<[Option<&'a [u8]>; 8]>,
    /// The bytes that each result spans.
    pub(super) results: SmallVec<[&'a mut [u8]; 4]>,
    /// The instruction's scratch, with arbitrary contents. Empty if it has none.
    pub(super) scratch: &'a mut [u8],
    /// Whether to add to the old contents of the results.
    pub(super) add: bool,
    /// The device that runs it.
    pub(super) device: OnDevice<'a>,
}

/// A device: its place in its mesh, and its way of multiplying.
#[derive(Clone, Copy)]
pub(super) struct OnDevice<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) rank: u64,
    pub(super) products: Bf16Products,
    /// In a pipeline, the start of each block of the microbatch.
    pub(super) bases: &'a [u64],
}

/// A tensor that is read. The layout's offset counts from the slice's start.
#[derive(Clone)]
pub(super) struct Source<'a, T> {
    pub(super) elements: &'a [T],
    pub(super) layout: Layout,
}

impl<'a> Call<'a> {
    pub(super) fn operand_view(&self, index: usize) -> &'a View {
        &self.instruction.operands[index]
    }

    pub(super) fn result_view(&self, index: usize) -> &'a View {
        &self.instruction.results[index]
    }

    /// Returns the place of an operand's dim in the whole tensor.
    pub(super) fn operand_span(&self, index: usize, dim: usize) -> Span {
        let parts = self.instruction.parts.as_ref();
        self.span(parts.map(|parts| &parts.operands[index]), self.operand_view(index), dim)
    }

    /// Returns the place of a result's dim in the whole tensor.
    pub(super) fn result_span(&self, index: usize, dim: usize) -> Span {
        let parts = self.instruction.parts.as_ref();
        self.span(parts.map(|parts| &parts.results[index]), self.result_view(index), dim)
    }

    fn span(&self, ty: Option<&Type>, view: &View, dim: usize) -> Span {
        let spans = ty.and_then(|ty| ty.spans(self.device.mesh, self.device.rank));
        let whole = || Span { start: 0, size: view.layout.sizes[dim] as u64 };
        spans.map_or_else(whole, |spans| spans[dim])
    }

    pub(super) fn dtype(&self) -> DType {
        self.instruction.results[0].dtype
    }

    /// Returns an operand that does not lie in the place of a result.
    pub(super) fn source<T: Element>(&self, index: usize) -> Source<'a, T> {
        let bytes = self.operands[index].expect("this kernel has no operand that is taken in place");
        Source { elements: bytemuck::cast_slice(bytes), layout: rebased(&self.operand_view(index).layout) }
    }

    /// Returns the elements of a dense operand.
    pub(super) fn dense<T: Element>(&self, index: usize) -> &'a [T] {
        self.source(index).elements
    }

    /// Returns the elements of a dense operand, or `None` if the operand lies in the place of a result.
    pub(super) fn dense_or_in_place<T: Element>(&self, index: usize) -> Option<&'a [T]> {
        self.operands[index].map(bytemuck::cast_slice)
    }

    /// Returns the only element of an operand.
    pub(super) fn scalar<T: Element>(&self, index: usize) -> T {
        self.dense(index)[0]
    }

    /// Returns the integers of a dense operand of any integer type.
    pub(super) fn integers(&self, index: usize) -> Vec<i64> {
        let bytes = self.operands[index].expect("indices are never overwritten");
        super::element::integers(self.operand_view(index).dtype, bytes)
    }

    /// Returns the bytes of all results, in memory order.
    pub(super) fn take_results<const N: usize>(&mut self) -> [&'a mut [u8]; N] {
        let results = std::mem::take(&mut self.results).into_vec();
        results.try_into().expect("the kernel knows how many results it has")
    }

    /// Returns the instruction's scratch as elements of a type.
    pub(super) fn take_scratch<T: Element>(&mut self) -> &'a mut [T] {
        bytemuck::cast_slice_mut(std::mem::take(&mut self.scratch))
    }

    /// Returns the elements of the only result, in memory order.
    pub(super) fn take_result<T: Element>(&mut self) -> &'a mut [T] {
        let [result] = self.take_results();
        bytemuck::cast_slice_mut(result)
    }
}

/// Returns the layout with an offset that counts from the first element it spans.
pub(super) fn rebased(layout: &Layout) -> Layout {
    Layout { offset: layout.offset - layout.span().start, ..layout.clone() }
}
