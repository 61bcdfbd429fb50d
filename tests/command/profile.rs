//! `--profile` of a pipeline: the times of all ranks, and the measured timetable beside the predicted one.

use crate::TRAINYARD;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use testing::workplace::Workplace;

fn list<'v>(value: &'v Value, key: &str) -> &'v Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is a list"))
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is a number: {value}"))
}

/// A run with `--profile`: its folder `run`, and the text of standard error.
fn profiled(place: &Workplace, flags: &str) -> String {
    let run = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 2 --global-batch 8 --threads 2 --steps 3 --profile --force -o run";
    place.succeed(&format!("{run} {flags}")).stderr
}

/// The text that `trainyard inspect run FLAGS` writes.
fn inspected(place: &Workplace, flags: &str) -> String {
    let output = place.command(&format!("inspect run {flags}")).output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

fn json(place: &Workplace, file: &str) -> Value {
    serde_json::from_slice(&place.read(file)).expect("it is JSON")
}

#[test]
fn the_profile_of_a_pipeline_has_the_tasks_of_all_ranks() {
    let place = Workplace::with_text(TRAINYARD, 10_000);
    let told = profiled(&place, "--mesh pp=2,dp=2 --schedule zb-v");
    let heading = "  rank  stage    forward   backward    weights      waits    prepare     update     idle  by means  by tasks";
    let table = told.lines().skip_while(|line| *line != heading).skip(1);
    let rows: Vec<Vec<&str>> = table.take(8).map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows.concat().join(" "), "0 0 0 3 1 0 1 3 2 1 2 2 3 1 3 2", "{told}");
    assert!(told.contains(" ms per step of all ranks together; "), "{told}");

    let profile = json(&place, "run/profile.json");
    let ranks = list(&profile, "ranks");
    let tasks_of = |rank: &Value| -> BTreeSet<String> {
        let name = |task: &Value| format!("{} {} {}", task["phase"], task["stage"], task["microbatch"]);
        list(rank, "tasks").iter().map(name).collect()
    };
    assert_eq!(ranks.len(), 4);
    for (index, rank) in ranks.iter().enumerate() {
        assert_eq!(number(rank, "pipeline_rank"), (index / 2) as f64);
        assert_eq!(tasks_of(rank).len(), 2 * 3 * 2, "two stages, three phases, two microbatches");
        let shares = ["idle", "by_means", "by_tasks"];
        for (share, of) in shares.into_iter().zip([rank, &rank["predicted"], &rank["predicted"]]) {
            assert!((0.0..1.0).contains(&number(of, share)), "{share}: {rank}");
        }
        let mut end = 0.0;
        for task in list(rank, "tasks") {
            assert!(number(task, "begin_ms") >= end, "tasks follow each other: {rank}");
            end = number(task, "end_ms");
            let time = end - number(task, "begin_ms");
            assert!((0.0..=time + 1e-6).contains(&number(task, "waited_ms")), "{task}");
        }
        let stages = list(rank, "stages");
        let busy = |stage: &Value| {
            ["forward_ms", "backward_ms", "weight_ms"].map(|key| number(stage, key)).iter().sum::<f64>()
        };
        assert!(stages.len() == 2 && stages.iter().all(|stage| busy(stage) > 0.0), "{rank}");
    }
    assert_eq!(tasks_of(&ranks[0]), tasks_of(&ranks[1]));
    assert!(tasks_of(&ranks[0]).is_disjoint(&tasks_of(&ranks[2])));
    let timeline = json(&place, "run/timeline.json");
    let of_instructions = list(&timeline, "traceEvents").iter().filter(|event| event["ph"] == "X");
    let ranks: BTreeSet<u64> = of_instructions.filter_map(|event| event["pid"].as_u64()).collect();
    assert_eq!(ranks, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn a_timeline_has_the_measured_tasks_beside_the_predicted_ones() {
    let place = Workplace::with_text(TRAINYARD, 10_000);
    for (flags, is_stream) in [("--mesh pp=2", false), ("--mesh pp=2 --schedule 2bw", true)] {
        let told = profiled(&place, flags);
        let timeline: Value =
            serde_json::from_str(&inspected(&place, "--format perfetto")).expect("it is JSON");
        let mut tasks: BTreeMap<(u64, u64), BTreeSet<&str>> = BTreeMap::new();
        for event in list(&timeline, "traceEvents").iter().filter(|event| event["ph"] == "X") {
            let key = ["pid", "tid"].map(|key| event[key].as_u64().expect("a number"));
            tasks.entry(key.into()).or_default().insert(event["name"].as_str().expect("a name"));
        }
        assert_eq!(tasks.len(), 4, "two processes of two ranks");
        for rank in 0..2 {
            let (measured, predicted) = (&tasks[&(0, rank)], &tasks[&(1, rank)]);
            // The last step of an asynchronous pipeline runs no forward task of the next step, and the drawn timetable has two steps.
            let is_step = if is_stream { (5..=8).contains(&measured.len()) } else { measured == predicted };
            assert!(is_step, "{flags}: {measured:?} and {predicted:?}");
        }
        let is_told = told.contains("steps follow each other without a flush, so none is predicted");
        assert_eq!(is_told, is_stream, "{told}");
        assert!(inspected(&place, "").contains("stages, measured, milliseconds a step"));
    }
    // A run without a profile removes the times of an earlier run.
    place.succeed("compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 2 --global-batch 8 --steps 1 --force -o run --mesh pp=2");
    assert!(!place.path("run/profile.json").exists() && !place.path("run/timeline.json").exists());
}
