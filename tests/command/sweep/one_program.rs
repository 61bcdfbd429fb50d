//! `compile`, `inspect` and `verify` compile one program: from equal flags, from the config file that `compile` writes, and from DeepSpeed's
//! JSON for the flags that it has.
//!
//! Each command writes the program after each pass. The programs of `compile` and `inspect` are equal byte for byte. `verify` keeps the
//! gradients, so its programs are equal up to the pass that makes the update.

use super::{Outcome, check_cases, ended, longer};
use serde_json::{Value, json};
use testing::random_flags::{CLUSTERS, RandomFlags};
use testing::workplace::Workplace;

/// A comparison of programs.
struct Case {
    random: RandomFlags,
    /// Whether a run of one step is resumed, too.
    resumes: bool,
}

/// The folders of `--dump`.
const FOLDERS: [&str; 8] = [
    "of-compile",
    "of-inspect",
    "of-config",
    "of-deepspeed",
    "of-whole-batch",
    "of-run",
    "of-resume",
    "of-verify",
];

impl Case {
    fn of(seed: u64) -> Self {
        Self { random: RandomFlags::of(seed), resumes: seed.is_multiple_of(3) }
    }

    fn check(&self, place: &Workplace) -> Result<Outcome, String> {
        let RandomFlags { model, batch, flags, .. } = &self.random;
        // A command that is refused has written the programs before its error.
        for folder in FOLDERS {
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
        let expected = place.dumped("of-compile");
        let compare = |to: &str, until: &str| -> Result<(), String> {
            let found = place.dumped(to);
            for (name, text) in expected.iter().take_while(|(name, _)| !name.contains(until)) {
                if found.get(name) != Some(text) {
                    return Err(format!("{compile}: {to}/{name} is not the program of compile"));
                }
            }
            Ok(())
        };
        // The evaluation is compiled after the step. The other commands do not compile it.
        compare("of-inspect", "-keep")?;
        let (json, rest) = in_deepspeed(flags);
        place.write("deepspeed.json", json.to_string().as_bytes());
        let (without, has_batch) = self.random.without("--global-batch");
        let whole = if has_batch { flags.clone() } else { format!("{flags} --global-batch {batch}") };
        let ways = [
            ("of-config", "--config run/config.toml".to_owned()),
            ("of-deepspeed", format!("{rest} --config deepspeed.json")),
            ("of-whole-batch", whole),
        ];
        for (to, flags) in ways {
            if let (true, command, told) = run("inspect", &flags, to)? {
                return Err(format!("{compile}: {command} is refused\n{told}"));
            }
            compare(to, "-keep")?;
        }
        if self.resumes {
            let data = "--train synthetic";
            let begin = format!("compile testdata/{model}.onnx {flags} {data} --steps 1 -o begun --force");
            let begun = ended(place, &begin, None)?;
            if begun.status.code() != Some(0) {
                return Err(format!("{begin}: {}", begun.stderr));
            }
            // `inspect` reads the flags of a run, and leaves out those of its data.
            if let (true, command, told) = run("inspect", "--config begun/config.toml", "of-run")? {
                return Err(format!("{compile}: {command} is refused\n{told}"));
            }
            compare("of-run", "-keep")?;
            // The checkpoint has the global batch.
            let resume = format!("{without} {data} --steps 2 --resume=begun -o again --force");
            if let (true, command, told) = run("compile", &resume, "of-resume")? {
                return Err(format!("{compile}: {command} is refused\n{told}"));
            }
            compare("of-resume", "-keep")?;
        }
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
