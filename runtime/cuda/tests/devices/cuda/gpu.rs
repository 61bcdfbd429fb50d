//! A GPU itself: that it keeps what it is given, and computes what the interpreter does. On a machine with one:
//!
//! `cargo test -p cuda --test devices gpu -- --ignored`

use crate::compare::{Microbatch, assert_agrees_on, unit};
use crate::sums;
use cuda::check::OfNumber;
use cuda::check::samples::{self, SampleVariant};
use cuda::device::Cuda;
use cuda::driver::{Address, Driver};
use cuda::gpu::{Gpu, Options};
use ir::interp::Mode;
use ir::ops::Float;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::contract::Contract;
use ir::{Builder, DType, Dim, Module, Op, Tensor, Type};
use program::Program;
use program::device::Device;
use program::lower::LowerOptions;
use std::sync::Arc;

fn open() -> Gpu {
    Gpu::open(0, Options::default()).unwrap_or_else(|error| panic!("this test needs a GPU: {error}"))
}

fn gpu(program: Program) -> Box<dyn Device> {
    Box::new(Cuda::new(open(), vec![Arc::new(program)]).unwrap_or_else(|error| panic!("{error}")))
}

fn options() -> LowerOptions<'static> {
    LowerOptions::of(cuda::TARGET)
}

#[test]
#[ignore = "needs a GPU"]
fn memory_is_zero_and_keeps_what_is_written() {
    let mut gpu = open();
    let bytes: Vec<u8> = (0..13_000_003_usize).map(|i| (i * 7 % 251) as u8).collect();
    let at = gpu.allocate(bytes.len() as u64 + 512).expect("a few megabytes are free");
    assert_eq!(at.0 % 256, 0);
    let mut zeros = vec![1; bytes.len() + 512];
    gpu.read(at, &mut zeros).expect("it is there");
    assert!(zeros.iter().all(|&byte| byte == 0));
    for offset in [0, 256, 3] {
        let place = Address(at.0 + offset);
        gpu.write(place, &bytes).expect("it fits");
        let mut read = vec![0; bytes.len()];
        gpu.read(place, &mut read).expect("it is there");
        assert!(read == bytes, "at {offset}");
    }
    gpu.write(at, &[]).expect("nothing is nothing");
    gpu.finish().expect("nothing failed");
}

#[test]
#[ignore = "needs a GPU"]
fn more_memory_than_there_is_is_refused_and_then_less_is_given() {
    let mut gpu = open();
    let error = gpu.allocate(1 << 50).expect_err("nobody has a pebibyte").to_string();
    assert!(error.contains("1125899906842624 bytes on GPU 0") && error.contains("are free"), "{error}");
    gpu.allocate(0).expect("nothing fits");
    gpu.allocate(1).expect("a byte fits");
}

/// cuBLASLt among them, which adds a product to the sum of the microbatches before.
#[test]
#[ignore = "needs a GPU and cuDNN"]
fn a_kernel_adds_as_another_instruction_would() {
    sums::check_gpu(&gpu);
}

