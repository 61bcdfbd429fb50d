//! Searches for memory compile as little as they can: their candidates share what precedes the first option in which they differ.

use ir::machine::Preset;
use passes::Manager;
use testing::models::{self, done};
use trainyard::cli::{Cli, Command};
use trainyard::compiler::{self, Facts, Job, On, Shared, Step};
use trainyard::failure::Failure;

/// The job of `trainyard compile` for the model GPT-2 with these flags.
fn job(flags: &str) -> Job {
    let path = models::path("gpt2.dynamo.onnx");
    let file = path.display().to_string();
    let words = ["trainyard", "compile", &file].into_iter().chain(flags.split_whitespace());
    let cli = Cli::parse_with_config(words).unwrap_or_else(|error| panic!("{error:?}"));
    let Command::Compile(compile) = cli.command else { panic!("not a compile") };
    let on = On { target: cpu::TARGET, ..On::described(Preset::Cpu.device()) };
    Job::resolve(path, &compile.settings.compile, Facts { on, cluster: None, global_batch: None })
}

/// The numbers of runs of some passes.
fn runs<const N: usize>(manager: &Manager, passes: [&str; N]) -> [usize; N] {
    passes.map(|pass| manager.runs.of(pass))
}

fn step<'m>(job: &Job, manager: &'m Manager) -> Result<Step<'m>, Failure> {
    let forward = compiler::forward(job, compiler::import(job)?, manager, &mut |_, _, _| {})?;
    forward.step(job, &mut |_, _, _| {}).map_err(|stopped| stopped.failure)
}

/// Candidates of one step differ in options behind `spmd`.
#[test]
fn a_search_for_a_budget_differentiates_and_shards_once() {
    let manager = Manager::default();
    let flags = "--microbatch 64 --mesh dp=2";
    let alone = done(done(step(&job(flags), &manager)).lower(&job(flags))).programs.peak();
    for memory in [format!("{}B", alone * 8 / 10), format!("device={}B,host=1GiB", alone * 6 / 10)] {
        let manager = Manager::default();
        let job = job(&format!("{flags} --memory {memory}"));
        let fit = done(step(&job, &manager)).fit.expect("the result of the search");
        let counts = runs(&manager, ["bind", "autodiff", "spmd", "collectives"]);
        assert_eq!(counts, [1; 4], "{fit}");
        // Each try is lowered, after the pass `keep`.
        assert!(manager.runs.of("keep") > 1, "{fit}");
    }
}

/// Jobs of the advice differ in any option.
#[test]
fn jobs_share_the_passes_before_the_first_that_differs() {
    let manager = Manager::default();
    let mut shared = Shared::default();
    let flags = "--mesh dp=2 --microbatch 8 --bf16";
    let passes = ["bind", "autodiff", "precision", "optimizer", "spmd"];
    for (more, expected, imports) in [
        ("", [1, 1, 1, 1, 1], 1),
        ("--update early", [1, 1, 1, 1, 1], 1),
        ("--recompute full", [1, 1, 1, 1, 1], 1),
        ("--zero 3", [1, 1, 1, 1, 2], 1),
        ("--optimizer adamw:moments=8bit", [1, 1, 1, 2, 3], 1),
        ("--grad-dtype bf16", [1, 1, 2, 3, 4], 1),
        ("--label-smoothing 0.1", [1, 2, 3, 4, 5], 1),
        ("--microbatch 4", [2, 3, 4, 5, 6], 2),
        ("--zero 3 --microbatch 4", [2, 3, 4, 5, 7], 2),
    ] {
        let words = if more.contains("--microbatch") {
            flags.replace("--microbatch 8", more)
        } else {
            format!("{flags} {more}")
        };
        let job = job(&words);
        let forward = done(shared.forward(&job, &manager));
        let made = done(forward.step(&job, &mut |_, _, _| {}).map_err(|stopped| stopped.failure));
        assert_eq!((runs(&manager, passes), shared.imports()), (expected, imports), "{more}");
        let own = Manager::default();
        let alone = done(step(&job, &own));
        assert!(made.compilation.training == alone.compilation.training, "another program with {more}");
        assert_eq!(made.compilation.pipeline, alone.compilation.pipeline, "{more}");
    }
}

/// Stages are cut before the loss is differentiated, so each cut is differentiated; the model is imported and bound once.
#[test]
fn stages_that_are_cut_again_share_the_forward_program() {
    let flags = "--mesh pp=2 --schedule 1f1b --microbatch 2 --global-batch 16";
    let manager = Manager::default();
    let first = done(done(step(&job(flags), &manager)).lower(&job(flags))).programs.peak();
    let manager = Manager::default();
    done(step(&job(&format!("{flags} --memory {}B", first * 98 / 100)), &manager));
    let [bound, lost, cut, differentiated] = runs(&manager, ["bind", "loss", "stage", "autodiff"]);
    assert_eq!((bound, lost), (1, 1));
    assert!(cut > 1 && cut == differentiated, "{cut} cuts, differentiated {differentiated} times");
}
