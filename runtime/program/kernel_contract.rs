//! Kernel contracts: one record with all that lowering must know about a backend's kernel for an operator.
//!
//! Each backend answers in one exhaustive match, in its file `kernel_contracts.rs`, so a new operator does not compile without an answer. A
//! record starts as the contract of a family ([`KernelContract::dense`] and its neighbours) and adds the further abilities of the kernel.
//! Facts about an operator's meaning are no part of a contract: [`ir::Op::depends_on_position`] says whether the numbers of a
//! device's part depend on the place of that part.

use crate::layout::{Layout, Sizes};
use ir::ops::contract::Contract;
use ir::{DType, Op, Type};

/// The contract of one kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelContract<'op> {
    /// The layouts in which the kernel reads its operands.
    reads: OperandLayouts,
    /// The layout in which the kernel writes its results, unless lowering asks for another.
    writes: ResultLayout<'op>,
    /// The strides with which the kernel can write its results instead.
    strides: WritableStrides,
    /// Pairs (operand, result) whose result may overwrite the operand while it is computed, if both have the same layout: the kernel has
    /// read the elements of the operand on which an element of the result depends (that element itself, or its row) before it writes the
    /// element.
    in_place: &'static [(usize, usize)],
    /// Whether chains compute the operator, element by element.
    pub in_chains: bool,
    /// Whether the kernel can add to the old contents of its only result.
    accumulates: bool,
    /// Whether the kernel takes an additional last operand and adds it to its first result.
    pub adds_operand: bool,
    /// Whether the kernel writes a half-precision copy of its first result as an additional result.
    pub writes_half_copy: bool,
    /// The operands that the kernel also reads as f16 or bf16, though the operator takes f32.
    reads_half: &'static [usize],
    /// The other types in which the kernel writes its first result.
    also_writes: OtherType,
    /// The number of f32 elements of scratch that the kernel takes.
    scratch: Scratch,
}

/// A function that returns the number of f32 elements of scratch that the kernel of an operator takes for operands and results. On a GPU it
/// depends on the size of the GPU.
pub type Scratch = fn(&Op, &[Unplaced], &[Unplaced], Multiprocessors) -> usize;

/// The number of multiprocessors of a GPU. Kernels whose blocks share work choose their number of blocks by it.
///
/// A program carries this number, and both scratch and grids are sized for it. So a program for a small GPU also runs on a large one, but
/// leaves a part of it idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessors(pub u32);

impl Multiprocessors {
    /// Returns the threads that all multiprocessors hold at once: 2,048 on each.
    pub fn threads(self) -> usize {
        2048 * self.0.max(1) as usize
    }

    /// Returns a number of blocks that keeps all multiprocessors busy: two on each.
    pub fn blocks(self) -> usize {
        2 * self.0.max(1) as usize
    }
}

impl Default for Multiprocessors {
    /// Returns 132, the number of an H100 and an H200, for programs whose GPU is not known.
    fn default() -> Self {
        Self(132)
    }
}

/// A tensor that has no address yet.
#[derive(Clone, Debug)]
pub struct Unplaced {
    /// The element type.
    pub dtype: DType,
    /// The layout, from an offset that is not known yet.
    pub layout: Layout,
}

/// The layouts in which a kernel reads an operand. Operands with other layouts are copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandLayout {
    /// Any strides.
    Any,
    /// Any strides, if neighbours along the last dim are neighbours in memory.
    InnerContiguous,
    /// Contiguous rows along the last dim, one after the other at a constant distance.
    Rows,
    /// Row-major without gaps.
    Dense,
}

impl OperandLayout {
    /// Returns whether a kernel reads an operand with this layout.
    pub fn accepts(self, layout: &Layout) -> bool {
        match self {
            Self::Any => true,
            Self::InnerContiguous => layout.is_inner_contiguous(),
            Self::Rows => layout.is_dense() || layout.is_in_rows(),
            Self::Dense => layout.is_dense(),
        }
    }
}

