//! The corpus of the fuzz targets, and every input that once broke something, through the functions that are fuzzed:
//! none may panic or hang. Needs no fuzzer; `docs/fuzzing.md` says how to run one.
//!
//! Each file is also run a few times with random changes; `FUZZ_ROUNDS=1000` makes that many rounds of them.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use ir::random;

// The library of the fuzz targets, which is a package of its own.
#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod fuzz;

/// Rounds of changed files, when `FUZZ_ROUNDS` does not say otherwise.
const ROUNDS: u64 = 1;

/// The files of a target's folder, sorted.
fn files(kind: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target);
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("the file can be read"))).collect()
}

/// Random numbers, one after the other.
struct Choices {
    seed: u64,
    drawn: u32,
}

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        self.drawn += 1;
        random::philox(self.seed, [self.drawn, 0, 0, 0])[0] as usize % count.max(1)
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..(start + 1 + self.below(16)).min(length)
    }
}

/// Bytes that are limits of something.
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

fn replay(target: &str) {
    let (_, run) =
        fuzz::TARGETS.into_iter().find(|(name, _)| *name == target).expect("there is such a target");
    let corpus = [files("corpus", target), files("regressions", target)].concat();
    assert!(corpus.len() >= 5, "only {} files in the corpus of {target}", corpus.len());
    let rounds = std::env::var("FUZZ_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut broken = Vec::new();
    for round in 0..=rounds {
        for (index, (path, bytes)) in corpus.iter().enumerate() {
            let mut choices = Choices { seed: round << 32 | index as u64, drawn: 0 };
            let other = &corpus[choices.below(corpus.len())].1;
            let input = if round == 0 { bytes.clone() } else { changed(bytes, other, &mut choices) };
            if catch_unwind(|| run(&input)).is_err() {
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
