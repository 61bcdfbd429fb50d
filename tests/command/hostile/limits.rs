//! Numbers of threads and ranks that no machine has, and a limit on the size of files.

use crate::TRAINYARD;

use expect_test::expect;

use super::refused;
use testing::workplace::{Ended, Workplace};

const RUN: &str = "compile testdata/gpt2-fresh.onnx --microbatch 2 --train text.txt --steps 1 -o run";

fn place() -> Workplace {
    Workplace::with_text(TRAINYARD, 10_000)
}

#[test]
fn more_threads_than_any_machine_has_are_refused() {
    let place = place();
    expect![[r#"
        error: invalid value '1000000' for '--threads <N>': `1000000` is not a whole number from 1 to 1024

        For more information, try '--help'.
    "#]]
    .assert_eq(&refused(&place.run(&format!("{RUN} --threads 1000000"))));
    place.write("trainyard.toml", b"threads = 1000000\n");
    expect![[r#"
        error: `threads`: `1000000` is not a whole number from 1 to 1024
          --> trainyard.toml:1
    "#]]
    .assert_eq(&refused(&place.run(&format!("{RUN} --config trainyard.toml"))));
    for name in ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"] {
        let output = place.command(RUN).env(name, "1000000").output();
        let text = refused(&Ended::of(output.expect("it can be started")));
        let first = format!("error: {name}=1000000 asks for more than 1024 threads\n");
        assert_eq!(text, first + "  = unset the variable: the default is one thread per core\n");
    }
    place.succeed(&format!("{RUN} --threads 64"));
}

#[test]
fn more_ranks_than_the_processor_runs_are_refused() {
    let place = place();
    let expected = expect![[r#"
        error: --mesh dp=100000 has 100000 ranks; the processor runs at most 1024 ranks, each in its own thread
          = use a smaller mesh; --device cuda runs each rank on its own GPU
    "#]];
    let large = "testdata/gpt2-fresh.onnx --microbatch 100000 --mesh dp=100000";
    expected.assert_eq(&refused(&place.run(&format!("compile {large} --train synthetic -o run"))));
    expected.assert_eq(&refused(&place.run(&format!("verify {large}"))));
    expected.assert_eq(&refused(&place.run(&format!("verify {large} --mode cpu"))));
    // A program that is only compiled needs no threads.
    place.succeed(&format!("compile {large} -o plan"));
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_kill() {
    let place = place();
    // The unit is 512 or 1024 bytes, depending on the shell: the text of a program does not fit in either case.
    let ended = place.run_within("ulimit -f 2; exec", RUN);
    expect![[r#"
        error: cannot write run/program.ir: File too large (os error 27)
    "#]]
    .assert_eq(&refused(&ended));
    assert_eq!(place.checkpoints("run"), Vec::<u64>::new());
}
