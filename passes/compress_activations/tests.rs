//! Checks the bytes of kept activations by their formulas, and the error of rounded ones.

use super::*;
use ir::interp::{self, Missing, Mode};
use ir::{Tensor, text};
use std::collections::BTreeMap;

const POOL: &str =
    include_str!("../../testdata/filetests/compress_activations/a_pooling_is_remembered_by_places.ir");

/// Returns the program of a filetest.
fn program(file: &str) -> Module {
    let (_, program) = file.split_once("trainyard-ir").expect("a program");
    let (program, _) = program.split_once("---- expected").expect("an expected program");
    text::parse(&format!("trainyard-ir{program}")).unwrap_or_else(|error| panic!("{error:?}"))
}

fn compressed(module: &mut Module, options: &str) -> CompressedActivationsReport {
    let pipeline: crate::Pipeline = format!("compress_activations({options})").parse().expect("a pipeline");
    let mut cx = PassContext::default();
    let ran = crate::Manager::default().run(&pipeline, module, &mut cx, |_, _, _| {});
    ran.unwrap_or_else(|error| panic!("{error}"));
    cx.reports.compressed_activations.expect("the pass reports")
}

/// The program has a ReLU of 72 elements, whose result is pooled by 18 windows.
#[test]
fn kept_bytes_are_those_of_the_formulas() {
    let bytes = |options: &str| {
        let report = compressed(&mut program(POOL), options);
        assert_eq!(report.kept_before, 72 * 4 + 72 * 4, "{options}");
        report.kept
    };
    // The pooling keeps the ReLU's result, which the ReLU's gradient reads as well.
    assert_eq!(bytes("masks, least=0"), 72 * 4);
    assert_eq!(bytes("indices, least=0"), 72 * 4 + 18);
    assert_eq!(bytes("masks, indices, least=0"), 72u64.div_ceil(8) + 18);
    // The pooling would find other largest elements in a rounded operand.
    assert_eq!(bytes("dtype=bf16, least=0"), 72 * 2 + 72 * 4);
    assert_eq!(bytes("masks, indices, dtype=f16, least=0"), 72u64.div_ceil(8) + 18);
    assert_eq!(bytes("masks, indices, dtype=f16"), 72 * 4 + 72 * 4, "288 bytes are fewer than 16 KiB");
}

const GRADIENT: &str = r#"trainyard-ir 1
module @gradient placed {
  state @w : f32[4096] parameter = zeros
  func @train(%0 "x" batched : f32[4096], %1 = @w) {
    %2 = exp %0 : f32[4096] !{fwd}
    %3 = mul %2, %1 : f32[4096] !{fwd}
    %4 = reduce %3 {kind = sum, dims = [0], keep = false} : f32[] !{fwd}
    %5 = neg %2 : f32[4096] !{bwd}
    %6 = accumulate %4 : f32[] !{update}
    %7 = accumulate %5 : f32[4096] !{update}
  }
  output "loss" = %6
  output "gradient" = %7
}
"#;

/// Returns the gradient of a step whose activation lies between 2^-9 and 2^9.
fn gradient(module: &Module) -> Vec<f64> {
    let x = (0..4096).map(|i| (f64::from(i) / 4096.0 - 0.5) * 12.0).collect();
    let x = Tensor::float(ir::DType::F32, vec![4096], x).rounded();
    let mut states = interp::initial_states(module, 3, Missing::Draw).expect("its state is zero");
    let inputs = BTreeMap::from([("x".to_string(), x)]);
    let outputs = interp::step(module, Mode::Typed, &mut states, &[inputs]).expect("it runs");
    outputs["gradient"][0].numbers()
}

#[test]
fn a_rounded_activation_is_within_the_error_of_its_type() {
    let module = text::parse(GRADIENT).unwrap_or_else(|error| panic!("{error:?}"));
    let exact = gradient(&module);
    for (dtype, bits) in [("bf16", 8), ("f16", 11)] {
        let mut rounded = module.clone();
        assert_eq!(compressed(&mut rounded, &format!("dtype={dtype}, least=0")).kept, 4096 * 2);
        let errors = gradient(&rounded).into_iter().zip(&exact).map(|(x, exact)| ((x - exact) / exact).abs());
        let largest = errors.fold(0.0, f64::max);
        let bound = 2f64.powi(-bits);
        // A number beside a power of two comes near the bound.
        assert!(largest <= bound && largest > 0.9 * bound, "{dtype}: {largest} of {bound}");
    }
}