/// The layouts in which a kernel reads each operand.
#[derive(Clone, Copy, Debug)]
struct OperandLayouts {
    /// The layout of all operands without an exception.
    all: OperandLayout,
    /// The layouts of operands at these indices.
    except: &'static [(usize, OperandLayout)],
}

/// The layout in which a kernel writes its results.
#[derive(Clone, Copy, Debug)]
enum ResultLayout<'op> {
    /// Row-major without gaps.
    Dense,
    /// Results of four dims `[batch, head, position, feature]` lie in the order batch, position, head, feature, which the next transpose of
    /// a transformer asks for. Other results are row-major.
    HeadsAfterPositions,
    /// The order of the dims in memory of the first operand, if its last dim is innermost there; else row-major.
    AsFirstOperand,
    /// The layout of a contraction's result ([`product_layout`]).
    Product(&'op Contract),
}

/// The strides with which a kernel can write a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritableStrides {
    /// The strides of the layout that the contract gives.
    Own,
    /// Also rows along the last dim at any constant distance.
    Rows,
    /// Any strides.
    Any,
}

/// Another type in which a kernel writes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherType {
    None,
    /// f16 or bf16 in place of f32.
    Half,
    /// f32 in place of f16 or bf16.
    Wide,
}

/// Families of kernels.
impl<'op> KernelContract<'op> {
    /// A kernel that reads and writes tensors in row-major order without gaps.
    pub const fn dense() -> Self {
        Self {
            reads: OperandLayouts { all: OperandLayout::Dense, except: &[] },
            writes: ResultLayout::Dense,
            strides: WritableStrides::Own,
            in_place: &[],
            in_chains: false,
            accumulates: false,
            adds_operand: false,
            writes_half_copy: false,
            reads_half: &[],
            also_writes: OtherType::None,
            scratch: |_, _, _, _| 0,
        }
    }

    /// A kernel that reads any strides.
    pub const fn strided() -> Self {
        Self { reads: OperandLayouts { all: OperandLayout::Any, except: &[] }, ..Self::dense() }
    }

    /// A step of a chain of elementwise operators.
    pub const fn elementwise() -> Self {
        Self { in_chains: true, ..Self::strided() }
    }

    /// A multiplication of matrices.
    pub const fn product(contract: &'op Contract) -> Self {
        Self { writes: ResultLayout::Product(contract), ..Self::strided() }
    }

    /// Attention. Its operands are `q`, `k`, `v`, and perhaps a mask.
    pub const fn attention() -> Self {
        Self {
            reads: OperandLayouts { all: OperandLayout::InnerContiguous, except: &[(3, OperandLayout::Any)] },
            writes: ResultLayout::HeadsAfterPositions,
            ..Self::dense()
        }
    }

    /// The gradient of attention. Its operands are `q`, `k`, `v`, perhaps a mask, the output, the logsumexp, and the output's
    /// gradient.
    pub const fn attention_grad(operands: usize) -> Self {
        let except: &[_] = match operands {
            7 => &[(3, OperandLayout::Any), (5, OperandLayout::Dense)],
            _ => &[(4, OperandLayout::Dense)],
        };
        let reads = OperandLayouts { all: OperandLayout::InnerContiguous, except };
        Self { reads, writes: ResultLayout::HeadsAfterPositions, ..Self::dense() }
    }

    /// Rotary embeddings.
    pub const fn rotary() -> Self {
        let reads = OperandLayouts { all: OperandLayout::InnerContiguous, except: &[] };
        Self { reads, writes: ResultLayout::AsFirstOperand, ..Self::dense() }
    }

    /// An optimizer, which overwrites the weight and its other states. The gradient may have the layout in which a contraction left it.
    pub const fn optimizer(in_place: &'static [(usize, usize)]) -> Self {
        let reads = OperandLayouts { all: OperandLayout::Dense, except: &[(1, OperandLayout::Any)] };
        Self { reads, in_place, ..Self::dense() }
    }

