//! Processes that torchrun started, on a machine without a GPU. They find each other, and agree that the run cannot begin.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testing::workplace::{Ended, Workplace};

const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");

/// A process of torchrun: `MASTER_PORT` is that of torchrun's own agent.
fn process(place: &Workplace, rank: u64, port: u16, arguments: &str) -> Child {
    let mut command = Command::new(TRAINYARD);
    command.args(arguments.split_whitespace()).current_dir(place.path(""));
    command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
    command.env("WORLD_SIZE", "2").env("LOCAL_WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the process starts")
}

/// The standard error of two processes that fail.
fn fail(place: &Workplace, arguments: [&str; 2]) -> [String; 2] {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port() - 1;
    let started = arguments.map(|own| (own, port));
    let mut rank = 0;
    let children = started.map(|(own, port)| {
        rank += 1;
        process(place, rank - 1, port, own)
    });
    children.map(|child| {
        let output = child.wait_with_output().expect("the process ends");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    })
}

const TRAIN: &str =
    "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 4 --steps 1 --timeout 20 -o run";

#[test]
fn processes_for_gpus_agree_over_the_network_that_the_model_is_missing() {
    let place = Workplace::with_text(TRAINYARD, 4_000);
    let missing = "compile nothing.onnx --train text.txt --timeout 20 -o run --device cuda";
    let began = Instant::now();
    let told = fail(&place, [missing, missing]);
    assert!(told[0].contains("error: "), "{told:?}");
    assert_eq!(told[1], "", "rank 0 alone tells");
    assert!(began.elapsed() < Duration::from_secs(15), "nobody waits for somebody who has ended");
}

#[test]
fn help_and_wrong_flags_come_before_variables_that_make_no_sense() {
    let place = Workplace::new(TRAINYARD);
    let run = |arguments: &str| {
        let mut command = place.command(arguments);
        Ended::of(command.env("RANK", "x").env("MASTER_ADDR", "h").output().expect("it starts"))
    };
    let help = run("compile --help");
    assert_eq!(help.status.code(), Some(0), "{}", help.stderr);
    assert!(run("compile m.onnx --stepps 4").stderr.contains("unexpected argument '--stepps'"));
    assert!(
        run("compile m.onnx --steps 4").stderr.contains("the environment variable RANK of torchrun is `x`")
    );
}

#[test]
fn processes_of_torchrun_on_processors_are_refused_with_the_ways_to_go() {
    let place = Workplace::with_text(TRAINYARD, 4_000);
    let told = fail(&place, [TRAIN, TRAIN]);
    assert!(
        told[0].contains("torchrun started 2 processes") && told[0].contains("--device cuda"),
        "{told:?}"
    );
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let place = Workplace::with_text(TRAINYARD, 4_000);
    let alone = format!("{TRAIN} --device cuda").replace("--timeout 20", "--timeout 1");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port() - 1;
    let output = process(&place, 0, port, &alone).wait_with_output().expect("the process ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("the ranks [1] did not come to 127.0.0.1:") && told.contains("within 1 s"),
        "{told}"
    );
}

/// A pod of a job has a log of its own. So its process reports why it did not join, although it is not rank 0.
#[test]
fn a_process_that_finds_no_rank_0_tells_so() {
    let place = Workplace::with_text(TRAINYARD, 4_000);
    let alone = format!("{TRAIN} --device cuda").replace("--timeout 20", "--timeout 1");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port() - 1;
    let output = process(&place, 1, port, &alone).wait_with_output().expect("the process ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(told.contains("error: rank 1 does not find rank 0 at 127.0.0.1:"), "{told}");
}

#[test]
fn two_processes_with_different_folders_tell_so() {
    let place = Workplace::with_text(TRAINYARD, 4_000);
    let train = format!("{TRAIN} --device cuda").replace("--timeout 20", "--timeout 5");
    let other = train.replace("-o run", "-o other");
    let told = fail(&place, [&train, &other]);
    assert!(told[0].contains("processes of another run came"), "{told:?}");
    assert!(told[1].contains("another version, output folder or number of processes"), "{told:?}");
}
