//! `trainyard compile`: from a model to a program, and with `--train` to a trained model (`run`).

mod kernels;
mod run;
mod told;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use checkpoint::DataFiles;
use clap::Args;
use comm::launcher::Launched;
use data::{DataSource, Loader, Tokenizer};
use files::FolderLock;
use ir::Diagnostic;
use ir::units::bytes;
use train::Surroundings;

use super::report::{self, Outcome, tell};
use super::resuming::{self, Beginning, Continued};
use crate::compilation::Source;
use crate::compiler::{self, Facts, Forward, Job, Lowered, Shared, Stopped};
use crate::config::{Length, Settings};
use crate::diagnostics::{Severity, render};
use crate::failure::Failure;
use crate::hardware::{self, Chosen};
use crate::log;
use crate::output::{FLIGHT, Folder};
use crate::processes::{JoinError, Processes};
use crate::training::{self, RunJob};
use crate::{export, plan};
use kernels::KernelTarget;

const EXAMPLES: &str = "\
Examples:
  Train a byte-level model on a text, then resume for more steps:
    trainyard compile gpt2.onnx --train corpus.txt --steps 600 --microbatch 32
    trainyard compile gpt2.onnx --train corpus.txt --steps 900 --microbatch 32 --resume

  Bind the symbolic dims of an export, and accumulate 4 microbatches per step:
    trainyard compile bert.onnx --bind seq=128 --microbatch 8 --global-batch 32 --train tokens.npz

  Start from new weights, with another optimizer:
    trainyard compile mlp.onnx --train digits.npz --init kaiming --optimizer sgd --lr 0.1

  Train on four ranks (threads): dp splits the batch and the optimizer states, tp splits the weights:
    trainyard compile gpt2.onnx --train corpus.txt --mesh dp=2,tp=2 --zero 1

  Read flags from a file, and override one of them:
    trainyard compile gpt2.onnx --config trainyard.toml --lr 1e-3

  Compile the kernels of a run for an H100 on a machine without one, into ./warm/cubins:
    TRAINYARD_CACHE=warm trainyard compile gpt2.onnx --train corpus.txt --bf16 --kernels-for h100";

/// Arguments of `compile`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Compile {
    /// The model: an ONNX file
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Read flags from a TOML file, or from DeepSpeed's JSON (FILE.json); flags on the command line override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Compile the kernels of this run for a GPU that need not be here, into the folder of compiled kernels, and do not train: h200,
    /// h100, a100 or a100-40; needs NVRTC
    #[arg(long, value_name = "GPU")]
    pub kernels_for: Option<KernelTarget>,
    /// All shared flags.
    #[command(flatten)]
    pub settings: Settings,
    /// The rank of this process, and the number of processes, if a launcher started it.
    #[arg(skip)]
    pub launched: Option<Launched>,
}

/// A model that is ready to be trained.
pub(super) struct Ready {
    source: Source,
    /// The jobs that are left of the run. The flags are those of the last one.
    pub(super) jobs: Vec<RunJob>,
    pub(super) plan: plan::RunPlan,
    /// With `--memory`: the search for a program that fits.
    fit: Option<String>,
    /// With `--train`.
    training: Option<Training>,
}

/// The training that a command asks for.
struct Training {
    loader: Loader,
    /// Steps in total.
    steps: u64,
}

impl Ready {
    /// The last job of the run. Its program is exported.
    pub(super) fn last(&self) -> &RunJob {
        self.jobs.last().expect("a run has a job")
    }
}

/// The output folder of a command, with the run that was found in it.
struct Output {
    folder: Folder,
    beginning: Beginning,
    /// `None` while the folder is not there, and where the file system has no locks.
    lock: Option<FolderLock>,
}

impl Compile {
    /// Compiles, writes the output folder, and trains if there is data: as the only process, or as one that a launcher
    /// started.
    pub fn run(&self) -> Result<Outcome, Failure> {
        if let Some(gpu) = self.kernels_for {
            return self.compile_kernels(gpu);
        }
        let flight = self.settings.out.folder(&self.model).join(FLIGHT);
        let joined = Processes::join(
            self.launched,
            self.settings.device.device.target(),
            self.settings.compile.parallel.timeout,
            &flight,
        );
        let processes = joined.map_err(|error| match error {
            JoinError::OfAll(failure) => failure,
            JoinError::OfRank(failure) => {
                report::unmute();
                failure
            }
        })?;
        let ended = self.run_as(&processes);
        if let (Err(failure), Some(_)) = (&ended, processes.launched()) {
            // Rank 0 may end this process before it tells the user.
            log::end(&render(Severity::Error, &failure.diagnostics(), false));
            // A launcher ends all processes when the first one ends, so the user is told before.
            processes.end(failure, &flight, |rank, task| report::print_of_rank(rank, task, failure));
            report::print(Severity::Error, &failure.diagnostics());
            report::mute();
        }
        ended
    }

