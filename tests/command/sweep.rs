//! Random commands: a run with random flags has the losses of the same run on one device without these flags, or is refused. No command
//! ends with a fault.

use crate::TRAINYARD;
use ir::random::philox;
use serde_json::Value;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use testing::records;
use testing::workplace::Workplace;

/// A model with the flags that name its data.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// The file below `testdata`, without its ending.
    file: &'static str,
    /// The flags of its data, with `EVAL` in front of those of the evaluation.
    data: &'static str,
    /// Whether a microbatch of another size computes the same.
    adds_up: bool,
}

const fn model(file: &'static str, data: &'static str) -> Model {
    Model { file, data, adds_up: true }
}

const fn whole(file: &'static str, data: &'static str) -> Model {
    Model { file, data, adds_up: false }
}

const TEXT: &str = "--train train.txt --tokenizer bytes EVAL --eval eval.txt";
const LINES: &str = "--train train.jsonl EVAL --eval eval.jsonl";
const SHORT: &str = "--train testdata/short-batch.npz EVAL --eval testdata/short-batch.npz";

const MODELS: [Model; 22] = [
    model("models/mlp.dynamo", LINES),
    model("models/mlp-loss.dynamo", LINES),
    model("models/joined-loss.dynamo", LINES),
    model("models/parted-loss.dynamo", LINES),
    model("models/clamped-loss.dynamo", LINES),
    model("models/quotient-loss.dynamo", LINES),
    model("models/smoothed-loss.dynamo", LINES),
    model("models/weighted-loss.dynamo", LINES),
    model("models/positives-loss.dynamo", LINES),
    model("models/summed-loss.dynamo", LINES),
    model("models/batch-loss.dynamo", LINES),
    whole("models/root-loss.dynamo", LINES),
    whole("short-batch", SHORT),
    whole("short-batch-mse", SHORT),
    model("models/gpt2.dynamo", TEXT),
    model("models/gpt2-fp16.dynamo", TEXT),
    model("models/gpt2-dropout.legacy", TEXT),
    model("models/llama.dynamo", TEXT),
    whole("models/mixtral.dynamo", TEXT),
    model("models/bert.dynamo", "--train synthetic --loss cross-entropy"),
    model("models/t5.dynamo", "--train synthetic --loss cross-entropy"),
    whole("models/resnet.legacy-trainmode", "--train synthetic"),
];

/// Flags that change the numbers: the run on one device has them too.
const SHARED: [&[&str]; 4] = [
    &["", "", "--bf16", "--fp16 --loss-scale 128"],
    &[
        "--optimizer sgd",
        "--optimizer momentum",
        "--optimizer adamw",
        "--optimizer adafactor",
        "--optimizer lion",
        "--optimizer adagrad:eps=1e-4",
        "--optimizer adam:moments=8bit",
        "--optimizer adam:moments=bf16",
    ],
    &["", "", "--clip 0.1"],
    &["", "", "--weight-decay 0.1", "--weight-decay 0.1 --decay matrices"],
];

const MESHES: [(&str, u64); 13] = [
    ("", 1),
    ("dp=2", 2),
    ("dp=4", 4),
    ("tp=2", 1),
    ("tp=2,dp=2", 2),
    ("pp=2", 1),
    ("pp=3", 1),
    ("pp=2,dp=2", 2),
    ("pp=2,tp=2", 1),
    ("pp=2,tp=2,dp=2", 2),
    // For mixtures alone.
    ("ep=2", 2),
    ("ep=2,dp=2", 4),
    ("ep=2,pp=2", 2),
];

/// Flags that may change the last bits, and nothing else.
const ALONE: [&[&str]; 6] = [
    &["", "--zero 0", "--zero 1", "--zero 2", "--zero 3"],
    &[
        "",
        "--schedule gpipe",
        "--schedule 1f1b",
        "--schedule interleaved",
        "--schedule zb-h1",
        "--schedule zb-v",
        "--schedule dualpipev",
    ],
    &["", "--recompute full", "--recompute selective"],
    &[
        "",
        "",
        "--compress-activations masks,indices --compress-least 1B",
        "--compress-activations masks --compress-least 1B",
    ],
    &[
        "",
        "",
        "--offload optimizer --offload-least 1B",
        "--offload gradients --offload-least 1B",
        "--offload parameters,optimizer --offload-least 1B",
        "--offload activations --offload-least 1B",
    ],
    &["", "", "--sequence-parallel", "--update early"],
];

