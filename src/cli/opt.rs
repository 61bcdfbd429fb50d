//! `trainyard opt`: passes on a program in text, which is how passes are tested.

mod interpretation;

use std::path::{Path, PathBuf};

use clap::Args;
use ir::{Diagnostic, Module};
use passes::{PassContext, Pipeline};
use program::Target;

use super::report::{self, Outcome};
use crate::config::{Look, Seed};
use crate::diagnostics::Severity;
use crate::failure::Failure;
use crate::manager;
use crate::targets;

const EXAMPLES: &str = "\
Examples:
  Print a program after two passes:
    trainyard opt mlp.ir --pipeline 'autodiff optimizer(sgd, lr=0.1)'

  Run a program with random numbers, and print its outputs:
    trainyard opt mlp.ir --pipeline canonicalize --run --seed 7";

/// Arguments of `opt`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Opt {
    /// The program in its text form
    #[arg(value_name = "FILE.ir")]
    pub file: PathBuf,
    /// Passes to run, in this order, with their options [default: the passes in the file's first line]
    #[arg(long, value_name = "PASS[(KEY=X,…)] …")]
    pub pipeline: Option<Pipeline>,
    /// Write the program for the kernels of TARGET: cpu or cuda [default: the target in the file's first lines]
    #[arg(long, value_name = "TARGET", value_parser = targets::named)]
    pub kernels: Option<Target>,
    /// Interpret the program after the passes, and print its outputs
    #[arg(long)]
    pub run: bool,
    /// Read flags from a TOML file, or from DeepSpeed's JSON (FILE.json); flags on the command line override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The seed of the values for states without a file.
    #[command(flatten)]
    pub seed: Seed,
    /// Flags that show the program between passes.
    #[command(flatten)]
    pub look: Look,
}

/// The line of a filetest between its program and the expected result of the passes.
const EXPECTED: &str = "\n---- expected\n";

impl Opt {
    /// Runs `opt`: the program goes to standard output, warnings to standard error.
    ///
    /// # Errors
    /// As [`Opt::output`].
    pub fn run(&self) -> Result<Outcome, Failure> {
        let (text, warnings) = self.output()?;
        report::print(Severity::Warning, &warnings);
        report::write_text(&text)?;
        Ok(Outcome::Done)
    }

    /// Returns the program after the passes, in text, followed by the outputs of `--run` as comments; and the warnings.
    ///
    /// # Errors
    /// A file that cannot be read or is not a program; passes that are not known; a program that a pass or the interpreter refuses.
    pub fn output(&self) -> Result<(String, Vec<Diagnostic>), Failure> {
        let manager = self.look.manager()?;
        let read = files::open_regular(&self.file).and_then(std::io::read_to_string);
        let unread = |error: std::io::Error| Diagnostic::new(format!("cannot read the program: {error}"));
        let text = read.map_err(|error| unread(error).in_file(&self.file))?;
        let pipeline = match &self.pipeline {
            Some(pipeline) => pipeline.clone(),
            None => pipeline_of(&self.file, &text)?,
        };
        let mut module = parse(&self.file, &text)?;
        let target = match self.kernels {
            Some(target) => Some(target),
            None => target_of(&text).map_err(|error| error.in_file(&self.file))?,
        };
        let mut cx =
            PassContext { kernels: target.and_then(|target| target.kernels()), ..PassContext::default() };
        manager::run(&manager, &pipeline, &mut module, &mut cx, |_, _, _| {})?;
        let mut text = ir::text::print(&module);
        if self.run {
            text += &interpretation::outputs(module, self.seed.seed)?;
        }
        Ok((text, cx.warnings))
    }
}

/// The pipeline in the first line of a file, as a reproducer and a filetest have it.
fn pipeline_of(file: &Path, text: &str) -> Result<Pipeline, Diagnostic> {
    let first = text.lines().next().unwrap_or_default();
    let after = |start| first.strip_prefix(start).map(str::trim);
    let written = after("// run:").or_else(|| after("// run-interp:")).ok_or_else(|| {
        Diagnostic::new("there are no passes to run")
            .at(file.display().to_string())
            .note("give passes: --pipeline 'fold canonicalize'")
            .note("or write the passes into the file's first line: // run: fold canonicalize")
    })?;
    written.parse().map_err(|error: String| Diagnostic::new(error).at(format!("{}:1", file.display())))
}

/// The target in the comments before a program, as a reproducer and a filetest have it.
///
/// # Errors
/// A target that does not exist.
pub fn target_of(text: &str) -> Result<Option<Target>, Diagnostic> {
    let mut comments = text.lines().take_while(|line| line.starts_with("//"));
    let written = comments.find_map(|line| line.strip_prefix("// kernels:"));
    written.map(|name| targets::named(name.trim()).map_err(Diagnostic::new)).transpose()
}

fn parse(file: &Path, text: &str) -> Result<Module, Vec<Diagnostic>> {
    let program = text.split_once(EXPECTED).map_or(text, |(program, _)| program);
    let in_file = |fault: Diagnostic| fault.in_file(file);
    let module = ir::text::parse(program).map_err(|error| vec![in_file(error)])?;
    ir::verify::verify(&module).map_err(|faults| faults.into_iter().map(in_file).collect::<Vec<_>>())?;
    Ok(module)
}
