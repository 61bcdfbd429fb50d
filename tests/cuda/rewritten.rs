//! Programs after the rewrites of their target, on the stand-in of a GPU and by the interpreter.

use crate::models::done;
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::program::CudaProgram;
use ir::interp::Mode;
use ir::{DType, Module};
use program::check::{Microbatch, differences_of};
use program::device::Device;
use program::lower::LowerOptions;
use program::{Microbatches, Program};
use std::sync::Arc;
use trainyard::lowering::lower;

/// The program of a step of one microbatch, or of any number, on a GPU.
pub(crate) fn lowered(module: &Module, microbatches: Microbatches) -> Program {
    done(lower(module, &LowerOptions { microbatches, ..LowerOptions::of(cuda::TARGET) }))
}

/// The lowered program of a step, as commands and kernels.
pub(crate) fn for_cuda(module: &Module, microbatches: Microbatches) -> CudaProgram {
    done(cuda::lower::lower(Arc::new(lowered(module, microbatches))))
}

/// Runs steps on the stand-in and by the interpreter. Asserts that outputs and states agree within a tolerance for each element
/// type.
pub(crate) fn assert_agrees(
    module: &Module,
    order: Order,
    mode: Mode,
    steps: &[Vec<Microbatch>],
    tolerance: impl Fn(DType) -> f64,
) {
    let many = steps.iter().any(|step| step.len() > 1);
    let program = lowered(module, if many { Microbatches::Many } else { Microbatches::One });
    let make = |program| {
        let host = Host::new(order).checked();
        Ok(Box::new(Cuda::new(host, vec![Arc::new(program)])?) as Box<dyn Device>)
    };
    let found = differences_of(&make, mode, module, program, steps, tolerance);
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", lines.join("\n"));
}