/// Samples of a step.
const GLOBAL: u64 = 8;

/// Steps of a run.
const STEPS: u64 = 4;

/// A random command.
struct Case {
    model: Model,
    /// The flags of both runs.
    shared: String,
    /// The flags of the run on one device, and of the run that is compared with it.
    runs: [String; 2],
    /// Whether the run stops after half of its steps, and goes on.
    resumes: bool,
    is_half: bool,
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut drawn = 0;
        let mut draw = |count: usize| {
            drawn += 1;
            philox(seed, [drawn, 0, 0, 11])[0] as usize % count
        };
        let model = MODELS[draw(MODELS.len())];
        let shared: Vec<&str> = SHARED.iter().map(|axis| axis[draw(axis.len())]).collect();
        let is_half = !shared[0].is_empty();
        let evaluates = draw(2) == 0;
        let data = match (model.data.split_once(" EVAL "), evaluates) {
            (Some((train, eval)), true) => format!("{train} {eval} --eval-every 2"),
            (Some((train, _)), false) => train.to_owned(),
            (None, _) => model.data.to_owned(),
        };
        let (mesh, data_ranks) =
            MESHES[draw(if model.file.contains("mixtral") { MESHES.len() } else { MESHES.len() - 3 })];
        let mut own: Vec<String> = if mesh.is_empty() { vec![] } else { vec![format!("--mesh {mesh}")] };
        // Most flags of all six would be refused together.
        own.extend(ALONE.iter().filter_map(|axis| {
            let flag = axis[draw(axis.len())];
            let fits = match flag {
                _ if draw(3) == 0 => false,
                flag if flag.starts_with("--zero") => data_ranks > 1 || flag == "--zero 0",
                flag if flag.starts_with("--schedule") => mesh.contains("pp"),
                "--sequence-parallel" => mesh.contains("tp"),
                "--update early" => !mesh.contains("pp") && !is_half && shared[2].is_empty(),
                _ => true,
            };
            (fits && !flag.is_empty()).then(|| flag.to_owned())
        }));
        let batch = [4, 8][draw(2)];
        let other = if model.adds_up { [data_ranks.max(2), 4, 8][draw(3)] } else { batch };
        let runs = [
            format!("--microbatch {batch}"),
            format!("--microbatch {} {}", other / data_ranks, own.join(" ")),
        ];
        let shared = format!(
            "compile testdata/{}.onnx {data} {} --lr 1e-3 --global-batch {GLOBAL} --seed {}",
            model.file,
            shared.join(" "),
            draw(100)
        );
        Self { model, shared, runs, resumes: draw(3) == 0, is_half }
    }

    /// Runs both commands. Returns whether the second one was not refused.
    fn check(&self, place: &Workplace) -> Result<bool, String> {
        self.write_data(place);
        let [one, own] = &self.runs;
        let expected = Run::of(place, &format!("{} {one} --steps {STEPS} -o one --force", self.shared))?
            .ok_or_else(|| format!("{} {one} is refused on one device", self.shared))?;
        if self.resumes {
            let half = format!("{} {own} --steps {} --save-every 1 -o own --force", self.shared, STEPS / 2);
            if Run::of(place, &half)?.is_none() {
                return Ok(false);
            }
        }
        let more = if self.resumes { "--resume" } else { "--force" };
        let command = format!("{} {own} --steps {STEPS} -o own {more}", self.shared);
        let Some(run) = Run::of(place, &command)? else { return Ok(false) };
        run.compare(&expected, self.is_half)
            .map_err(|difference| format!("{command} ({one}): {difference}"))?;
        Ok(true)
    }

    fn write_data(&self, place: &Workplace) {
        let name = self.model.file.trim_start_matches("models/");
        if let Some(fields) = records::fields(name) {
            place.write("train.jsonl", records::lines(&fields, 40, 1).as_bytes());
            place.write("eval.jsonl", records::lines(&fields, 20, 2).as_bytes());
        }
        let text = place.read("testdata/kjv.txt");
        place.write("train.txt", &text[..3000]);
        place.write("eval.txt", &text[5000..6000]);
    }
}

