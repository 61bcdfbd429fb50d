//! Mutants: models that can be trained, whose fields are changed, in the commands that a user would try. A mutant is refused, or another
//! run trains it to the losses that one device has.

use super::{Allowed, Ending, Outcome, Run, check_cases, ended, longer};
use std::fs;
use std::path::{Path, PathBuf};
use testing::fuzzing::choices::Choices;
use testing::fuzzing::mutate;
use testing::random_flags::{MESHES, draw_alone, draw_shared};
use testing::workplace::{Ended, Workplace};

/// Files below `testdata`, without their ending.
const MODELS: [&str; 35] = [
    "dropout",
    "recurrent",
    "short-batch",
    "short-batch-mse",
    "odd/constants-only",
    "odd/function",
    "odd/pooled",
    "odd/tied-legacy",
    "odd/wide-norm",
    "random/depth.dynamo",
    "random/depth.legacy",
    "random/noise.dynamo",
    "random/noise.legacy",
    "rows/merged",
    "rows/variance",
    "state-dict/module.dynamo",
    "state-dict/module.legacy",
    "verify/bf16",
    "verify/classifier",
    "verify/convolutions",
    "models/batch-loss.dynamo",
    "models/clamped-loss.dynamo",
    "models/joined-loss.dynamo",
    "models/mlp.dynamo-dyn",
    "models/mlp-loss.dynamo",
    "models/parted-loss.dynamo",
    "models/positives-loss.dynamo",
    "models/quotient-loss.dynamo",
    "models/recorded-loss.dynamo",
    "models/resnet.legacy-trainmode",
    "models/smoothed-loss.dynamo",
    "models/summed-loss.dynamo",
    "models/t5.dynamo",
    "models/t5.dynamo-dyn",
    "models/weighted-loss.dynamo",
];

/// Files below `testdata` without their weights.
const WITHOUT_WEIGHTS: [&str; 7] = [
    "models/bert.legacy-dyn",
    "models/gpt2-dropout.legacy",
    "models/gpt2-loss.dynamo",
    "models/gpt2.dynamo-op23",
    "models/llama.dynamo-op23",
    "models/llama.legacy-mask",
    "models/mixtral.dynamo-dyn",
];

/// Seeds of the fuzzer that are trained as they are, each with one operator. The other seeds are only joined to a model.
const OPERATORS: [&str; 15] = [
    "add_bcast",
    "basic_conv_with_padding",
    "batchnorm_example",
    "causal_conv_with_state_decode_step_expanded",
    "convtranspose_1d",
    "deform_conv_with_multiple_offset_groups",
    "gemm_default_no_bias",
    "group_normalization_example",
    "gru_defaults",
    "instancenorm_example",
    "layer_normalization_2d_axis1",
    "lstm_defaults",
    "rms_normalization_2d_axis1",
    "rms_normalization_2d_axis1_expanded",
    "simple_rnn_defaults",
];

/// The steps of a run.
const STEPS: u64 = 2;

/// The number of changes that are tried one after the other. Each starts from the last file that was not refused.
const CHANGES: usize = 3;

/// The number of runs with changed last bits that a difference is compared with.
const NUDGES: u64 = 8;

/// The most bytes of a mutant.
const LONGEST: usize = 4 << 20;

/// The folder of the fuzzer's seeds.
fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/model")
}

