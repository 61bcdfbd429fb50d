//! `trainyard doctor`: the hardware and libraries of this machine for training, and the parts that are missing.

mod check;
mod description;
mod facts;
mod part;

use std::path::PathBuf;

use clap::Args;
use cpu::Bf16Products;
use cuda::check::part::{CheckPart, CheckedDevice};
use cuda::check::process::Processes;
use cuda::found;
use cuda::gpu::{copies, links};
use cuda::libraries::{Folders, Library};
use cuda::probe::{self, DeviceFacts, Probe, probe};
use ir::Diagnostic;
use serde::Serialize;

use self::check::Check;
use self::facts::Facts;
use super::report::{self, Outcome, tell};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  List the processor, GPUs and libraries:
    trainyard doctor

  Search for CUDA's libraries in another folder:
    TRAINYARD_CUDA_LIBS=/opt/cuda/lib trainyard doctor

  Check every operator on every GPU, and measure the speed of the GPUs:
    trainyard doctor --check

  Measure this machine, and predict a step on it:
    trainyard doctor --write device.toml
    trainyard inspect gpt2.onnx --target device.toml

  Check one GPU, and write JSON:
    trainyard doctor --check --gpu 0 --json

Exits with 3 when a check fails. Each result is also printed to standard error as soon as it is known.";

/// Arguments of `doctor`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {
    /// Compare every operator on the GPUs with the interpreter, and measure the speed of copies and of computation
    #[arg(long)]
    pub check: bool,
    /// Check only GPU N; may be repeated [default: all GPUs that kernels run on]
    #[arg(long, value_name = "N", requires = "check")]
    pub gpu: Vec<usize>,
    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Measure GPU 0, or the processor if kernels run on no GPU, and write its description to FILE.toml, for `inspect --target`
    #[arg(long, value_name = "FILE.toml")]
    pub write: Option<PathBuf>,
    /// Run a part of the check in this process: `--check` starts a process for each
    #[arg(long, hide = true, exclusive = true, value_name = "PART")]
    pub part: Option<CheckPart>,
}

/// The whole result.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    facts: Facts,
    /// `None` without `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Vec<Check>>,
}

impl Doctor {
    /// Writes its findings to standard output.
    ///
    /// # Errors
    /// Output that cannot be written. A missing part is an error only if `--check` needs it.
    pub fn run(&self) -> Result<Outcome, Failure> {
        if let Some(part) = &self.part {
            return part::run(part);
        }
        let folders = Folders::of_process();
        let probe = probe(&folders);
        let facts = facts(&folders, &probe)?;
        if let Some(path) = &self.write {
            description::write(path, &probe)?;
        }
        let checked = self.check.then(|| self.checks(&folders, &probe)).transpose();
        let (checks, missing) = checked.map_or_else(|error| (None, Some(error)), |checks| (checks, None));
        let passed = checks.iter().flatten().all(|check| check.passed);
        report::write_out(&self.written(&Report { facts, checks })?)?;
        let outcome = if passed { Outcome::Done } else { Outcome::Difference };
        missing.map_or(Ok(outcome), |error| Err(error.into()))
    }

    fn checks(&self, folders: &Folders, probe: &Probe) -> Result<Vec<Check>, Diagnostic> {
        let found = probe.driver.as_ref().map_or(&[][..], |driver| &driver.devices);
        // An old GPU is refused before libraries are asked for, which would not help it. If there is no GPU, `usable` tells why.
        let gpus = if found.is_empty() { vec![] } else { chosen(&self.gpu, found)? };
        let driver = found::usable("--check", probe, folders)?;
        let cudnn =
            probe.libraries.iter().any(|(library, opened)| *library == Library::Cudnn && opened.is_ok());
        let check = |gpu: usize| {
            tell!("checking GPU {gpu}, {}; it takes a minute or two", driver.devices[gpu].name);
            let processes = Processes::of_process(CheckedDevice::Gpu(gpu)).map_err(|error| {
                Diagnostic::new(format!(
                    "--check runs in processes of its own, and this program cannot be started again: {error}"
                ))
            })?;
            Ok(Check::of(gpu, processes, cudnn))
        };
        gpus.into_iter().map(check).collect()
    }

    fn written(&self, report: &Report) -> Result<String, Failure> {
        if self.json {
            return report::json(report);
        }
        let mut text = report.facts.text();
        match &report.checks {
            Some(checks) => text.extend(checks.iter().map(Check::text)),
            None => text += "programs run on the processor; --device cuda runs them on a GPU\n",
        }
        Ok(text)
    }
}

/// The numbers of the GPUs to check: the GPUs of `--gpu`, each once, or all GPUs that kernels run on.
fn chosen(asked: &[usize], gpus: &[DeviceFacts]) -> Result<Vec<usize>, Diagnostic> {
    if let Some(absent) = asked.iter().find(|&&gpu| gpu >= gpus.len()) {
        let last = gpus.len().saturating_sub(1);
        return Err(
            Diagnostic::new(format!("there is no GPU {absent}")).note(format!("there are 0 to {last}"))
        );
    }
    let wanted: Vec<usize> = (0..gpus.len()).filter(|gpu| asked.is_empty() || asked.contains(gpu)).collect();
    let refusal = wanted.iter().find_map(|&gpu| gpus[gpu].refusal(gpu));
    let sound: Vec<usize> = wanted.into_iter().filter(|&gpu| gpus[gpu].check().is_ok()).collect();
    match refusal {
        Some(refusal) if sound.is_empty() || !asked.is_empty() => {
            Err(Diagnostic::new(format!("--check: {refusal}")))
        }
        _ => Ok(sound),
    }
}

/// The facts about this machine.
fn facts(folders: &Folders, probe: &Probe) -> Result<Facts, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let gpus = probe.driver.as_ref().map_or(0, |driver| driver.devices.len());
    let links = links::links(gpus).map_err(anyhow::Error::from)?;
    let memory = |gpu: usize| copies::memory(gpu).map_err(|error| error.to_string());
    let here = Bf16Products::ALL.into_iter().filter(|products| products.is_here());
    let devices = here.map(|products| products.target().name()).collect();
    Ok(Facts::of((threads, devices), folders, probe, probe::release(), memory, links))
}

#[cfg(test)]
mod tests;