    /// A kernel that reads the rows of its first operand at any distance.
    pub const fn by_rows() -> Self {
        let reads = OperandLayouts { all: OperandLayout::Dense, except: &[(0, OperandLayout::Rows)] };
        Self { reads, ..Self::dense() }
    }
}

/// Abilities of a kernel beyond those of its family.
impl KernelContract<'_> {
    /// The kernel can write a result over an operand.
    pub const fn in_place(self, in_place: &'static [(usize, usize)]) -> Self {
        Self { in_place, ..self }
    }

    /// The kernel can write results with these strides.
    pub const fn writing(self, strides: WritableStrides) -> Self {
        Self { strides, ..self }
    }

    /// The kernel can add to the old contents of its result if `accumulates` is set.
    pub const fn accumulating_if(self, accumulates: bool) -> Self {
        Self { accumulates, ..self }
    }

    /// The kernel can add to the old contents of its result.
    pub const fn accumulating(self) -> Self {
        self.accumulating_if(true)
    }

    /// The kernel can add an additional operand.
    pub const fn adding_operand(self) -> Self {
        Self { adds_operand: true, ..self }
    }

    /// The kernel can write a half-precision copy of its first result.
    pub const fn writing_half_copy(self) -> Self {
        Self { writes_half_copy: true, ..self }
    }

    /// The kernel can read these operands as f16 or bf16.
    pub const fn reading_half(self, reads_half: &'static [usize]) -> Self {
        Self { reads_half, ..self }
    }

    /// The kernel can write its first result, which is f32, as f16 or bf16.
    pub const fn writing_half(self) -> Self {
        Self { also_writes: OtherType::Half, ..self }
    }

    /// The kernel can write its first result, which is f16 or bf16, as f32.
    pub const fn writing_wide(self) -> Self {
        Self { also_writes: OtherType::Wide, ..self }
    }

    /// The kernel takes scratch.
    pub const fn with_scratch(self, scratch: Scratch) -> Self {
        Self { scratch, ..self }
    }
}

