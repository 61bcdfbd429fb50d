//! Runs on the stand-in of a GPU, which gets a step before the numbers of the step before it are read. They need a C++ compiler.

use super::*;
use crate::Cause;
use cuda::Pace;
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::lower as to_commands;
use cuda::program::{Argument, CudaProgram, Stream, Task};
use cuda::ranks::on_stand_ins;
use program::device::DeviceError;
use program::{Program, Section};

/// A stand-in of a GPU, and its faults.
#[derive(Clone, Copy)]
pub(super) struct Gpu {
    pace: Pace,
    /// The stream that it serves first.
    first: Stream,
    /// The number of kernels after which it fails.
    fails_after: Option<u64>,
    refuses_captures: bool,
    /// The change that is made to the program of the step.
    change: fn(&mut CudaProgram),
}

impl Gpu {
    pub(super) fn device(&self, programs: Vec<Arc<Program>>) -> Box<dyn Device + Send> {
        let mut host = Host::new(self.order());
        if let Some(kernels) = self.fails_after {
            host = host.failing_after(kernels);
        }
        if self.refuses_captures {
            host = host.refusing_captures();
        }
        Box::new(Cuda::with(host, self.lowered(&programs)).unwrap().at(self.pace))
    }

    /// Returns the programs on the GPUs of their mesh. Several GPUs have the default pace, and none of them fails.
    pub(super) fn ranks(&self, programs: Vec<Arc<Program>>) -> Ranks {
        if programs[0].mesh.devices() == 1 {
            return Ranks::alone(self.device(programs));
        }
        let lowered = self.lowered(&programs);
        on_stand_ins(programs, |_| lowered.clone(), self.order(), |inner| inner).unwrap()
    }

    fn order(&self) -> Order {
        Order { threads: 0, first: Some(self.first) }
    }

    fn lowered(&self, programs: &[Arc<Program>]) -> Vec<CudaProgram> {
        let mut lowered: Vec<_> = programs.iter().map(|own| to_commands(own.clone()).unwrap()).collect();
        (self.change)(&mut lowered[0]);
        lowered
    }
}

pub(super) const SOUND: Gpu = Gpu {
    pace: Pace::Graphs,
    first: Stream::Side,
    fails_after: None,
    refuses_captures: false,
    change: |_| {},
};

fn on(gpu: Gpu) -> Setup {
    Setup { gpu: Some(gpu), ..setup() }
}

