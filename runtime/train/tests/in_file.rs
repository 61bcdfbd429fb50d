//! Runs whose weights and optimizer states are in a file: on the processor, and on the stand-in of a GPU, which needs a C++ compiler.

use super::on_gpu::{Gpu, SOUND};
use super::*;
use crate::Cause;
use files::fault::{Fault, count, inject};
use program::device::DeviceError;
use std::fs;

/// The same model as [`setup`]'s.
fn in_file(gpu: Option<Gpu>) -> Setup {
    let mut run = Setup { program: include_str!("bigram.file.ir"), gpu, ..setup() };
    // Faults are injected on the thread of the test.
    run.schedule.saves_beside = false;
    run
}

#[test]
fn a_run_with_its_states_in_a_file_has_the_bits_of_a_run_without() {
    let [beside, plain] = [in_file(None), setup()];
    for run in [&beside, &plain] {
        assert_eq!(run.go().unwrap().steps, 20);
    }
    assert_eq!(numbers(&beside.metrics()), numbers(&plain.metrics()));
    assert!(beside.checkpoint(20)[0] == plain.checkpoint(20)[0]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_run_on_a_gpu_with_its_states_in_a_file_goes_on_from_what_it_saved() {
    let [mut ours, expected] = [in_file(Some(SOUND)), in_file(None)];
    for run in [&ours, &expected] {
        assert_eq!(run.go().unwrap().steps, 20);
    }
    for (ours, expected) in ours.metrics().iter().zip(expected.metrics()) {
        assert!((ours.loss - expected.loss).abs() < 1e-4, "{ours:?}, not {expected:?}");
    }
    let (whole, last) = (ours.metrics(), ours.checkpoint(20));
    fs::remove_dir_all(ours.checkpoints().path(20)).unwrap();
    ours.resume = true;
    ours.go().unwrap();
    assert_eq!(numbers(&ours.metrics()), numbers(&whole));
    assert!(ours.checkpoint(20) == last);
}

/// Returns the cause that a run reports when its file fails.
fn cause_of(error: &TrainError) -> Option<&io::Error> {
    let TrainError::Device(device) = error else { return None };
    let DeviceError::Disk(cause) = &**device else { return None };
    Some(cause)
}

/// Resumes from the last checkpoint of a run that failed in its second half, and compares the end with that of a run that did not fail.
fn check_going_on(mut run: Setup, whole: &Setup) {
    let latest = run.checkpoints().latest().unwrap();
    assert!(latest.damaged.is_empty());
    let saved = latest.checkpoint.expect("half of the run is over").description.step();
    assert!((5..20).contains(&saved) && (saved..20).contains(&(run.metrics().len() as u64)), "{saved}");
    assert!(run.checkpoint(saved) == whole.checkpoint(saved));
    // No loss was computed from bytes that the file has lost.
    assert!(numbers(&whole.metrics()).starts_with(&numbers(&run.metrics())));
    (run.resume, run.on_line) = (true, OnLine::Nothing);
    assert_eq!(run.go().unwrap().steps, 20);
    assert_eq!(numbers(&run.metrics()), numbers(&whole.metrics()));
    assert!(run.checkpoint(20) == whole.checkpoint(20));
}

#[test]
fn a_file_that_loses_its_bytes_ends_the_run_and_the_last_checkpoint_goes_on() {
    let whole = in_file(None);
    whole.go().unwrap();
    let mut run = in_file(None);
    let folder = run.folder.path().to_owned();
    run.on_line = OnLine::Do(
        "step 12/20",
        Arc::new(move || {
            let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let is_own = |path: &PathBuf| {
                let of = fs::read_link(path).unwrap_or_default();
                of.starts_with(&folder) && of.to_string_lossy().ends_with(" (deleted)")
            };
            let files: Vec<PathBuf> = open.filter(is_own).collect();
            assert!(!files.is_empty());
            files
                .iter()
                .for_each(|path| fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap());
        }),
    );
    let error = run.go().unwrap_err();
    assert_eq!(cause_of(&error).map(io::Error::kind), Some(io::ErrorKind::UnexpectedEof), "{error}");
    assert_eq!(run.metrics().len(), 12);
    check_going_on(run, &whole);
}

/// The steps of a GPU do not wait for the file, so the failure must be reported before any result that was computed with it. The fault
/// comes between two checkpoints, at the first operation there that concerns the file.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_disk_that_fails_beside_a_gpu_ends_the_run_and_the_last_checkpoint_goes_on() {
    let whole = in_file(Some(SOUND));
    let (outcome, operations) = count(|| whole.go());
    assert_eq!(outcome.unwrap().steps, 20);
    for (fault, told) in [(Fault::Full, "no storage space"), (Fault::Failed, "input/output error (a test)")] {
        let failed = (operations * 3 / 5..operations).find_map(|at| {
            let run = in_file(Some(SOUND));
            let error = inject(at, fault, || run.go()).err()?;
            cause_of(&error).is_some().then_some((run, error))
        });
        let (run, error) = failed.expect("most operations are of the file");
        assert_eq!(error.to_string(), format!("the file of states on the disk failed: {told}"));
        check_going_on(run, &whole);
    }
}

/// Returns the cause of a loss of step 1 that is not finite, if the first steps have this rate.
fn cause(gpu: Option<Gpu>, rate: &'static str) -> Cause {
    let mut run = in_file(gpu);
    run.edits = vec![("value = 0.05}", rate)];
    (run.schedule.save_every, run.schedule.eval_every) = (None, None);
    match run.go().unwrap_err() {
        TrainError::NotFinite { step: 1, cause: Some(cause), .. } => cause,
        error => panic!("{error}"),
    }
}

fn check_causes(gpu: Option<Gpu>) {
    // The weights are so large that the logits are infinite.
    let Cause::Instruction(found) = cause(gpu, "value = 1e30}") else { panic!("no instruction is told") };
    let first = found.infinity.as_ref().expect("the logits are infinite");
    assert!(first.origin.contains("\"/head\""), "{found:?}");
    // The weights in the file are infinite; the copies from it are not at fault.
    let Cause::State(state) = cause(gpu, "value = 1e39}") else { panic!("no state is told") };
    assert_eq!(state, "embedding.weight");
}

#[test]
fn a_number_that_is_not_finite_is_found_behind_a_file() {
    check_causes(None);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_number_that_is_not_finite_is_found_behind_a_file_and_a_gpu() {
    check_causes(Some(SOUND));
}
