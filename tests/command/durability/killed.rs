//! Runs that are killed at random times and resumed with `--resume`, several times each. Their results have the same bits as those of a run
//! that was never killed.

use crate::TRAINYARD;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::{Duration, Instant};

use super::damage::Random;
use testing::running::Running;
use testing::workplace::Workplace;

/// Runs on one device, on a mesh, with a scaled loss, and of a table of numbers.
const RUNS: [&str; 4] = [
    "compile testdata/gpt2-fresh.onnx --train testdata/kjv.txt --microbatch 4 --steps 24 --save-every 3 --eval-every 8",
    "compile testdata/gpt2-fresh.onnx --train testdata/kjv.txt --microbatch 4 --steps 18 --save-every 3 --mesh dp=2,tp=2 --zero 1",
    "compile testdata/gpt2-fresh.onnx --train testdata/kjv.txt --microbatch 4 --steps 24 --save-every 3 --keep 2 --fp16",
    "compile testdata/models/mlp.dynamo.onnx --init kaiming --train testdata/digits.csv.gz --eval testdata/digits.csv.gz \
     --microbatch 64 --steps 140 --save-every 7 --eval-every 20 --export best",
];

/// The number of kills of each run, unless `TRAINYARD_KILLS` gives another number.
const KILLS: usize = 4;

/// The results of a run: the exports, the last checkpoint's states, and the losses.
fn results(place: &Workplace, run: &str) -> Vec<(String, Vec<u8>)> {
    let last = place.checkpoints(run).pop().expect("it has saved");
    let files = ["model.onnx", "model.safetensors"].map(str::to_owned);
    let files = files.map(|name| (name.clone(), place.read(&format!("{run}/{name}"))));
    let states = (format!("the states of step {last}"), place.states(run, last));
    let number = |line: &serde_json::Value, name: &str| line.get(name).map(ToString::to_string);
    let losses = place.metrics(run).into_iter().map(|line| {
        let values = ["loss", "lr", "grad_norm", "skipped", "eval_loss"].map(|name| number(&line, name));
        (format!("step {}", line["step"]), format!("{values:?}").into_bytes())
    });
    files.into_iter().chain([states]).chain(losses).collect()
}

/// Kills a run `wanted` times, each after a random time, and resumes it each time, the last time to its end.
fn kill_and_resume(run: &str, wanted: usize, random: &mut Random) {
    let place = Workplace::new(TRAINYARD);
    let begun = Instant::now();
    place.succeed(&format!("{run} -o whole"));
    let time = usize::try_from(begun.elapsed().as_micros()).expect("it is short");
    let expected = results(&place, "whole");
    let mut kills = 0;
    while kills < wanted {
        loop {
            let mut going = Running::start(place.command(&format!("{run} -o run --resume")));
            // Kills in the first two thirds of a run leave a part of it for the later kills.
            let moment = Instant::now() + Duration::from_micros(random.below(time * 2 / 3) as u64);
            // A run that resumes near its end may end before that moment.
            while going.is_running() && Instant::now() < moment {
                thread::sleep(Duration::from_millis(1));
            }
            let ended = if kills < wanted { going.kill_if_running() } else { going.wait() };
            if ended.status.signal() == Some(9) {
                kills += 1;
                continue;
            }
            assert_eq!(ended.status.code(), Some(0), "{run}, after {kills} kills\n{}", ended.stderr);
            break;
        }
        assert!(results(&place, "run") == expected, "{run}: other results after {kills} kills");
        fs::remove_dir_all(place.path("run")).expect("it was written");
    }
}

#[test]
#[ignore = "longer: killed"]
fn killed_runs_end_as_if_nobody_had_killed_them() {
    let kills = std::env::var("TRAINYARD_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let mut random = Random::new();
    RUNS.iter().for_each(|run| kill_and_resume(run, kills, &mut random));
    println!("{} kills", RUNS.len() * kills);
}