/// Nothing but cuBLASLt: sides transposed, in batches, one matrix for many.
#[test]
#[ignore = "needs a GPU"]
fn contractions_by_cublaslt_agree() {
    let sizes = |label: u8| [2, 24, 40, 56, 3, 5][(label - b'a') as usize];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let (mut module, mut inputs) = (Module::new("contractions"), Microbatch::new());
        let texts = ["bc,cd->bd", "cb,cd->bd", "bc,dc->bd", "cb,dc->bd", "bc,cd->db", "abc,acd->abd"];
        let batches =
            ["abc,cd->abd", "bac,adc->bad", "abc,adc->abd", "b,d->bd", "bc,c->b", "eabc,eacd->eabd"];
        for text in texts.into_iter().chain(batches) {
            let contract = Contract::new(text);
            let mut add = |side: &str, labels: &ir::ops::Labels| {
                let sizes: Vec<usize> = labels.0.iter().map(|&label| sizes(label)).collect();
                let ty = Type::new(dtype, sizes.iter().map(|&size| Dim::known(size as u64)));
                let number =
                    |i: usize| ir::random::normal(3, text.len() as u64 + side.len() as u64, i as u64);
                let elements = (0..sizes.iter().product()).map(|i: usize| number(i) / 4.0).collect();
                let name = format!("{text} {side}");
                inputs.insert(name.clone(), Tensor::float(dtype, sizes, elements).rounded());
                module.add_input(name, ty, false)
            };
            let operands = [add("lhs", &contract.lhs), add("rhs", &contract.rhs)];
            let mut b = Builder::new(&mut module, "test");
            let out = b.one(contract, &operands).expect(text);
            b.finish();
            module.add_output(text, out);
        }
        assert_agrees_on(&gpu, Mode::Typed, &module, &options(), &[vec![inputs]], unit);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn kernels_agree_with_the_interpreter_on_a_gpu() {
    let report = samples::check(&OfNumber::of_process(0), &samples::all(), &SampleVariant::ALL, false);
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    assert!(report.passed > 100, "{} passed", report.passed);
}

#[test]
#[ignore = "needs a GPU and cuDNN"]
fn convolutions_by_cudnn_agree_with_the_interpreter() {
    let convolves = |op: &Op| matches!(op, Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_));
    let convolutions: Vec<_> = samples::all().into_iter().filter(|sample| convolves(&sample.op)).collect();
    let report = samples::check(&OfNumber::of_process(0), &convolutions, &SampleVariant::ALL, true);
    assert!(report.failures.is_empty() && report.skipped == 0, "{:#?}", report.failures);
}

/// As a GPU lowers it, with all of it at cuDNN: two widths, heads that share keys, lengths that are no multiple of a tile.
#[test]
#[ignore = "needs a GPU and cuDNN"]
fn attention_by_cudnn_agrees_with_the_interpreter() {
    let make = |program: Program| -> Box<dyn Device> {
        let mut driver = open();
        let program = driver.lower(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(program.for_libraries().count(), 2, "attention and its gradient");
        Box::new(Cuda::with(driver, vec![program]).unwrap_or_else(|error| panic!("{error}")))
    };
    for (sizes, causal) in
        [([2, 4, 4, 128, 64], true), ([2, 6, 2, 77, 128], true), ([3, 4, 2, 200, 64], false)]
    {
        for dtype in [DType::F16, DType::BF16] {
            let (module, inputs) = attention(sizes, dtype, causal);
            assert_agrees_on(&make, Mode::Typed, &module, &options(), &[vec![inputs]], unit);
        }
    }
}

/// Attention of `[batch, heads, key-value heads, length, width]` and its gradient, with what they read.
fn attention(
    [batch, heads, groups, length, width]: [usize; 5],
    dtype: DType,
    causal: bool,
) -> (Module, Microbatch) {
    let (mut module, mut inputs) = (Module::new("attention"), Microbatch::new());
    let mut add = |name: &str, heads: usize| {
        let sizes = vec![batch, heads, length, width];
        let number = |i: usize| ir::random::normal(7, name.len() as u64 + heads as u64, i as u64);
        let elements = (0..sizes.iter().product()).map(|i: usize| number(i) / 2.0).collect();
        inputs.insert(name.to_owned(), Tensor::float(dtype, sizes.clone(), elements).rounded());
        module.add_input(name, Type::new(dtype, sizes.iter().map(|&size| Dim::known(size as u64))), false)
    };
    let [q, k, v, dout] = [add("q", heads), add("key", groups), add("value", groups), add("d out", heads)];
    let scale = Float::new(1.0 / (width as f64).sqrt());
    let mut b = Builder::new(&mut module, "test");
    let forward = b.push(Attention { scale, causal }, &[q, k, v]).expect("well-typed");
    let operands = [q, k, v, forward[0], forward[1], dout];
    let gradients = b.push(AttentionGrad { scale, causal }, &operands).expect("well-typed");
    b.finish();
    for (name, value) in
        ["out", "logsumexp", "d q", "d k", "d v"].iter().zip(forward.into_iter().chain(gradients))
    {
        module.add_output(*name, value);
    }
    (module, inputs)
}
