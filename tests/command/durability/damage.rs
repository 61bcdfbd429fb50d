//! Flipped bits and truncated files anywhere in an output folder. Each is harmless, reported or refused, and none leads to another model.

use crate::TRAINYARD;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use testing::workplace::Workplace;

const RUN: &str = "compile testdata/short-batch.onnx --train testdata/short-batch.npz --microbatch 4 --save-every 2 --threads 1";

/// A sequence of numbers that look random, the same on every machine (Marsaglia, "Xorshift RNGs", 2003).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Files of the folder `run` with their bytes.
fn files(place: &Workplace) -> BTreeMap<String, Vec<u8>> {
    let files = place.contents().into_iter().filter(|(name, _)| name.starts_with("run/"));
    files.filter_map(|(name, bytes)| Some((name, bytes?))).collect()
}

fn restore(place: &Workplace, files: &BTreeMap<String, Vec<u8>>) {
    fs::remove_dir_all(place.path("run")).unwrap();
    for (name, bytes) in files {
        fs::create_dir_all(place.path(name).parent().unwrap_or(Path::new("."))).unwrap();
        place.write(name, bytes);
    }
}

/// The final values of the run, and the trained model in both forms.
fn results(place: &Workplace) -> [Vec<u8>; 4] {
    let file = place.read("run/checkpoints/step-6/state.safetensors");
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let [inference, training, weights] = ["model.onnx", "model-training.onnx", "model.safetensors"]
        .map(|name| place.read(&format!("run/{name}")));
    [file[8 + length..].to_vec(), inference, training, weights]
}

#[test]
#[ignore = "longer"]
fn no_flipped_bit_and_no_cut_file_gives_another_model_silently() {
    let place = Workplace::new(TRAINYARD);
    place.succeed(&format!("{RUN} --steps 6 -o run"));
    let expected = results(&place);
    fs::remove_dir_all(place.path("run")).unwrap();
    place.succeed(&format!("{RUN} --steps 4 -o run"));
    let files = files(&place);
    let undamaged = place.succeed(&format!("{RUN} --steps 6 -o run --resume")).stderr;
    restore(&place, &files);
    // Places are drawn evenly over all bytes, except one in three, which is in a file that a resumed run reads.
    let read = ["state.safetensors", "checkpoint.json", "metrics.jsonl", "config.toml"];
    let names: Vec<&String> = files.keys().collect();
    let read: Vec<&String> = files.keys().filter(|name| read.iter().any(|end| name.ends_with(end))).collect();
    let mut random = Random::new();
    let (mut refused, mut told, mut harmless) = (0, 0, 0);
    for case in 0..300 {
        let among = if case % 3 == 0 { &read } else { &names };
        let name = among[random.below(among.len())];
        let mut bytes = files[name].clone();
        if bytes.is_empty() {
            continue;
        }
        let at = random.below(bytes.len());
        let what = if case % 3 == 2 {
            bytes.truncate(at);
            format!("{name} cut off at {at}")
        } else {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} of {name}")
        };
        place.write(name, &bytes);
        let resumed = place.run(&format!("{RUN} --steps 6 -o run --resume"));
        match resumed.status.code() {
            Some(2) => {
                refused += 1;
                assert!(resumed.stderr.contains("error: "), "{what}: {}", resumed.stderr);
            }
            Some(0) if results(&place) == expected => {
                let is_new = |line: &str| !undamaged.contains(line);
                let mut notes = resumed
                    .stderr
                    .lines()
                    .filter(|line| line.starts_with("note: ") || line.starts_with("warning: "));
                let is_told = notes.any(is_new);
                *if is_told { &mut told } else { &mut harmless } += 1;
            }
            code => panic!("{what}: exit code {code:?}, another model\n{}", resumed.stderr),
        }
        restore(&place, &files);
    }
    println!("{refused} refused, {told} told, {harmless} harmless");
    assert!(refused > 10 && told > 0 && harmless > 10, "{refused} refused, {told} told, {harmless} harmless");
}
