//! Runs parts of a check in processes of their own, so that a fault of one part leaves the others a sound device.

use super::batch::Batch;
use super::part::{CheckPart, CheckedDevice, Line, Work};
use super::rates::{Rate, Sizes, count, unmeasured};
use super::samples::Verdict;
use super::search::{Fault, Runner};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest times for which a process may report nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until its kernels are compiled.
    pub load: Duration,
    /// While samples run (plus `sample` for each of them), and while a rate is measured.
    pub run: Duration,
    /// The time that each sample adds to `run`.
    pub sample: Duration,
}

impl Default for Limits {
    /// Returns limits that are many times longer than a sound GPU and a slow processor need. cuDNN plans a convolution when it first
    /// runs.
    fn default() -> Self {
        let [load, run, sample] = [300, 20, 1].map(Duration::from_secs);
        Self { load, run, sample }
    }
}

/// The time between two questions whether a killed process has ended.
const POLL: Duration = Duration::from_millis(10);

/// The longest time that a killed process may take to end. A GPU that hangs may keep it for ever.
const GONE: Duration = Duration::from_secs(5);

/// Starts a process for each part of a check: `EXECUTABLE doctor --part PART`.
#[derive(Clone, Debug)]
pub struct Processes {
    /// The program, `trainyard`.
    pub executable: PathBuf,
    /// The device.
    pub place: CheckedDevice,
    /// The times after which a process counts as hanging.
    pub limits: Limits,
    /// Environment variables for each process, in addition to those of this process.
    pub environment: Vec<(String, String)>,
}

impl Processes {
    /// Returns the processes of the program that runs.
    ///
    /// # Errors
    /// The path of the program is not known.
    pub fn of_process(place: CheckedDevice) -> std::io::Result<Self> {
        let executable = std::env::current_exe()?;
        Ok(Self { executable, place, limits: Limits::default(), environment: vec![] })
    }

    /// Measures all rates. A process that ends early costs only the rate that it was measuring: the others are measured in a fresh
    /// process. `tell` gets each rate as it comes.
    pub fn rates(&self, sizes: &Sizes, tell: &mut dyn FnMut(&Rate)) -> Vec<Rate> {
        let (mut rates, mut tasks) = (Vec::new(), (0..count(sizes)).collect::<Vec<_>>());
        // Compilation counts too, but it takes little.
        let limits = Limits { load: self.limits.load.min(self.limits.run * 3), ..self.limits };
        while !tasks.is_empty() {
            let ended = self.run(Work::Rates(tasks.clone()), limits, &mut |line| {
                if let Line::Rates(task, found) = line {
                    found.iter().for_each(&mut *tell);
                    rates.extend(found);
                    tasks.retain(|other| *other != task);
                }
            });
            let problem =
                ended.err().map_or_else(|| "the process did not report it".into(), |fault| fault.problem);
            if !tasks.is_empty() {
                let missing = unmeasured(tasks.remove(0), sizes, &problem);
                missing.iter().for_each(&mut *tell);
                rates.extend(missing);
            }
        }
        rates
    }

    /// Runs a part in a fresh process, and passes each of its lines to `take`.
    fn run(&self, work: Work, limits: Limits, take: &mut dyn FnMut(Line)) -> Result<(), Fault> {
        let died = |problem: String| Fault { problem, hung: false };
        let part = CheckPart { place: self.place, work };
        let mut command = Command::new(&self.executable);
        command.args(["doctor", "--part", &part.to_string()]);
        command.envs(self.environment.iter().cloned());
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = started
            .map_err(|error| died(format!("{} cannot be started: {error}", self.executable.display())))?;
        let lines = lines(&mut child);
        let mut limit = limits.load;
        loop {
            match lines.recv_timeout(limit) {
                // All results are there, so the end of the process does not matter.
                Ok(Line::Done) => {
                    let _ = wait(&mut child).or_else(|| end(&mut child));
                    return Ok(());
                }
                Ok(Line::Error(problem)) => {
                    let _ = wait(&mut child).or_else(|| end(&mut child));
                    return Err(died(problem));
                }
                Ok(line) => {
                    limit = if matches!(line, Line::Loaded(_)) { limits.run } else { limit };
                    take(line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let gone = if end(&mut child).is_some() { "" } else { ", but is still running" };
                    let seconds = limit.as_secs_f64();
                    let problem =
                        format!("the process reported nothing for {seconds:.0} s and was killed{gone}");
                    return Err(Fault { problem, hung: true });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(died(ended_early(&mut child))),
            }
        }
    }
}

impl Runner for Processes {
    fn run(&mut self, batch: &Batch) -> Result<Vec<Verdict>, Fault> {
        let mut verdicts = Vec::new();
        let all = u32::try_from(batch.samples.len()).unwrap_or(u32::MAX);
        let limits = Limits { run: self.limits.run + self.limits.sample * all, ..self.limits };
        Self::run(self, Work::Samples(batch.clone()), limits, &mut |line| {
            if let Line::Verdict(verdict) = line {
                verdicts.push(verdict);
            }
        })?;
        let given: Vec<usize> = verdicts.iter().map(|verdict| verdict.sample).collect();
        if given != batch.samples {
            let problem = format!("the process gave {} verdicts of {all}", given.len());
            return Err(Fault { problem, hung: false });
        }
        Ok(verdicts)
    }
}

/// Returns the lines of a process as they come. Other text, which libraries may write, is dropped.
fn lines(child: &mut Child) -> Receiver<Line> {
    let (sender, receiver) = channel();
    let out = child.stdout.take().expect("it is piped");
    thread::spawn(move || {
        for line in BufReader::new(out).split(b'\n') {
            let Ok(line) = line else { return };
            let Ok(line) = serde_json::from_slice(&line) else { continue };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Kills a process. Returns its exit status; `None` if it still runs.
fn end(child: &mut Child) -> Option<ExitStatus> {
    // An error says that the process has already ended.
    let _ = child.kill();
    wait(child)
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < GONE {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(POLL);
    }
    None
}

/// Describes the end of a process that closed its output before it was done.
fn ended_early(child: &mut Child) -> String {
    let status = wait(child).or_else(|| end(child));
    match status {
        Some(status) => format!("the process ended early: {status}"),
        None => "the process closed its output, but is still running".into(),
    }
}