    fn run_as(&self, processes: &Processes) -> Result<Outcome, Failure> {
        run::forget_stops();
        processes.same(self.common_flags()?)?;
        let own = processes.agree(self.device(processes).map_err(Failure::from))?;
        let sizes = processes.gather(own.size())?;
        let device = own.with_smallest(&sizes);
        let (output, ready) = processes.agree(self.prepare(processes, &device))?;
        self.run_prepared(processes, output, &device, &ready)
    }

    /// The flags that all processes of a run must have. Paths and threads may differ from machine to machine.
    fn common_flags(&self) -> Result<BTreeMap<String, String>, Failure> {
        const OF_MACHINE: [&str; 8] =
            ["cluster", "eval", "input", "resume", "threads", "tokenizer", "train", "weights"];
        let text = self.settings.to_toml().context("the settings do not print")?;
        let table: toml::Table = text.parse().context("the settings are no TOML")?;
        let common = table.into_iter().filter(|(key, _)| !OF_MACHINE.contains(&key.as_str()));
        Ok(common.map(|(key, value)| (format!("--{key}"), value.to_string())).collect())
    }

    /// Compiles, and looks at the output folder, which rank 0 takes if it is there.
    fn prepare(&self, processes: &Processes, device: &Chosen) -> Result<(Output, Ready), Failure> {
        let folder = Folder::new(&self.settings.out.folder(&self.model));
        let lock = if processes.is_first() { folder.lock(false, |_| {})? } else { None };
        let beginning = self.check_folder(&folder)?;
        let settings = &self.settings;
        let ready = self
            .compile(device, Continued::of(&beginning, settings))
            .map_err(|stopped| self.advised(stopped, device))?;
        Ok((Output { folder, beginning, lock }, ready))
    }

    /// The device of this process.
    fn device(&self, processes: &Processes) -> Result<Chosen, Diagnostic> {
        let Settings { compile, device, data, .. } = &self.settings;
        let (dtype, runs) = (compile.precision.dtype(), data.train.is_some());
        hardware::choose(device.device, &compile.parallel, dtype, runs, processes.launched())
    }

    fn run_prepared(
        &self,
        processes: &Processes,
        mut output: Output,
        device: &Chosen,
        ready: &Ready,
    ) -> Result<Outcome, Failure> {
        let compilation = &ready.last().compilation;
        if let Some(path) = &self.settings.out.memory_plan {
            Folder::check_target("--memory-plan", path, &self.reads())?;
        }
        report::print(Severity::Warning, &compilation.warnings);
        let doubt = compilation.doubt(ready.plan.microbatches);
        report::print(Severity::Warning, &Vec::from_iter(doubt.cloned()));
        report::print(Severity::Warning, &Vec::from_iter(self.other_nodes(processes)?));
        self.tell_plan(processes, &ready.plan, device);
        told::tell_choices(ready, device);
        match &ready.training {
            None => {
                processes.first(|| {
                    self.own(&mut output)?;
                    output.folder.clear()?;
                    self.write_plan(&output.folder, ready)
                })?;
                Ok(Outcome::Done)
            }
            Some(training) => self.train(processes, output, ready, device, training),
        }
    }

    /// A warning where the launcher put another number of processes on this node than the description of the cluster has devices: the
    /// axes of the mesh then lie on other links than they are priced for.
    fn other_nodes(&self, processes: &Processes) -> Result<Option<Diagnostic>, Failure> {
        let local = processes.launched().and_then(|launched| launched.local_ranks);
        let Some((cluster, local)) = self.settings.compile.parallel.cluster()?.zip(local) else {
            return Ok(None);
        };
        let (devices, ranks) = (cluster.node.devices, self.settings.compile.parallel.ranks());
        let warning = || {
            Diagnostic::new(format!(
                "--cluster describes nodes of {devices} devices, and this node has {local} processes"
            ))
            .note("reductions are divided as if the nodes were those of the description")
        };
        Ok((local != devices.min(ranks)).then(warning))
    }

