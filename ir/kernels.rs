//! Facts about the kernels of a target, which passes ask without knowing the target.

use crate::{DType, Op};
use std::fmt;

/// The kernels of a target, as far as they decide how a program for it is best written. The backend of the target implements
/// this trait; the driver gives it to the passes.
pub trait Kernels: fmt::Debug + Sync {
    /// The name of the target, as `opt --kernels` takes it.
    fn target(&self) -> &'static str;

    /// Whether the kernel of an operator that computes in f32 reads this operand as f16 or bf16 as well.
    fn reads_half(&self, op: &Op, operand: usize) -> bool;

    /// Whether the kernel of an operator writes this result as `to`, although the operator makes `made`.
    fn writes_as(&self, op: &Op, result: usize, made: DType, to: DType) -> bool;

    /// Whether the kernels of an operator write results with any strides, so that a concatenation of such results takes no
    /// copy.
    fn writes_anywhere(&self, op: &Op) -> bool;
}
