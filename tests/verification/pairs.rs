//! A covering array: every pair of choices on two axes occurs in a program that is verified. The axes are models with their activations,
//! divisors of their losses and precisions of their files, update rules, meshes, precisions, and the forms of activations.

use testing::{testdata, verification, workplace::Workplace};
use trainyard::diagnostics::{Severity, render};

/// The models, each with its activation and an operator that replaces it. Both names have the same length, so the layout of the file stays.
const MODELS: [(&str, [&str; 2]); 11] = [
    ("models/bert.dynamo", ["Gelu", "Mish"]),
    ("models/bert.dynamo", ["Gelu", "Selu"]),
    ("models/t5.dynamo", ["Relu", "Celu"]),
    ("models/gpt2-fp16.dynamo", ["Tanh", "Tanh"]),
    ("models/parted-loss.dynamo", ["Tanh", "Mish"]),
    ("models/clamped-loss.dynamo", ["Tanh", "Relu"]),
    ("models/joined-loss.dynamo", ["Tanh", "Selu"]),
    ("models/quotient-loss.dynamo", ["Tanh", "Gelu"]),
    ("models/smoothed-loss.dynamo", ["Tanh", "Celu"]),
    ("recurrent", ["LSTM", "LSTM"]),
    ("recurrent-layers", ["GRU", "GRU"]),
];

/// Choices of flags.
const AXES: [&[&str]; 4] = [
    &["", "sgd", "momentum", "adagrad:eps=1e-8", "lion", "adafactor", "adam:moments=8bit"],
    &["", "dp=2", "tp=2", "pp=2", "pp=2,dp=2 --zero 1", "pp=2,tp=2 --schedule gpipe", "dp=2 --zero 3"],
    &["", "--bf16", "--fp16", "--bf16 --mode cpu-amx", "--bf16 --mode cpu-avx512-bf16"],
    &[
        "",
        "--recompute full",
        "--compress-activations masks,indices --compress-least 1B",
        "--compress-activations masks --compress-least 1B --recompute selective",
        "--moe experts=2",
    ],
];

/// The flag before a choice of the first axes.
const FLAGS: [&str; 2] = ["--optimizer", "--mesh"];

/// A model, and a choice on each axis.
type Row = [usize; 5];

/// A short list of rows in which every pair of choices occurs.
fn rows() -> Vec<Row> {
    let sizes = [MODELS.len(), AXES[0].len(), AXES[1].len(), AXES[2].len(), AXES[3].len()];
    let pairs = |row: &Row| {
        let row = *row;
        (0..row.len()).flat_map(move |i| (0..i).map(move |j| (i, row[i], j, row[j])))
    };
    let all: Vec<Row> = (0..sizes.iter().product())
        .map(|index: usize| {
            let mut rest = index;
            sizes.map(|size| {
                let choice = rest % size;
                rest /= size;
                choice
            })
        })
        .collect();
    let mut open: std::collections::BTreeSet<_> = all.iter().flat_map(pairs).collect();
    let mut rows = Vec::new();
    while !open.is_empty() {
        let covers = |row: &&Row| pairs(row).filter(|pair| open.contains(pair)).count();
        let best = *all.iter().rev().max_by_key(covers).expect("there are rows");
        open.retain(|pair| pairs(&best).all(|covered| covered != *pair));
        rows.push(best);
    }
    rows
}

/// The file of a model with another activation.
fn file(place: &Workplace, (model, [old, new]): (&str, [&str; 2])) -> std::path::PathBuf {
    let mut bytes = std::fs::read(testdata(&format!("{model}.onnx"))).expect("the model is there");
    // The field `op_type` of a node: its tag, its length, its letters.
    let operator = |name: &str| [&[0x22, name.len() as u8], name.as_bytes()].concat();
    let (old, new) = (operator(old), operator(new));
    let places: Vec<usize> =
        (0..bytes.len() - old.len()).filter(|&at| bytes[at..].starts_with(&old)).collect();
    assert!(!places.is_empty(), "{model} has no such activation");
    places.into_iter().for_each(|at| bytes[at..at + new.len()].copy_from_slice(&new));
    let name = format!("{}-{}.onnx", model.replace('/', "-"), String::from_utf8_lossy(&new[2..]));
    place.write(&name, &bytes);
    place.path(&name)
}

fn check(rows: impl Iterator<Item = Row>) {
    let place = Workplace::new(crate::TRAINYARD);
    let (mut faults, mut refused, mut all) = (vec![], 0, 0);
    for [model, choices @ ..] in rows {
        let choices = AXES.iter().zip(choices).map(|(axis, choice)| axis[choice]);
        let flags = choices.enumerate().filter(|(_, choice)| !choice.is_empty());
        let flags: Vec<String> = flags
            .map(|(axis, choice)| format!("{} {choice}", FLAGS.get(axis).copied().unwrap_or_default()))
            .collect();
        let flags = format!("{} --microbatch 2 --global-batch 8", flags.join(" "));
        let what = format!("{:?} {flags}", MODELS[model]);
        all += 1;
        match verification::verify(&file(&place, MODELS[model]), &flags) {
            Ok(report) if report.passed && report.failed() == 0 => {}
            Ok(report) => faults.push(format!("{what}:\n{report}")),
            Err(failure) if failure.exit_code() == 2 => refused += 1,
            Err(failure) => {
                faults.push(format!("{what}: {}", render(Severity::Error, &failure.diagnostics(), false)));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {all}:\n{}", faults.len(), faults.join("\n"));
    println!("{all} programs, {refused} of them refused");
    assert!(refused * 3 < all, "{refused} of {all} are refused");
}

/// CI runs every third row, and the nightly run all rows.
#[test]
fn pairs_of_options_compute_what_the_model_does() {
    check(rows().into_iter().step_by(3));
}

#[test]
#[ignore = "longer"]
fn all_pairs_of_options_compute_what_the_model_does() {
    check(rows().into_iter());
}