    /// Takes the folder for this process, if it has it not yet: a folder that was not there is made when the run begins.
    /// Errors: another process was faster.
    fn own(&self, output: &mut Output) -> Result<(), Failure> {
        if output.lock.is_some() {
            return Ok(());
        }
        output.lock = output.folder.lock(true, |warning| report::print(Severity::Warning, &[warning]))?;
        if self.check_folder(&output.folder)? != output.beginning {
            let message =
                format!("another run has used {} since this run started", output.folder.path().display());
            return Err(Diagnostic::new(message).note("start again").into());
        }
        Ok(())
    }

    /// The files of training and evaluation data, or folders of them, with the tokenizer's.
    fn data(&self) -> Vec<PathBuf> {
        let DataFiles { train, tokenizer, inputs } = training::data_files(&self.settings);
        let eval = self.settings.data.eval.as_ref().and_then(DataSource::path).cloned();
        train.into_iter().chain(eval).chain(tokenizer).chain(inputs.into_values()).collect()
    }

    /// The files and the folder that nobody else may change during the run.
    fn surroundings(&self, lock: Option<FolderLock>) -> Surroundings {
        // The model's large tensors are in files of its folder, which are mapped by their full paths.
        let external = files::parent(&self.model).canonicalize();
        Surroundings::new(self.data(), [self.model.clone()].into_iter().chain(external).collect(), lock)
    }

    /// Refuses an output folder that cannot be used, before anything takes time. Returns where the run begins.
    fn check_folder(&self, folder: &Folder) -> Result<Beginning, Failure> {
        let beginning = resuming::beginning(&self.settings, folder)?;
        if matches!(beginning, Beginning::Checkpoint { in_place: true, .. }) {
            export::check_folder(folder.path())?;
            return Ok(beginning);
        }
        let is_cleared = self.settings.out.force || beginning == Beginning::Again;
        folder.check(is_cleared, &self.reads())?;
        Ok(beginning)
    }

    /// Says that data are read which take a while: all of them are looked at before the first step.
    fn tell_long_data(&self) {
        const LONG: u64 = 256 << 20;
        let Some(path) = self.settings.data.train.as_ref().and_then(DataSource::path) else { return };
        let size = data::bytes_of(path);
        if size >= LONG {
            let tokenizer = self.settings.data.tokenizer.as_ref().and_then(Tokenizer::path);
            let tokenizer =
                tokenizer.map(|path| format!(", tokenized by {}", path.display())).unwrap_or_default();
            tell!("reading {}: {}{tokenizer}", path.display(), bytes(size));
        }
    }

    /// The files that the command reads, as far as flags name them.
    fn reads(&self) -> Vec<PathBuf> {
        let given = self.settings.initial.weights.iter().chain(&self.config).cloned();
        [self.model.clone()].into_iter().chain(self.data()).chain(given).collect()
    }

    /// Refuses flags that look at eval losses where there are none.
    fn check_evaluated(&self, loader: &Loader) -> Result<(), Diagnostic> {
        let run = &self.settings.run;
        let flags = [("--export best", run.exports_best()), ("--patience", run.patience.is_some())];
        match flags.iter().find(|(_, is_given)| *is_given && loader.eval_samples() == 0) {
            None => Ok(()),
            Some((flag, _)) => {
                Err(Diagnostic::new(format!("{flag} needs an eval loss, and there is no evaluation data"))
                    .note("give evaluation data: --eval DATA"))
            }
        }
    }

    /// The jobs that are left of the run, each with its first step. They have the same model up to the loss.
    fn jobs(&self, device: &Chosen, continued: Continued) -> Result<Vec<(u64, Job)>, Failure> {
        let cluster = self.settings.compile.parallel.cluster()?;
        let facts = Facts { on: device.on(), cluster, global_batch: continued.global_batch };
        let job = Job::resolve(self.model.clone(), &self.settings.compile, facts);
        let after = self.settings.run.compress_gradients_after.filter(|&after| continued.step < after);
        let Some(after) = after else { return Ok(vec![(continued.step, job)]) };
        let mut whole = job.clone();
        whole.flags.parallel.compress_gradients = None;
        Ok(vec![(continued.step, whole), (after, job)])
    }

    /// Compiles each job of the run once.
    pub(super) fn compile(&self, device: &Chosen, continued: Continued) -> Result<Ready, Stopped> {
        self.compile_sharing(device, continued, None)
    }

