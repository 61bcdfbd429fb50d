//! The corpus of the fuzz targets, and every input that once broke one, through the fuzzed functions. None may panic or hang. The test
//! needs no fuzzer; `docs/fuzzing.md` says how to run one.
//!
//! Each file is also run a few times with random changes; `FUZZ_ROUNDS=1000` makes 1000 rounds of them.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use testing::fuzzing::choices::Choices;
use testing::fuzzing::onnx_file::{Reached, train};
use testing::fuzzing::{self, mutate};

/// Rounds of changed files, unless `FUZZ_ROUNDS` gives another number.
const ROUNDS: u64 = 1;

/// The files of a target's folder, sorted.
fn files(kind: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target);
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("the file can be read"))).collect()
}

/// Bytes that are limits of types or formats.
const LIMITS: [u8; 8] = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, b'0'];

/// A file with a few changes: bytes replaced, left out, repeated, or taken from another file.
fn changed(bytes: &[u8], other: &[u8], choices: &mut Choices) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + choices.below(4) {
        let range = choices.range(bytes.len());
        match choices.below(5) {
            0 => bytes[range].iter_mut().for_each(|byte| *byte = LIMITS[choices.below(LIMITS.len())]),
            1 => bytes[range].iter_mut().take(1).for_each(|byte| *byte ^= 1 << choices.below(8)),
            2 => drop(bytes.drain(range)),
            3 => {
                let again = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, again);
            }
            _ => {
                let from = choices.range(other.len());
                bytes.splice(range, other[from].iter().copied());
            }
        }
    }
    bytes
}

/// Changes the file of a target, in a way that suits the target.
fn changed_for(target: &str, bytes: &[u8], other: &[u8], choices: &mut Choices) -> Vec<u8> {
    let fields = match target {
        "onnx" if choices.once_in(4) => mutate::crossed(bytes, other, LONGEST, choices),
        "onnx" => mutate::changed(bytes, LONGEST, choices),
        _ => None,
    };
    fields.unwrap_or_else(|| changed(bytes, other, choices))
}

/// The longest input, as in `fuzz/run`.
const LONGEST: usize = 1 << 16;

/// The seeds of a target, and the inputs that once broke it.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let found = fuzzing::TARGETS.into_iter().find(|(name, ..)| *name == target);
    let (_, seeds, _) = found.expect("there is such a target");
    [files("corpus", seeds), files("regressions", target)].concat()
}

fn replay(target: &str) {
    let corpus = corpus(target);
    assert!(corpus.len() >= 5, "only {} files in the corpus of {target}", corpus.len());
    let rounds = std::env::var("FUZZ_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut broken = Vec::new();
    for round in 0..=rounds {
        for (index, (path, bytes)) in corpus.iter().enumerate() {
            let mut choices = Choices::new(round << 32 | index as u64);
            let other = &corpus[choices.below(corpus.len())].1;
            let input =
                if round == 0 { bytes.clone() } else { changed_for(target, bytes, other, &mut choices) };
            if catch_unwind(|| fuzzing::run(target, &input)).is_err() {
                let kept = std::env::temp_dir().join(format!("{target}-{round}-{index}"));
                std::fs::write(&kept, &input).expect("the temporary folder can be written to");
                broken.push(format!("{} in round {round}: {}", path.display(), kept.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{} inputs panic:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn models_are_compiled_or_refused() {
    replay("model");
}

#[test]
fn models_changed_by_their_fields_are_trained_or_refused() {
    replay("onnx");
}

#[test]
fn many_models_changed_by_their_fields_are_still_trained() {
    let corpus = corpus("onnx");
    let (mut changed, mut trained) = (0, 0);
    for (index, (path, bytes)) in corpus.iter().enumerate() {
        let mut choices = Choices::new(index as u64);
        if !path.to_string_lossy().ends_with("-trained") || train(bytes) != Reached::Trained {
            continue;
        }
        let Some(other) = mutate::changed(bytes, LONGEST, &mut choices) else { continue };
        changed += u32::from(other != *bytes);
        trained += u32::from(other != *bytes && train(&other) == Reached::Trained);
    }
    assert!(changed > 10 && trained * 4 > changed, "of {changed} changed models {trained} are trained");
}

#[test]
fn programs_are_parsed_or_refused() {
    replay("text");
}

#[test]
fn checkpoints_are_loaded_or_refused() {
    replay("checkpoint");
}

#[test]
fn data_are_read_or_refused() {
    replay("data");
}

#[test]
fn tables_are_read_or_refused() {
    replay("csv");
}

#[test]
fn archives_are_read_or_refused() {
    replay("npz");
}

#[test]
fn tokenizers_are_used_or_refused() {
    replay("tokenizer");
}

#[test]
fn config_files_are_read_or_refused() {
    replay("config");
}

#[test]
fn every_target_is_replayed_and_has_a_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let replays = std::fs::read_to_string(root.join("tests/fuzz_corpus.rs")).unwrap();
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    for (name, ..) in fuzzing::TARGETS {
        assert!(replays.contains(&format!("replay(\"{name}\")")), "{name} is not replayed");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} has no binary");
    }
}
