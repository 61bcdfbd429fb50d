//! `--memory-plan`: the places and values of every instruction. `tests/python/replay_plan.py` replays such plans.

use crate::TRAINYARD;
use expect_test::expect;
use serde_json::Value;
use std::collections::BTreeSet;
use testing::workplace::Workplace;

const GPT2: &str = "compile testdata/gpt2-bytes.onnx --microbatch 8 -o run --force --memory-plan places.json";

/// The plan of GPT-2 with these flags, and `plan.json`.
fn plans(flags: &str) -> (Value, Value) {
    let place = Workplace::new(TRAINYARD);
    place.succeed(&format!("{GPT2} {flags}"));
    let read = |name: &str| serde_json::from_slice(&place.read(name)).expect("it is JSON");
    (read("places.json"), read("run/plan.json"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// The only program of the step.
fn step(plan: &Value) -> &Value {
    assert_eq!(plan["programs"][0]["name"], "training");
    &plan["programs"][0]["ranks"][0]
}

/// All places that the instructions of a step access.
fn places(step: &Value) -> Vec<&Value> {
    let sections = ["prepare", "microbatch", "update"].into_iter();
    let instructions = sections.flat_map(|section| array(&step[section]));
    instructions
        .flat_map(|own| array(&own["reads"]).iter().chain(array(&own["writes"])).chain(own.get("scratch")))
        .collect()
}

#[test]
fn places_of_all_memories_are_listed_within_their_totals() {
    let (plan, summary) = plans("--memory device=10MiB,host=6MiB,disk=.:1GiB");
    let step = step(&plan);
    let total = |memory: &str| number(&step["memories"][memory]);
    assert_eq!(total("device"), number(&summary["memory"]["training_arena"]));
    assert_eq!(total("host"), number(&summary["memory"]["host"]));
    assert_eq!(total("disk"), number(&summary["memory"]["disk"]));
    assert_eq!(plan["budgets"], serde_json::json!({"device": 10 << 20, "disk": 1 << 30, "host": 6 << 20}));
    for memory in ["device", "host", "disk"] {
        let own = places(step).into_iter().filter(|place| place["memory"] == memory);
        let ends: Vec<u64> = own.map(|place| number(&place["offset"]) + number(&place["bytes"])).collect();
        // The largest end belongs to a state, or to the buffer at the peak.
        let largest = ends.iter().max().copied().unwrap_or(0);
        assert!(largest <= total(memory) && largest > total(memory) / 2, "{memory}: {largest}");
    }
}

/// A result that takes the place of an operand is another value, and the new value of a weight is not its old value.
#[test]
fn values_that_share_a_place_have_their_own_numbers() {
    let (plan, _) = plans("");
    let step = step(&plan);
    let mut pairs = 0;
    for own in array(&step["microbatch"]).iter().chain(array(&step["update"])) {
        for pair in own.get("in_place").map_or(&vec![], array) {
            let [read, written] = ["reads", "writes"].map(|kind| array(&own[kind]));
            let (read, written) = (&read[number(&pair[0]) as usize], &written[number(&pair[1]) as usize]);
            assert_eq!([&read["memory"], &read["offset"]], [&written["memory"], &written["offset"]]);
            assert_ne!(read["value"], written["value"], "{own}");
            pairs += 1;
        }
    }
    assert!(pairs > 20, "{pairs}");
    let states = array(&step["states"]);
    let renewed: Vec<&Value> = array(&step["renewals"]).iter().map(|renewal| &renewal[1]).collect();
    assert!(states.iter().filter(|state| renewed.contains(&&state["value"])).count() * 10 > states.len() * 9);
}

/// The commands of a step for a V100, which this machine does not have. Each is listed with the commands of other streams that it waits
/// for, and every instruction has a command.
#[test]
fn the_commands_of_a_gpu_are_listed_with_their_order() {
    let streams = ["download stream", "host", "main stream", "upload stream"];
    let offload = "--microbatch 8 --offload optimizer,parameters,gradients,activations";
    assert_eq!(streams_of(offload), streams.map(str::to_owned).into());
    let memory = "--microbatch 8 --memory device=10MiB,host=5MiB,disk=.";
    assert!(streams_of(memory).contains("disk"), "{:?}", streams_of(memory));
    let folder = Workplace::new(TRAINYARD).run("inspect testdata --memory-plan places.json");
    expect![[r#"
        error: --memory-plan needs a model, and testdata is a folder
          = give the model that was compiled into this folder
    "#]]
    .assert_eq(&folder.errors());
}

/// The streams of a step for a V100. All instructions have commands, and these wait for commands of other streams.
fn streams_of(flags: &str) -> BTreeSet<String> {
    let place = Workplace::new(TRAINYARD);
    place.succeed(&format!(
        "inspect testdata/gpt2-bytes.onnx {flags} --target v100 --memory-plan places.json"
    ));
    let plan: Value = serde_json::from_slice(&place.read("places.json")).expect("it is JSON");
    let step = step(&plan);
    let (mut streams, mut waits) = (BTreeSet::new(), 0);
    for part in ["prepare", "microbatch", "update"] {
        let commands = array(&step["commands"][part]);
        let mut run = BTreeSet::new();
        for (number, command) in commands.iter().enumerate() {
            let stream = command["stream"].as_str().expect("a stream has a name");
            streams.insert(stream.to_owned());
            for wait in command.get("waits").map_or(&vec![], array) {
                let other = &commands[number_below(wait, number)];
                assert_ne!(other["stream"], command["stream"], "{part} {number}: {command}");
                waits += 1;
            }
            run.extend(array(&command["instructions"]).iter().flat_map(array).map(self::number));
        }
        let all: BTreeSet<u64> = (0..array(&step[part]).len() as u64).collect();
        assert_eq!(run, all, "{part}");
    }
    assert!(waits > 100, "{waits}");
    streams
}

fn number_below(value: &Value, limit: usize) -> usize {
    let number = number(value) as usize;
    assert!(number < limit, "{number} and {limit}");
    number
}

#[test]
fn plans_that_cannot_be_listed_or_written_are_refused() {
    let place = Workplace::new(TRAINYARD);
    let refused = |command: &str| {
        let ended = place.run(command);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        ended.errors()
    };
    expect![[r#"
        error: --memory-plan lists steps that follow each other, and the steps of an asynchronous schedule overlap
          = use a synchronous schedule such as 1f1b, or remove --memory-plan
    "#]]
    .assert_eq(&refused(&format!("{GPT2} --mesh pp=2 --schedule pipedream")));
    expect![[r#"
        error: cannot write nowhere/places.json: No such file or directory (os error 2)
    "#]]
    .assert_eq(&refused(&GPT2.replace("places.json", "nowhere/places.json")));
}
