//! `doctor --check`, with the real binary as its processes, on the stand-in for a GPU. A C++ compiler that changes the kernels plants
//! faults that end a process or make it hang. The tests need a C++ compiler.

use crate::TRAINYARD;
use cuda::check::part::CheckedDevice;
use cuda::check::process::{Limits, Processes};
use cuda::check::rates::{Rate, Sizes};
use cuda::check::samples::{Batch, SampleVariant, all};
use cuda::check::search::{Report, check};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A statement that ends the process with a signal that the stand-in does not catch.
const KILL: &str = "abort();";

/// A statement that never ends.
const HANG: &str = "for (;;) asm volatile(\"\");";

/// The most time that a rate may take if nothing hangs. Compiling counts, on a busy processor.
const LONG: Duration = Duration::from_secs(40);

/// Makes a compiler in this folder that puts statements before the calls of functions in kernels.
fn compiler(folder: &Path, planted: &[(&str, &str)]) -> String {
    let path = folder.join("c++");
    let edit = |(call, statement): &(&str, &str)| format!("s/    {call}</    {statement} {call}</;");
    let edits: String = planted.iter().map(edit).collect();
    let script =
        format!("#!/bin/sh\nfor source; do :; done\nsed -i '{edits}' \"$source\"\nexec c++ \"$@\"\n");
    fs::write(&path, script).expect("it can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path.display().to_string()
}

fn processes(compiler: String, run: Duration) -> Processes {
    let [load, sample] = [120_000, 50].map(Duration::from_millis);
    Processes {
        executable: TRAINYARD.into(),
        place: CheckedDevice::StandIn,
        limits: Limits { load, run, sample },
        environment: vec![("CXX".into(), compiler)],
    }
}

/// The indices of the first two samples of each of these operators, by their names.
fn indices(names: &[&str]) -> Vec<usize> {
    let samples = all();
    let of = |name: &&str| {
        let named = |index: &usize| samples[*index].op.name() == *name;
        (0..samples.len()).filter(named).take(2).collect::<Vec<_>>()
    };
    let mut indices: Vec<usize> = names.iter().flat_map(of).collect();
    indices.sort_unstable();
    indices
}

fn checked(planted: &[(&str, &str)], names: &[&str]) -> Report {
    let folder = tempfile::tempdir().expect("there is room");
    let mut processes = processes(compiler(folder.path(), planted), Duration::from_secs(2));
    let batch = Batch { way: SampleVariant::ALL[0], dtype: ir::DType::F32, samples: indices(names) };
    check(&mut processes, &all(), &[batch], "stand-in/", &mut |_| ())
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_sample_that_ends_its_process_costs_no_other_its_verdict() {
    let names = ["softmax", "log_softmax", "layer_norm", "rms_norm"];
    let report = checked(&[("softmax::softmax", KILL)], &names);
    let expected = indices(&["softmax"]);
    let parts: Vec<&str> = report.failures.iter().map(|failure| &*failure.part).collect();
    assert_eq!(
        parts,
        expected.iter().map(|index| format!("stand-in/f32/inputs/{index}")).collect::<Vec<_>>()
    );
    for failure in &report.failures {
        assert!(failure.problem.starts_with("the process ended early: signal: "), "{failure:?}");
    }
    assert_eq!((report.passed, report.skipped), (indices(&names).len() - expected.len(), 0));
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_sample_that_hangs_is_ended_and_named() {
    let names = ["log_softmax", "softmax"];
    let report = checked(&[("softmax::log_softmax", HANG)], &names);
    let expected = indices(&["log_softmax"]);
    assert_eq!(report.failures.len(), expected.len(), "{report:?}");
    for failure in &report.failures {
        assert!(failure.operator.starts_with("LogSoftmax("), "{failure:?}");
        assert!(
            failure.problem.starts_with("the process reported nothing for 2 s and was killed"),
            "{failure:?}"
        );
    }
    assert_eq!((report.passed, report.skipped), (indices(&["softmax"]).len(), 0));
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rates_after_one_that_ends_the_process_are_measured() {
    let folder = tempfile::tempdir().expect("there is room");
    let sizes = Sizes::small();
    let plain = processes("c++".into(), LONG).rates(&sizes, &mut |_| ());
    let names = |rates: &[Rate]| rates.iter().map(|rate| rate.name.clone()).collect::<Vec<_>>();
    let measured = |rates: &[Rate]| rates.iter().map(|rate| rate.value.is_some()).collect::<Vec<_>>();
    assert_eq!(measured(&plain), [true, true, false, true, true, true], "{plain:?}");

    let mut told = 0;
    let sizes = Sizes { widths: vec![64], ..sizes };
    let planted = [("attention::forward", KILL), ("attention::forward_mma", KILL)];
    let faulty = processes(compiler(folder.path(), &planted), LONG);
    let rates = faulty.rates(&sizes, &mut |_| told += 1);
    assert_eq!((names(&rates), told), (names(&plain), plain.len()));
    assert_eq!(measured(&rates), [true, true, false, true, false, false], "{rates:?}");
    let error = rates[4].error.as_deref().expect("it has no value");
    assert!(error.starts_with("the process ended early: signal: "), "{error}");
}

/// Runs a part of the check, and returns its output.
fn part(part: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(TRAINYARD);
    command.args(["doctor", "--part", part]).env_remove("TRAINYARD_SYNC").envs(variables.iter().copied());
    command.output().expect("it can be started")
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_part_waits_for_each_command_where_the_environment_asks_for_it() {
    let sample = format!("stand-in/f32/inputs/{}", indices(&["softmax"])[0]);
    for (variables, pace) in [(&[][..], "Graphs"), (&[("TRAINYARD_SYNC", "1")], "Synchronous")] {
        let ended = part(&sample, variables);
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert!(text.starts_with(&format!("{{\"loaded\":\"{pace}\"}}\n")), "{text}");
        assert!(text.ends_with("\"problem\":null}}\n\"done\"\n"), "{text}");
    }
}

#[test]
fn a_part_that_does_not_exist_is_refused() {
    for wrong in ["gpu", "stand-in/f32/inputs/99999"] {
        let ended = part(wrong, &[]);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    }
}

/// A killed `doctor --check` leaves no process that keeps the GPU busy.
#[test]
#[cfg(target_os = "linux")]
fn a_part_ends_with_the_process_that_started_it() {
    let folder = tempfile::tempdir().expect("there is room");
    let slow = folder.path().join("c++");
    fs::write(&slow, "#!/bin/sh\nexec sleep 20\n").expect("it can be written");
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let part = format!("stand-in/f32/inputs/{}", indices(&["softmax"])[0]);
    // The shell stays for a second, so that the part sees it as its parent, and then ends.
    let script = "\"$0\" doctor --part \"$1\" > /dev/null 2>&1 & echo $!; sleep 1";
    let shell = Command::new("sh").args(["-c", script, TRAINYARD, &part]).env("CXX", &slow).output();
    let number = String::from_utf8(shell.expect("it can be started").stdout).expect("a number");
    let process = Path::new("/proc").join(number.trim());
    let start = Instant::now();
    while process.exists() {
        assert!(start.elapsed() < Duration::from_secs(10), "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}
