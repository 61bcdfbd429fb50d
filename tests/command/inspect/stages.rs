//! `--mesh pp=2`: the cut of a model into stages, the memory of the pipeline ranks, and the predicted timetable.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use serde_json::Value;

use super::{inspect, json, read};

const MODEL: &str = "gpt2-bytes.onnx";
const BATCH: [&str; 4] = ["--microbatch", "1", "--global-batch", "16"];
const SCHEDULES: [&str; 6] = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"];

/// The lines about the pipeline, between two empty ones around the timetable.
#[track_caller]
fn check_pipeline(flags: &[&str], expected: Expect) {
    let text = read(&[&[MODEL, "--microbatch", "2", "--global-batch", "8"], flags].concat());
    let start = text.find("\npipeline of ").unwrap_or_else(|| panic!("no pipeline in\n{text}")) + 1;
    let lines = text[start..].lines().take_while(|line| !line.starts_with("warning: "));
    let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
    expected.assert_eq(lines.trim_end());
}

#[test]
fn a_pipeline_is_told_stage_by_stage_and_drawn() {
    check_pipeline(
        &["--mesh", "pp=2"],
        expect![[r#"
        pipeline of 2 stages on 2 pipeline ranks, schedule 1f1b: 4 microbatches take 45.4 µs by the cost model, on H100 SXM (--target names another device)
          stage  rank       parameters    forward   backward  load     sends  nodes
              0     0          437,504     3.2 µs     4.8 µs  96 %  64.0 KiB  node_embedding to node_add_11
              1     1          396,800     3.3 µs     5.1 µs 100 %       0 B  node_add_11 to loss
          rank 0: idle 30.0 %, keeps 2 sets of activations for backward, 11.0 MiB (parameters 1.67 MiB, gradients 1.67 MiB, optimizer 3.34 MiB, saved activations 4.02 MiB, workspace 320 KiB, constants 256 B)
          rank 1: idle 26.8 %, keeps 1 set of activations for backward, 8.88 MiB (parameters 1.64 MiB, gradients 1.64 MiB, optimizer 3.03 MiB, saved activations 2.26 MiB, workspace 320 KiB, constants 448 B)

        timetable, a column is 0.5 µs: 0 1 2 forward, A B C backward of microbatches 0 1 2, . idle
        rank 0   000000111111..............AAAAAAAAA222222.BBBBBBBBB333333....CCCCCCCCC.......DDDDDDDDD
        rank 1   ........000000AAAAAAAAAA111111BBBBBBBBBB...222222CCCCCCCCCC333333DDDDDDDDDD..........."#]],
    );
}

#[test]
fn stages_of_the_same_rank_are_told_apart() {
    check_pipeline(
        &["--mesh", "pp=2", "--schedule", "interleaved"],
        expect![[r#"
        pipeline of 4 stages on 2 pipeline ranks, schedule interleaved: 4 microbatches take 43.6 µs by the cost model, on H100 SXM (--target names another device)
          stage  rank       parameters    forward   backward  load     sends  nodes
              0     0          239,232     1.6 µs     2.4 µs  94 %  64.0 KiB  node_embedding to node_add_7
              1     1          198,272     1.5 µs     2.3 µs  90 %  64.0 KiB  node_add_7 to node_add_11
              2     0          214,912     1.6 µs     2.7 µs 100 %   192 KiB  node_add_11 to node_Split_533
              3     1          181,888     1.6 µs     2.4 µs  93 %       0 B  node_add_15 to loss
          rank 0: idle 23.1 %, keeps 5 sets of activations for backward, 12.9 MiB (parameters 1.73 MiB, gradients 1.73 MiB, optimizer 3.46 MiB, saved activations 5.65 MiB, workspace 320 KiB, constants 256 B)
          rank 1: idle 27.7 %, keeps 3 sets of activations for backward, 9.94 MiB (parameters 1.58 MiB, gradients 1.58 MiB, optimizer 2.90 MiB, saved activations 3.58 MiB, workspace 320 KiB, constants 448 B)

        timetable, a column is 0.5 µs: 0 1 2 forward, A B C backward of microbatches 0 1 2, . idle
        rank 0   000111....000111222.......AAAAA333BBBBB222AAAAA333BBBBBCCCCC...DDDDDCCCCC...DDDDD
           stage 111111    222222111       2222211122222222111112221111122222   2222211111   11111
        rank 1   .....000111.....000AAAA111BBBB222AAAA333.BBBB222CCCC.333DDDD..CCCC....DDDD.......
           stage      111111     222222222222221111111111 11112222222 2222222  1111    1111
        stage: 1 for the first stage of the rank, 2 for the second, and so on"#]],
    );
}

#[test]
fn gradients_of_parameters_have_marks_of_their_own() {
    check_pipeline(
        &["--mesh", "pp=2", "--schedule", "zb-v", "--target", "h200"],
        expect![[r#"
        pipeline of 4 stages on 2 pipeline ranks, schedule zb-v: 4 microbatches take 638.4 µs by the cost model, on H200 SXM
          stage  rank       parameters    forward   backward    weights  load     sends  nodes
              0     0          239,232    31.6 µs    22.6 µs    22.1 µs  94 %  64.0 KiB  node_embedding to node_add_7
              1     1          198,272    28.6 µs    22.6 µs    19.1 µs  87 %       0 B  node_add_7 to node_add_11
              2     1          214,912    31.7 µs    28.8 µs    20.7 µs 100 %   192 KiB  node_add_11 to node_Split_533
              3     0          181,888    33.2 µs    21.2 µs    19.2 µs  91 %       0 B  node_add_15 to loss
          rank 0: idle 6.1 %, keeps 4 sets of activations for backward and 4 for weights, 13.8 MiB (parameters 1.73 MiB, gradients 1.73 MiB, optimizer 3.21 MiB, saved activations 6.96 MiB, workspace 129 KiB, constants 448 B)
          rank 1: idle 5.1 %, keeps 4 sets of activations for backward and 4 for weights, 14.5 MiB (parameters 1.58 MiB, gradients 1.58 MiB, optimizer 3.15 MiB, saved activations 8.02 MiB, workspace 193 KiB, constants 256 B)

        timetable, a column is 8.3 µs: 0 1 2 forward, A B C backward, a b c weight gradients of microbatches 0 1 2, . idle
        rank 0   0000111122220000AAAaa1111BBBbb3333AAAaaa2222CCCccBBBbbb3333DDDddCCCcccDDDddd
           stage 1111111111112222222222222222221111111111222222222111111222222222111111111111
        rank 1   ....00000001111111.AAAaa222AAAaa2222BBBbb333BBBbb3333CCCccCCC.DDDDDDccdddd..
           stage     11122221112222 222221111111122222222211111111222222222111 222111112211
        stage: 1 for the first stage of the rank, 2 for the second, and so on"#]],
    );
}

#[test]
fn a_drawing_fits_a_line_or_says_what_is_left_out() {
    for ranks in ["pp=2", "pp=4", "pp=8"] {
        for schedule in SCHEDULES {
            let text = read(&[&[MODEL, "--mesh", ranks, "--schedule", schedule], &BATCH[..]].concat());
            let (_, drawing) = text.split_once("\ntimetable, ").expect("there is a timetable");
            let rows: Vec<&str> = drawing.lines().filter(|line| line.starts_with("rank ")).collect();
            assert_eq!(rows.len().to_string(), ranks[3..], "{text}");
            let widest = rows.iter().map(|row| row.chars().count()).max().expect("there are rows");
            assert!(widest <= 100, "{widest} columns\n{drawing}");
            let is_cut = drawing.contains(" columns fit; --format html draws all");
            // The last task of all ranks is drawn, unless the line is cut.
            assert!(is_cut || rows.iter().any(|row| !row.ends_with('.')), "{drawing}");
        }
    }
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("`{key}` is no number in {value}"))
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("`{key}` is no list in {value}"))
}

/// What scripts rely on: times of the same rank follow each other, and idle time is the time without tasks.
#[test]
fn tasks_of_a_rank_run_one_after_another() {
    for schedule in SCHEDULES {
        let found = json(&[&[MODEL, "--mesh", "pp=4", "--schedule", schedule], &BATCH[..]].concat());
        let pipeline = &found["pipeline"];
        let whole = number(pipeline, "microbatches_ms");
        for rank in list(pipeline, "ranks") {
            let tasks = list(rank, "tasks");
            let mut last = 0.0;
            let mut busy = 0.0;
            for task in tasks {
                let [begin, end] = ["begin_ms", "end_ms"].map(|key| number(task, key));
                assert!(last <= begin && begin < end && end <= whole, "{schedule}: {task}");
                (last, busy) = (end, busy + (end - begin));
            }
            assert!((number(rank, "idle") - (1.0 - busy / whole)).abs() < 1e-9, "{schedule}");
        }
        let parameters: f64 = list(pipeline, "stages").iter().map(|stage| number(stage, "parameters")).sum();
        assert_eq!(parameters, number(&found["parameters"], "trained"), "{schedule}");
        let loads = list(pipeline, "stages").iter().map(|stage| number(stage, "share_of_slowest"));
        assert_eq!(loads.fold(0.0, f64::max), 1.0, "{schedule}");
    }
}

fn written(format: &str, flags: &[&str]) -> String {
    let arguments = [&[MODEL, "--format", format], flags, &BATCH[..]].concat();
    inspect(&arguments).output().expect("it is drawn").text
}

#[test]
fn a_page_has_a_row_for_each_rank_and_a_title_for_each_task() {
    let page = written("html", &["--mesh", "pp=4", "--schedule", "zb-v"]);
    assert_eq!(page.matches("<g data-rank=").count(), 4);
    let tasks: Vec<&str> = page.lines().filter(|line| line.starts_with("<rect class=\"task ")).collect();
    assert_eq!(tasks.len(), 8 * 3 * 16);
    let titled = |line: &&&str| line.contains("<title>") && line.contains(", microbatch ");
    assert_eq!(tasks.iter().filter(titled).count(), tasks.len());
    for foreign in ["<script", "src=", "href=", "@import", "http"] {
        assert!(!page.contains(foreign), "the page loads something: {foreign}");
    }
    let again = written("html", &["--mesh", "pp=4", "--schedule", "zb-v"]);
    assert_eq!(page, again, "it is a function of the program");
}

#[test]
fn a_timeline_has_a_track_for_each_rank_and_an_arrow_for_each_transfer() {
    let timeline = written("perfetto", &["--mesh", "pp=4", "--schedule", "interleaved"]);
    let timeline: Value = serde_json::from_str(&timeline).expect("it is JSON");
    let events = || list(&timeline, "traceEvents").iter();
    let spans: Vec<&Value> = events().filter(|event| event["ph"] == "X").collect();
    assert_eq!(spans.len(), 8 * 2 * 16);
    let within = |event: &Value| {
        let at = number(event, "ts");
        spans.iter().any(|span| {
            let begin = number(span, "ts");
            span["tid"] == event["tid"] && (begin..begin + number(span, "dur")).contains(&at)
        })
    };
    let mut ends: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for event in events().filter(|event| event["ph"] == "s" || event["ph"] == "f") {
        assert!(within(event), "an arrow hangs in the air: {event}");
        ends.entry(event["id"].as_u64().expect("it has an id")).or_default().push(event);
    }
    assert!(ends.len() >= 2 * 7 * 16, "{} arrows", ends.len());
    for ends in ends.values() {
        let [from, to] = ends[..] else { panic!("an arrow has two ends: {ends:?}") };
        assert!(from["ph"] == "s" && to["ph"] == "f" && from["tid"] != to["tid"], "{from} {to}");
        assert!(number(from, "ts") <= number(to, "ts"), "{from} {to}");
    }
}

#[test]
fn the_folder_of_a_run_has_the_same_timetable() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().display().to_string();
    let flags = ["--mesh", "pp=2", "--schedule", "zb-h1"];
    let program = read(&[&[MODEL, "--after", "simplify"], &flags[..], &BATCH].concat());
    std::fs::write(folder.path().join("program.ir"), program).expect("it is written");
    let times = |found: &Value| found["pipeline"]["ranks"].as_array().expect("it has ranks").clone();
    let of_model = json(&[&[MODEL, "--target", "h200"], &flags[..], &BATCH].concat());
    let of_folder = json(&[&path, "--target", "h200"]);
    assert_eq!(times(&of_folder), times(&of_model));
    assert!(of_folder["prediction"].is_null(), "a step of one rank is no step");
    let page = inspect(&[&path, "--format", "html"]).output().expect("it is drawn").text;
    assert_eq!(page.matches("<g data-rank=").count(), 2);
}

#[test]
fn a_page_needs_stages() {
    let error = expect![[r#"
        error: --format html draws the timetable of a pipeline
          = give a model with the stages: --mesh pp=2; or the folder of a run that has stages; and remove --after and --why
    "#]];
    for flags in [&[][..], &["--mesh", "dp=2"], &["--mesh", "pp=2", "--why", "x"]] {
        error.assert_eq(&read(&[&["models/mlp.dynamo.onnx", "--format", "html"], flags].concat()));
    }
    error.assert_eq(&read(&["models/mlp.dynamo.onnx", "--format", "html", "--after", "loss"]));
}
