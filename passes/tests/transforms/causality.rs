//! Compares the causality analysis with the interpreter.

use ir::interp::{self, Missing, Mode};
use ir::{Blob, Module, Tensor, random};
use passes::causality::is_causal;
use std::collections::BTreeMap;

/// Returns a program whose result `y[1, 6, 4]` is computed by `body` from `%h : f64[1, 6, 4]`, the embedded tokens.
fn program(body: &str) -> Module {
    let text = format!(
        "trainyard-ir 1
module @m imported {{
  data @0 \"words\" : f64[7, 4]
  data @1 \"kernel\" : f64[4, 4, 3]
  data @2 \"tril\" : f64[6, 6]
  data @3 \"mask\" : f64[6, 6]
  func @forward(%0 \"x\" batched : i64[1, 6]) {{
    %1 = constant {{data = @0}} : f64[7, 4]
    %2 = gather %1, %0 {{dim = 0}} : f64[1, 6, 4]
    %3 = constant {{data = @1}} : f64[4, 4, 3]
    %4 = constant {{data = @2}} : f64[6, 6]
    %5 = constant {{data = @3}} : f64[6, 6]
    %6 = contract %2, %2 {{lhs = bsd, rhs = btd, out = bst}} : f64[1, 6, 6]
{body}
  }}
  output \"y\" = %20
}}
"
    );
    let mut module = ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for data in module.data.values_mut() {
        let sizes: Vec<usize> =
            data.ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let number = |i: usize| match (&*data.name, i % 6 <= i / 6) {
            ("tril", is_shown) => f64::from(u8::from(is_shown)),
            ("mask", is_shown) => {
                if is_shown {
                    0.0
                } else {
                    -1e9
                }
            }
            (name, _) => random::normal(1, random::stream(name), i as u64),
        };
        let elements = (0..sizes.iter().product()).map(number).collect();
        data.blob = Blob::File(Some(Tensor::float(data.ty.dtype, sizes, elements).to_bytes().into()));
    }
    module
}

/// Returns the rows of the result for these tokens.
fn rows(module: &Module, tokens: [i64; 6]) -> Vec<Vec<f64>> {
    let tokens = Tensor::int(ir::DType::I64, vec![1, 6], tokens.to_vec());
    let microbatch: BTreeMap<String, Tensor> = [("x".to_owned(), tokens)].into();
    let mut states = interp::initial_states(module, 0, Missing::Refuse).expect("there are none");
    let outputs = interp::step(module, Mode::Exact, &mut states, &[microbatch]).expect("it runs");
    outputs["y"][0].numbers().chunks(4).map(<[f64]>::to_vec).collect()
}

#[test]
fn the_analysis_finds_a_later_position_where_the_interpreter_does() {
    let weigh = "%20 = contract %10, %2 {lhs = bst, rhs = btd, out = bsd} : f64[1, 6, 4]";
    let conv = |before: usize| {
        format!(
            "    %8 = transpose %2 {{permutation = [0, 2, 1]}} : f64[1, 4, 6]
    %9 = conv %8, %3 {{strides = [1], dilations = [1], pads = [{before}, {}]}} : f64[1, 4, 6]
    %20 = transpose %9 {{permutation = [0, 2, 1]}} : f64[1, 6, 4]",
            2 - before
        )
    };
    let sum = |reverse: bool, exclusive: bool| {
        format!(
            "    %20 = cumulative_sum %2 {{dim = 1, exclusive = {exclusive}, reverse = {reverse}}} : f64[1, 6, 4]"
        )
    };
    let cases = [
        ("a convolution of earlier positions", conv(2), true),
        ("a convolution of both sides", conv(1), false),
        ("a running sum", sum(false, false), true),
        ("a running sum from the end", sum(true, false), false),
        ("the sum of what comes after", sum(true, true), false),
        (
            "a shift to the right",
            "    %8 = slice %2 {dim = 1, start = 0, step = 1} : f64[1, 5, 4]
    %20 = pad %8 {dim = 1, before = 1, value = 0.0} : f64[1, 6, 4]"
                .into(),
            true,
        ),
        (
            "a shift to the left",
            "    %8 = slice %2 {dim = 1, start = 1, step = 1} : f64[1, 5, 4]
    %9 = slice %2 {dim = 1, start = 0, step = 1} : f64[1, 1, 4]
    %20 = concat %8, %9 {dim = 1} : f64[1, 6, 4]"
                .into(),
            false,
        ),
        ("linear attention", format!("    %10 = mul %6, %4 : f64[1, 6, 6]\n    {weigh}"), true),
        ("linear attention without a mask", format!("    %10 = neg %6 : f64[1, 6, 6]\n    {weigh}"), false),
        (
            "attention with an added mask",
            format!("    %8 = add %6, %5 : f64[1, 6, 6]\n    %10 = softmax %8 {{dim = 2}} : f64[1, 6, 6]\n    {weigh}"),
            true,
        ),
        (
            "attention to all positions",
            format!("    %10 = softmax %6 {{dim = 2}} : f64[1, 6, 6]\n    {weigh}"),
            false,
        ),
        (
            "attention with a chosen mask and a sink",
            format!(
                "    %7 = splat {{value = 0.5}} : f64[6, 6]
    %8 = greater %4, %7 : bool[6, 6]
    %9 = splat {{value = -inf}} : f64[1, 6, 6]
    %11 = select %8, %6, %9 : f64[1, 6, 6]
    %12 = splat {{value = 1.0}} : f64[1, 6, 1]
    %13 = concat %11, %12 {{dim = 2}} : f64[1, 6, 7]
    %14 = softmax %13 {{dim = 2}} : f64[1, 6, 7]
    %10 = slice %14 {{dim = 2, start = 0, step = 1}} : f64[1, 6, 6]
    {weigh}"
            ),
            true,
        ),
        (
            "rows that are flattened and cut again",
            "    %8 = reshape %2 : f64[6, 4]\n    %9 = tanh %8 : f64[6, 4]\n    %20 = reshape %9 : f64[1, 6, 4]".into(),
            true,
        ),
        ("the mean of all", "    %8 = reduce %2 {kind = mean, dims = [1], keep = true} : f64[1, 1, 4]\n    %20 = add %2, %8 : f64[1, 6, 4]".into(), false),
    ];
    for (name, body, expected) in cases {
        let module = program(&body);
        let (before, after) = (rows(&module, [1, 2, 3, 4, 5, 6]), rows(&module, [1, 2, 3, 0, 0, 0]));
        assert_eq!(before[..3] == after[..3], expected, "{name}, by the interpreter");
        let output = module.outputs[0].value;
        assert_eq!(is_causal(&module, module.inputs[0].value, output, 1), expected, "{name}");
    }
}
