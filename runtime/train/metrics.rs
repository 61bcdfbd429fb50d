//! `metrics.jsonl`: one JSON object per step, appended and flushed, so that a killed run has all its completed steps. A checkpoint is made
//! after the lines of its steps are on the disk.
//!
//! Steps are counted from 1, as in the log and in the names of checkpoints: after step N, N steps are completed. The first line of the file
//! says so (`FirstLine`), and has the evaluation before the first step. Versions that counted from 0 wrote no such line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use files::Replacement;
use files::disk::{self, OpenFile};
use serde::{Deserialize, Deserializer, Serialize};

/// The metrics of one step. Numbers that are not finite are written as `null` (JSON has no NaN) and read back as NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// The step's number, from 1. It is also the number of steps completed after it.
    pub step: u64,
    /// Mean loss over the global batch, nats.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// The learning rate of this step.
    #[serde(deserialize_with = "number_or_null")]
    pub lr: f64,
    /// The gradient's global norm, before clipping.
    #[serde(deserialize_with = "number_or_null")]
    pub grad_norm: f64,
    /// Tokens per second, if the model takes tokens.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_number_or_null")]
    pub tokens_per_s: Option<f64>,
    /// Samples per second, if the model takes no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_number_or_null")]
    pub samples_per_s: Option<f64>,
    /// Wall-clock time of the step, milliseconds.
    #[serde(deserialize_with = "number_or_null")]
    pub step_ms: f64,
    /// Whether the update was skipped, because the gradient was not finite.
    pub skipped: bool,
    /// Mean loss over the held-out data after this step, if it was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_number_or_null")]
    pub eval_loss: Option<f64>,
    /// The number of choices of each expert in the global batch, by the name of the router.
    #[serde(default, rename = "moe.load", skip_serializing_if = "BTreeMap::is_empty")]
    pub loads: BTreeMap<String, Vec<f64>>,
    /// The other scalars of the model over the global batch, by name; `None` for a number that is not finite.
    #[serde(flatten)]
    pub outputs: BTreeMap<String, Option<f64>>,
}

/// The first line of the file, before the lines of all steps.
#[derive(Debug, Serialize, Deserialize)]
struct FirstLine {
    /// The number of steps completed before the file begins.
    step: u64,
    /// The way in which steps are counted.
    counting: String,
    /// Mean loss over the held-out data before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_number_or_null")]
    eval_loss: Option<f64>,
}

/// The way in which steps are counted, in words.
const COUNTING: &str = "step N is the N-th step, after which N steps are done";

/// The keys of a line that are not names of the model's scalars.
const OWN_KEYS: [&str; 11] = [
    "moe.load",
    "counting",
    "step",
    "loss",
    "lr",
    "grad_norm",
    "tokens_per_s",
    "samples_per_s",
    "step_ms",
    "skipped",
    "eval_loss",
];

/// Returns scalars of the model as a line has them. A scalar with the name of one of the line's own keys gets the prefix `output.`.
pub fn outputs(scalars: BTreeMap<String, f64>) -> BTreeMap<String, Option<f64>> {
    let key = |name: String| if OWN_KEYS.contains(&&*name) { format!("output.{name}") } else { name };
    scalars.into_iter().map(|(name, number)| (key(name), Some(number).filter(|n| n.is_finite()))).collect()
}

fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

fn present_number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    number_or_null(deserializer).map(Some)
}

/// The error of metrics that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {source}", path.display())]
pub struct MetricsError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl MetricsError {
    /// Returns whether the disk is at fault, perhaps for a time.
    pub(crate) fn is_passing(&self) -> bool {
        disk::is_passing(&self.source)
    }
}

/// Appends steps to `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: OpenFile,
}

