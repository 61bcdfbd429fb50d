//! `--mesh pp=2`: the cut of a model into stages, the memory of the pipeline ranks, and the predicted timetable.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use ir::{Module, Role};
use serde_json::{Value, json as value};

use super::{inspect, json, read};

const MODEL: &str = "gpt2-bytes.onnx";
const BATCH: [&str; 4] = ["--microbatch", "1", "--global-batch", "16"];
const SCHEDULES: [&str; 6] = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"];

/// Checks the lines about the pipeline, between the empty lines around the timetable.
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
        &["--mesh", "pp=2", "--schedule", "1f1b"],
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
            pipeline of 4 stages on 2 pipeline ranks, schedule interleaved: 4 microbatches take 43.9 µs by the cost model, on H100 SXM (--target names another device)
              stage  rank       parameters    forward   backward  load     sends  nodes
                  0     0          239,232     1.6 µs     2.4 µs  97 %  64.0 KiB  node_embedding to node_add_7
                  1     1          198,528     1.6 µs     2.5 µs  96 %   128 KiB  node_add_7 to node_layer_norm_4
                  2     0          214,784     1.6 µs     2.6 µs 100 %   192 KiB  node_add_11 to node_Split_533
                  3     1          181,760     1.6 µs     2.4 µs  94 %       0 B  node_add_15 to loss
              rank 0: idle 24.7 %, keeps 5 sets of activations for backward, 12.6 MiB (parameters 1.73 MiB, gradients 1.73 MiB, optimizer 3.46 MiB, saved activations 5.33 MiB, workspace 320 KiB, constants 256 B)
              rank 1: idle 27.2 %, keeps 3 sets of activations for backward, 9.94 MiB (parameters 1.58 MiB, gradients 1.58 MiB, optimizer 2.90 MiB, saved activations 3.58 MiB, workspace 320 KiB, constants 448 B)

            timetable, a column is 0.5 µs: 0 1 2 forward, A B C backward of microbatches 0 1 2, . idle
            rank 0   000111.....000111222........AAAAA333BBBBB222AAAAA333BBBBB...CCCCC...DDDDD..CCCCC...DDDDD
               stage 111111     222222111        22222111222222221111122211111   22222   22222  11111   11111
            rank 1   .....000111......000AAAAA111BBBBB222AAAAA333BBBBB222CCCCC333DDDDD...CCCCC...DDDDD.......
               stage      111111      222222222222222211111111111111112222222222222222   11111   11111
            stage: 1 for the first stage of the rank, 2 for the second, and so on"#]],
    );
}

