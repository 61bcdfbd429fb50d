//! The run of a compiled model: the ranks begin in one output folder and one place, train, and the result is exported.

use super::{Compile, Output, Ready, Training};
use crate::cli::advice::Room;
use crate::cli::profile;
use crate::cli::report::{self, Outcome, tell};
use crate::cli::resuming::{self, Beginning};
use crate::cli::summary;
use crate::diagnostics::Severity;
use crate::export;
use crate::failure::Failure;
use crate::hardware::Chosen;
use crate::log::{self, LOGS};
use crate::output::{FLIGHT, Folder, PROFILE};
use crate::processes::{Processes, Waiting};
use crate::signals;
use crate::targets;
use crate::training::{self, Programs, Setup, Start};
use anyhow::Context;
use data::Loader;
use ir::Diagnostic;
use ir::units::bytes;
use program::device::TooLarge;
use program::profile::Profiles;
use ranks::Ranks;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use train::Surroundings;

impl Compile {
    /// Trains, and writes the result. The folder is left as it is until the run can begin.
    pub(super) fn train(
        &self,
        processes: &Processes,
        mut output: Output,
        ready: &Ready,
        on: &Chosen,
        training: &Training,
    ) -> Result<Outcome, Failure> {
        let Training { loader, steps } = training;
        let (steps, jobs) = (*steps, &ready.jobs);
        let settings = &self.settings;
        let measured = || Profiles::new(training::numbered(jobs).map(|(program, _)| program).collect());
        let profiles = settings.run.profile.then(measured);
        loader.notes().iter().for_each(|note| tell!("note: {note}"));
        let begun = self.begin(processes, &output, ready, on, loader, steps, profiles.as_ref());
        let (ranks, start) = processes.agree(begun)?;
        processes.same(self.facts(ready, loader, &start))?;
        let stop = stop_on_signals(processes.waiting())?;
        processes.first(|| self.own(&mut output))?;
        self.check_one_folder(processes, &output.folder)?;
        processes.first(|| {
            match &output.beginning {
                Beginning::Checkpoint { place, in_place: true } => {
                    let report = |text: String| report::tell_lines(&text);
                    training::cut_back(&output.folder, &start, place.step.is_some(), report)?;
                    output.folder.remove(FLIGHT)?;
                    output.folder.remove(PROFILE)?;
                }
                _ => output.folder.clear()?,
            }
            self.write_plan(&output.folder, ready)?;
            Ok(output.folder.claim_training()?)
        })?;
        self.open_log(processes, &output.folder, &ready.last().programs)?;
        let saves_beside = self.saves_beside(processes, ready, ranks.count() as u64)?;
        let Output { folder, lock, .. } = output;
        let (folder, surroundings) = (&folder, self.surroundings(lock));
        let setup = Setup { jobs, loader, settings, folder, steps, surroundings, saves_beside };
        let (outcome, surroundings) = training::train(setup, ranks, start, stop)?;
        let profile = profiles.map(|profiles| profile::gather(processes, &profiles, ready, outcome.steps));
        let profile = profile.transpose()?;
        if let Some(surroundings) = surroundings {
            self.finish(ready, folder, &outcome, &surroundings, steps)?;
            let threads = settings.device.threads;
            profile.map_or(Ok(()), |profile| profile::write(&profile, on.target, threads, folder))?;
        }
        Ok(if outcome.stopped { Outcome::Stopped } else { Outcome::Done })
    }

