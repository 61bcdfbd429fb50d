//! Tests of the manager (verification, dumps, reproducers for bug reports), and of pipelines as text.

use passes::{Manager, PassContext, Pipeline};
use proptest::prelude::*;

const PROGRAM: &str = "trainyard-ir 1
module @program imported {
  state @w : f32[3] parameter = zeros
  func @forward(%0 \"x\" batched : f32[2, 3], %1 = @w) {
    %2 = mul %0, %1 : f32[2, 3] !{fwd}
    %3 = mul %0, %1 : f32[2, 3] !{fwd}
    %4 = add %2, %3 : f32[2, 3] !{fwd}
    %5 = reduce %4 {kind = sum, dims = [0, 1], keep = false} : f32[] !{fwd}
  }
  output \"loss\" = %5
}";

fn pipeline(text: &str) -> Pipeline {
    text.parse().expect("the pipeline is well written")
}

#[test]
fn the_program_after_every_pass_is_dumped_and_every_pass_is_timed() {
    let dir = tempfile::tempdir().expect("there is a temporary folder");
    let manager = Manager { dump: Some(dir.path().into()), ..Manager::default() };
    let mut module = ir::text::parse(PROGRAM).expect("it is a program");
    let mut seen = Vec::new();
    let timings = manager
        .run(&pipeline("simplify loss autodiff"), &mut module, &mut PassContext::default(), |i, pass, _| {
            seen.push((i, pass.name()));
        })
        .expect("the passes succeed");
    assert_eq!(seen, [(0, "simplify"), (1, "loss"), (2, "autodiff")]);
    assert_eq!(
        timings.iter().map(|timing| timing.pass).collect::<Vec<_>>(),
        ["simplify", "loss", "autodiff"]
    );
    let dumped = std::fs::read_to_string(dir.path().join("02-autodiff.ir")).expect("it was written");
    assert_eq!(dumped, ir::text::print(&module));
    let first = std::fs::read_to_string(dir.path().join("00-simplify.ir")).expect("it was written");
    assert_eq!(first.matches("mul").count(), 1);
}

#[test]
fn a_pass_that_fails_leaves_a_reproducer_that_fails_alike() {
    let dir = tempfile::tempdir().expect("there is a temporary folder");
    let manager = Manager { reproducer: Some(dir.path().into()), ..Manager::default() };
    let mut module = ir::text::parse(PROGRAM).expect("it is a program");
    let result = manager.run(
        &pipeline("simplify optimizer(sgd, lr=1)"),
        &mut module,
        &mut PassContext::default(),
        |_, _, _| {},
    );
    let failure = result.expect_err("there are no gradients");
    assert!(!failure.fault && failure.pass == "optimizer");
    let path = failure.reproducer.clone().expect("it was written");
    let text = std::fs::read_to_string(&path).expect("it can be read");
    let again =
        pipeline(text.lines().next().and_then(|line| line.strip_prefix("// run: ")).expect("the pipeline"));
    let mut module = ir::text::parse(&text).expect("it is a program");
    let result = Manager::default().run(&again, &mut module, &mut PassContext::default(), |_, _, _| {});
    assert_eq!(result.expect_err("as before").diagnostics, failure.diagnostics);
}

#[test]
fn a_program_that_is_not_valid_after_a_pass_is_the_compilers_fault() {
    let broken = PROGRAM.replace("%4 = add %2, %3 : f32[2, 3]", "%4 = add %2, %3 : f32[3, 2]");
    let mut module = ir::text::parse_unchecked(&broken).expect("it parses");
    let result = Manager::default().run(
        &pipeline("parameters"),
        &mut module,
        &mut PassContext::default(),
        |_, _, _| {},
    );
    let failure = result.expect_err("the verifier refuses it");
    assert!(failure.fault && failure.to_string().contains("pass `parameters`"), "{failure}");
}

#[test]
fn a_pipeline_says_what_it_does_not_know() {
    for (text, said) in [
        ("folt", "there is no such pass; the passes are bind, dropout, fold, canonicalize, parameters"),
        ("fold(3)", "pass `fold` does not take `3`"),
        ("optimizer(adamw, lr=fast)", "`fast` is not a value of `lr`"),
        ("optimizer(adamw", "`,` or `)` should follow"),
        ("bind(batch=0)", "`0` is not a size"),
        ("loss(\"open", "a `\"` is not closed"),
    ] {
        let error = text.parse::<Pipeline>().expect_err(text);
        assert!(error.contains(said), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn pipelines_read_back_as_they_are_written(
        patterns in proptest::collection::vec("[ -~]{1,12}", 0..4),
        lr in 1e-9..1e3f64,
        clip in proptest::option::of(1e-3..10f64),
        warmup in 0u64..100,
    ) {
        let parameters = passes::parameters::Parameters { freeze: patterns, ..Default::default() };
        let schedule = passes::optimizer::schedule::Schedule { warmup, ..Default::default() };
        let optimizer = passes::optimizer::Optimizer { lr, clip, schedule, ..Default::default() };
        let written = Pipeline { passes: vec![parameters.into(), optimizer.into(), passes::simplify::Simplify.into()] };
        prop_assert_eq!(written.to_string().parse::<Pipeline>(), Ok(written));
    }
}
