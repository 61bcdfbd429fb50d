//! `trainyard opt`: passes on programs in text, and running them.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use trainyard::cli::{Cli, Command, Opt};
use trainyard::diagnostics::{Severity, render};

const PROGRAM: &str = r#"// run: autodiff optimizer(sgd, lr=0.1) simplify
trainyard-ir 1
module @lookup imported {
  data @0 "table" : f32[5, 3]
  state @table : f32[5, 3] parameter = data @0
  func @forward(
    %0 "tokens" batched : i64[2, 4],
    %1 "labels" batched : i64[2, 4],
    %2 = @table,
  ) {
    %3 = gather %2, %0 {dim = 0} : f32[2, 4, 3] !{fwd}
    %4, %5, %6 = cross_entropy %3, %1 {ignore_index = -100, label_smoothing = 0.0} : f32[], f32[], f32[2, 4] !{fwd}
  }
  output "logits" = %3
  output "loss.sum" = %4
  output "loss.weight" = %5
}
"#;

/// A program in a file of its own. The file exists as long as the first half of the result.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("program.ir");
    fs::write(&path, text).expect("the program is written");
    (folder, path)
}

fn opt(path: &Path, arguments: &[&str]) -> Opt {
    let path = path.display().to_string();
    let words = ["trainyard", "opt", &path].into_iter().chain(arguments.iter().copied());
    match Cli::parse_with_config(words) {
        Ok(Cli { command: Command::Opt(opt), .. }) => *opt,
        other => panic!("not an opt: {other:?}"),
    }
}

/// The standard output, or the error.
fn read(text: &str, arguments: &[&str]) -> String {
    let (folder, path) = file(text);
    let text = match opt(&path, arguments).output() {
        Ok((text, _)) => text,
        Err(failure) => render(Severity::Error, &failure.diagnostics(), false),
    };
    text.replace(&format!("{}/", folder.path().display()), "")
}

fn check(text: &str, arguments: &[&str], expected: Expect) {
    expected.assert_eq(&read(text, arguments));
}

/// The outputs that `--run` printed.
fn outputs(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("// ")).collect()
}

#[test]
fn the_pipeline_of_the_first_line_runs() {
    let text = read(PROGRAM, &[]);
    let module = ir::text::parse(&text).expect("the text parses");
    assert_eq!(module.level, ir::Level::Training);
    assert!(module.output("loss").is_some() && module.output("lr").is_some(), "{text}");
    assert_eq!(text, read(PROGRAM, &["--pipeline", "autodiff optimizer(sgd, lr=0.1) simplify"]));
    assert_ne!(text, read(PROGRAM, &["--pipeline", "autodiff"]));
}

