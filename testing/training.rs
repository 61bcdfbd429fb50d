//! A run as `trainyard compile --train` makes it, with a part exchanged: another backend or schedule than flags give, or
//! a device that fails.

use crate::workplace::Workplace;
use passes::Manager;
use program::device::Device;
use ranks::Platform;
use std::sync::atomic::AtomicBool;
use train::Surroundings;
use trainyard::cli::{Cli, Command};
use trainyard::compilation::{Source, open};
use trainyard::config::ResumePlace;
use trainyard::failure::Failure;
use trainyard::output::Folder;
use trainyard::pipeline::CompilationPlan;
use trainyard::processes::Processes;
use trainyard::sizes;
use trainyard::training::{self, Programs, RunJob, Setup};

/// A device in place of a rank's own.
pub type Exchange<'a> = &'a dyn Fn(u64, Box<dyn Device + Send>) -> Box<dyn Device + Send>;

/// Trains `gpt2-fresh` for 16 steps of one microbatch on the workplace's `text.txt`, into its folder `run`.
pub fn train(
    backend: &dyn Platform,
    place: &Workplace,
    flags: &str,
    plan: impl FnOnce(&mut CompilationPlan),
    device: Exchange,
) -> Result<(), Failure> {
    let [model, text] =
        ["testdata/gpt2-fresh.onnx", "text.txt"].map(|name| place.path(name).display().to_string());
    let words =
        ["trainyard", "compile", &model, "--train", &text].into_iter().chain(flags.split_whitespace());
    let cli = Cli::parse_with_config(words).unwrap_or_else(|error| panic!("{error:?}"));
    let Command::Compile(compile) = cli.command else { panic!("not a compile") };
    let settings = &compile.settings;
    let model = open(&compile.model)?;
    let (shapes, parallel) = (&settings.compile.shapes, &settings.compile.parallel);
    let sizes =
        sizes::bindings(&model, shapes.bindings(), (shapes.microbatch, shapes.seq), parallel.data_ranks())?;
    let source = Source::import(&compile.model, model, &sizes)?;
    let mut passes =
        CompilationPlan::new(sizes::left_to_passes(&source.model, sizes), &settings.compile, STEPS);
    plan(&mut passes);
    let compilation = source.compile(&passes, &Manager::default(), |_, _, _| {})?;
    let programs = Programs::lower(&compilation, 1, backend.target())?;
    let jobs = [RunJob { first_step: 0, begins: String::new(), compilation, programs }];
    let compilation = &jobs[0].compilation;
    let loader = training::open_data(&compilation.forward, settings, 1, None)?;
    let folder = Folder::new(&place.path("run"));
    let start = if settings.run.resume.is_some() {
        let here = ResumePlace { folder: folder.path().to_owned(), step: None };
        let start = training::go_on(compilation, settings, &Processes::alone(), &loader, &here, drop)?;
        training::cut_back(&folder, &start, false, drop)?;
        start
    } else {
        let weights = training::weights(compilation, &source, settings, drop)?;
        training::start(compilation, settings, &Processes::alone(), &loader, weights)?
    };
    let alone = Processes::alone();
    let ranks =
        training::ranks(backend, &jobs, settings, &alone, None, &|_| {}, &|_| vec![])?.exchange(device);
    folder.write(&[])?;
    let setup = Setup {
        jobs: &jobs,
        loader: &loader,
        settings,
        folder: &folder,
        steps: STEPS,
        surroundings: Surroundings::default(),
        saves_beside: true,
    };
    training::train(setup, ranks, start, &AtomicBool::new(false)).map(drop)
}

const STEPS: u64 = 16;
