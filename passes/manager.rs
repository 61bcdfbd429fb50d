//! The pass manager: runs a pipeline, verifies after every pass, times each pass, and prints or writes programs on request.

use crate::pass::PassContext;
use crate::pipeline::Pipeline;
use crate::registry::Pass;
use ir::{Diagnostic, Kernels, Module};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The options of a run of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    /// Passes after which the module is printed to the error stream.
    pub print_after: Vec<String>,
    /// Whether the module is printed after every pass that changed it.
    pub print_changed: bool,
    /// The folder that gets the module after every pass, as `NN-pass.ir`. The number counts the passes of all parts of a pipeline that run
    /// with one context.
    pub dump: Option<PathBuf>,
    /// The folder that gets `reproducer.ir` when a pass fails.
    pub reproducer: Option<PathBuf>,
    /// The folder that gets `reproducer.ir` when the compiler is to blame, if `reproducer` is not given.
    pub fault_reproducer: Option<PathBuf>,
    /// Whether the passes run as a trial, without verification: the program is only measured. For the program that is used, the passes run
    /// again and are verified.
    pub trial: bool,
    /// The passes that have run.
    pub runs: Runs,
}

/// The number of runs of each pass. A manager counts together with its clones and with its managers for trials. Tests compare these counts.
#[derive(Clone, Debug, Default)]
pub struct Runs(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Runs {
    /// Returns the number of runs of a pass.
    pub fn of(&self, pass: &str) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(pass).copied().unwrap_or(0)
    }

    fn add(&self, pass: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(pass).or_default() += 1;
    }
}

/// The duration of a pass, without its verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// The pass.
    pub pass: &'static str,
    /// The duration, in JSON in milliseconds.
    #[serde(rename = "ms", serialize_with = "as_milliseconds")]
    pub time: Duration,
}

fn as_milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1e3)
}

/// A pass that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The pass.
    pub pass: &'static str,
    /// The errors of the pass or of the verifier.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the compiler is to blame: the verifier refused the program after the pass.
    pub fault: bool,
    /// The file with the program before the pass, and with the failing pass in the first line.
    pub reproducer: Option<PathBuf>,
}

impl Failure {
    /// Returns the sentence that blames the compiler.
    fn fault_text(&self) -> String {
        format!("pass `{}` made a program that is not valid; this is a bug of the compiler", self.pass)
    }

    /// Returns the pass, and the command that reproduces the failure.
    fn notes(&self) -> Vec<String> {
        let again = self
            .reproducer
            .as_ref()
            .map(|path| format!("`trainyard opt {}` reproduces the error", path.display()));
        [format!("in pass `{}`", self.pass)].into_iter().chain(again).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fault {
            writeln!(f, "{}", self.fault_text())?;
        }
        let texts: Vec<String> = self.diagnostics.iter().map(Diagnostic::to_string).collect();
        f.write_str(&texts.join("\n"))?;
        self.notes().iter().try_for_each(|note| write!(f, "\n  = {note}"))
    }
}

impl std::error::Error for Failure {}

/// Joins all diagnostics into one, with the place of the failure.
impl From<&Failure> for Diagnostic {
    fn from(failure: &Failure) -> Self {
        let mut diagnostics = failure.diagnostics.iter().cloned();
        let mut told = if failure.fault {
            Self::new(failure.fault_text())
        } else {
            diagnostics.next().unwrap_or_default()
        };
        for Diagnostic { message, origin, notes, .. } in diagnostics {
            let place = origin.map(|origin| format!("at {origin}"));
            told.notes.extend([message].into_iter().chain(place).chain(notes));
        }
        failure.notes().into_iter().fold(told, Self::note)
    }
}

impl Manager {
    /// Returns a manager whose programs are only measured.
    pub fn for_trials(&self) -> Self {
        Self { trial: true, runs: self.runs.clone(), ..Self::default() }
    }

    /// Runs the passes in order. After each pass, calls `after` with its number, from 0, and the pass.
    pub fn run(
        &self,
        pipeline: &Pipeline,
        module: &mut Module,
        cx: &mut PassContext,
        mut after: impl FnMut(usize, &Pass, &Module),
    ) -> Result<Vec<Timing>, Failure> {
        let mut timings = Vec::new();
        for (index, pass) in pipeline.passes.iter().enumerate() {
            let before = self.keeps_before().then(|| module.clone());
            let start = Instant::now();
            let result = pass.run(module, cx);
            self.runs.add(pass.name());
            timings.push(Timing { pass: pass.name(), time: start.elapsed() });
            let diagnostics = match result {
                Ok(_) if self.trial => Ok(()),
                Ok(_) => ir::verify::verify(module).map_err(|faults| (faults, true)),
                Err(diagnostic) => Err((vec![diagnostic], false)),
            };
            diagnostics.map_err(|(diagnostics, fault)| {
                let dir = self.reproducer.as_ref().or(self.fault_reproducer.as_ref().filter(|_| fault));
                let before = dir.zip(before.as_ref());
                let target = cx.kernels.map(Kernels::target);
                let reproducer = before.and_then(|(dir, before)| reproduce(dir, pass, target, before).ok());
                Failure { pass: pass.name(), diagnostics, fault, reproducer }
            })?;
            self.show(cx.passes_run, pass, before.as_ref(), module).map_err(|error| {
                let diagnostics = vec![Diagnostic::new(format!("the program cannot be written: {error}"))];
                Failure { pass: pass.name(), diagnostics, fault: false, reproducer: None }
            })?;
            cx.passes_run += 1;
            after(index, pass, module);
        }
        Ok(timings)
    }

    /// Whether the program before a pass is still needed after it.
    fn keeps_before(&self) -> bool {
        self.print_changed || self.reproducer.is_some() || self.fault_reproducer.is_some()
    }

    fn show(&self, number: usize, pass: &Pass, before: Option<&Module>, module: &Module) -> io::Result<()> {
        let changed = || self.print_changed && before != Some(module);
        if self.print_after.iter().any(|name| name == pass.name()) || changed() {
            // The run goes on if the error stream is full or closed.
            let _ = writeln!(io::stderr().lock(), "// after {pass}\n{}", ir::text::print(module));
        }
        if let Some(dir) = &self.dump {
            std::fs::create_dir_all(dir)?;
            replace(&dir.join(format!("{number:02}-{}.ir", pass.name())), &ir::text::print(module))?;
        }
        Ok(())
    }
}

/// Writes the program that a pass failed on. The first line is the pass, which reproduces the failure; the second line is the target, if
/// there is one.
fn reproduce(dir: &Path, pass: &Pass, target: Option<&str>, before: &Module) -> io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join("reproducer.ir");
    let target = target.map_or_else(String::new, |target| format!("// kernels: {target}\n"));
    replace(&path, &format!("// run: {pass}\n{target}{}", ir::text::print(before)))?;
    Ok(path)
}

/// Writes a file, and replaces a file of the same name. If that is a link, the link is replaced and its target stays.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        std::fs::remove_file(path)?;
    }
    std::fs::write(path, text)
}