#[test]
fn a_program_without_passes_comes_back_as_it_is() {
    check(
        PROGRAM,
        &["--pipeline", ""],
        expect![[r#"
        trainyard-ir 1
        module @lookup imported {
          data @0 "table" : f32[5, 3]
          state @table : f32[5, 3] parameter = data @0
          func @forward(
            %0 "tokens" batched : i64[2, 4],
            %1 "labels" batched : i64[2, 4],
            %2 = @table,
          ) {
            %3 = gather %2, %0 {dim = 0} : f32[2, 4, 3] !{fwd}
            %4, %5, %6 = cross_entropy %3, %1 {ignore_index = -100, label_smoothing = 0.0} : f32[], f32[], f32[2, 4] !{fwd}
          }
          output "logits" = %3
          output "loss.sum" = %4
          output "loss.weight" = %5
        }
    "#]],
    );
}

#[test]
fn filetests_are_programs_too() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/filetests/simplify");
    let (text, _) = opt(&folder.join("common_subexpressions.ir"), &[]).output().expect("the passes run");
    let whole = fs::read_to_string(folder.join("common_subexpressions.ir")).expect("it can be read");
    assert!(whole.ends_with(&text), "{text}");
}

#[test]
fn a_run_prints_its_outputs_behind_the_program() {
    let text = read(PROGRAM, &["--pipeline", "simplify", "--run", "--seed", "7"]);
    ir::text::parse(&text).expect("outputs are comments");
    expect![[r#"
        // "logits" : f32[2, 4, 3] = [0.0053504896, -0.019163162, -0.0073961285, -0.037139803, 0.024286766, -0.02829082, 0.0008261899, -0.013084017, 0.002498978, -0.037139803, 0.024286766, -0.02829082, 0.0008261899, -0.013084017, 0.002498978, 0.0008261899, -0.013084017, 0.002498978, 0.013006316, -0.020665368, 0.009214728, -0.037139803, 0.024286766, -0.02829082]
        // "loss.sum" : f32[] = [8.857045]
        // "loss.weight" : f32[] = [8.0]"#]].assert_eq(&outputs(&text).join("\n"));
}

#[test]
fn a_run_depends_on_its_seed_and_not_on_the_passes() {
    let run = |pipeline, seed| read(PROGRAM, &["--run", "--pipeline", pipeline, "--seed", seed]);
    let (one, other) = (run("", "1"), run("", "2"));
    assert_eq!(outputs(&one), outputs(&run("simplify", "1")));
    assert_ne!(outputs(&one), outputs(&other));
    let trained = run("autodiff optimizer(sgd, lr=0.1) simplify", "1");
    let of = |text: &str, name: &str| {
        let line = outputs(text).into_iter().find(|line| line.starts_with(&format!("// {name:?} : ")));
        let (_, number) = line.and_then(|line| line.split_once(" = [")).expect("the output is there");
        number.trim_end_matches(']').parse::<f64>().expect("it is one number")
    };
    let mean = of(&one, "loss.sum") / of(&one, "loss.weight");
    assert!((of(&trained, "loss") - mean).abs() < 1e-6);
}

#[test]
fn tokens_and_labels_are_drawn_within_their_ranges() {
    for seed in ["0", "1", "2", "3"] {
        let text = read(PROGRAM, &["--run", "--pipeline", "", "--seed", seed]);
        assert!(text.contains("// \"loss.weight\" : f32[] = [8.0]"), "a label does not count\n{text}");
    }
}

#[test]
fn without_passes_to_run_it_says_how_to_give_them() {
    let program = PROGRAM.split_once('\n').expect("there is a first line").1;
    check(
        program,
        &[],
        expect![[r#"
        error: there are no passes to run
          --> program.ir
          = give passes: --pipeline 'fold canonicalize'
          = or write the passes into the file's first line: // run: fold canonicalize
    "#]],
    );
    check(
        &format!("// run: simplify tidy\n{program}"),
        &[],
        expect![[r#"
            error: pass `tidy`: there is no such pass; the passes are bind, dropout, fold, canonicalize, parameters, moe, loss, initialize, stage, delay, autodiff, precision, router_bias, compress_gradients, optimizer, simplify, spmd, collectives, buckets, hierarchy, recompute, compress_activations, offload, evaluation, update, keep, absorb, join
              --> program.ir:1
        "#]],
    );
}

#[test]
fn a_text_that_is_no_program_is_refused_with_its_place() {
    check(
        &PROGRAM.replace("gather %2", "gather %9"),
        &[],
        expect![[r#"
        error: %9 is not defined before it is used
          --> program.ir, line 11, column 17
    "#]],
    );
    check(
        &PROGRAM.replace("f32[2, 4, 3]", "f32[2, 4, 5]"),
        &[],
        expect![[r#"
        error: `gather` has the result type f32[2, 4, 3], and the text has f32[2, 4, 5]
          --> program.ir, line 11, column 5
    "#]],
    );
    check(
        "// run: simplify\n",
        &[],
        expect![[r#"
        error: expected `trainyard`, found the end of the text
          --> program.ir, line 2, column 1
    "#]],
    );
}

#[test]
fn a_program_that_no_machine_could_interpret_is_refused() {
    let huge = PROGRAM.replace("f32[5, 3]", "f32[5000000000000, 3]");
    let text = read(&huge, &["--pipeline", "", "--run"]);
    assert!(text.starts_with("error: a step of the program needs "), "{text}");
    assert!(text.contains(", f32[5000000000000, 3], which needs 109 TiB\n"), "{text}");
    let unbound = PROGRAM.replace("[2, 4", "[n, 4");
    check(
        &unbound,
        &["--pipeline", "", "--run"],
        expect![[r#"
        error: the program has a value of type i64[n, 4]: only programs whose dims are all bound can be run
          = bind the dims first: --pipeline 'bind(batch=2) …'
    "#]],
    );
}

#[test]
fn what_a_pass_refuses_is_told() {
    check(
        PROGRAM,
        &["--pipeline", "optimizer(sgd)"],
        expect![[r#"
        error: the optimizer needs a program with gradients and without an optimizer
          = run `autodiff` once before `optimizer`
    "#]],
    );
    check(
        PROGRAM,
        &["--pipeline", "simplify", "--print-after", "simplfy"],
        expect![[r#"
            error: --print-after simplfy: there is no such pass
              = there are bind, dropout, fold, canonicalize, parameters, moe, loss, initialize, stage, delay, autodiff, precision, router_bias, compress_gradients, optimizer, simplify, spmd, collectives, buckets, hierarchy, recompute, compress_activations, offload, evaluation, update, keep, absorb, join; the nearest is `simplify`
        "#]],
    );
}

const NORM: &str = r#"// run: absorb
// kernels: cuda
trainyard-ir 1
module @norm imported {
  func @forward(%0 "x" batched : bf16[4, 8], %1 "scale" : f32[8]) {
    %2 = cast %0 {to = f32} : f32[4, 8] !{fwd}
    %3, %4 = rms_norm %2, %1 {eps = 1e-6} : f32[4, 8], f32[4] !{fwd}
  }
  output "y" = %3
}
"#;

#[test]
fn a_target_is_given_by_the_file_or_by_a_flag() {
    let absorbed = read(NORM, &[]);
    assert!(absorbed.contains("module @norm lowered {") && !absorbed.contains("cast"), "{absorbed}");
    let without = NORM.replace("// kernels: cuda\n", "");
    assert_eq!(read(&without, &["--kernels", "cuda"]), absorbed);
    check(
        &without,
        &[],
        expect![[r#"
            error: the pass writes a program for the kernels of a target, and none is given
              = give one: --kernels cuda
        "#]],
    );
    check(
        &NORM.replace("cuda", "tpu"),
        &[],
        expect![[r#"
            error: there is no target `tpu`; there are cpu, cpu-amx, cpu-avx512-bf16, cuda
              --> program.ir
        "#]],
    );
}

#[test]
fn a_lowered_program_runs_as_it_did_before() {
    let before = read(NORM, &["--run", "--pipeline", ""]);
    let after = read(NORM, &["--run"]);
    assert_eq!(outputs(&after), outputs(&before));
    let (_folder, path) = file(&after);
    let (again, _) = opt(&path, &["--pipeline", ""]).output().expect("a lowered program is read back");
    assert_eq!(again, after.split("// ").next().expect("there is a program"));
}

#[test]
fn a_reproducer_names_the_target() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dump = folder.path().display().to_string();
    read(NORM, &["--pipeline", "absorb initialize(gpt2)", "--dump", &dump]);
    let text = fs::read_to_string(folder.path().join("reproducer.ir")).expect("the second pass fails");
    assert!(text.starts_with("// run: initialize(gpt2)\n// kernels: cuda\ntrainyard-ir 1\n"), "{text}");
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let failure = opt(Path::new("/nowhere/x.ir"), &[]).output().expect_err("there is no such file");
    expect![[r#"
        error: cannot read the program: No such file or directory (os error 2)
          --> /nowhere/x.ir
    "#]]
    .assert_eq(&render(Severity::Error, &failure.diagnostics(), false));
}

#[test]
fn programs_are_kept_after_every_pass() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dump = folder.path().display().to_string();
    read(PROGRAM, &["--dump", &dump]);
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .expect("it is there")
        .map(|entry| entry.expect("it can be read").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["00-autodiff.ir", "01-optimizer.ir", "02-simplify.ir"]);
}
