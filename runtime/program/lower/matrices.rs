//! Operands of a contraction with layouts that the backend's matrix multiplication does not accept. If the product is large enough, they
//! are copied into layouts that it accepts. Otherwise the contraction runs on a scalar kernel, in which one thread computes one element of
//! the result.

use super::draft::{Drafts, Located};
use crate::backend::Target;
use crate::contraction::ContractionPlan;
use crate::layout::{Layout, Sizes};
use ir::NodeId;
use ir::ops::Labels;
use ir::ops::contract::Contract;

/// The smallest number of floating-point operations for which a copy is worth its launch: the scalar kernel takes some microseconds for
/// them, as long as two launches.
const LEAST_FLOPS: usize = 1 << 21;

/// The smallest number of operations per copied byte for which a copy pays. The scalar kernel does about one operation in the time in which
/// a copy moves a byte, and fewer if it reads with large strides.
const FLOPS_PER_BYTE: usize = 8;

/// The left operand, the right operand and the result of a contraction, each with its labels.
struct Tensors<'a> {
    contract: &'a Contract,
    layouts: [Layout; 3],
    backend: Target,
}

/// Whether each tensor gets another place: the left operand, the right operand, the result.
type Moved = [bool; 3];

impl Drafts<'_> {
    /// Copies the operands and the result of a contraction into layouts that the backend multiplies, if that pays.
    pub(super) fn lay_for_multiplication(
        &mut self,
        contract: &Contract,
        id: NodeId,
        operands: &mut [Located],
        result: &mut Located,
    ) {
        let node = self.module.node(id);
        let layouts = [&operands[0], &operands[1], &*result].map(|tensor| tensor.layout.clone());
        let tensors = Tensors { contract, layouts, backend: self.backend.at(node.place) };
        if !result.dtype.is_float() || tensors.are_multiplied() {
            return;
        }
        // Moving a result costs a copy only if it is a part of a concatenation.
        let is_part = self.parts[node.results[0]].is_some();
        let bytes = [
            operands[0].layout.len() * operands[0].dtype.bytes() as usize,
            operands[1].layout.len() * operands[1].dtype.bytes() as usize,
            if is_part { result.layout.len() * result.dtype.bytes() as usize } else { 0 },
        ];
        let Some(Tensors { layouts: [lhs, rhs, out], .. }) = tensors.moved(bytes) else { return };
        for (operand, layout) in operands.iter_mut().zip([lhs, rhs]) {
            if operand.layout != layout {
                let to = self.allocate(operand.dtype, layout);
                self.copy_to(operand.clone(), to.clone(), self.section(id), id, node.origin.clone());
                *operand = to;
            }
        }
        if result.layout != out {
            *result = self.allocate(result.dtype, out);
        }
    }
}

impl Tensors<'_> {
    /// Returns whether the backend multiplies the tensors in their present layouts.
    fn are_multiplied(&self) -> bool {
        self.backend.multiplies(&ContractionPlan::of(self.contract, self.layouts.clone()))
    }

    /// Returns the tensors in layouts that the backend multiplies, with as few copied bytes as possible. `None` if no copy pays. `bytes`
    /// has the bytes of each tensor's copy.
    fn moved(&self, bytes: [usize; 3]) -> Option<Self> {
        let copied = |moved: &Moved| -> usize {
            (0..3).filter(|&tensor| moved[tensor]).map(|tensor| bytes[tensor]).fold(0, usize::saturating_add)
        };
        let flops = self.flops();
        let pays =
            |moved: &Moved| flops >= LEAST_FLOPS && flops >= copied(moved).saturating_mul(FLOPS_PER_BYTE);
        let mut all: Vec<Moved> =
            (1..8).map(|bits| [bits & 1, bits & 2, bits & 4].map(|bit| bit != 0)).collect();
        all.sort_by_key(|moved| (copied(moved), moved.iter().filter(|&&moved| moved).count()));
        let mut paying = all.into_iter().filter(pays);
        paying.find_map(|moved| Some(self.with(moved)).filter(Self::are_multiplied))
    }

    /// Returns the tensors with some of them moved. A moved tensor has no gaps, and its matrices follow one another.
    fn with(&self, moved: Moved) -> Self {
        let Self { contract, layouts: [lhs, rhs, out], backend } = self;
        let roles = contract.roles();
        let out = if moved[2] {
            in_order(&contract.out, out, [&roles.batch, &roles.rows, &roles.columns])
        } else {
            out.clone()
        };
        let [batch, rows, columns] =
            [&roles.batch, &roles.rows, &roles.columns].map(|role| by_distance(role, &contract.out, &out));
        let summed = if moved[0] {
            by_distance(&roles.summed, &contract.rhs, rhs)
        } else {
            by_distance(&roles.summed, &contract.lhs, lhs)
        };
        let lhs = if moved[0] { in_order(&contract.lhs, lhs, [&batch, &rows, &summed]) } else { lhs.clone() };
        let rhs =
            if moved[1] { in_order(&contract.rhs, rhs, [&batch, &summed, &columns]) } else { rhs.clone() };
        Self { contract, layouts: [lhs, rhs, out], backend: *backend }
    }

    /// Returns the number of operations of the contraction.
    fn flops(&self) -> usize {
        let Self { contract, layouts: [lhs, _, out], .. } = self;
        let size = |label: &u8| lhs.sizes[position(&contract.lhs, *label)];
        contract.roles().summed.iter().map(size).fold(out.len().saturating_mul(2), usize::saturating_mul)
    }
}

/// Returns the dim of a label.
fn position(labels: &Labels, label: u8) -> usize {
    labels.0.iter().position(|&own| own == label).expect("a role's labels stand in its tensors")
}

/// Returns labels by falling stride in a tensor.
fn by_distance(role: &[u8], labels: &Labels, layout: &Layout) -> Vec<u8> {
    let mut role = role.to_vec();
    role.sort_by_key(|&label| std::cmp::Reverse(layout.strides[position(labels, label)]));
    role
}

/// Returns the layout of a tensor of these sizes without gaps, with the dims of three roles one after the other.
fn in_order(labels: &Labels, layout: &Layout, roles: [&[u8]; 3]) -> Layout {
    let order: Sizes = roles.concat().into_iter().map(|label| position(labels, label)).collect();
    Layout::in_order(&layout.sizes, &order)
}
