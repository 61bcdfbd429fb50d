//! The command with a driver that is made up: the driver's environment when it starts, and a GPU that is too old. The tests need a C
//! compiler.

use crate::TRAINYARD;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The refusal of the driver's only GPU.
const TOO_OLD: &str =
    "GPU 0 (Tesla T4) is too old: its compute capability is 7.5, and kernels need 8.0 or newer";

/// A folder with the driver `driver/turing.c`.
fn driver() -> TempDir {
    let folder = tempfile::tempdir().expect("there is room");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/command/driver/turing.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    let made = compile.arg(folder.path().join("libcuda.so.1")).arg(source).status();
    assert!(made.expect("a C compiler").success());
    folder
}

/// The command with this driver; `queues` is the environment's number of hardware queues.
fn run(folder: &Path, arguments: &str, queues: Option<&str>) -> Output {
    let mut command = Command::new(TRAINYARD);
    command.args(arguments.split_whitespace()).env("TRAINYARD_CUDA_LIBS", folder);
    command.env_remove("CUDA_DEVICE_MAX_CONNECTIONS");
    command.envs(queues.map(|queues| ("CUDA_DEVICE_MAX_CONNECTIONS", queues)));
    command.output().expect("it can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
#[ignore = "needs a C compiler"]
fn the_driver_starts_with_the_most_queues_unless_the_user_asks_for_a_number() {
    let driver = driver();
    for (asked, started) in [(None, "32"), (Some("1"), "1"), (Some("12"), "12")] {
        let ended = run(driver.path(), "doctor", asked);
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let told = text(&ended.stderr);
        assert!(told.contains(&format!("the driver has {started} queues\n")), "{told}");
    }
}

#[test]
#[ignore = "needs a C compiler"]
fn a_gpu_that_is_too_old_is_refused_by_each_command_in_one_sentence() {
    let driver = driver();
    let listed = text(&run(driver.path(), "doctor", None).stdout);
    assert!(listed.contains("Tesla T4, compute capability 7.5, 40 multiprocessors, 16.0 GiB"), "{listed}");
    assert!(listed.contains("too old: its compute capability is 7.5, and kernels need 8.0"), "{listed}");
    let out = driver.path().join("run");
    let train = format!(
        "compile testdata/models/mlp.dynamo.onnx --train synthetic --steps 1 -o {} --device",
        out.display()
    );
    for (arguments, flag) in [("doctor --check", "--check"), (&format!("{train} cuda"), "--device cuda")] {
        let ended = run(driver.path(), arguments, None);
        let told = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {told}");
        let lines: Vec<&str> = told.lines().filter(|line| line.contains("too old")).collect();
        assert_eq!(lines, [format!("error: {flag}: {TOO_OLD}")], "{told}");
    }
    let ended = run(driver.path(), &format!("{train} auto"), None);
    let told = text(&ended.stdout) + &text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{told}");
    assert!(told.contains(&format!("cpu; {TOO_OLD}")), "{told}");
}