    /// As [`Self::compile`]. The run shares the parts of its compilation with other runs of a search.
    pub(super) fn compile_sharing(
        &self,
        device: &Chosen,
        continued: Continued,
        shared: Option<&mut Shared>,
    ) -> Result<Ready, Stopped> {
        let mut planned = self.jobs(device, continued)?;
        let first = &planned[0].1;
        let mut manager = self.settings.look.manager()?;
        manager.fault_reproducer = Some(self.reproducer());
        let forward = match shared {
            Some(shared) => shared.forward(first, &manager)?,
            None => compiler::forward(first, compiler::import(first)?, &manager, &mut |_, _, _| {})?,
        };
        let microbatches = forward.microbatches(first)?;
        let mut training = self.open_data(&forward, microbatches, continued)?;
        let mut short = None;
        if let Some(Training { loader, steps }) = &mut training {
            check_length(&planned, *steps)?;
            short = short_evaluation(loader, first.data_ranks());
            planned.iter_mut().for_each(|(_, job)| (job.steps, job.short_evaluation) = (*steps, short));
        }
        let (mut jobs, mut fit, mut unevaluated) = (vec![], None, None);
        for (first_step, job) in planned {
            let step = forward.clone().step(&job, &mut |_, _, _| {})?;
            let Lowered { programs, left_out } = step.lower(&job)?;
            unevaluated = unevaluated.or(left_out);
            let begins = format!("gradients are compressed after step {first_step}");
            fit = step.fit;
            jobs.push(RunJob { first_step, begins, compilation: step.compilation, programs });
        }
        if let (Some(reason), Some(Training { loader, .. })) = (unevaluated, &mut training) {
            loader.leave_out_of_evaluation(short.unwrap_or(0), &reason.message);
        }
        let plan = plan::RunPlan::new(&jobs, &self.settings, microbatches)?;
        Ok(Ready { source: forward.source, jobs, plan, fit, training })
    }

    /// Opens the data of a training run, for the inputs of a program.
    fn open_data(
        &self,
        forward: &Forward,
        microbatches: u64,
        continued: Continued,
    ) -> Result<Option<Training>, Failure> {
        let settings = &self.settings;
        if settings.data.train.is_none() {
            return Ok(None);
        }
        self.tell_long_data();
        let loader = training::open_data(forward.module(), settings, microbatches, continued.data)?;
        let steps = match settings.run.length() {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => epochs.saturating_mul(loader.steps_per_epoch()),
        };
        Ok(Some(Training { loader, steps }))
    }

    /// Where a pass that is at fault leaves its reproducer: beside the output folder, which may hold another run.
    fn reproducer(&self) -> PathBuf {
        self.settings.out.folder(&self.model).with_extension("failure")
    }

    fn write_plan(&self, folder: &Folder, ready: &Ready) -> Result<(), Failure> {
        let program = ir::text::print(&ready.last().compilation.training);
        let plan = serde_json::to_vec_pretty(&ready.plan).context("the plan cannot be converted to JSON")?;
        let config = self.settings_of(ready).to_toml().context("the settings do not print")?;
        folder.write(&[
            ("program.ir", program.as_bytes()),
            ("plan.json", &plan),
            ("config.toml", config.as_bytes()),
        ])?;
        self.write_memory_plan(ready)
    }

    /// The settings, with the convention of labels that the loader chose.
    pub(super) fn settings_of(&self, ready: &Ready) -> Settings {
        let mut settings = self.settings.clone();
        let chosen = ready.training.as_ref().and_then(|training| training.loader.labels_from());
        settings.data.labels_from = settings.data.labels_from.or(chosen);
        settings
    }

    fn write_memory_plan(&self, ready: &Ready) -> Result<(), Failure> {
        let Some(path) = &self.settings.out.memory_plan else { return Ok(()) };
        let budgets = self.settings.compile.memory.memory.as_ref();
        let plan = plan::MemoryPlan::of(&ready.last().programs, ready.plan.microbatches, budgets)?;
        plan.write(path)
    }
}

/// Refuses a run that ends before its last job begins.
fn check_length(jobs: &[(u64, Job)], steps: u64) -> Result<(), Diagnostic> {
    match jobs {
        [_, .., (after, _)] if *after >= steps => {
            let message = format!(
                "--compress-gradients-after {after} compresses no gradient: the run ends with step {steps}"
            );
            Err(Diagnostic::new(message).note("give an earlier step, or more --steps"))
        }
        _ => Ok(()),
    }
}

/// The size of a last batch of the evaluation that is short and cannot be filled up, and so needs a program of its own. Samples that the
/// data ranks cannot share are left out of the evaluation, with a note.
fn short_evaluation(loader: &mut Loader, data_ranks: u64) -> Option<u64> {
    let samples = loader.short_evaluation();
    let beyond = samples % data_ranks;
    loader.leave_out_of_evaluation(beyond, &format!("{data_ranks} data ranks must share a batch equally"));
    (samples > beyond).then_some(samples - beyond)
}
