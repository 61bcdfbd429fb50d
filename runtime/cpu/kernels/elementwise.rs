//! Chains of elementwise operators, block by block. Operands whose layout differs from the results' are first loaded into registers (blocks
//! that stay in the first-level cache). Every step writes a register; a step whose result the chain returns also stores it.
//!
//! Registers hold f16 and bf16 as f32. The result of a step of such a type is rounded to it, as if it had been stored. So fusion changes no
//! number.

mod steps;

use super::PARALLEL;
use super::copy::memory_order;
use crate::call::{Call, rebased};
use crate::element::with_width;
use crate::storage::{computed, is_half, narrow_half, widen_half};
use crate::walk::{Shape, Walk};
use ir::ops::elementwise::Binary;
use ir::{DType, Op};
use program::{Chain, ChainSource};
use rayon::prelude::*;
use smallvec::SmallVec;

/// The number of elements of a block.
const BLOCK: usize = 1024;

/// An operand in the form that blocks read.
struct Operand<'a> {
    dtype: DType,
    bytes: &'a [u8],
    read: Read,
}

enum Read {
    /// The operand has the layout of the results.
    Direct,
    /// The operand is one element for all.
    One,
    /// The operand has the layout of the results, and is converted to f32 into a register.
    Widened,
    /// The operand is loaded into a register.
    Walk(Walk),
    /// The operand lies in the place of the result with this index until the result is written.
    Held(usize),
}

/// The results from one element on.
type ResultSlices<'a> = SmallVec<[&'a mut [u8]; 4]>;

/// Runs a chain.
pub(super) fn run(chain: &Chain, mut call: Call) {
    let layout = &call.result_view(0).layout;
    let (order, len) = (memory_order(layout), layout.len());
    let operands: Vec<Operand> =
        (0..call.operands.len()).map(|index| operand(&call, index, &order)).collect();
    if is_times_one(chain, &operands) {
        return;
    }
    let widths: Vec<usize> =
        call.instruction.results.iter().map(|view| view.dtype.bytes() as usize).collect();
    let results = std::mem::take(&mut call.results);
    if len * chain.steps.len() < PARALLEL {
        return run_part(chain, &operands, &widths, 0, results);
    }
    // The division of the elements does not affect the results.
    let tasks = rayon::current_num_threads() * 4;
    let size = len.div_ceil(tasks).next_multiple_of(BLOCK);
    let mut parts: Vec<ResultSlices> = (0..len.div_ceil(size)).map(|_| ResultSlices::new()).collect();
    for (result, width) in results.into_iter().zip(&widths) {
        result.chunks_mut(size * width).zip(&mut parts).for_each(|(chunk, part)| part.push(chunk));
    }
    parts
        .into_par_iter()
        .enumerate()
        .for_each(|(i, part)| run_part(chain, &operands, &widths, i * size, part));
}

/// Returns whether the chain only multiplies the old contents of its result by 1. Gradients are scaled by such a factor, which is 1 if no
/// sample was left out.
fn is_times_one(chain: &Chain, operands: &[Operand]) -> bool {
    let [step] = &chain.steps[..] else { return false };
    let read = |source: &ChainSource| match *source {
        ChainSource::Operand(index) => Some(&operands[index as usize]),
        ChainSource::Step(_) => None,
    };
    let [Some(held), Some(one)] = [0, 1].map(|index| step.sources.get(index).and_then(read)) else {
        return false;
    };
    let is_one = || match one.dtype {
        DType::F32 => bytemuck::cast_slice::<u8, f32>(one.bytes)[0] == 1.0,
        DType::F64 => bytemuck::cast_slice::<u8, f64>(one.bytes)[0] == 1.0,
        _ => false,
    };
    matches!(step.op, Op::Binary(Binary::Mul))
        && matches!((&held.read, &one.read), (Read::Held(_), Read::One))
        && is_one()
}