#[test]
fn gradients_of_parameters_have_marks_of_their_own() {
    check_pipeline(
        &["--mesh", "pp=2", "--schedule", "zb-v", "--target", "h200"],
        expect![[r#"
            pipeline of 4 stages on 2 pipeline ranks, schedule zb-v: 4 microbatches take 578.8 µs, on H200 SXM
              632.6 µs per step (prepare 1.6 µs, update 52.3 µs), 809,371 tokens per second, MFU 3.1 %
              energy and cost: 8.856e-1 J and 2.780e-6 dollars per step; 0.480 kWh and 5.429 dollars per billion tokens
              stage  rank       parameters    forward   backward    weights  load     sends  nodes
                  0     0          239,232    19.3 µs    28.5 µs    21.3 µs  96 %  64.0 KiB  node_embedding to node_add_7
                  1     1          198,528    17.7 µs    37.7 µs    12.2 µs  94 %       0 B  node_add_7 to node_layer_norm_4
                  2     1          214,656    20.8 µs    30.1 µs    12.2 µs  87 %   192 KiB  node_add_11 to node_Split_533
                  3     0          181,888    26.8 µs    30.1 µs    15.2 µs 100 %       0 B  node_add_15 to loss
              rank 0: idle 2.4 %, keeps 4 sets of activations for backward and 4 for weights, 13.8 MiB (parameters 1.73 MiB, gradients 1.73 MiB, optimizer 3.21 MiB, saved activations 6.96 MiB, workspace 129 KiB, constants 448 B)
              rank 1: idle 9.7 %, keeps 4 sets of activations for backward and 4 for weights, 16.3 MiB (parameters 1.58 MiB, gradients 1.58 MiB, optimizer 3.15 MiB, saved activations 9.85 MiB, workspace 193 KiB, constants 256 B)

            timetable, a column is 7.5 µs: 0 1 2 forward, A B C backward, a b c weight gradients of microbatches 0 1 2, . idle
            rank 0   0001112220000AAAAaa1111BBBBbb333AAAAaaa2222CCCCccBBBBbbb3333DDDDddCCCCcccDDDDddd
               stage 11111111122222222222222222222111111111122222222221111111222222222211111111111111
            rank 1   ...0000011111....AAAAaa22AAAAAaa222BBBBbb33BBBBBbb333CCCCccCCCCCDDDDDDDDDccdddd.
               stage    1122211222    22222211111111122222222211111111122222222211111222211111112211
            stage: 1 for the first stage of the rank, 2 for the second, and so on"#]],
    );
}

/// Two stages of an untied Llama on four devices each.
const ON_EIGHT: [&str; 9] = [
    "models/llama.dynamo.onnx",
    "--mesh",
    "dp=2,tp=2,pp=2",
    "--zero",
    "1",
    "--microbatch",
    "4",
    "--global-batch",
    "16",
];

/// The program on its mesh.
fn placed(flags: &[&str]) -> Module {
    let after = [flags, &["--after", "collectives"]].concat();
    let text = inspect(&after).output().expect("the pass is there").text;
    ir::text::parse(&text).unwrap_or_else(|error| panic!("{error:?}"))
}

/// The bytes that each device of a pipeline rank holds of the states of a role, by the types and the stages of the program's states.
fn held(program: &Module, rank: u32, role: Role) -> u64 {
    let own = program.states.values().filter(|state| state.role == role);
    let own = own.filter(|state| program.pipeline_ranks_with(state).contains(&rank));
    own.map(|state| state.ty.local_bytes(&program.mesh).expect("it is bound")).sum()
}

#[test]
fn each_device_of_a_pipeline_rank_holds_the_states_of_its_own_stages() {
    let found = json(&ON_EIGHT);
    let mesh = &found["step"]["mesh"];
    assert_eq!(mesh["devices"], 8);
    assert_eq!(mesh["axes"], value!([["pp", 2], ["dp", 2], ["tp", 2]]));
    let program = placed(&ON_EIGHT);
    let ranks = list(mesh, "pipeline_ranks");
    assert_eq!(ranks.len(), 2);
    let bytes = |rank: &Value, kind: &str, of: &str| rank["shares"][kind][of].as_u64().expect("a number");
    for (rank, facts) in (0..).zip(ranks) {
        for (kind, role) in [("parameters", Role::Parameter), ("optimizer", Role::Optimizer)] {
            assert_eq!(bytes(facts, kind, "device"), held(&program, rank, role), "{kind} of rank {rank}");
        }
    }
    // Four bytes for each of 426,624 parameters, and as many for each gradient and for both moments of AdamW.
    let whole = 4 * 426_624;
    let sum = |kind: &str, of: &str| ranks.iter().map(|rank| bytes(rank, kind, of)).sum::<u64>();
    for (kind, times, devices) in [("parameters", 1, 2), ("gradients", 1, 2), ("optimizer", 2, 4)] {
        assert_eq!(sum(kind, "one_device"), times * whole, "{kind}");
        // Each of the two tensor ranks has a half of all but the norms. ZeRO gives each of two data ranks a half of that of the optimizer.
        let held = sum(kind, "device") * devices;
        assert!((times * whole..times * whole * 101 / 100).contains(&held), "{kind}: {held} of {whole}");
    }
}

/// The plans of the pipeline ranks have the same bytes of the optimizer's states, but for the alignment of each.
#[test]
fn the_plan_of_a_pipeline_rank_has_the_optimizer_states_of_its_own_stages() {
    for precision in [&[][..], &["--bf16"]] {
        let flags = [&ON_EIGHT[..], precision].concat();
        let found = json(&flags);
        let program = placed(&flags);
        for (rank, facts) in (0..).zip(list(&found["pipeline"], "ranks")) {
            let (planned, held) =
                (number(&facts["memory"], "optimizer"), held(&program, rank, Role::Optimizer));
            let held = held as f64;
            assert!(
                (held..held * 1.01).contains(&planned),
                "{precision:?}: {planned} of {held} on rank {rank}"
            );
        }
    }
}

/// The programs are lowered once, for the device that was asked about: the step has the bytes of the pipeline.
#[test]
fn the_bytes_of_a_step_are_those_of_its_largest_pipeline_rank() {
    for target in [&[][..], &["--target", "h200"]] {
        let found = json(&[&ON_EIGHT[..], target].concat());
        let ranks = list(&found["pipeline"], "ranks").iter();
        let planned = ranks.map(|rank| (number(rank, "planned"), number(&rank["memory"], "constants")));
        let (largest, constants) = planned.max_by(|one, other| one.0.total_cmp(&other.0)).expect("ranks");
        let planned = number(&found["step"]["memory"], "planned");
        // The evaluation has the same constants again, or fewer.
        assert!((largest..=largest + constants).contains(&planned), "{target:?}: {planned} of {largest}");
    }
}

#[test]
fn the_devices_of_a_pipeline_are_told_rank_by_rank() {
    let text = read(&ON_EIGHT);
    let start = text.find("\nmesh ").expect("the mesh is told") + 1;
    let end = text.find("\nschedule: ").expect("the schedule is told");
    expect![[r#"
        mesh pp=2 x dp=2 x tp=2: 8 devices; the largest plans 3.98 MiB
        the whole model: parameters 1.63 MiB, optimizer 3.25 MiB, gradients 1.63 MiB

        each device of a pipeline rank holds, and sends in the collectives of a step
          rank  parameters   gradients  update only  activations       sends
             0     482 KiB     482 KiB      482 KiB      746 KiB    1.22 MiB
             1     353 KiB     353 KiB      353 KiB      746 KiB     868 KiB
    "#]]
    .assert_eq(&text[start..end]);
}

/// The lines about the choice of the schedule, and the pipeline's first line.
fn choice(flags: &[&str]) -> String {
    let text =
        read(&[&[MODEL, "--microbatch", "2", "--global-batch", "16", "--mesh", "pp=2"], flags].concat());
    let is_told = |line: &&str| {
        line.starts_with("schedule: ") || line.contains("other schedules") || line.starts_with("pipeline of ")
    };
    text.lines().filter(is_told).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_default_schedule_is_the_one_that_is_predicted_to_be_the_fastest_within_memory() {
    let chosen = choice(&[]);
    expect![[r#"
        schedule: interleaved:chunks=3, the simplest of those that are predicted to be as fast as any of 8, on processor of 8 cores
          other schedules, in multiples of its time: zb-v 0.99, dualpipev 0.99, interleaved:chunks=2 1.01, zb-h1 1.03, interleaved:chunks=4 1.06, 1f1b 1.09, gpipe 1.09
        pipeline of 6 stages on 2 pipeline ranks, schedule interleaved:chunks=3: 8 microbatches take 87.4 µs by the cost model, on H100 SXM (--target names another device)"#]].assert_eq(&chosen);
    assert_eq!(choice(&["--schedule", "auto"]), chosen);
    expect![[r#"
        schedule: interleaved:chunks=3, the simplest of those that are predicted to be as fast as any of 7 that fit 13.0 MiB, on processor of 8 cores
          other schedules, in multiples of its time: zb-v 0.99, dualpipev 0.99, interleaved:chunks=2 1.01, zb-h1 1.03, interleaved:chunks=4 1.06, 1f1b 1.09; too large: gpipe 1.09 with 24.4 MiB
        pipeline of 6 stages on 2 pipeline ranks, schedule interleaved:chunks=3: 8 microbatches take 87.4 µs by the cost model, on H100 SXM (--target names another device)"#]].assert_eq(&choice(&["--memory", "13MiB"]));
    expect!["pipeline of 2 stages on 2 pipeline ranks, schedule zb-h1: 8 microbatches take 75.3 µs by the cost model, on H100 SXM (--target names another device)"].assert_eq(&choice(&["--schedule", "zb-h1"]));
    // A cut by hand allows only schedules with the same number of stages.
    expect![[r#"
        schedule: zb-h1, predicted to be the fastest of 3, on processor of 8 cores
          other schedules, in multiples of its time: 1f1b 1.03, gpipe 1.03
        pipeline of 2 stages on 2 pipeline ranks, schedule zb-h1: 8 microbatches take 100.3 µs by the cost model, on H100 SXM (--target names another device)"#]].assert_eq(&choice(&["--cut", "*.h.1.ln_1.*"]));
}

/// The rank with the most memory gets fewer nodes until the plan fits. Then no activation needs to be computed again.
#[test]
fn stages_are_cut_so_that_they_fit_into_the_memory() {
    let flags = ["--mesh", "pp=2", "--schedule", "1f1b", "--microbatch", "2", "--global-batch", "16"];
    let planned = |more: &[&str]| -> Vec<f64> {
        let found = json(&[&[MODEL], &flags[..], more].concat());
        assert_ne!(found["pipeline"], Value::Null, "{}", found["reasons"]);
        list(&found["pipeline"], "ranks").iter().map(|rank| number(rank, "planned")).collect()
    };
    let free = planned(&[]);
    let most = free[0].max(free[1]);
    for percent in [98, 94] {
        let limit = most as u64 * percent / 100;
        let budget = format!("{limit}B");
        let found = json(&[&[MODEL], &flags[..], &["--memory", &budget]].concat());
        let fit = found["fit"].as_str().expect("the search for a program that fits").to_owned();
        assert!(fit.ends_with("nothing is computed again"), "{percent} %: {fit}");
        let within = planned(&["--memory", &budget]);
        assert!(within.iter().all(|&bytes| bytes <= limit as f64), "{percent} %: {within:?}");
        assert_ne!(within, free, "{percent} %");
    }
}

/// The cut with the least memory may need more than another cut once activations are computed again. Then the balanced cut is taken.
#[test]
fn a_budget_that_only_the_balanced_cut_fits_is_accepted() {
    let flags = ["models/llama.dynamo.onnx", "--mesh", "pp=4", "--schedule", "zb-h1", "--microbatch", "2"];
    let found = json(&[&flags[..], &["--global-batch", "8", "--memory", "2950KiB"]].concat());
    let fit = found["fit"].as_str().unwrap_or_else(|| panic!("{}", found["reasons"]));
    assert!(fit.contains("are computed again"), "{fit}");
}

/// The earlier versions of weights are states, and the search for the cheapest recomputation counts them.
#[test]
fn a_budget_counts_the_earlier_versions_of_weights() {
    let flags = ["--mesh", "pp=2", "--microbatch", "4", "--global-batch", "16", "--cut", "*.h.1.ln_1.*"];
    let found = |schedule: &str, more: &[&str]| {
        json(&[&[MODEL], &flags[..], &["--schedule", schedule], more].concat())
    };
    let parameters = |found: &Value| -> Vec<f64> {
        let ranks = list(&found["pipeline"], "ranks").iter();
        ranks.map(|rank| number(&rank["memory"], "parameters")).collect()
    };
    let [synchronous, delayed] = ["1f1b", "2bw"].map(|schedule| parameters(&found(schedule, &[])));
    assert!(synchronous.iter().zip(&delayed).all(|(one, two)| one < two), "{synchronous:?} {delayed:?}");
    let budget = "15500KiB";
    let within = found("2bw", &["--memory", budget]);
    let fit = within["fit"].as_str().expect("the search for a program that fits").to_owned();
    assert!(fit.contains("are computed again"), "{fit}");
    let planned = list(&within["pipeline"], "ranks").iter().map(|rank| number(rank, "planned"));
    assert!(planned.fold(0.0, f64::max) <= 15500.0 * 1024.0, "{}", within["pipeline"]["ranks"]);
    assert_eq!(parameters(&within), delayed);
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
            // The last task of all ranks is drawn, unless the line is cut off.
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

/// The tasks of all stages together take as long as a microbatch of the program without stages. The times of a step's parts add up to the
/// step.
#[test]
fn a_step_of_a_pipeline_is_simulated() {
    let flags =
        [&["models/gpt2.dynamo.onnx", "--target", "h200"], &BATCH[2..], &["--microbatch", "2"]].concat();
    let one = json(&flags);
    let sections = list(&one["prediction"], "sections");
    let microbatch = sections.iter().find(|section| section["section"] == "microbatch").expect("it is there");
    let tolerance = 0.1 * number(microbatch, "ms");
    for schedule in ["1f1b", "interleaved", "zb-v"] {
        let found = json(&[&flags[..], &["--mesh", "pp=2", "--schedule", schedule]].concat());
        let (pipeline, step) = (&found["pipeline"], &found["pipeline"]["step"]);
        let stages = list(pipeline, "stages").iter();
        let tasks = stages
            .flat_map(|stage| ["forward_ms", "backward_ms", "weight_ms"].map(|key| stage[key].as_f64()));
        let tasks: f64 = tasks.flatten().sum();
        let alone = number(microbatch, "ms");
        assert!(
            (tasks - alone).abs() < tolerance,
            "{schedule}: {tasks} ms in stages, {alone} ms on one device"
        );
        let parts =
            number(step, "prepare_ms") + number(pipeline, "microbatches_ms") + number(step, "update_ms");
        assert!((number(step, "step_ms") - parts).abs() < 1e-9 * parts, "{step}");
        assert_eq!(step["samples"], one["prediction"]["samples"]);
        let ratio = number(step, "model_flops") / number(&one["prediction"], "model_flops");
        assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
    }
}

/// Scripts rely on this: tasks of one rank follow each other, and idle time is the time without tasks.
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
