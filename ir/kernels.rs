//! Facts about the kernels of a target, for passes that do not know the target.

use crate::{DType, Op};
use std::fmt;

/// The properties of a target's kernels that decide how a program is best written for them. The target's backend implements this
/// trait; the driver passes it to the passes.
pub trait Kernels: fmt::Debug + Sync {
    /// The name of the target, as `opt --kernels` takes it.
    fn target(&self) -> &'static str;

    /// Whether the kernel of an operator that computes in f32 can also read this operand as f16 or bf16.
    fn reads_half(&self, op: &Op, operand: usize) -> bool;

    /// Whether the kernel of an operator can write this result as `to`, although the operator's type is `made`.
    fn writes_as(&self, op: &Op, result: usize, made: DType, to: DType) -> bool;

    /// Whether the kernels of an operator write results with any strides, so that a concatenation of such results takes no
    /// copy.
    fn writes_anywhere(&self, op: &Op) -> bool;
}