fn operand<'a>(call: &Call<'a>, index: usize, order: &[usize]) -> Operand<'a> {
    let view = call.operand_view(index);
    let dtype = view.dtype;
    let Some(bytes) = call.operands[index] else {
        let pair = call.instruction.in_place.iter().find(|(operand, _)| *operand == index as u32);
        let (_, result) = pair.expect("an operand without a slice is the place of a result");
        return Operand { dtype, bytes: &[], read: Read::Held(*result as usize) };
    };
    let walk = Walk::new(&rebased(&view.layout), order);
    let read = match walk.shape() {
        Shape::One => Read::One,
        Shape::Contiguous if is_half(dtype) => Read::Widened,
        Shape::Contiguous => Read::Direct,
        Shape::Strided => Read::Walk(walk),
    };
    Operand { dtype, bytes, read }
}

/// Memory for a block of any type that steps compute in, aligned for all of them.
type Register = Vec<u64>;

/// A task: the registers of one thread.
struct Task<'a> {
    chain: &'a Chain,
    operands: &'a [Operand<'a>],
    /// The bytes of an element of each result.
    widths: &'a [usize],
    /// A register for each operand, which is unused if the operand is read in place.
    loaded: Vec<Register>,
    /// A register for the result of each step.
    made: Vec<Register>,
    /// Memory for a block of a half type: a gathered operand, or a rounded result that is not stored.
    packed: Vec<u16>,
}

/// The place of a block: its first element among all, its first element in the task's part of the results, and its length.
#[derive(Clone, Copy)]
struct Block {
    index: usize,
    at: usize,
    count: usize,
}

fn run_part(chain: &Chain, operands: &[Operand], widths: &[usize], start: usize, mut part: ResultSlices) {
    let len = part[0].len() / widths[0];
    let mut task = Task::new(chain, operands, widths, BLOCK.min(len));
    for at in (0..len).step_by(BLOCK) {
        let block = Block { index: start + at, at, count: BLOCK.min(len - at) };
        task.load(block, &part);
        (0..chain.steps.len()).for_each(|step| task.step(step, block, &mut part));
    }
}

impl<'a> Task<'a> {
    fn new(chain: &'a Chain, operands: &'a [Operand], widths: &'a [usize], block: usize) -> Self {
        let register = |dtype: DType| vec![0u64; (block * computed(dtype).bytes() as usize).div_ceil(8)];
        let loaded = operands.iter().map(|operand| match operand.read {
            Read::Direct => vec![],
            Read::Walk(_) | Read::Held(_) | Read::Widened => register(operand.dtype),
            Read::One => filled(operand, register(operand.dtype)),
        });
        let made = chain.steps.iter().map(|step| register(step.dtype)).collect();
        Self { chain, operands, widths, loaded: loaded.collect(), made, packed: vec![0; block] }
    }

    /// Loads the operands of a block into their registers, all before any result is written.
    fn load(&mut self, block: Block, part: &ResultSlices) {
        for (operand, register) in self.operands.iter().zip(&mut self.loaded) {
            match &operand.read {
                Read::Direct | Read::One => {}
                Read::Widened => {
                    let whole = Block { at: block.index, ..block };
                    fill(operand.dtype, bytes_of(operand.bytes, whole, 2), register);
                }
                Read::Held(result) => {
                    let held = bytes_of(part[*result], block, self.widths[*result]);
                    fill(operand.dtype, held, register);
                }
                Read::Walk(walk) if is_half(operand.dtype) => {
                    let packed = &mut self.packed[..block.count];
                    walk.load(bytemuck::cast_slice(operand.bytes), block.index, packed);
                    fill(operand.dtype, bytemuck::cast_slice(packed), register);
                }
                Read::Walk(walk) => with_width!(operand.dtype.bytes(), T => {
                    let elements = bytemuck::cast_slice::<u8, T>(operand.bytes);
                    let register = bytemuck::cast_slice_mut::<u64, T>(register);
                    walk.load(elements, block.index, &mut register[..block.count]);
                }),
            }
        }
    }

