//! Every operator's kernel on the samples, laid out in several ways.

use crate::compare::{Microbatch, assert_agrees, assert_agrees_in, unit};
use cpu::Cpu;
use ir::interp::Mode;
use ir::ops::Float;
use ir::ops::batch_norm::{BatchNorm, BatchStatistics};
use ir::ops::elementwise::Binary;
use ir::ops::norm::LayerNorm;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::softmax::SoftmaxGrad;
use ir::samples::{Sample, Through, samples};
use ir::{Builder, DType, Dim, Module, Op, Tensor, Type};
use program::device::{ProgramId, step};
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

fn check(through: Through, options: &LowerOptions) {
    for sample in samples() {
        check_sample(&sample, through, options);
        for half in halves(&sample) {
            check_sample(&half, through, options);
        }
    }
}

/// A sample that has something in f32, in f16 and in bf16.
fn halves(sample: &Sample) -> Vec<Sample> {
    let takes =
        |half| sample.in_type(half).unwrap_or_else(|| panic!("`{}` takes no {half}", sample.op.name()));
    if sample.is_single() { [DType::F16, DType::BF16].map(takes).into() } else { vec![] }
}

fn check_sample(sample: &Sample, through: Through, options: &LowerOptions) {
    let (module, inputs) = sample.program(through);
    let values = module.nodes().flat_map(|(_, node)| node.operands.iter().chain(&node.results));
    let types: Vec<DType> = values.map(|&value| module.ty(value).dtype).collect();
    let half = types.iter().any(|dtype| matches!(dtype, DType::F16 | DType::BF16));
    let single = types.contains(&DType::F32);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let steps = [vec![inputs]];
        if half {
            assert_agrees_in(Mode::Typed, &module, options, &steps, unit)
        } else {
            assert_agrees(&module, options, &steps, if single { 4e-6 } else { 1e-11 })
        }
    }));
    if let Err(panic) = result {
        let types: Vec<String> = sample.operands.iter().map(|operand| operand.ty.to_string()).collect();
        println!("`{}` {:?} on {types:?}, {through:?}", sample.op.name(), sample.op);
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_kernel_agrees_with_the_interpreter() {
    check(Through::Inputs, &LowerOptions::of(cpu::TARGET));
}

#[test]
fn kernels_read_transposed_operands() {
    check(Through::Transposes, &LowerOptions::of(cpu::TARGET));
}

#[test]
fn kernels_take_the_place_of_dying_operands() {
    check(Through::Negations, &LowerOptions { unfused: true, ..LowerOptions::of(cpu::TARGET) });
    check(Through::Negations, &LowerOptions::of(cpu::TARGET));
}

#[test]
fn contractions_of_bf16_agree_on_every_target_of_the_processor() {
    let contractions: Vec<_> =
        samples().into_iter().filter(|sample| matches!(sample.op, Op::Contract(_))).collect();
    for (target, sample) in
        [cpu::AMX, cpu::AVX512].into_iter().flat_map(|to| contractions.iter().map(move |of| (to, of)))
    {
        let Some(sample) = sample.in_type(DType::BF16) else { continue };
        for through in [Through::Inputs, Through::Transposes, Through::Negations] {
            check_sample(&sample, through, &LowerOptions::of(target));
        }
    }
}

#[test]
fn a_contraction_of_any_order_of_labels_agrees() {
    use ir::ops::contract::Contract;
    let sizes = |label: u8| [2, 3, 4, 5, 2, 3][(label - b'a') as usize];
    for text in [
        "abc,cd->abd",
        "bac,dc->dab",
        "acb,cdb->ad",
        "abcd,abed->abce",
        "abcd,aebd->acbe",
        "abef,abef->ab",
        "ab,ab->",
        "a,b->ba",
        "abc,->cab",
        "bdac,ecdf->fbea",
    ] {
        let contract = Contract::new(text);
        let mut module = Module::new("contract");
        let mut inputs = Microbatch::new();
        let mut add = |name: &str, labels: &ir::ops::Labels| {
            let ty = Type::new(DType::F64, labels.0.iter().map(|&l| Dim::known(sizes(l))));
            let sizes: Vec<usize> =
                ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
            let elements = (0..sizes.iter().product())
                .map(|i: usize| ir::random::normal(3, name.len() as u64, i as u64))
                .collect();
            inputs.insert(name.into(), Tensor::float(DType::F64, sizes, elements));
            module.add_input(name, ty, false)
        };
        let operands = [add("lhs", &contract.lhs), add("other", &contract.rhs)];
        let mut b = Builder::new(&mut module, "test");
        let out = b.one(contract, &operands).expect(text);
        b.finish();
        module.add_output("out", out);
        assert_agrees(&module, &LowerOptions::of(cpu::TARGET), &[vec![inputs]], 1e-13);
    }
}

/// Rows of NaN are those of which everything was masked.
#[test]
fn a_softmax_of_which_nothing_is_read_has_the_gradient_zero() {
    let nan = f64::NAN;
    let y = [nan, nan, nan, nan, nan, nan, 0.25, 0.5, 0.25];
    let dy = [0.0, 0.0, -0.0, 0.0, 2.0, 0.0, 1.0, 2.0, 4.0];
    for through in [Through::Inputs, Through::Transposes, Through::Negations] {
        let (mut module, mut inputs) = (Module::new("masked"), Microbatch::new());
        let values = [("y", y), ("dy", dy)].map(|(name, elements)| {
            let tensor = Tensor::float(DType::F32, vec![3, 3], elements.to_vec());
            let tensor = through.input(tensor);
            let value = module.add_input(name, tensor.ty(), false);
            inputs.insert(name.into(), tensor);
            value
        });
        let mut b = Builder::new(&mut module, "test");
        let operands = values.map(|value| through.operand(&mut b, value));
        let dx = b.one(SoftmaxGrad { dim: 1 }, &operands).expect("well-typed");
        b.finish();
        module.add_output("dx", dx);
        let steps = [vec![inputs]];
        let outputs = ir::interp::step(&module, Mode::Exact, &mut Default::default(), &steps[0]);
        let dx = &outputs.expect("it runs")["dx"][0];
        assert_eq!(dx.floats()[..3], [0.0; 3]);
        assert!(dx.floats()[3..6].iter().all(|x| x.is_nan()), "{dx:?}");
        for unfused in [false, true] {
            assert_agrees(&module, &LowerOptions { unfused, ..LowerOptions::of(cpu::TARGET) }, &steps, 1e-7);
        }
    }
}

/// The mean of equal numbers is not rounded: a normalized constant lies on the bias, and with a bias of zero on the bend of a ReLU. So does
/// a norm of several operators.
#[test]
fn equal_numbers_are_normalized_to_the_bias() {
    let eps = Float::new(1e-5);
    for sizes in [[7, 2, 3], [3, 2, 49], [5, 2, 1000]] {
        let [samples, channels, plane] = sizes;
        let mut module = Module::new("equal");
        let mut b = Builder::new(&mut module, "test");
        let mut equal = |sizes: &[u64], x| b.splat(Type::of(DType::F32, sizes), x).expect("a number");
        let (x, ones, zeros) = (equal(&sizes, 0.1), equal(&[channels], 1.0), equal(&[channels], 0.0));
        let of_row = [1.0, 0.0].map(|x| equal(&[plane], x));
        let found = b.push(BatchStatistics, &[x]).expect("well-typed");
        let operands = [x, found[0], found[1], ones, zeros];
        let of_channels = b.one(BatchNorm { eps }, &operands).expect("well-typed");
        let of_rows = b.push(LayerNorm { eps }, &[x, of_row[0], of_row[1]]).expect("well-typed")[0];
        let mean = Reduce { kind: ReduceKind::Mean, dims: [0, 2].into_iter().collect(), keep: true };
        let mean = b.one(mean, &[x]).expect("well-typed");
        let centred = b.one(Binary::Sub, &[x, mean]).expect("well-typed");
        b.finish();
        module.add_output("centred", centred);
        module.add_output("of channels", of_channels);
        module.add_output("of rows", of_rows);
        let cpu = Cpu::new(vec![Arc::new(lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap())], Some(2));
        let outputs = step(&mut cpu.unwrap(), ProgramId(0), &[vec![]]).unwrap();
        let count = (samples * channels * plane) as usize;
        for (name, output) in outputs {
            let numbers: &[f32] = bytemuck::cast_slice(&output[0]);
            assert_eq!(numbers, vec![0.0; count], "{name} of {sizes:?}");
        }
    }
}
