//! Checks that programs bound to another batch compute every sample as before.

use ir::interp::{self, Missing, Mode};
use ir::{Blob, DType, Module, Tensor, random};
use passes::{Manager, PassContext, Pipeline};
use std::collections::BTreeMap;

fn parse(text: &str, numbers: impl Fn(&str, usize) -> f64) -> Module {
    let mut module = ir::text::parse(text).expect("the text is a program");
    for data in module.data.values_mut().filter(|data| data.bytes().is_none()) {
        let sizes: Vec<usize> =
            data.ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let elements = (0..sizes.iter().product()).map(|i| numbers(&data.name, i)).collect();
        data.blob = Blob::File(Some(Tensor::float(data.ty.dtype, sizes, elements).to_bytes().into()));
    }
    module
}

fn normal(name: &str, i: usize) -> f64 {
    random::normal(1, random::stream(name), i as u64)
}

fn bind(module: &Module, batch: u64) -> Module {
    let mut module = module.clone();
    let pipeline: Pipeline =
        format!("bind(batch={batch}) fold").parse().expect("the pipeline is well written");
    let result = Manager::default().run(&pipeline, &mut module, &mut PassContext::default(), |_, _, _| {});
    result.unwrap_or_else(|failure| panic!("{failure}"));
    module
}

/// Runs a program on the samples from `first` on, as many as its batch. Returns the rows of output `y`, one for each sample.
fn rows(module: &Module, first: usize) -> Vec<Vec<f64>> {
    let tensor = |input: &ir::Input| {
        let ty = module.ty(input.value);
        let sizes: Vec<usize> = ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let inner: usize = sizes[1..].iter().product();
        let number = |i: usize| normal(&format!("{} {}", input.name, first + i / inner), i % inner);
        let numbers = (0..sizes[0] * inner).map(number);
        let tensor = match ty.dtype {
            DType::I64 => Tensor::int(ty.dtype, sizes, numbers.map(|x| (x.abs() * 2.0) as i64 % 7).collect()),
            _ => Tensor::float(ty.dtype, sizes, numbers.collect()),
        };
        (input.name.clone(), tensor)
    };
    let batch = module.ty(module.inputs[0].value).sizes().expect("bound")[0] as usize;
    let microbatch: BTreeMap<String, Tensor> = module.inputs.iter().map(tensor).collect();
    let mut states = interp::initial_states(module, 0, Missing::Refuse).expect("there are none");
    let outputs = interp::step(module, Mode::Exact, &mut states, &[microbatch]).expect("it runs");
    let y = outputs["y"][0].numbers();
    y.chunks(y.len() / batch).map(<[f64]>::to_vec).collect()
}

/// Binds to batches from 1 to 5 and compares every sample.
fn check(module: &Module) {
    let exported = module.ty(module.inputs[0].value).sizes().expect("bound")[0] as usize;
    let expected: Vec<Vec<f64>> = (0..6).step_by(exported).flat_map(|first| rows(module, first)).collect();
    for batch in 1..=5 {
        let bound = bind(module, batch);
        for (sample, row) in rows(&bound, 0).iter().enumerate() {
            let close = row.len() == expected[sample].len()
                && row.iter().zip(&expected[sample]).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close, "batch {batch}, sample {sample}: {row:?}, not {:?}", expected[sample]);
        }
    }
}