    /// Runs a step on a block, and stores its result if the chain returns it.
    fn step(&mut self, index: usize, block: Block, part: &mut ResultSlices) {
        let Self { chain, operands, widths, loaded, made, packed } = self;
        let step = &chain.steps[index];
        let (earlier, rest) = made.split_at_mut(index);
        let source = |source: &ChainSource| match *source {
            ChainSource::Step(step) => {
                let dtype = computed(chain.steps[step as usize].dtype);
                (dtype, first_bytes(&earlier[step as usize], block.count, dtype))
            }
            ChainSource::Operand(operand) => {
                let Operand { dtype, bytes, read } = &operands[operand as usize];
                match read {
                    Read::Direct => {
                        let whole = Block { at: block.index, ..block };
                        (*dtype, bytes_of(bytes, whole, dtype.bytes() as usize))
                    }
                    _ => {
                        let dtype = computed(*dtype);
                        (dtype, first_bytes(&loaded[operand as usize], block.count, dtype))
                    }
                }
            }
        };
        let sources: SmallVec<[(DType, &[u8]); 3]> = step.sources.iter().map(source).collect();
        let store = chain.stores.iter().position(|&stored| stored == index as u32);
        let stored = store.map(|store| {
            let bytes = block.at * widths[store]..(block.at + block.count) * widths[store];
            &mut part[store][bytes]
        });
        let (half, last) = (is_half(step.dtype), index + 1 == chain.steps.len());
        let width = computed(step.dtype).bytes() as usize;
        let own = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut rest[0])[..block.count * width];
        match stored {
            // Only the stored result reads the last step.
            Some(stored) if last && !half => steps::apply(step, &sources, stored),
            stored => {
                steps::apply(step, &sources, own);
                if half {
                    let packed = bytemuck::cast_slice_mut(&mut packed[..block.count]);
                    round(step.dtype, own, stored.unwrap_or(packed), last);
                } else if let Some(stored) = stored {
                    stored.copy_from_slice(own);
                }
            }
        }
    }
}

/// Rounds the result of a step to its type and stores it. Loads it again unless this is the last step.
fn round(dtype: DType, own: &mut [u8], stored: &mut [u8], last: bool) {
    narrow_half(dtype, bytemuck::cast_slice(own), stored);
    if !last {
        widen_half(dtype, stored, bytemuck::cast_slice_mut(own));
    }
}

/// Returns a register filled with an operand's only element.
fn filled(operand: &Operand, mut register: Register) -> Register {
    with_width!(operand.dtype.bytes(), T => {
        let element = bytemuck::cast_slice::<u8, T>(operand.bytes)[0];
        if is_half(operand.dtype) {
            let mut one = [0.0];
            widen_half(operand.dtype, bytemuck::bytes_of(&element), &mut one);
            bytemuck::cast_slice_mut::<u64, f32>(&mut register).fill(one[0]);
        } else {
            bytemuck::cast_slice_mut::<u64, T>(&mut register).fill(element);
        }
    });
    register
}

/// Loads a block of an operand into its register.
fn fill(dtype: DType, from: &[u8], register: &mut Register) {
    if is_half(dtype) {
        widen_half(dtype, from, bytemuck::cast_slice_mut(register));
    } else {
        bytemuck::cast_slice_mut::<u64, u8>(register)[..from.len()].copy_from_slice(from);
    }
}

fn bytes_of(bytes: &[u8], block: Block, width: usize) -> &[u8] {
    &bytes[block.at * width..(block.at + block.count) * width]
}

fn first_bytes(register: &Register, count: usize, dtype: DType) -> &[u8] {
    &bytemuck::cast_slice::<u64, u8>(register)[..count * dtype.bytes() as usize]
}
