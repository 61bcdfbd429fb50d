//! Attention on tensor cores stays within its budget of registers and of shared memory for every kind of head and mask.

use super::budget::faults;
use super::operators::{ARCHITECTURES, nvrtc};
use cuda::program::Kernel;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::{Builder, DType, Module, Op, Type, ValueId};
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

/// Attention and its gradient for 8 heads of 1024 positions. `width` is that of queries and keys, `value_width` that of values.
fn module([width, value_width]: [u64; 2], mask: Option<DType>, causal: bool) -> Module {
    let mut module = Module::new("attention");
    let wide = |width| Type::of(DType::BF16, &[1, 8, 1024, width]);
    let mut types = vec![wide(width), wide(width), wide(value_width)];
    types.extend(mask.map(|dtype| Type::of(dtype, &[1, 1, 1024, 1024])));
    types.push(wide(value_width));
    let inputs = types.into_iter().enumerate().map(|(i, ty)| module.add_input(format!("{i}"), ty, false));
    let mut operands: Vec<ValueId> = inputs.collect();
    let dout = operands.pop().expect("the last is the gradient");
    let scale = 0.125.into();
    let results = push(&mut module, Attention { scale, causal }, &operands);
    operands.extend(results);
    operands.push(dout);
    push(&mut module, AttentionGrad { scale, causal }, &operands);
    module
}

/// An operator whose results are outputs.
fn push(module: &mut Module, op: impl Into<Op>, operands: &[ValueId]) -> Vec<ValueId> {
    let mut b = Builder::new(module, "test");
    let results = b.push_typed(op, operands, &[]).unwrap_or_else(|error| panic!("{error}"));
    b.finish();
    for &result in &results {
        let count = module.outputs.len();
        module.add_output(format!("{count}"), result);
    }
    results.to_vec()
}

fn kernels_of(module: &Module) -> Vec<Kernel> {
    let options = LowerOptions::of(cuda::TARGET);
    let program = lower(module, &options).unwrap_or_else(|error| panic!("{error}"));
    cuda::lower::lower(Arc::new(program)).unwrap_or_else(|error| panic!("{error}")).kernels
}

const WIDTHS: [[u64; 2]; 6] = [[32, 32], [64, 64], [80, 80], [96, 96], [128, 128], [64, 128]];

const MASKS: [(Option<DType>, bool); 4] =
    [(None, true), (None, false), (Some(DType::Bool), false), (Some(DType::F32), true)];

/// The kernels for every width and mask.
pub(super) fn kernels() -> Vec<Kernel> {
    let modules = WIDTHS.iter().flat_map(|widths| MASKS.map(|(mask, causal)| module(*widths, mask, causal)));
    modules.flat_map(|module| kernels_of(&module)).collect()
}

#[test]
#[ignore = "night: budgets"]
fn attention_of_every_width_and_mask_spills_nothing() {
    let kernels = kernels();
    let matrices = kernels.iter().filter(|kernel| kernel.name.contains("_mma_")).count();
    assert_eq!(matrices, 3 * MASKS.len() * WIDTHS.len());
    let faults = faults(&nvrtc(), &kernels, &ARCHITECTURES);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}
