//! The bytes and operations of an instruction, from the places and layouts of its tensors.
//!
//! Memory is counted as if caches held the bytes that a kernel reads twice, and nothing from one kernel to the next.

use crate::program::{Chain, Instruction, Kernel, View};
use ir::machine::Unit;
use ir::{DType, Op, Operator, Signature, Type};

/// The bytes and operations of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes read from memory.
    pub read: u64,
    /// Bytes written to memory.
    pub written: u64,
    /// Floating-point operations, repeated ones included; a multiply-add is two.
    pub flops: u64,
    /// The unit that does them.
    pub unit: Unit,
}

impl Work {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }

    /// The part of an instruction that touches some of its tensors. `adds` tells whether accumulators are added to.
    pub(crate) fn of_part(
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
            // The last part reads the bytes that the parts before it have left there.
            let left = if made > 0 { &mut read } else { &mut written };
            *left += bytes(scratch);
        }
        Self { read, written, flops: flops(instruction, touches), unit }
    }

    /// A whole instruction, at the unit of its operator.
    pub(crate) fn of(instruction: &Instruction, adds: bool) -> Self {
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

/// The bytes of a tensor's elements. An element that a stride of 0 repeats counts once, and gaps between rows do not count.
pub(crate) fn bytes(view: &View) -> u64 {
    let span = view.bytes();
    (span.end - span.start).min(elements(view) * view.dtype.bytes())
}

pub(crate) fn elements(view: &View) -> u64 {
    view.layout.len() as u64
}

/// The sizes of an instruction's largest tensor.
pub(crate) fn largest_sizes(instruction: &Instruction) -> Vec<usize> {
    let all = instruction.operands.iter().chain(&instruction.results);
    all.max_by_key(|view| view.layout.len()).map(|view| view.layout.sizes.to_vec()).unwrap_or_default()
}

/// Of a table that is read at indices, or a tensor that is cut, as much as is read.
fn of_operand(instruction: &Instruction, index: usize, view: &View) -> u64 {
    match (&instruction.kernel, index) {
        (Kernel::Op(Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_)) | Kernel::Part(_), 0) => {
            bytes(view).min(bytes(&instruction.results[0]))
        }
        _ => bytes(view),
    }
}

/// The most that a part writes of a result: of one that is written at indices as much as the updates are, unless the part is
/// what fills it first.
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

/// The operations of a part of an instruction: they are done where its largest operand is read.
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

/// Queries and keys are multiplied for the scores, d out and values for their gradients, by each part that makes a result;
/// then each result takes a product of its own. (Together 5 products; in two parts 7.)
fn attention_gradient(causal: bool, instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let [q, k, v] = [0, 1, 2].map(|operand| &instruction.operands[operand].layout.sizes);
    let pairs = (q[0] * q[1] * q[2] * k[2]) as u64;
    let (width, value_width) = (q[3] as u64, v[3] as u64);
    let made = instruction.results.iter().zip([width, width, value_width]);
    let own: u64 = made.filter(|(view, _)| touches(view)).map(|(_, width)| width).sum();
    let flops = if own > 0 { 2 * pairs * (own + width + value_width) } else { 0 };
    if causal { flops / 2 } else { flops }
}

/// Of a chain whose results have the elements of this one.
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