/// Asserts that the losses of two runs are equal in every step, up to rounding.
fn assert_near(runs: [&Setup; 2]) {
    let [ours, expected] = runs.map(Setup::metrics);
    assert_eq!(ours.len(), expected.len());
    for (ours, expected) in ours.iter().zip(&expected) {
        assert_eq!((ours.step, ours.eval_loss.is_some()), (expected.step, expected.eval_loss.is_some()));
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
        assert!(near(ours.loss, expected.loss), "{ours:?}, not {expected:?}");
        assert!(near(ours.grad_norm, expected.grad_norm), "{ours:?}, not {expected:?}");
        assert!(near(ours.eval_loss.unwrap_or(0.0), expected.eval_loss.unwrap_or(0.0)));
        assert_eq!(ours.lr, expected.lr);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_run_ahead_reports_every_step_in_order_and_goes_on_from_what_it_saved() {
    for (microbatches, pace) in [(1, Pace::Graphs), (2, Pace::Graphs), (2, Pace::Commands)] {
        let [mut ours, mut expected] = [on(Gpu { pace, ..SOUND }), setup()];
        (ours.microbatches, expected.microbatches) = (microbatches, microbatches);
        let outcomes = [&ours, &expected].map(|run| run.go().unwrap());
        assert_near([&ours, &expected]);
        assert_eq!(outcomes[0].steps, outcomes[1].steps);
        assert_eq!(outcomes[0].loss, ours.metrics().last().map(|step| step.loss));
        let (whole, last) = (ours.metrics(), ours.checkpoint(20));
        std::fs::remove_dir_all(ours.checkpoints().path(20)).unwrap();
        ours.resume = true;
        ours.go().unwrap();
        assert_eq!(numbers(&ours.metrics()), numbers(&whole));
        assert!(ours.checkpoint(20)[0] == last[0]);
    }
}

/// Returns the model with dp=2, tp=2 and split optimizer states. Its sums of gradients travel one by one while backward goes on. Its update
/// runs in two pieces, because it is clipped.
fn on_gpus(first: Stream, microbatches: u64) -> Setup {
    let program = include_str!("bigram.ranks.ir");
    Setup { program, microbatches, gpu: Some(Gpu { first, ..SOUND }), ..setup() }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpus_train_as_a_processor_does_whichever_stream_is_served_first() {
    for (first, microbatches) in [(Stream::Exchange, 1), (Stream::Main, 2), (Stream::Side, 2)] {
        let mut runs = [on_gpus(first, microbatches), Setup { microbatches, ..setup() }];
        runs.iter_mut().for_each(|run| (run.schedule.steps, run.schedule.eval_every) = (5, None));
        runs.iter().for_each(|run| assert_eq!(run.go().unwrap().steps, 5));
        assert_near(runs.each_ref());
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_wait_between_exchanges_and_computation_that_is_missing_shows() {
    let forget = |cuda: &mut CudaProgram| {
        let commands = cuda.sections.iter_mut().flatten();
        commands.for_each(|command| command.waits.clear());
    };
    let expected = setup();
    expected.go().unwrap();
    let mut run = on_gpus(Stream::Exchange, 1);
    run.gpu = Some(Gpu { first: Stream::Exchange, change: forget, ..SOUND });
    match run.go() {
        // A tensor that is exchanged before it is computed may contain numbers that are not finite.
        Err(TrainError::NotFinite { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => {
            let [ours, expected] = [run, expected].each_ref().map(Setup::metrics);
            let distance =
                ours.iter().zip(&expected).map(|(ours, expected)| (ours.loss - expected.loss).abs());
            assert!(distance.fold(0.0, f64::max) > 1e-2);
        }
    }
}

/// The search runs commands one by one, after graphs of them have run.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_number_that_is_not_finite_is_found_on_several_gpus() {
    for microbatches in [1, 2] {
        let mut run = on_gpus(Stream::Exchange, microbatches);
        run.edits = vec![
            ("%94 = splat {value = 0.05} : f64[]", "%94 = splat {value = 1e30} : f64[]"),
            ("%88 = splat {value = 0.049} : f64[]", "%88 = splat {value = 0.0} : f64[]"),
        ];
        let (step, found) = cause(run, Gpu { first: Stream::Exchange, ..SOUND });
        assert!(step >= 1);
        assert!(matches!(found, Some(Cause::Instruction(_))), "{found:?}");
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_run_ahead_that_is_stopped_saves_after_the_last_step_it_reports() {
    let mut run = on(SOUND);
    (run.schedule.eval_every, run.schedule.save_every) = (None, None);
    run.on_line = OnLine::Stop("step 7/20");
    let outcome = run.go().unwrap();
    assert!(outcome.stopped && outcome.steps >= 7, "{outcome:?}");
    assert_eq!(run.metrics().len() as u64, outcome.steps);
    run.resume = true;
    run.on_line = OnLine::Nothing;
    assert_eq!(run.go().unwrap().steps, 20);
    let mut whole = on(SOUND);
    (whole.schedule.eval_every, whole.schedule.save_every) = (None, None);
    whole.go().unwrap();
    assert!(run.checkpoint(20)[0] == whole.checkpoint(20)[0]);
}

/// Makes every microbatch run the commands of a step's first microbatch, like a graph that was captured there and is replayed for all.
fn begin_anew(cuda: &mut CudaProgram) {
    for command in &mut cuda.sections[Section::Microbatch as usize] {
        match &mut command.task {
            Task::Launch(launch) => {
                let adds = launch.arguments.iter_mut().filter(|argument| **argument == Argument::Adds);
                adds.for_each(|argument| *argument = Argument::Number(0));
            }
            Task::Multiply(multiply) => multiply.accumulates = false,
            _ => {}
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_graph_of_the_first_microbatch_that_runs_for_all_shows() {
    let mut runs = [on(Gpu { change: begin_anew, ..SOUND }), setup()];
    runs.iter_mut().for_each(|run| run.microbatches = 2);
    runs.iter().for_each(|run| assert_eq!(run.go().unwrap().steps, 20));
    let [ours, expected] = runs.each_ref().map(Setup::metrics);
    let distance = ours.iter().zip(&expected).map(|(ours, expected)| (ours.loss - expected.loss).abs());
    assert!(distance.fold(0.0, f64::max) > 1e-2);
}

/// Makes updates change states even if the device has halted.
fn never_halt(cuda: &mut CudaProgram) {
    for kernel in &mut cuda.kernels {
        kernel.text = kernel.text.replace("[1]) return;", "[1]) {}");
    }
}

/// Returns the cause of a number that is not finite, if two more steps could begin before it was noticed.
fn cause(mut run: Setup, gpu: Gpu) -> (u64, Option<Cause>) {
    (run.schedule.eval_every, run.schedule.save_every) = (None, None);
    run.gpu = Some(gpu);
    match run.go().unwrap_err() {
        TrainError::NotFinite { step, cause, .. } | TrainError::ScaleExhausted { step, cause, .. } => {
            assert_eq!(run.metrics().len() as u64, step);
            (step, cause)
        }
        error => panic!("{error}"),
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn what_is_not_finite_is_found_with_the_weights_that_made_it_though_later_steps_had_begun() {
    let loss = || Setup { edits: vec![("value = 0.05}", "value = 1e30}")], ..setup() };
    let gradient = || Setup { program: include_str!("root_of_square.ir"), microbatches: 2, ..setup() };
    let scale = || Setup { program: include_str!("bigram.fp16.ir"), ..setup() };
    for (run, last) in [(&loss as &dyn Fn() -> Setup, 1), (&gradient, 0)] {
        let (step, found) = cause(run(), SOUND);
        assert_eq!(step, last);
        assert!(matches!(found, Some(Cause::Instruction(_))), "{found:?}");
        // Without the guard, the gradient that is not finite was applied to the weights.
        let (step, found) = cause(run(), Gpu { change: never_halt, ..SOUND });
        assert_eq!(step, last);
        assert!(matches!(found, Some(Cause::State(_))), "{found:?}");
    }
    let TrainError::ScaleExhausted { step: expected, .. } = scale().go().unwrap_err() else { panic!() };
    let (step, found) = cause(scale(), SOUND);
    assert_eq!(step, expected);
    assert!(matches!(found, Some(Cause::Instruction(_))), "{found:?}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_device_that_fails_ends_the_run_and_the_last_checkpoint_goes_on() {
    for pace in [Pace::Graphs, Pace::Synchronous] {
        let mut run = on(Gpu { pace, fails_after: Some(250), ..SOUND });
        (run.schedule.eval_every, run.schedule.save_every) = (None, Some(3));
        let error = run.go().unwrap_err();
        let TrainError::Device(device) = &error else { panic!("{error}") };
        let DeviceError::Driver { operator, late, .. } = &**device else { panic!("{error}") };
        let text = error.to_string();
        assert!(text.contains("its memory failed"), "{text}");
        // If every command is waited for, the error names the command at fault.
        assert_eq!((*late, text.contains("TRAINYARD_SYNC=1")), (pace == Pace::Graphs, *late), "{text}");
        if pace == Pace::Synchronous {
            assert!(!operator.is_empty() && text.starts_with('`'), "{text}");
        }
        let latest = run.checkpoints().latest().unwrap();
        assert!(latest.damaged.is_empty());
        let saved = latest.checkpoint.expect("it ran for a while").description.step();
        assert!(saved >= 3);
        run.gpu = Some(SOUND);
        run.resume = true;
        assert_eq!(run.go().unwrap().steps, 20);
        let mut whole = on(SOUND);
        (whole.schedule.eval_every, whole.schedule.save_every) = (None, Some(3));
        whole.go().unwrap();
        assert_eq!(numbers(&run.metrics()), numbers(&whole.metrics()));
        assert!(run.checkpoint(saved) == whole.checkpoint(saved));
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_capture_that_is_refused_is_told_with_how_to_do_without() {
    let refusing = Gpu { refuses_captures: true, ..SOUND };
    let text = on(refusing).go().unwrap_err().to_string();
    assert!(text.contains("the stand-in refuses captures; with TRAINYARD_GRAPHS=0 a run"), "{text}");
    let run = on(Gpu { pace: Pace::Commands, ..refusing });
    assert_eq!(run.go().unwrap().steps, 20);
}

/// Nothing is compiled in this test, so it needs no C++ compiler.
#[test]
fn programs_that_do_not_fit_are_refused_before_anything_is_made_ready() {
    let module = setup().train_module();
    let program = lower(&module, &LowerOptions::of(cuda::TARGET)).unwrap();
    let memory = program.memory;
    let cuda = to_commands(Arc::new(program)).unwrap();
    let error = Cuda::with(Host::new(Order::default()).holding(50_000), vec![cuda]).err().unwrap();
    let DeviceError::TooLarge(large) = error else { panic!("{error}") };
    let of = |kind: &str| large.kinds.iter().find(|(name, _)| *name == kind).unwrap().1;
    assert_eq!(of("weights") + of("optimizer") + of("activations and gradients"), memory.arena);
    assert!(of("weights") >= 4 * (256 * 16 * 2 + 256) && of("optimizer") >= 2 * of("weights"));
    let text = large.to_string();
    assert!(text.starts_with("the program `bigram` needs 1"), "{text}");
    assert!(text.contains(" KiB weights, ") && text.contains(" KiB optimizer, "), "{text}");
    assert!(text.ends_with("; the stand-in of a GPU has 48.8 KiB free"), "{text}");
    assert!(
        large.told().starts_with("the largest results of a microbatch: 32.0 KiB by `"),
        "{}",
        large.told()
    );
}