/// Returns an encoder layer as exporters write it, for a fixed batch and fixed masks.
fn encoder(batch: usize) -> String {
    let flat = batch * 3;
    let repeated = |row: &str| vec![row; batch].join(", ");
    let (types, numbers) =
        (repeated("1, 0, 1"), (0..batch).map(|b| format!("{b}, 0, {b}, 1, {b}, 2")).collect::<Vec<_>>());
    format!(
        "trainyard-ir 1
module @encoder imported {{
  data @0 \"words\" : f64[7, 4]
  data @1 \"types.table\" : f64[2, 4]
  data @2 \"types\" : i64[{batch}, 3] = [{types}]
  data @3 \"positions\" : f64[{batch}, 3, 4]
  data @4 \"qkv\" : f64[4, 12]
  data @5 \"indices\" : i64[{batch}, 1, 1, 3, 2] = [{numbers}]
  func @forward(%0 \"tokens\" batched : i64[{batch}, 3], %1 \"mask\" batched : i64[{batch}, 3]) {{
    %2 = constant {{data = @0}} : f64[7, 4] !{{fwd}}
    %3 = constant {{data = @1}} : f64[2, 4] !{{fwd}}
    %4 = constant {{data = @2}} : i64[{batch}, 3] !{{fwd}}
    %5 = constant {{data = @3}} : f64[{batch}, 3, 4] !{{fwd}}
    %6 = gather %2, %0 {{dim = 0}} : f64[{batch}, 3, 4] !{{fwd}}
    %7 = gather %3, %4 {{dim = 0}} : f64[{batch}, 3, 4] !{{fwd}}
    %8 = add %6, %7 : f64[{batch}, 3, 4] !{{fwd}}
    %9 = add %8, %5 : f64[{batch}, 3, 4] !{{fwd}}
    %10 = reshape %9 : f64[{flat}, 4] !{{fwd}}
    %11 = constant {{data = @4}} : f64[4, 12] !{{fwd}}
    %12 = contract %10, %11 {{lhs = bk, rhs = kc, out = bc}} : f64[{flat}, 12] !{{fwd}}
    %13 = reshape %12 : f64[{batch}, 3, 12] !{{fwd}}
    %14 = slice %13 {{dim = 2, start = 0, step = 1}} : f64[{batch}, 3, 4] !{{fwd}}
    %15 = slice %13 {{dim = 2, start = 4, step = 1}} : f64[{batch}, 3, 4] !{{fwd}}
    %16 = slice %13 {{dim = 2, start = 8, step = 1}} : f64[{batch}, 3, 4] !{{fwd}}
    %17 = reshape %14 : f64[{batch}, 3, 2, 2] !{{fwd}}
    %18 = reshape %15 : f64[{batch}, 3, 2, 2] !{{fwd}}
    %19 = reshape %16 : f64[{batch}, 3, 2, 2] !{{fwd}}
    %20 = contract %17, %18 {{lhs = bshd, rhs = bthd, out = bhst}} : f64[{batch}, 2, 3, 3] !{{fwd}}
    %21 = cast %1 {{to = bool}} : bool[{batch}, 3] !{{fwd}}
    %22 = constant {{data = @5}} : i64[{batch}, 1, 1, 3, 2] !{{fwd}}
    %23 = gather_nd %21, %22 {{batch_dims = 0}} : bool[{batch}, 1, 1, 3] !{{fwd}}
    %24 = splat {{value = -1e9}} : f64[{batch}, 1, 3, 3] !{{fwd}}
    %25 = splat {{value = 0.0}} : f64[] !{{fwd}}
    %26 = select %23, %25, %24 : f64[{batch}, 1, 3, 3] !{{fwd}}
    %27 = add %20, %26 : f64[{batch}, 2, 3, 3] !{{fwd}}
    %28 = softmax %27 {{dim = 3}} : f64[{batch}, 2, 3, 3] !{{fwd}}
    %29 = contract %28, %19 {{lhs = bhst, rhs = bthd, out = bshd}} : f64[{batch}, 3, 2, 2] !{{fwd}}
    %30 = reshape %29 : f64[{batch}, 3, 4] !{{fwd}}
  }}
  output \"y\" = %30
}}",
        numbers = numbers.join(", ")
    )
}

#[test]
fn an_encoder_exported_for_one_batch_runs_with_any() {
    for batch in [1, 2, 3] {
        check(&parse(&encoder(batch), |name, i| normal(name, if name == "positions" { i % 12 } else { i })));
    }
}

