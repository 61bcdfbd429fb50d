//! Dropout's kernel keeps what the interpreter keeps, element by element, by any number of threads.

use crate::compare::{Microbatch, device, step_on};
use ir::interp::{self, Mode, StateValues};
use ir::ops::Float;
use ir::ops::dropout::Dropout;
use ir::{Builder, DType, Module, Tensor, Type};
use program::lower::{LowerOptions, lower};

/// Dropout of a tensor of these sizes with the samples in a dim.
fn program(dtype: DType, sizes: &[u64], samples: u64, op: Dropout) -> Module {
    let mut module = Module::new("dropout");
    let x = module.add_input("x", Type::of(dtype, sizes), false);
    let numbers = module.add_input("numbers", Type::of(DType::I64, &[samples]), false);
    let mut b = Builder::new(&mut module, "test");
    let dropped = b.one(op, &[x, numbers]).expect("the samples divide the dim");
    b.finish();
    module.add_output("dropped", dropped);
    module
}

fn inputs(module: &Module) -> Microbatch {
    let input = |input: &ir::Input| {
        let ty = module.ty(input.value);
        let sizes: Vec<usize> = ty.sizes().expect("bound").iter().map(|&size| size as usize).collect();
        let count = sizes.iter().product::<usize>();
        let tensor = match ty.dtype {
            DType::I64 => Tensor::int(ty.dtype, sizes, (0..count as i64).map(|i| (i << 33) - 1).collect()),
            dtype => {
                let numbers = (0..count as u64).map(|i| ir::random::normal(1, 2, i)).collect();
                Tensor::float(dtype, sizes, numbers).rounded()
            }
        };
        (input.name.clone(), tensor)
    };
    module.inputs.iter().map(input).collect()
}

#[test]
fn chunks_groups_and_rows_of_any_length_keep_the_same_elements() {
    let op = |ratio, dim| Dropout { ratio: Float::new(ratio), id: 7, seed: 5, dim };
    for (sizes, samples, op) in [
        (&[3, 5, 1031][..], 3, op(0.1, 0)),
        (&[70_001], 1, op(0.5, 0)),
        (&[3, 4, 33, 67], 4, op(0.3, 1)),
        (&[12, 257], 4, op(0.25, 0)),
        (&[5, 6, 3], 6, op(0.5, 1)),
        (&[2, 9], 2, op(1.0, 0)),
        (&[2, 9], 2, op(1.0 - 1e-12, 0)),
    ] {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let module = program(dtype, sizes, samples, op.clone());
            let inputs = [inputs(&module)];
            let expected =
                interp::step(&module, Mode::Typed, &mut StateValues::new(), &inputs).expect("it runs");
            let expected = expected["dropped"][0].floats();
            for threads in [1, 3] {
                let program = lower(&module, &LowerOptions::of(cpu::TARGET)).expect("it lowers");
                let mut cpu = device(program, &StateValues::new(), threads);
                let given = step_on(&mut cpu, &module, &inputs);
                for (i, (given, expected)) in given["dropped"][0].floats().iter().zip(expected).enumerate() {
                    let what = format!("{dtype} {sizes:?}, {threads} threads: element {i}");
                    assert_eq!(*given == 0.0, *expected == 0.0, "{what}");
                    let unit = crate::compare::unit(dtype);
                    assert!(
                        (given - expected).abs() <= unit * expected.abs(),
                        "{what}: {given}, not {expected}"
                    );
                }
            }
        }
    }
}