/// All seeds of the fuzzer.
fn seeds() -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus()).expect("the corpus is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A changed model with the flags of its commands.
struct Mutant {
    /// The path of the original model.
    of: PathBuf,
    /// The file after the changes so far.
    bytes: Vec<u8>,
    /// The flags of all commands, without their batch.
    flags: String,
    /// The shared flags among `flags`, which decide the other flags that are allowed.
    shared: Vec<&'static str>,
    microbatch: &'static str,
    mode: &'static str,
    choices: Choices,
}

impl Mutant {
    /// The mutant of a seed, before it is changed.
    fn of(seed: u64) -> Self {
        let mut choices = Choices::new(seed);
        let one = |names: &[&'static str], choices: &mut Choices| names[choices.below(names.len())];
        let model = |name: &str| testing::testdata(&format!("{name}.onnx"));
        let (of, init) = match choices.below(10) {
            0..6 => (model(one(&MODELS, &mut choices)), one(&["", "", "--init gpt2"], &mut choices)),
            6..8 => (model(one(&WITHOUT_WEIGHTS, &mut choices)), "--init gpt2"),
            _ => (corpus().join(format!("seed-{}-trained", one(&OPERATORS, &mut choices))), ""),
        };
        let losses = if of.extension().is_some() { ["", "", "--loss mse"] } else { ["--loss mse"; 3] };
        let shared = draw_shared(&mut |count| choices.below(count));
        Self {
            bytes: read(&of),
            of,
            flags: format!("{} {} {init}", shared.join(" "), one(&losses, &mut choices)),
            shared,
            microbatch: one(&["", "", "--microbatch 4"], &mut choices),
            mode: one(&["exact", "typed", "cpu", "cpu"], &mut choices),
            choices,
        }
    }

    /// The file with another change. `None` if it would be too large.
    fn changed(&mut self) -> Option<Vec<u8>> {
        let Self { bytes, choices, .. } = self;
        if !choices.once_in(4) {
            return mutate::changed(bytes, LONGEST, choices);
        }
        let seed = choices.of(&seeds()).expect("the corpus has seeds").clone();
        mutate::crossed(bytes, &read(&seed), LONGEST, choices)
    }

    /// Changes the file, and trains it on one device. Returns the run with its flags; `None` if all changes are refused.
    fn train(&mut self, place: &Workplace) -> Result<Option<(Run, String)>, String> {
        let mut trained = None;
        for _ in 0..CHANGES {
            let Some(changed) = self.changed() else { continue };
            place.write("mutant.onnx", &changed);
            let before = std::mem::replace(&mut self.bytes, changed);
            let train = |bind: &str| {
                let flags = format!("{} {bind}", self.flags);
                let ending = Run::of(place, &command(&format!("{flags} {}", self.microbatch)), "one")?;
                Ok::<_, String>((ending, flags))
            };
            let mut ending = train("")?;
            // A user gives the dims the sizes that the refusal asks for.
            if let Ending::Refused(text) = &ending.0
                && let Some((_, bind)) = text.split_once("give each dim a size: ")
            {
                ending = train(&bind.lines().next().unwrap_or_default().replace("SIZE", "4"))?;
            }
            match ending {
                (Ending::Ran(run), flags) => trained = Some((run, flags)),
                _ => self.bytes = before,
            }
        }
        Ok(trained)
    }

    /// Runs all commands.
    fn check(&mut self, place: &Workplace) -> Result<Outcome, String> {
        let Some((expected, flags)) = self.train(place)? else { return Ok(Outcome::Refused) };
        place.write("mutant.onnx", &self.bytes);
        let Self { microbatch, mode, .. } = self;
        ended(place, &format!("inspect mutant.onnx {flags} {microbatch} --target h100"), None)?;
        let verify = format!("verify mutant.onnx {flags} {microbatch} --mode {mode}");
        no_large_error(&ended(place, &verify, Some(3))?, mode)
            .map_err(|error| format!("{verify}: {error}"))?;
        // Meshes without experts whose data ranks can share the samples.
        let meshes = MESHES.iter().filter(|(mesh, ranks)| {
            !mesh.is_empty() && !mesh.contains("ep") && expected.samples.is_multiple_of(*ranks)
        });
        let meshes: Vec<_> = meshes.copied().collect();
        let mut draw = |count: usize| self.choices.below(count);
        let (mesh, ranks) = meshes[draw(meshes.len())];
        let alone = draw_alone((mesh, ranks), &self.shared, &mut draw).join(" ");
        let command = command(&format!("{flags} {alone} --microbatch {}", expected.samples / ranks));
        let run = Run::of(place, &command, "own")?;
        let is_half = !self.shared[0].is_empty();
        let mut allowed = Allowed::of(is_half);
        if is_half {
            // Constants of 1e-38 put half-precision numbers on kinks, and constants of 1e30 exceed their largest number.
            if matches!(run, Ending::NotFinite) {
                return Ok(Outcome::TrainedAlone);
            }
            allowed.norms = f64::INFINITY;
        }
        let compared = run.compare(&expected, allowed);
        match compared {
            Err(difference)
                if !self.is_rounding(place, &format!("{flags} {}", self.microbatch), &run, allowed) =>
            {
                Err(format!("{command}: {difference}"))
            }
            _ => Ok(compared.unwrap_or(Outcome::Compared)),
        }
    }

    /// Whether one device has the numbers of a run if the last bits of its weights are changed. Statistics of a few numbers that are nearly
    /// equal can amplify rounding to any size.
    fn is_rounding(&self, place: &Workplace, flags: &str, run: &Ending, allowed: Allowed) -> bool {
        let mut files =
            (0..NUDGES).filter_map(|seed| mutate::nudged(&self.bytes, LONGEST, &mut Choices::new(seed)));
        files.any(|nudged| {
            place.write("mutant.onnx", &nudged);
            let one = Run::of(place, &command(flags), "nudged");
            matches!(one, Ok(Ending::Ran(one)) if run.compare(&one, allowed).is_ok())
        })
    }

    /// The change, and the file that shows it.
    fn described(&self, seed: u64) -> String {
        let kept = std::env::temp_dir().join(format!("mutant-{seed}.onnx"));
        fs::write(&kept, &self.bytes).expect("the temporary folder can be written to");
        let change = mutate::described(&read(&self.of), &self.bytes).unwrap_or_default();
        format!("{} is {}, changed:\n{change}", kept.display(), self.of.display())
    }
}

/// Refuses errors that `verify` found and that rounding does not explain, not even if steep functions amplify it: constants of 1e30,
/// variances of zeros, moments of few bits. The first error in the list of `verify` is the largest that it does not explain.
fn no_large_error(ended: &Ended, mode: &str) -> Result<(), String> {
    let list = ended.stdout.split_once("kind       name\n").map_or("", |(_, list)| list);
    let error: f64 = list.split_whitespace().next().map_or(0.0, |error| error.parse().unwrap_or(f64::NAN));
    let most = if mode == "exact" { 1e-6 } else { 5e-2 };
    // If the loss of the model itself is NaN, a step with a scaled loss is skipped.
    let has_no_loss = list.lines().any(|line| line.contains(" loss ") && line.contains("NaN on both sides"));
    match ended.status.code() {
        // Numbers that are NaN in the model itself are reported, and end with 3 too.
        Some(3) if has_no_loss || ended.stdout.contains("NOT COMPARED") => Ok(()),
        Some(3) if error.is_nan() || error > most => Err(ended.stdout.clone()),
        _ => Ok(()),
    }
}

/// A training run of the mutant.
fn command(flags: &str) -> String {
    format!("compile mutant.onnx {flags} --train synthetic --steps {STEPS} --lr 1e-3 --force")
}

/// Checks mutants. At least a third of them must be trained.
fn check_mutants([first, count]: [u64; 2]) {
    let outcomes = check_cases(first, count, |place, seed| {
        let mut mutant = Mutant::of(seed);
        mutant.check(place).map_err(|fault| format!("{fault}\n{}", mutant.described(seed)))
    });
    let refused = outcomes.get(&Outcome::Refused).copied().unwrap_or(0);
    assert!(refused * 3 <= count * 2, "{refused} of {count} mutants were refused");
}

#[test]
fn a_few_mutants_are_refused_or_trained_alike() {
    check_mutants([0, 12]);
}

#[test]
#[ignore = "longer: random"]
fn mutants_are_refused_or_trained_alike() {
    check_mutants(longer(12));
}