    /// The ranks of this process on their devices, and the place where the run begins.
    #[allow(clippy::too_many_arguments)]
    fn begin<'r>(
        &self,
        processes: &Processes,
        output: &Output,
        ready: &'r Ready,
        on: &Chosen,
        loader: &Loader,
        steps: u64,
        profiles: Option<&Profiles>,
    ) -> Result<(Ranks, Start<'r>), Failure> {
        let (source, compilation) = (&ready.source, &ready.jobs[0].compilation);
        let settings = &self.settings;
        export::check(source, &ready.last().compilation)?;
        self.check_evaluated(loader)?;
        let report = |text: String| report::tell_lines(&text);
        if output.beginning == Beginning::Again
            && let Some(note) = resuming::check_model(&output.folder, compilation)?
        {
            tell!("note: {note}");
        }
        let place = match &output.beginning {
            Beginning::Checkpoint { place, .. } => Some(place),
            Beginning::Anew | Beginning::Again => None,
        };
        let warn = |warning: Diagnostic| report::print(Severity::Warning, &[warning]);
        let fits = |large: &TooLarge| {
            let room = Room::of_device(large.of_programs, on.target);
            self.advice(room, ready, on)
        };
        let flight = output.folder.path().join(FLIGHT);
        let ranks = || -> Result<Ranks, Failure> {
            let backend = targets::backend(ready.last().programs.target);
            let profiles = profiles.cloned();
            let mut ranks =
                training::ranks(backend, &ready.jobs, settings, processes, profiles, &warn, &fits)?;
            processes.watch(&mut ranks, settings.compile.parallel.timeout, flight)?;
            Ok(ranks)
        };
        Ok(match place {
            // Weights that are not there are told sooner; on a GPU it is asked first whether there is room.
            None if on.target.is_host() => {
                let weights = training::weights(compilation, source, settings, report)?;
                (ranks()?, training::start(compilation, settings, processes, loader, weights)?)
            }
            None => {
                let ranks = ranks()?;
                let weights = training::weights(compilation, source, settings, report)?;
                (ranks, training::start(compilation, settings, processes, loader, weights)?)
            }
            Some(place) => {
                let ranks = ranks()?;
                let start = training::go_on(compilation, settings, processes, loader, place, report)?;
                if let Some(path) = start.from_checkpoint() {
                    tell!("resumed from {}", path.display());
                }
                let mut notes = resuming::changed_flags(&place.folder, &self.settings_of(ready));
                notes.extend(resuming::check_length(&place.folder, start.step, steps, settings)?);
                notes.iter().for_each(|note| tell!("note: {note}"));
                (ranks, start)
            }
        })
    }

    /// Refuses processes whose folder is not that of rank 0, where it is there.
    fn check_one_folder(&self, processes: &Processes, folder: &Folder) -> Result<(), Failure> {
        if processes.launched().is_none() {
            return Ok(());
        }
        let mark = processes.of_first(processes.first(|| Ok(folder.mark()?))?)?;
        let is_same = processes.agree(folder.check_mark(&mark).map_err(Failure::from));
        if processes.is_first() {
            folder.unmark()?;
        }
        is_same
    }

    /// Opens the log of this process in the folder of the run.
    fn open_log(&self, processes: &Processes, folder: &Folder, programs: &Programs) -> Result<(), Failure> {
        let Some(launched) = processes.launched() else { return Ok(()) };
        let mesh = &programs.training.first().mesh;
        let places = mesh.coordinates(launched.rank);
        let place: Vec<String> =
            mesh.axes.iter().map(|(id, axis)| format!("{}={}", axis.name, places[id])).collect();
        let heading = format!(
            "trainyard {}: rank {} of {} at {}, process {} on {}, started by {}",
            env!("CARGO_PKG_VERSION"),
            launched.rank,
            launched.ranks,
            place.join(","),
            std::process::id(),
            rustix::system::uname().nodename().to_string_lossy(),
            launched.launcher
        );
        let path = folder.join(LOGS).join(format!("rank-{}.txt", launched.rank));
        let opened = log::open(&path, &heading);
        processes.agree(
            opened
                .map_err(|error| Diagnostic::new(format!("cannot write {}: {error}", path.display())).into()),
        )
    }

    /// Whether checkpoints are written beside the steps: on every machine there must be room for copies of the states.
    fn saves_beside(&self, processes: &Processes, ready: &Ready, ranks: u64) -> Result<bool, Failure> {
        let mut copies = ready.jobs.iter().map(|job| training::copy_of_states(&job.programs, &self.settings));
        let largest = copies.try_fold(0, |largest: u64, copy| Some(largest.max(copy?)));
        let Some(copy) = largest else { return Ok(false) };
        let local =
            processes.launched().map_or(ranks, |launched| launched.local_ranks.unwrap_or(launched.ranks));
        let (target, peak) = (ready.last().programs.target, ready.plan.memory.peak);
        let has_room = training::has_room_for_copy(target, peak, &self.settings, copy, local);
        let has_room = processes.all(has_room)?;
        if has_room {
            tell!("checkpoints are written beside the steps, from a copy of the states of {}", bytes(copy));
        } else {
            tell!(
                "note: steps wait while a checkpoint is written: a copy of the states, {}, has no room beside the program",
                bytes(copy)
            );
        }
        Ok(has_room)
    }

    /// The facts in which all processes of a run agree.
    fn facts(&self, ready: &Ready, loader: &Loader, start: &Start) -> BTreeMap<String, String> {
        let programs = training::all_programs(&ready.jobs);
        let hashes: Vec<String> = programs.iter().map(|program| format!("{:016x}", program.hash())).collect();
        let data = format!("{} samples, of them {} held out", loader.samples(), loader.eval_samples());
        [
            ("version of trainyard", env!("CARGO_PKG_VERSION").to_owned()),
            ("program", hashes.join("-")),
            ("number of samples", data),
            ("set of data files", start.files.clone()),
            ("step to begin with", start.step.to_string()),
            ("origin of values", start.origin.clone()),
        ]
        .map(|(name, fact)| (name.to_owned(), fact))
        .into()
    }

    /// Exports the model, and tells how the run ended.
    fn finish(
        &self,
        ready: &Ready,
        folder: &Folder,
        outcome: &train::Outcome,
        surroundings: &Surroundings,
        steps: u64,
    ) -> Result<(), Failure> {
        let (source, compilation) = (&ready.source, &ready.last().compilation);
        let settings = &self.settings;
        let best = outcome.best.as_ref().filter(|_| settings.run.exports_best());
        let last = outcome.checkpoint.as_ref().context("the run ended without a checkpoint")?;
        let states = training::states_of(compilation, best.map_or(last, |best| &best.path))?;
        let check =
            || surroundings.check_after_training(outcome.checkpoint.as_ref()).map_err(training::failure);
        check()?;
        folder.claim_export()?;
        let exported = export::export(source, compilation, &states, folder.path())?;
        check()?;
        report::tell_lines(&summary::text(outcome, best, &exported, steps));
        let experts = settings.compile.experts.moe.as_ref().and_then(|moe| summary::experts(outcome, moe));
        if let Some((text, warning)) = experts {
            report::tell_lines(&text);
            report::print(Severity::Warning, warning.as_slice());
        }
        if best.is_none() && settings.run.exports_best() {
            tell!("note: no evaluated checkpoint can be used: the last checkpoint is exported");
        }
        Ok(())
    }
}

/// Whether the run was asked to stop.
static STOP: AtomicBool = AtomicBool::new(false);

/// Forgets that an earlier run of this process was asked to stop.
pub(super) fn forget_stops() {
    STOP.store(false, Ordering::Relaxed);
}

/// A flag that Ctrl-C and SIGTERM set. A process that then waits for others tells where.
fn stop_on_signals(waiting: Option<Waiting>) -> Result<&'static AtomicBool, Failure> {
    // The handler is the process's, and stays.
    static HANDLED: Mutex<bool> = Mutex::new(false);
    let mut handled = HANDLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*handled {
        let handler = move || {
            if !STOP.swap(true, Ordering::Relaxed) && !waiting.as_ref().is_some_and(Waiting::tell) {
                report::tell_lines("\nstopping after this step");
            }
        };
        signals::keeping_ignored(|| ctrlc::set_handler(handler)).context("Ctrl-C cannot be caught")?;
        *handled = true;
    }
    Ok(&STOP)
}