/// The numbers of a run.
struct Run {
    /// Whether all samples were evaluated.
    compares: bool,
    /// The eval loss before step 0, if this run began there and evaluates.
    before: Option<f64>,
    steps: Vec<Value>,
}

impl Run {
    /// Runs a command. `None` if it is refused. An error has everything that is no success and no refusal.
    fn of(place: &Workplace, command: &str) -> Result<Option<Self>, String> {
        let ended = place.run(command);
        match ended.status.code() {
            Some(0) => {}
            Some(2) if ended.stderr.contains("error") => return Ok(None),
            code => return Err(format!("trainyard {command}\nexit code {code:?}\n{}", ended.stderr)),
        }
        let line = ended.stderr.lines().find_map(|line| line.strip_prefix("before step 0: eval loss "));
        // Data ranks share every batch equally.
        let compares = !ended.stderr.contains("the evaluation leaves out");
        let folder = if command.contains("-o one") { "one" } else { "own" };
        Ok(Some(Self {
            compares,
            before: line.and_then(|loss| loss.parse().ok()),
            steps: place.metrics(folder),
        }))
    }

    fn compare(&self, expected: &Self, is_half: bool) -> Result<(), String> {
        let near = |what: &str, own: Option<f64>, one: Option<f64>, tolerance: f64| match (own, one) {
            (Some(own), Some(one)) if (own - one).abs() <= tolerance * one.abs().max(1e-2) => Ok(()),
            (None, None) => Ok(()),
            // A run that is continued evaluates once more.
            (None, _) | (_, None) if what.contains("eval") => Ok(()),
            _ => Err(format!("{what} is {own:?}, and {one:?} on one device")),
        };
        // Updates that go by the signs of gradients make rounding larger from step to step.
        let [first, later] = if is_half { [2e-2, 5e-2] } else { [1e-4, 5e-3] };
        let compares = self.compares && expected.compares;
        if compares {
            near("the eval loss before step 0", self.before, expected.before, first)?;
        }
        if self.steps.len() != expected.steps.len() {
            return Err(format!("{} steps, and {} on one device", self.steps.len(), expected.steps.len()));
        }
        for (step, (own, one)) in self.steps.iter().zip(&expected.steps).enumerate() {
            let tolerance = if step == 0 { first } else { later };
            let number = |values: &Value, key: &str| values[key].as_f64();
            near(&format!("the loss of step {step}"), number(own, "loss"), number(one, "loss"), tolerance)?;
            let norms = [own, one].map(|values| number(values, "grad_norm"));
            near(&format!("the norm of step {step}"), norms[0], norms[1], 10.0 * tolerance)?;
            let evals = [own, one].map(|values| number(values, "eval_loss").filter(|_| compares));
            near(&format!("the eval loss of step {step}"), evals[0], evals[1], tolerance)?;
        }
        Ok(())
    }
}

/// Checks so many commands, by two threads.
fn check_cases(first: u64, count: u64) {
    let (next, done) = (AtomicU64::new(first), AtomicU64::new(0));
    let faults = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let place = Workplace::new(TRAINYARD);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    match Case::of(seed).check(&place) {
                        Ok(ran) => {
                            done.fetch_add(ran.into(), Ordering::Relaxed);
                        }
                        Err(fault) => {
                            faults.lock().expect("no thread panicked").push(format!("case {seed}: {fault}"))
                        }
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no thread panicked");
    assert!(faults.is_empty(), "{} of {count} commands:\n{}", faults.len(), faults.join("\n\n"));
    let done = done.into_inner();
    println!("{done} of {count} commands ran, the others were refused");
    assert!(done * 2 >= count, "{done} of {count} commands ran, the others were refused");
}

#[test]
fn a_few_random_commands_do_what_one_device_does() {
    check_cases(0, 12);
}

/// `TRAINYARD_CASES` is their number: CI's nightly run checks 3000. `TRAINYARD_FIRST_CASE` is the first of them.
#[test]
#[ignore = "longer"]
fn random_commands_do_what_one_device_does() {
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
    };
    check_cases(number("TRAINYARD_FIRST_CASE", 12), number("TRAINYARD_CASES", 150));
}