impl MetricsWriter {
    /// Opens `path` for appending, and creates it if it does not exist. Ends a last line that a killed run left half written.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub fn append(path: &Path) -> Result<Self, MetricsError> {
        let open = || {
            let is_new = !path.exists();
            let mut file = disk::append(path)?;
            if is_new {
                disk::sync_folder(files::parent(path))?;
            } else if file.last_byte()?.is_some_and(|last| last != b'\n') {
                file.write_all(b"\n")?;
            }
            Ok(file)
        };
        let file = open().map_err(|source| MetricsError { action: "open", path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the first line, unless the file has it: `step` steps are completed, with this eval loss if it was evaluated.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn begin(&mut self, step: u64, eval_loss: Option<f64>) -> Result<(), MetricsError> {
        let contents = fs::read(&self.path).map_err(|source| MetricsError {
            action: "read",
            path: self.path.clone(),
            source,
        })?;
        if counts_from_1(&contents) {
            return Ok(());
        }
        self.write_line(&FirstLine { step, counting: COUNTING.to_owned(), eval_loss })
    }

    /// Appends one line with a single write.
    ///
    /// # Errors
    /// The line cannot be written, for example because the disk is full.
    pub fn write(&mut self, metrics: &StepMetrics) -> Result<(), MetricsError> {
        self.write_line(metrics)
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<(), MetricsError> {
        let line = serde_json::to_string(line).map_err(io::Error::from);
        let written = line
            .and_then(|line| self.file.write_all((line + "\n").as_bytes()))
            .and_then(|()| self.file.flush());
        written.map_err(|source| MetricsError { action: "write", path: self.path.clone(), source })
    }

    /// Waits until all lines are on the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.file.sync().map_err(|source| MetricsError { action: "write", path: self.path.clone(), source })
    }
}

/// Returns the steps in `path`, in file order. Incomplete lines, as a killed run leaves them, are skipped.
///
/// # Errors
/// The file cannot be read.
pub fn read_metrics(path: &Path) -> Result<Vec<StepMetrics>, MetricsError> {
    let contents =
        fs::read(path).map_err(|source| MetricsError { action: "read", path: path.to_owned(), source })?;
    Ok(lines(&contents).map(|(_, metrics)| metrics).collect())
}

/// Returns the lines of steps, with numbers counted from 1.
fn lines(contents: &[u8]) -> impl Iterator<Item = (&[u8], StepMetrics)> {
    let first = u64::from(!counts_from_1(contents));
    all_lines(contents).filter_map(move |line| {
        let metrics: StepMetrics = serde_json::from_slice(line).ok()?;
        Some((line, StepMetrics { step: metrics.step.saturating_add(first), ..metrics }))
    })
}

fn all_lines(contents: &[u8]) -> impl Iterator<Item = &[u8]> {
    contents.split(|&byte| byte == b'\n')
}

/// Returns the line that tells how steps are counted, if there is one. At most half-written lines precede it.
fn first_line(contents: &[u8]) -> Option<&[u8]> {
    let is_step = |line: &&[u8]| serde_json::from_slice::<StepMetrics>(line).is_ok();
    let mut lines = all_lines(contents).take_while(|line| !is_step(line));
    lines.find(|line| serde_json::from_slice::<FirstLine>(line).is_ok())
}

fn counts_from_1(contents: &[u8]) -> bool {
    first_line(contents).is_some()
}

/// Returns a line with its step counted from 1. A line of an older version counts one less.
fn recounted(line: &[u8], metrics: &StepMetrics) -> Vec<u8> {
    let before = format!("{{\"step\":{},", metrics.step.saturating_sub(1));
    match line.strip_prefix(before.as_bytes()) {
        Some(rest) => [format!("{{\"step\":{},", metrics.step).as_bytes(), rest].concat(),
        None => serde_json::to_vec(metrics).unwrap_or_default(),
    }
}

/// Truncates the file at `path` after the line of step `steps`. The lines of the steps `1..=steps` stay, byte for byte, except that lines
/// of an older version are renumbered. Half-written lines are removed. A missing file stays missing. The new file is renamed into place, so
/// a crash leaves the old or the new one. Returns the number of completed steps that have no line.
///
/// # Errors
/// The file cannot be read or replaced.
pub fn truncate_to_step(path: &Path, steps: u64) -> Result<u64, MetricsError> {
    let contents = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(steps),
        read => read.map_err(|source| MetricsError { action: "read", path: path.to_owned(), source })?,
    };
    let done = || lines(&contents).filter(|(_, metrics)| (1..=steps).contains(&metrics.step));
    let there: BTreeSet<u64> = done().map(|(_, metrics)| metrics.step).collect();
    let missing = steps - there.len() as u64;
    let (first, is_older) = match first_line(&contents) {
        Some(line) => (line.to_vec(), false),
        None => {
            let line = FirstLine { step: 0, counting: COUNTING.to_owned(), eval_loss: None };
            (serde_json::to_vec(&line).unwrap_or_default(), true)
        }
    };
    let kept = done().map(|(line, metrics)| if is_older { recounted(line, &metrics) } else { line.to_vec() });
    let kept: Vec<u8> =
        [first].into_iter().chain(kept).flat_map(|line| line.into_iter().chain([b'\n'])).collect();
    if kept != contents {
        let cut_back = |source| MetricsError { action: "cut back", path: path.to_owned(), source };
        Replacement::write(path, &kept).map_err(cut_back)?;
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            loss: 2.5,
            lr: 3e-4,
            grad_norm: 1.0,
            tokens_per_s: Some(1e4),
            samples_per_s: None,
            step_ms: 20.5,
            skipped: false,
            eval_loss: None,
            loads: BTreeMap::new(),
            outputs: BTreeMap::new(),
        }
    }