#[test]
fn a_token_that_the_exporter_repeated_over_the_batch_is_joined_to_every_sample() {
    for batch in [1, 2] {
        let text = format!(
            "trainyard-ir 1
module @token imported {{
  data @0 \"token\" : f64[{batch}, 1, 4]
  func @forward(%0 \"x\" batched : f64[{batch}, 3, 4]) {{
    %1 = constant {{data = @0}} : f64[{batch}, 1, 4] !{{fwd}}
    %2 = concat %1, %0 {{dim = 1}} : f64[{batch}, 4, 4] !{{fwd}}
  }}
  output \"y\" = %2
}}"
        );
        check(&parse(&text, |name, i| normal(name, i % 4)));
    }
}

#[test]
fn a_constant_that_lies_flat_over_the_batch_is_repeated() {
    let text = "trainyard-ir 1
module @flat imported {
  data @0 \"scales\" : f64[6, 1]
  func @forward(%0 \"x\" batched : f64[2, 3, 4]) {
    %1 = constant {data = @0} : f64[6, 1] !{fwd}
    %2 = reshape %0 : f64[6, 4] !{fwd}
    %3 = mul %2, %1 : f64[6, 4] !{fwd}
    %4 = reshape %3 : f64[2, 12] !{fwd}
  }
  output \"y\" = %4
}";
    check(&parse(text, |name, i| normal(name, i % 3)));
}

#[test]
fn a_weight_that_differs_from_sample_to_sample_is_refused() {
    let module = parse(&encoder(2), normal);
    let pipeline: Pipeline = "bind(batch=3)".parse().expect("the pipeline is well written");
    let result =
        Manager::default().run(&pipeline, &mut module.clone(), &mut PassContext::default(), |_, _, _| {});
    let failure = result.expect_err("positions differ");
    assert!(
        failure.diagnostics[0].message.contains("`positions`, which differs from sample to sample"),
        "{failure}"
    );
}

/// Returns the unbiased variance over the samples and a covariance, as exporters write them for a batch.
fn statistics(batch: u64) -> String {
    let less = batch - 1;
    format!(
        "trainyard-ir 1
module @statistics imported {{
  data @0 \"n\" : f64[] = [{batch}.0]
  data @1 \"n_less_one\" : f64[1] = [{less}.0]
  func @forward(%0 \"x\" batched : f64[{batch}, 14]) {{
    %1 = reduce %0 {{kind = mean, dims = [0], keep = true}} : f64[1, 14] !{{fwd}}
    %2 = sub %0, %1 : f64[{batch}, 14] !{{fwd}}
    %3 = mul %2, %2 : f64[{batch}, 14] !{{fwd}}
    %4 = reduce %3 {{kind = mean, dims = [0], keep = false}} : f64[14] !{{fwd}}
    %5 = constant {{data = @0}} : f64[] !{{fwd}}
    %6 = mul %4, %5 : f64[14] !{{fwd}}
    %7 = constant {{data = @1}} : f64[1] !{{fwd}}
    %8 = div %6, %7 : f64[14] !{{fwd}}
    %9 = contract %2, %2 {{lhs = ni, rhs = nj, out = ij}} : f64[14, 14] !{{fwd}}
    %10 = div %9, %7 : f64[14, 14] !{{fwd}}
    %11 = add %10, %8 : f64[14, 14] !{{fwd}}
    %12 = reduce %11 {{kind = sum, dims = [0], keep = false}} : f64[14] !{{fwd}}
  }}
  output \"y\" = %12
}}"
    )
}

#[test]
fn numbers_of_samples_follow_the_batch() {
    for from in [2, 3, 4, 7] {
        for to in [2, 3, 4, 7] {
            let exported = parse(&statistics(to), normal);
            let bound = bind(&parse(&statistics(from), normal), to);
            let (expected, found) = (rows(&exported, 0).concat(), rows(&bound, 0).concat());
            let equal = expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(equal && expected.len() == found.len(), "{from} to {to}: {found:?}, not {expected:?}");
        }
    }
}

