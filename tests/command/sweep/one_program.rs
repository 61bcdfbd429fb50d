//! `compile`, `inspect` and `verify` compile one program: from equal flags, from the config file that `compile` writes, and from DeepSpeed's
//! JSON for the flags that it has.
//!
//! Each command writes the program after each pass. The programs of `compile` and `inspect` are equal byte for byte. `verify` keeps the
//! gradients, so its programs are equal up to the pass that makes the update.

use super::{MESHES, Outcome, check_cases, draw_alone, draw_shared, ended, longer};
use ir::random::philox;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use testing::workplace::Workplace;

/// The models, each with the batch sizes that it accepts.
const MODELS: [(&str, &[u64]); 9] = [
    ("models/mlp.dynamo", &[4, 8]),
    ("models/parted-loss.dynamo", &[4, 8]),
    ("models/quotient-loss.dynamo", &[4, 8]),
    ("models/gpt2.dynamo", &[4, 8]),
    ("models/gpt2-fp16.dynamo", &[4, 8]),
    ("models/llama.dynamo", &[4, 8]),
    ("models/mixtral.dynamo", &[4, 8]),
    ("models/bert.dynamo", &[4, 8]),
    ("models/resnet.legacy-trainmode", &[4, 8]),
];

/// Flags that only some models take, and the batch.
const OTHERS: [&[&str]; 5] = [
    &["", "", "--global-batch 8", "--global-batch 16"],
    &["", "", "--init gpt2", "--init kaiming"],
    &["", "", "--dropout 0.1", "--lr-schedule cosine:warmup=2,steps=8"],
    &["", "", "--memory 1GiB", "--moe experts=2,top=1"],
    &["", "", "--cluster node.toml", "--cluster nodes.toml"],
];

/// The files of `--cluster`: one node, and two nodes that large meshes do not fit into.
const CLUSTERS: [(&str, &str); 2] = [
    ("node.toml", "preset = 'h100'\nnodes = 1\n[node]\ndevices = 8\n"),
    ("nodes.toml", "preset = 'a100'\nnodes = 2\n[node]\ndevices = 2\n"),
];

struct Case {
    model: &'static str,
    flags: String,
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut drawn = 0;
        let mut draw = |count: usize| {
            drawn += 1;
            philox(seed, [drawn, 0, 0, 12])[0] as usize % count
        };
        let (model, batches) = MODELS[draw(MODELS.len())];
        let shared = draw_shared(&mut draw);
        let mesh = MESHES[draw(if model.contains("mixtral") { MESHES.len() } else { MESHES.len() - 3 })];
        let own = draw_alone(mesh, &shared, &mut draw).join(" ");
        let batch = batches[draw(batches.len())] / mesh.1;
        let others: Vec<&str> = OTHERS.iter().map(|axis| axis[draw(axis.len())]).collect();
        let flags = format!(
            "{} {own} {} --microbatch {batch} --seed {}",
            shared.join(" "),
            others.join(" "),
            draw(100)
        );
        Self { model, flags }
    }

    fn check(&self, place: &Workplace) -> Result<Outcome, String> {
        let Self { model, flags } = self;
        // A command that is refused has written the programs before its error.
        for folder in ["of-compile", "of-inspect", "of-config", "of-deepspeed", "of-verify"] {
            std::fs::remove_dir_all(place.path(folder)).ok();
        }
        CLUSTERS.iter().for_each(|(file, text)| place.write(file, text.as_bytes()));
        let run = |command: &str, flags: &str, to: &str| {
            let command = format!("{command} testdata/{model}.onnx {flags} --dump {to}");
            ended(place, &command, Some(3))
                .map(|ended| (ended.status.code() == Some(2), command, ended.stderr))
        };
        let (is_refused, compile, _) = run("compile", &format!("{flags} -o run --force"), "of-compile")?;
        let (is_refused_too, _, told) = run("inspect", flags, "of-inspect")?;
        if is_refused != is_refused_too {
            return Err(format!(
                "{compile}: refused by compile: {is_refused}, by inspect: {is_refused_too}\n{told}"
            ));
        }
        if is_refused {
            return Ok(Outcome::Refused);
        }
        let expected = programs(place, "of-compile");
        let compare = |to: &str, until: &str| -> Result<(), String> {
            let found = programs(place, to);
            for (name, text) in expected.iter().take_while(|(name, _)| !name.contains(until)) {
                if found.get(name) != Some(text) {
                    return Err(format!("{compile}: {to}/{name} is not the program of compile"));
                }
            }
            Ok(())
        };
        // The evaluation is compiled after the step. The other commands do not compile it.
        compare("of-inspect", "-keep")?;
        if let (true, _, told) = run("inspect", "--config run/config.toml", "of-config")? {
            return Err(format!("{compile}: inspect refuses its config.toml\n{told}"));
        }
        compare("of-config", "-keep")?;
        let (json, rest) = in_deepspeed(flags);
        place.write("deepspeed.json", json.to_string().as_bytes());
        if let (true, _, told) = run("inspect", &format!("{rest} --config deepspeed.json"), "of-deepspeed")? {
            return Err(format!("{compile}: inspect refuses {json}\n{told}"));
        }
        compare("of-deepspeed", "-keep")?;
        // `verify` has nothing to compare for a step without gradients, for example.
        if !run("verify", flags, "of-verify")?.0 {
            compare("of-verify", "-optimizer")?;
        }
        Ok(Outcome::Compared)
    }
}

/// The flags of a command that DeepSpeed's JSON has, as JSON, and the other flags.
fn in_deepspeed(flags: &str) -> (Value, String) {
    let (mut json, mut rest) = (json!({}), vec![]);
    let mut words = flags.split_whitespace();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse::<Value>().ok()).expect("a number");
        match word {
            "--bf16" => json["bf16"]["enabled"] = true.into(),
            "--fp16" => json["fp16"]["enabled"] = true.into(),
            "--loss-scale" => json["fp16"]["loss_scale"] = number(),
            "--clip" => json["gradient_clipping"] = number(),
            "--zero" => json["zero_optimization"]["stage"] = number(),
            "--microbatch" => json["train_micro_batch_size_per_gpu"] = number(),
            "--global-batch" => json["train_batch_size"] = number(),
            _ => rest.push(word),
        }
    }
    (json, rest.join(" "))
}

/// The programs in a folder of `--dump`.
fn programs(place: &Workplace, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let path = place.path(folder);
    let entries = std::fs::read_dir(&path).expect("the command dumps programs");
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        (name, std::fs::read(path).expect("a file can be read"))
    };
    entries.map(file).collect()
}

fn check([first, count]: [u64; 2]) {
    let outcomes = check_cases(first, count, |place, seed| Case::of(seed).check(place));
    let compared = outcomes.get(&Outcome::Compared).copied().unwrap_or(0);
    assert!(compared * 3 >= count, "{compared} of {count} commands compile, the others are refused");
}

#[test]
fn a_few_random_flags_give_one_program() {
    check([0, 8]);
}

#[test]
#[ignore = "longer: random"]
fn random_flags_give_one_program() {
    let [first, count] = longer(8);
    check([first, (count / 3).min(300)]);
}
