//! Recomputation for GPT-2 124M on an H200: the bytes and the time of a step.

use super::json;
use serde_json::Value;

const GPT2: [&str; 5] =
    ["bench/gpt2-124m.onnx", "--bind=seq=1024", "--microbatch=16", "--bf16", "--target=h200"];

/// The output of `inspect` with these additional flags.
fn inspected(flags: &[&str]) -> Value {
    json(&[&GPT2, flags].concat())
}

/// The planned GiB, and the milliseconds of a step.
fn step(found: &Value) -> [f64; 2] {
    let number = |name: &str| found["prediction"][name].as_f64().expect("a step is predicted");
    [number("planned") / f64::from(1 << 30), number("step_ms")]
}

#[test]
fn recomputation_takes_at_most_the_stated_time_and_memory() {
    let [unconstrained, kept] = step(&inspected(&[]));
    let [full, repeated] = step(&inspected(&["--recompute=full"]));
    assert!(
        full <= 4.2 && repeated <= 1.36 * kept,
        "{full} GiB of {unconstrained}, {repeated} ms and {kept} ms"
    );
    let found = inspected(&["--memory=6GiB"]);
    let [fitting, some_repeated] = step(&found);
    assert!(
        fitting <= 6.0 && some_repeated <= 1.10 * kept,
        "{fitting} GiB, {some_repeated} ms and {kept} ms"
    );
    let fit = found["fit"].as_str().expect("a program was searched");
    let times: Vec<f64> = fit
        .split(' ')
        .zip(fit.split(' ').skip(1))
        .filter(|(_, unit)| *unit == "ms")
        .map(|(number, _)| number.parse().expect("it is a number"))
        .collect();
    let [again, bound] = times[..] else { panic!("{fit}") };
    assert!(bound > 0.0 && again <= 1.05 * bound, "{fit}");
}