    #[test]
    fn lines_are_valid_json_even_when_the_loss_is_not_a_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::append(&path).unwrap();
        writer.begin(0, Some(4.5)).unwrap();
        writer.begin(0, None).unwrap();
        writer.write(&step(1)).unwrap();
        let bad = StepMetrics {
            loss: f64::NAN,
            grad_norm: f64::INFINITY,
            eval_loss: Some(1.5),
            skipped: true,
            tokens_per_s: None,
            samples_per_s: Some(320.0),
            ..step(2)
        };
        writer.write(&bad).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let expected = r#"{"step":0,"counting":"step N is the N-th step, after which N steps are done","eval_loss":4.5}
{"step":1,"loss":2.5,"lr":0.0003,"grad_norm":1.0,"tokens_per_s":10000.0,"step_ms":20.5,"skipped":false}
{"step":2,"loss":null,"lr":0.0003,"grad_norm":null,"samples_per_s":320.0,"step_ms":20.5,"skipped":true,"eval_loss":1.5}
"#;
        assert_eq!(text, expected);
        let read = read_metrics(&path).unwrap();
        assert_eq!((&read[0], read.len()), (&step(1), 2));
        assert!(read[1].loss.is_nan() && read[1].eval_loss == Some(1.5));
    }

    #[test]
    fn scalars_of_the_model_stand_beside_the_keys_of_the_line() {
        let scalars = [("mse", 0.5), ("lr", 2.0), ("kl", f64::NAN)].map(|(name, n)| (name.to_owned(), n));
        let line = StepMetrics { outputs: outputs(scalars.into()), ..step(0) };
        let text = serde_json::to_string(&line).unwrap();
        assert!(text.ends_with(r#""skipped":false,"kl":null,"mse":0.5,"output.lr":2.0}"#), "{text}");
        assert_eq!(serde_json::from_str::<StepMetrics>(&text).unwrap(), line);
    }

    #[test]
    fn a_run_is_cut_back_to_its_checkpoint_though_its_last_line_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        assert_eq!(truncate_to_step(&path, 3).unwrap(), 3);
        assert!(!path.exists());
        let mut writer = MetricsWriter::append(&path).unwrap();
        writer.begin(0, None).unwrap();
        let first = fs::read(&path).unwrap().len();
        for number in 1..=5 {
            writer.write(&step(number)).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        assert_eq!(truncate_to_step(&path, 10).unwrap(), 6);
        assert_eq!(read_metrics(&path).unwrap().len(), 4);
        assert_eq!(truncate_to_step(&path, 3).unwrap(), 0);
        assert_eq!(fs::read(&path).unwrap(), whole[..first + (whole.len() - first) / 5 * 3]);
    }

    #[test]
    fn a_run_of_an_older_version_goes_on_with_each_of_its_steps_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::append(&path).unwrap();
        for number in 0..4 {
            writer.write(&StepMetrics { loss: number as f64, ..step(number) }).unwrap();
        }
        let steps = || -> Vec<(u64, f64)> {
            read_metrics(&path).unwrap().into_iter().map(|step| (step.step, step.loss)).collect()
        };
        assert_eq!(steps(), [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]);
        for _ in 0..2 {
            assert_eq!(truncate_to_step(&path, 3).unwrap(), 0);
            let mut writer = MetricsWriter::append(&path).unwrap();
            writer.begin(3, None).unwrap();
            writer.write(&StepMetrics { loss: 9.0, ..step(4) }).unwrap();
            assert_eq!(steps(), [(1, 0.0), (2, 1.0), (3, 2.0), (4, 9.0)]);
        }
        // A truncated first line is written again.
        fs::write(&path, "{\"step\":0,\"coun").unwrap();
        let mut writer = MetricsWriter::append(&path).unwrap();
        writer.begin(0, None).unwrap();
        writer.write(&step(1)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [step(1)]);
    }

    #[test]
    fn appending_after_a_torn_line_does_not_join_the_two() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":7,\"lo").unwrap();
        MetricsWriter::append(&path).unwrap().write(&step(0)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [step(1)]);
    }
}
