//! Counts the bytes and operations of an instruction from the places and layouts of its tensors.
//!
//! The count assumes that caches hold the bytes that one kernel reads twice, and nothing from one kernel to the next.

use crate::{Chain, Instruction, Kernel, View};
use ir::machine::Unit;
use ir::{DType, Op, Operator, Signature, Type};

/// The bytes and operations of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes read from memory.
    pub read: u64,
    /// Bytes written to memory.
    pub written: u64,
    /// Floating-point operations, including repeated ones; a multiply-add is two.
    pub flops: u64,
    /// The unit that performs them.
    pub unit: Unit,
}

impl Work {
    /// Returns the bytes read and written together.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }

    /// Counts the part of an instruction that touches some of its tensors. `adds` tells whether results are added to their old contents.
    pub fn of_part(
        instruction: &Instruction,
        touches: impl Fn(&View) -> bool,
        unit: Unit,
        adds: bool,
    ) -> Self {
        let Instruction { operands, results, scratch, .. } = instruction;
        let touched = |view: &&View| touches(view);
        let mut read: u64 = (operands.iter().enumerate())
            .filter(|(index, view)| touches(view) && !operands[..*index].contains(view))
            .map(|(index, view)| of_operand(instruction, index, view))
            .sum();
        let limit = limit_of_result(instruction, &touches);
        let made: u64 = results.iter().filter(touched).map(|view| bytes(view).min(limit)).sum();
        let mut written = made;
        if instruction.accumulates && adds {
            read += made;
        }
        if let Some(scratch) = scratch.as_ref().filter(touched) {
            // The last part reads the scratch that the parts before it have written.
            let left = if made > 0 { &mut read } else { &mut written };
            *left += bytes(scratch);
        }
        Self { read, written, flops: flops(instruction, touches), unit }
    }

    /// Counts a whole instruction, with the unit of its operator.
    pub fn of(instruction: &Instruction, adds: bool) -> Self {
        let dtype = instruction.operands.first().map_or(DType::F32, |view| view.dtype);
        let unit = match &instruction.kernel {
            Kernel::Op(op) => Unit::of(op, dtype),
            Kernel::Contract(_) => Unit::Matrices(dtype),
            Kernel::Elementwise(_)
            | Kernel::Copy
            | Kernel::Accumulate
            | Kernel::Part(_)
            | Kernel::Collective(_)
            | Kernel::Message(_) => Unit::Elements(dtype),
        };
        Self::of_part(instruction, |_| true, unit, adds)
    }
}

/// Returns the bytes of a tensor's elements. An element that a stride of 0 repeats counts once, and gaps between rows do not count.
pub fn bytes(view: &View) -> u64 {
    let span = view.bytes();
    (span.end - span.start).min(elements(view) * view.dtype.bytes())
}

/// The number of elements of a view, repeated ones included.
pub fn elements(view: &View) -> u64 {
    view.layout.len() as u64
}

/// Returns the sizes of an instruction's largest tensor.
pub fn largest_sizes(instruction: &Instruction) -> Vec<usize> {
    let all = instruction.operands.iter().chain(&instruction.results);
    all.max_by_key(|view| view.layout.len()).map(|view| view.layout.sizes.to_vec()).unwrap_or_default()
}

/// Returns the bytes that are read of an operand. Only the read elements count if a table is read at indices or a tensor is cut.
fn of_operand(instruction: &Instruction, index: usize, view: &View) -> u64 {
    match (&instruction.kernel, index) {
        (Kernel::Op(Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_)) | Kernel::Part(_), 0) => {
            bytes(view).min(bytes(&instruction.results[0]))
        }
        _ => bytes(view),
    }
}

/// Returns the largest number of bytes that a part writes of a result. If a result is written at indices, this is the size of the updates,
/// unless the part fills the whole result first.
fn limit_of_result(instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let operands = &instruction.operands;
    let Kernel::Op(op) = &instruction.kernel else { return u64::MAX };
    let (updates, fills) = match op {
        Op::GatherGrad(_) | Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => {
            let others = operands.iter().chain(&instruction.scratch);
            (&operands[1], !{ others }.any(&touches))
        }
        Op::ScatterElements(_) | Op::ScatterNd(_) => (&operands[2], touches(&operands[0])),
        _ => return u64::MAX,
    };
    if fills { u64::MAX } else { bytes(updates) }
}

/// Returns the operations of a part of an instruction. They belong to the part that reads the largest operand.
fn flops(instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let largest = instruction.operands.iter().max_by_key(|view| elements(view));
    let is_it = largest.is_some_and(&touches);
    match &instruction.kernel {
        Kernel::Op(Op::AttentionGrad(op)) => attention_gradient(op.causal, instruction, touches),
        Kernel::Op(op) if is_it => op.cost(&signature(&instruction.operands, &instruction.results)).flops,
        Kernel::Elementwise(chain) => chained(chain, &instruction.results[0]),
        Kernel::Accumulate => elements(&instruction.results[0]),
        Kernel::Op(_) | Kernel::Contract(_) | Kernel::Copy | Kernel::Part(_) => 0,
        Kernel::Collective(_) | Kernel::Message(_) => 0,
    }
}

/// Returns the operations of an attention gradient's part. Each part that makes a result multiplies queries and keys for the scores, and d
/// out and values for their gradients; then each result takes one more product. (Together 5 products; in two parts 7.)
fn attention_gradient(causal: bool, instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let [q, k, v] = [0, 1, 2].map(|operand| &instruction.operands[operand].layout.sizes);
    let pairs = (q[0] * q[1] * q[2] * k[2]) as u64;
    let (width, value_width) = (q[3] as u64, v[3] as u64);
    let made = instruction.results.iter().zip([width, width, value_width]);
    let own: u64 = made.filter(|(view, _)| touches(view)).map(|(_, width)| width).sum();
    let flops = if own > 0 { 2 * pairs * (own + width + value_width) } else { 0 };
    if causal { flops / 2 } else { flops }
}

/// Returns the operations of a chain whose results have the same number of elements as `result`.
fn chained(chain: &Chain, result: &View) -> u64 {
    let of = |op: &Op, sources: usize, dtype: DType| {
        let view = View { dtype, ..result.clone() };
        op.cost(&signature(&vec![view.clone(); sources], &[view])).flops
    };
    chain.steps.iter().map(|step| of(&step.op, step.sources.len(), step.dtype)).sum()
}

fn signature(operands: &[View], results: &[View]) -> Signature {
    let ty = |view: &View| {
        let sizes: Vec<u64> = view.layout.sizes.iter().map(|&size| size as u64).collect();
        Type::of(view.dtype, &sizes)
    };
    let types = |views: &[View]| views.iter().map(ty).collect();
    Signature { operands: types(operands), results: types(results) }
}