/// Questions that lowering asks.
impl KernelContract<'_> {
    /// Returns whether the kernel can add to the old contents of its only result, if that has this type. The bits are those of a separate
    /// instruction that adds the finished result. In f16 and bf16 they would differ, because a kernel keeps its sums in f32 and would round
    /// only once.
    pub fn accumulates(&self, dtype: DType) -> bool {
        self.accumulates && !matches!(dtype, DType::F16 | DType::BF16)
    }

    /// Returns the layouts in which the kernel reads an operand.
    pub fn reads(&self, operand: usize) -> OperandLayout {
        let OperandLayouts { all, except } = self.reads;
        except.iter().find(|(index, _)| *index == operand).map_or(all, |(_, layout)| *layout)
    }

    /// Returns the layout in which the kernel writes a result of these sizes, given the layouts of its operands.
    pub fn result_layout(&self, operands: &[Layout], sizes: &[usize]) -> Layout {
        match self.writes {
            ResultLayout::HeadsAfterPositions if sizes.len() == 4 => Layout::in_order(sizes, &[0, 2, 1, 3]),
            ResultLayout::Dense | ResultLayout::HeadsAfterPositions => Layout::dense(sizes),
            ResultLayout::AsFirstOperand => {
                let order = operands[0].memory_order();
                match order.filter(|order| order.last() == Some(&(sizes.len() - 1))) {
                    Some(order) => Layout::in_order(sizes, &order),
                    None => Layout::dense(sizes),
                }
            }
            ResultLayout::Product(contract) => product_layout(contract, sizes),
        }
    }

    /// Returns whether the kernel can write results with these strides.
    pub fn can_write(&self, strides: WritableStrides) -> bool {
        self.strides >= strides
    }

    /// Returns whether the kernel may write a result over an operand with the same layout.
    pub fn may_overwrite(&self, operand: usize, result: usize) -> bool {
        self.in_place.contains(&(operand, result))
    }

    /// Returns whether the kernel of an operator that computes in f32 also reads this operand as f16 or bf16.
    pub fn reads_half(&self, operand: usize) -> bool {
        self.reads_half.contains(&operand)
    }

    /// Returns whether the kernel can write a result as `to`, though the operator makes `made`.
    pub fn writes_as(&self, result: usize, made: DType, to: DType) -> bool {
        let is_half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
        result == 0
            && match self.also_writes {
                OtherType::None => false,
                OtherType::Half => made == DType::F32 && is_half(to),
                OtherType::Wide => is_half(made) && to == DType::F32,
            }
    }

    /// Returns a claim of the contract that does not fit an operator with these operands and results, if there is one. A backend's
    /// contracts have none.
    pub fn misfit(&self, operands: &[Type], results: &[Type]) -> Option<&'static str> {
        let count = operands.len() + usize::from(self.adds_operand);
        let fits = |&(operand, result): &(usize, usize)| operand < count && result < results.len();
        let exists = |&operand: &usize| operand < operands.len();
        let claims = [
            ("overwrites an operand that it has not", !self.in_place.iter().all(fits)),
            ("reads an operand in half precision that it has not", !self.reads_half.iter().all(exists)),
            ("adds to one of several results", self.accumulates && results.len() > 1),
            ("copies a result that is no weight", self.writes_half_copy && results[0] != operands[0]),
            ("is a step of a chain with several results", self.in_chains && results.len() > 1),
        ];
        claims.into_iter().find_map(|(claim, wrong)| wrong.then_some(claim))
    }

    /// Returns the number of f32 elements of scratch that the kernel takes for `op`, the operator of this contract.
    pub fn scratch(
        &self,
        op: &Op,
        operands: &[Unplaced],
        results: &[Unplaced],
        on: Multiprocessors,
    ) -> usize {
        (self.scratch)(op, operands, results, on)
    }
}

/// Returns the layout of a contraction's result. It is row-major if the rows and the columns of the multiplication each have one stride
/// there. Otherwise the order in memory is batch, rows, columns, so that one multiplication can write it.
fn product_layout(contract: &Contract, sizes: &[usize]) -> Layout {
    let roles = contract.roles();
    let dim = |label: &u8| contract.out.0.iter().position(|l| l == label).unwrap_or_default();
    let dims = |labels: &[u8]| labels.iter().map(dim).collect::<Sizes>();
    let dense = Layout::dense(sizes);
    let one_stride = |labels: &[u8]| dense.transpose(&dims(labels)).collapsed().len() <= 1;
    if one_stride(&roles.rows) && one_stride(&roles.columns) {
        return dense;
    }
    let order: Sizes =
        [&roles.batch, &roles.rows, &roles.columns].into_iter().flat_map(|labels| dims(labels)).collect();
    Layout::in_order(sizes, &order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::samples::samples;

    #[test]
    fn a_claim_that_does_not_fit_is_found() {
        let sample =
            |name| samples().into_iter().find(|sample| sample.op.name() == name).expect("it is sampled");
        let dense = KernelContract::dense();
        let planted = [
            (dense.in_place(&[(1, 0)]), "softmax"),
            (dense.in_place(&[(0, 3)]), "adam"),
            (dense.reading_half(&[4]), "rms_norm_grad"),
            (dense.accumulating(), "layer_norm_grad"),
            (dense.writing_half_copy(), "gather"),
            (KernelContract::elementwise(), "attention"),
        ];
        for (contract, name) in planted {
            let sample = sample(name);
            let results = sample.result_types().expect("samples are well-typed");
            assert!(contract.misfit(&sample.operand_types(), &results).is_some(), "{name}");
        }
    }
}
