//! Random commands. Each is compared with the same command on one device without the flags that change no numbers, and bit for bit with the
//! command on the same mesh without the flags that change no bit.

use super::{Allowed, CHANGE_NO_BIT, Ending, Outcome, Run, check_cases, longer};
use ir::random::philox;
use testing::random_flags::{MESHES, draw_alone, draw_shared};
use testing::records;
use testing::workplace::Workplace;

/// A model with the flags that name its data.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// The file below `testdata`, without its ending.
    file: &'static str,
    /// The flags of its data; `EVAL` stands before the flags of the evaluation data.
    data: &'static str,
    /// Whether microbatches of another size give the same results.
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

/// Samples of a step.
const GLOBAL: u64 = 8;

/// Steps of a run.
const STEPS: u64 = 4;

/// A random command.
struct Case {
    model: Model,
    /// The flags of both runs.
    shared: String,
    /// The flags that differ: those of the run on one device, and those of the run that is compared with it.
    runs: [String; 2],
    /// The flags of a third run: those of the second run, without the flags that change no bit. `None` if the second run has no such flags.
    without: Option<String>,
    /// Whether the run stops after half of its steps, and is resumed.
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
        let shared = draw_shared(&mut draw);
        let is_half = !shared[0].is_empty();
        let evaluates = draw(2) == 0;
        let data = match (model.data.split_once(" EVAL "), evaluates) {
            (Some((train, eval)), true) => format!("{train} {eval} --eval-every 2"),
            (Some((train, _)), false) => train.to_owned(),
            (None, _) => model.data.to_owned(),
        };
        let (mesh, data_ranks) =
            MESHES[draw(if model.file.contains("mixtral") { MESHES.len() } else { MESHES.len() - 3 })];
        let own = draw_alone((mesh, data_ranks), &shared, &mut draw);
        let batch = [4, 8][draw(2)];
        let other = if model.adds_up { [data_ranks.max(2), 4, 8][draw(3)] } else { batch };
        let flags = |own: &[String]| format!("--microbatch {} {}", other / data_ranks, own.join(" "));
        let runs = [format!("--microbatch {batch}"), flags(&own)];
        let changes_bits = |flag: &&String| !CHANGE_NO_BIT.iter().any(|other| flag.starts_with(other));
        let rest: Vec<String> = own.iter().filter(changes_bits).cloned().collect();
        // With other activations in memory, another schedule with other stages may be chosen.
        let has_same_stages = !mesh.contains("pp") || own.iter().any(|flag| flag.starts_with("--schedule"));
        let without = (rest.len() < own.len() && has_same_stages).then(|| flags(&rest));
        let shared = format!(
            "compile testdata/{}.onnx {data} {} --lr 1e-3 --global-batch {GLOBAL} --seed {}",
            model.file,
            shared.join(" "),
            draw(100)
        );
        Self { model, shared, runs, without, resumes: draw(3) == 0, is_half }
    }

    /// Runs all commands.
    fn check(&self, place: &Workplace) -> Result<Outcome, String> {
        self.write_data(place);
        let [one, own] = &self.runs;
        let alone = format!("{} {one} --steps {STEPS} --force", self.shared);
        let Ending::Ran(expected) = Run::of(place, &alone, "one")? else {
            return Err(format!("{alone} is refused on one device"));
        };
        if self.resumes {
            let half = format!("{} {own} --steps {} --save-every 1 --force", self.shared, STEPS / 2);
            if let Ending::Refused(_) = Run::of(place, &half, "own")? {
                return Ok(Outcome::TrainedAlone);
            }
        }
        let more = if self.resumes { "--resume" } else { "--force" };
        let command = format!("{} {own} --steps {STEPS} {more}", self.shared);
        let ending = Run::of(place, &command, "own")?;
        if let Ending::Ran(run) = &ending {
            self.check_bits(place, run).map_err(|difference| format!("{command}: {difference}"))?;
        }
        ending
            .compare(&expected, Allowed::of(self.is_half))
            .map_err(|difference| format!("{command} ({one}): {difference}"))
    }

    /// Runs the second command without the flags that change no bit, and without a stop.
    fn check_bits(&self, place: &Workplace, run: &Run) -> Result<(), String> {
        let Some(flags) = &self.without else { return Ok(()) };
        let command = format!("{} {flags} --steps {STEPS} --force", self.shared);
        let Ending::Ran(same) = Run::of(place, &command, "without")? else {
            return Err(format!("refused as {command}"));
        };
        run.compare_bits(&same).map_err(|difference| format!("{difference} with {command}"))?;
        let [own, other] =
            ["own", "without"].map(|folder| place.read(&format!("{folder}/model.safetensors")));
        if own == other { Ok(()) } else { Err(format!("the weights have other bits with {command}")) }
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

/// Checks commands. At most half of them may be refused.
fn check_commands([first, count]: [u64; 2]) {
    let outcomes = check_cases(first, count, |place, seed| Case::of(seed).check(place));
    let compared = outcomes.get(&Outcome::Compared).copied().unwrap_or(0);
    assert!(compared * 2 >= count, "{compared} of {count} commands ran, the others were refused");
}

#[test]
fn a_few_random_commands_do_what_one_device_does() {
    check_commands([0, 12]);
}

#[test]
#[ignore = "longer: random"]
fn random_commands_do_what_one_device_does() {
    check_commands(longer(12));
}
