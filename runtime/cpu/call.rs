//! What a kernel is given: slices of the arena, with types and layouts.

use super::element::Element;
use crate::layout::Layout;
use crate::program::{Instruction, View};
use ir::{DType, Mesh, Span, Type};
use smallvec::SmallVec;

/// An instruction with its memory.
pub(super) struct Call<'a> {
    pub(super) instruction: &'a Instruction,
    /// For each operand the bytes it spans; `None` where a result takes its place.
    pub(super) operands: SmallVec<[Option<&'a [u8]>; 8]>,
    /// For each result the bytes it spans.
    pub(super) results: SmallVec<[&'a mut [u8]; 4]>,
    /// The instruction's scratch, whose bytes mean nothing; empty if it has none.
    pub(super) scratch: &'a mut [u8],
    /// Whether to add to what the results hold.
    pub(super) add: bool,
    /// Who runs it.
    pub(super) place: Place<'a>,
}

/// A device among others.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) rank: u64,
    /// In a pipeline, where the blocks of the microbatch begin.
    pub(super) bases: &'a [u64],
}

/// A tensor that is read. The layout counts from the slice's start.
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

    /// Where a dim of an operand lies in the whole tensor.
    pub(super) fn operand_span(&self, index: usize, dim: usize) -> Span {
        let parts = self.instruction.parts.as_ref();
        self.span(parts.map(|parts| &parts.operands[index]), self.operand_view(index), dim)
    }

    /// Where a dim of a result lies in the whole tensor.
    pub(super) fn result_span(&self, index: usize, dim: usize) -> Span {
        let parts = self.instruction.parts.as_ref();
        self.span(parts.map(|parts| &parts.results[index]), self.result_view(index), dim)
    }

    fn span(&self, ty: Option<&Type>, view: &View, dim: usize) -> Span {
        let spans = ty.and_then(|ty| ty.spans(self.place.mesh, self.place.rank));
        let whole = || Span { start: 0, size: view.layout.sizes[dim] as u64 };
        spans.map_or_else(whole, |spans| spans[dim])
    }

    pub(super) fn dtype(&self) -> DType {
        self.instruction.results[0].dtype
    }

    /// An operand that is not taken in place.
    pub(super) fn source<T: Element>(&self, index: usize) -> Source<'a, T> {
        let bytes = self.operands[index].expect("this kernel has no operand that is taken in place");
        Source { elements: bytemuck::cast_slice(bytes), layout: rebased(&self.operand_view(index).layout) }
    }

    /// The elements of a dense operand.
    pub(super) fn dense<T: Element>(&self, index: usize) -> &'a [T] {
        self.source(index).elements
    }

    /// The elements of a dense operand, or `None` if the result in its place holds them.
    pub(super) fn dense_or_in_place<T: Element>(&self, index: usize) -> Option<&'a [T]> {
        self.operands[index].map(bytemuck::cast_slice)
    }

    /// The only element of an operand.
    pub(super) fn scalar<T: Element>(&self, index: usize) -> T {
        self.dense(index)[0]
    }

    /// The integers of a dense operand of any integer type.
    pub(super) fn integers(&self, index: usize) -> Vec<i64> {
        let bytes = self.operands[index].expect("indices are never overwritten");
        super::element::integers(self.operand_view(index).dtype, bytes)
    }

    /// The elements of all results, in their order in memory.
    pub(super) fn take_results<const N: usize>(&mut self) -> [&'a mut [u8]; N] {
        let results = std::mem::take(&mut self.results).into_vec();
        results.try_into().expect("the kernel knows how many results it has")
    }

    /// The instruction's scratch as elements of a type.
    pub(super) fn take_scratch<T: Element>(&mut self) -> &'a mut [T] {
        bytemuck::cast_slice_mut(std::mem::take(&mut self.scratch))
    }

    /// The elements of the only result, in their order in memory.
    pub(super) fn take_result<T: Element>(&mut self) -> &'a mut [T] {
        let [result] = self.take_results();
        bytemuck::cast_slice_mut(result)
    }
}

/// A layout counted from the first element it spans.
pub(super) fn rebased(layout: &Layout) -> Layout {
    Layout { offset: layout.offset - layout.span().start, ..layout.clone() }
}