/// Returns the warnings of a mean over 4 samples of this width that a number multiplies, or of a covariance that it divides.
fn warned(operators: &str, number: f64, width: usize) -> Vec<String> {
    let text = format!(
        "trainyard-ir 1
module @doubtful imported {{
  data @0 \"number\" : f64[] = [{number:?}]
  func @forward(%0 \"x\" batched : f64[4, {width}]) {{
    %1 = constant {{data = @0}} : f64[] !{{fwd}}
    {operators}
  }}
  output \"y\" = %3
}}"
    );
    let mut cx = PassContext::default();
    let pipeline: Pipeline = "bind(batch=8)".parse().expect("the pipeline is well written");
    let result = Manager::default().run(&pipeline, &mut parse(&text, normal), &mut cx, |_, _, _| {});
    result.unwrap_or_else(|failure| panic!("{failure}"));
    cx.warnings.into_iter().map(|warning| warning.message).collect()
}

#[test]
fn a_number_that_may_count_the_samples_is_told_with_its_name() {
    let mean = "%2 = reduce %0 {kind = mean, dims = [0], keep = false} : f64[5] !{fwd}
    %3 = mul %2, %1 : f64[5] !{fwd}";
    let [warning] = &warned(mean, 4.0, 5)[..] else { panic!("one warning") };
    assert!(warning.starts_with("`number` (4) multiplies a `reduce` over the samples"), "{warning}");
    assert!(warned(mean, 2.0, 5).is_empty(), "any other number is the author's");
    let covariance = |width: usize| {
        format!(
            "%2 = contract %0, %0 {{lhs = ni, rhs = nj, out = ij}} : f64[{width}, {width}] !{{fwd}}
    %3 = div %2, %1 : f64[{width}, {width}] !{{fwd}}"
        )
    };
    assert!(warned(&covariance(5), 3.0, 5).is_empty(), "the number is that of the new batch");
    // The number may stand for a width that equals it.
    let messages = warned(&covariance(3), 3.0, 3);
    assert!(messages.iter().any(|it| it.starts_with("`number` (3) divides a `contract`")), "{messages:?}");
}

/// Whether the places of the samples matter in a program over 4 samples.
fn places_count(operators: &str) -> bool {
    let text = format!(
        "trainyard-ir 1
module @rows imported {{
  data @0 \"edges\" : i64[5] = [0, 1, 2, 3, 3]
  data @1 \"matrix\" : f64[4, 4]
  data @2 \"rows\" : f64[4, 3]
  func @forward(%0 \"x\" batched : f64[4, 3], %1 \"ids\" batched : i64[4]) {{
    %2 = constant {{data = @0}} : i64[5] !{{fwd}}
    %3 = constant {{data = @1}} : f64[4, 4] !{{fwd}}
    %4 = constant {{data = @2}} : f64[4, 3] !{{fwd}}
    {operators}
  }}
  output \"y\" = %5
}}"
    );
    passes::bind::where_places_count(&parse(&text, normal)).is_some()
}

#[test]
fn places_count_where_fixed_indices_or_matrices_combine_samples() {
    for operators in [
        "%5 = gather %0, %2 {dim = 0} : f64[5, 3] !{fwd}",
        "%5 = contract %3, %0 {lhs = nm, rhs = md, out = nd} : f64[4, 3] !{fwd}",
        "%5 = add %0, %4 : f64[4, 3] !{fwd}",
        "%5 = slice %0 {dim = 0, start = 2, step = 1} : f64[2, 3] !{fwd}",
    ] {
        assert!(places_count(operators), "{operators}");
    }
    for operators in [
        // Samples look up rows of a table, in any order.
        "%5 = gather %4, %1 {dim = 0} : f64[4, 3] !{fwd}",
        // The samples themselves decide which sample is looked up.
        "%5 = gather %0, %1 {dim = 0} : f64[4, 3] !{fwd}",
        // All samples are compared with all samples.
        "%5 = contract %0, %0 {lhs = nd, rhs = md, out = nm} : f64[4, 4] !{fwd}",
        "%5 = contract %0, %4 {lhs = nd, rhs = ed, out = ne} : f64[4, 4] !{fwd}",
        "%5 = reduce %0 {kind = mean, dims = [0], keep = true} : f64[1, 3] !{fwd}",
        "%5 = slice %0 {dim = 1, start = 1, step = 1} : f64[4, 2] !{fwd}",
    ] {
        assert!(!places_count(operators), "{operators}");
    }
}
