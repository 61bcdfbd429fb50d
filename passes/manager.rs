//! The pass manager: runs a pipeline, verifies after every pass, times each, and shows what was asked for.

use crate::pass::PassContext;
use crate::pipeline::Pipeline;
use crate::registry::Pass;
use ir::{Diagnostic, Kernels, Module};
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a pipeline is run.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    /// Passes after which the module is printed to the error stream.
    pub print_after: Vec<String>,
    /// Whether the module is printed after every pass that changed it.
    pub print_changed: bool,
    /// The folder that gets the module after every pass, as `NN-pass.ir`: the number counts the passes of all parts of a
    /// pipeline that run with one context.
    pub dump: Option<PathBuf>,
    /// The folder that gets `reproducer.ir` when a pass fails.
    pub reproducer: Option<PathBuf>,
    /// The folder that gets it, without `reproducer`, when the compiler is to blame.
    pub fault_reproducer: Option<PathBuf>,
}

/// How long a pass took, without its verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The pass.
    pub pass: &'static str,
    /// What it took.
    pub time: Duration,
}

/// A pass that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The pass.
    pub pass: &'static str,
    /// What is wrong.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the compiler is to blame: the verifier refused what the pass made.
    pub fault: bool,
    /// The program before the pass, with the pipeline that fails on it in the first line.
    pub reproducer: Option<PathBuf>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fault {
            writeln!(
                f,
                "pass `{}` made a program that is not valid; this is a bug of the compiler",
                self.pass
            )?;
        }
        let texts: Vec<String> = self.diagnostics.iter().map(Diagnostic::to_string).collect();
        write!(f, "{}\n  = in pass `{}`", texts.join("\n"), self.pass)?;
        match &self.reproducer {
            Some(path) => write!(f, "\n  = `trainyard opt {}` does it again", path.display()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl Manager {
    /// Runs the passes in order and calls `after` with the number, from 0, and the pass, after each.
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
            timings.push(Timing { pass: pass.name(), time: start.elapsed() });
            let diagnostics = match result {
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

    /// Whether the program before a pass is looked at after it.
    fn keeps_before(&self) -> bool {
        self.print_changed || self.reproducer.is_some() || self.fault_reproducer.is_some()
    }

    fn show(&self, number: usize, pass: &Pass, before: Option<&Module>, module: &Module) -> io::Result<()> {
        let changed = || self.print_changed && before != Some(module);
        if self.print_after.iter().any(|name| name == pass.name()) || changed() {
            // An error stream that is full or closed is no reason to stop.
            let _ = writeln!(io::stderr().lock(), "// after {pass}\n{}", ir::text::print(module));
        }
        if let Some(dir) = &self.dump {
            std::fs::create_dir_all(dir)?;
            std::fs::write(dir.join(format!("{number:02}-{}.ir", pass.name())), ir::text::print(module))?;
        }
        Ok(())
    }
}

/// Writes the program that a pass failed on; the first line is the pipeline that does it again, the second the target, if it
/// is for one.
fn reproduce(dir: &Path, pass: &Pass, target: Option<&str>, before: &Module) -> io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join("reproducer.ir");
    let target = target.map_or_else(String::new, |target| format!("// kernels: {target}\n"));
    std::fs::write(&path, format!("// run: {pass}\n{target}{}", ir::text::print(before)))?;
    Ok(path)
}
