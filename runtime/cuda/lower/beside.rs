//! Instructions that do not compute on the GPU: instructions of the host, copies from and to its memory, and copies between the host
//! and a file.

use super::Step;
use crate::program::{MemoryCopy, ValueStart};
use ir::{Diagnostic, Op};
use program::{Instruction, Kernel, Region, View};

/// Returns the step of an instruction that touches memory of the host, or a file. `None` if it touches only the device.
///
/// # Errors
/// An instruction that computes with tensors of both memories, which the verifier excludes; a copy between a file and anything but
/// the host.
pub(super) fn step(instruction: &Instruction) -> Result<Option<Step>, Diagnostic> {
    if instruction.is_on_host() {
        return Ok(Some(Step::Host));
    }
    let mut touched = instruction.operands.iter().chain(&instruction.results);
    if !touched.any(|view| view.region.is_beside_device()) {
        return Ok(None);
    }
    let (Kernel::Op(Op::Copy(_)), [from], [to]) =
        (&instruction.kernel, &instruction.operands[..], &instruction.results[..])
    else {
        return Err(broken(instruction, "computes with tensors of several memories"));
    };
    if [from, to].iter().any(|view| view.region == Region::Disk) {
        let is_with_host = from.region.is_on_host() || to.region.is_on_host();
        let error = Diagnostic::new("a GPU copies values between a file and the host alone");
        let error = error.note("copy the value to the host first, as the pass `offload` does");
        return if is_with_host { Ok(Some(Step::Disk)) } else { Err(error) };
    }
    let is_whole = |view: &View| view.layout.is_dense() && view.by_rank.is_empty();
    if !is_whole(from) || !is_whole(to) {
        return Err(broken(instruction, "copies bytes that do not follow each other"));
    }
    let bytes = to.layout.len() as u64 * to.dtype.bytes();
    Ok(Some(Step::Copy(MemoryCopy { from: ValueStart::of(from), to: ValueStart::of(to), bytes })))
}

fn broken(instruction: &Instruction, problem: &str) -> Diagnostic {
    Diagnostic::new(format!("`{}` {problem}", instruction.name())).note("this is a bug")
}
