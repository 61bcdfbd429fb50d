//! Ranks as processes of MPI: they compute the bits of ranks that are threads, their checkpoints can be resumed on any ranks, and a fault
//! of one ends all.
//!
//! The tests need the feature `mpi`. `MPIRUN` names the launcher of the MPI that the binary was built against.
#![cfg(feature = "mpi")]

mod programs;

use serde_json::Value;
use std::env;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use testing::workplace::Workplace;

const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");

const TRAIN: &str = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 4 --threads 1 --save-every 10 --eval-every 10";

/// A folder with a text to train on.
fn place() -> Workplace {
    Workplace::with_text(TRAINYARD, 8_000)
}

/// `mpirun -n PROCESSES trainyard ARGUMENTS`; several programs of a job are separated by ` : `.
fn mpirun(place: &Workplace, processes: usize, arguments: &str) -> Command {
    let mut command = Command::new(env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into()));
    for (index, own) in arguments.split(" : ").enumerate() {
        if index > 0 {
            command.arg(":");
        }
        command.args(["-n", &processes.to_string(), TRAINYARD]).args(own.split_whitespace());
    }
    // Open MPI needs permission to run as root, and to run more processes than cores.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.current_dir(place.path("")).stdin(Stdio::null());
    command
}

/// Runs processes to their end, and returns the text that they wrote to standard error.
fn succeed(place: &Workplace, processes: usize, arguments: &str) -> String {
    let output = mpirun(place, processes, arguments).output().expect("the launcher starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {text}");
    text
}

/// Runs processes that fail, and returns the text that they wrote to standard error.
fn fail(place: &Workplace, processes: usize, arguments: &str) -> String {
    let Output { status, stderr, .. } =
        mpirun(place, processes, arguments).output().expect("the launcher starts");
    assert!(!status.success(), "{arguments}");
    String::from_utf8_lossy(&stderr).into_owned()
}

/// The numbers of a run that do not depend on the clock.
fn numbers(place: &Workplace, run: &str) -> Vec<Vec<Value>> {
    let of_step =
        |step: &Value| ["step", "loss", "grad_norm", "eval_loss"].map(|key| step[key].clone()).to_vec();
    place.metrics(run).iter().map(of_step).collect()
}

fn assert_equal(place: &Workplace, [one, other]: [&str; 2]) {
    assert_eq!(numbers(place, one), numbers(place, other), "{one} and {other}");
    assert!(place.states(one, 20) == place.states(other, 20), "the checkpoints of {one} and {other} differ");
    let weights = |run: &str| place.read(&format!("{run}/model.safetensors"));
    assert!(weights(one) == weights(other), "the trained models of {one} and {other} differ");
}

#[test]
fn processes_have_the_bits_of_threads_and_go_on_with_each_others_checkpoints() {
    for mesh in ["--mesh dp=2,tp=2 --zero 1", "--mesh dp=4 --zero 3"] {
        let place = place();
        place.succeed(&format!("{TRAIN} {mesh} --steps 20 -o threads"));
        let told = succeed(&place, 4, &format!("{TRAIN} {mesh} --steps 20 -o processes"));
        assert_eq!(told.matches("done: 20 steps").count(), 1, "rank 0 alone tells: {told}");
        assert!(told.contains("4 ranks as processes"), "{told}");
        assert_equal(&place, ["threads", "processes"]);

        // The first half runs on threads and the second on processes, and then the other way round.
        place.succeed(&format!("{TRAIN} {mesh} --steps 10 -o half"));
        succeed(&place, 4, &format!("{TRAIN} {mesh} --steps 20 -o half --resume"));
        assert_equal(&place, ["threads", "half"]);
        succeed(&place, 4, &format!("{TRAIN} {mesh} --steps 10 -o other"));
        place.succeed(&format!("{TRAIN} {mesh} --steps 20 -o other --resume"));
        assert_equal(&place, ["threads", "other"]);

        // On one device and on another mesh, sums have another order.
        let expected = place.metrics("threads")[19]["loss"].as_f64().expect("a loss is a number");
        for (elsewhere, output) in [("--microbatch 8", "one"), ("--microbatch 8 --mesh tp=2", "split")] {
            let train = TRAIN.replace("--microbatch 4", elsewhere);
            let train = if mesh.contains("dp=4") {
                train.replace("--microbatch 8", "--microbatch 16")
            } else {
                train
            };
            place.succeed(&format!("{train} --steps 20 -o {output} --resume=processes@10"));
            let loss = place.metrics(output)[9]["loss"].as_f64().expect("a loss is a number");
            assert!((loss - expected).abs() < 1e-4, "{output}: {loss}, and not {expected}");
        }
    }
}

#[test]
fn stages_as_processes_have_the_bits_of_threads_and_go_on_with_each_others_checkpoints() {
    let train = TRAIN.replace("--microbatch 4", "--microbatch 1 --global-batch 8");
    // If no flag names a schedule, each process makes the same choice.
    for (processes, mesh) in [
        (2, "--mesh pp=2 --schedule zb-v"),
        (4, "--mesh pp=2,dp=2 --zero 1 --schedule interleaved"),
        (2, "--mesh pp=2"),
    ] {
        let place = place();
        place.succeed(&format!("{train} {mesh} --steps 20 -o threads"));
        let told = succeed(&place, processes, &format!("{train} {mesh} --steps 20 -o processes"));
        assert!(told.contains(&format!("{processes} ranks as processes")), "{told}");
        assert_equal(&place, ["threads", "processes"]);
        place.succeed(&format!("{train} {mesh} --steps 10 -o half"));
        succeed(&place, processes, &format!("{train} {mesh} --steps 20 -o half --resume"));
        assert_equal(&place, ["threads", "half"]);
    }
}

#[test]
fn the_profile_of_a_pipeline_has_the_tasks_of_all_processes() {
    let place = place();
    let train = TRAIN.replace("--microbatch 4", "--microbatch 1 --global-batch 8");
    let told = succeed(&place, 2, &format!("{train} --mesh pp=2 --schedule 1f1b --steps 4 --profile -o run"));
    assert_eq!(told.matches("stages, measured, milliseconds a step").count(), 1, "{told}");
    let profile: Value = serde_json::from_slice(&place.read("run/profile.json")).expect("it is JSON");
    let ranks = profile["ranks"].as_array().expect("it has ranks");
    assert_eq!(ranks.len(), 2);
    let mut begins = vec![];
    for (stage, rank) in ranks.iter().enumerate() {
        let tasks = rank["tasks"].as_array().expect("it has tasks");
        assert_eq!(tasks.len(), 16);
        assert!(tasks.iter().all(|task| task["stage"] == stage), "{tasks:?}");
        begins.extend(tasks.iter().map(|task| task["begin_ms"].as_f64().expect("it has a begin")));
    }
    assert_eq!(
        begins.into_iter().reduce(f64::min),
        Some(0.0),
        "times count from the first task of all ranks"
    );
}

#[test]
fn without_a_mesh_each_process_is_a_data_rank() {
    let place = place();
    let told = succeed(&place, 2, &format!("{TRAIN} --steps 1 --zero 1 -o run"));
    assert!(told.contains("mesh: dp=2, 2 ranks as processes"), "{told}");
}

/// A launcher may start a run again with fewer processes. The number of samples in a step stays.
#[test]
fn a_run_goes_on_with_another_number_of_processes_if_the_mesh_leaves_the_data_ranks_open() {
    let place = place();
    let train = format!("{TRAIN} --mesh tp=2 --zero 1 -o run --resume");
    let told = succeed(&place, 4, &format!("{train} --steps 10"));
    assert!(told.contains("mesh: dp=2 x tp=2, 4 ranks as processes, 1 x 4 samples each"), "{told}");
    let told = succeed(&place, 2, &format!("{train} --steps 20"));
    assert!(told.contains("mesh: tp=2, 2 ranks as processes, 2 x 4 samples each"), "{told}");
    place.succeed(&format!("{TRAIN} --mesh dp=2,tp=2 --zero 1 --steps 20 -o whole"));
    let losses = |run: &str| -> Vec<f64> {
        place.metrics(run).iter().map(|step| step["loss"].as_f64().expect("a loss is a number")).collect()
    };
    let (changed, whole) = (losses("run"), losses("whole"));
    assert_eq!((changed.len(), &changed[..10]), (20, &whole[..10]));
    // With another number of ranks, sums have another order.
    for (step, (changed, whole)) in changed.iter().zip(&whole).enumerate() {
        assert!((changed - whole).abs() < 1e-4, "step {step}: {changed}, and not {whole}");
    }
    let told = fail(&place, 2, &format!("{} --steps 30", train.replace("--microbatch 4", "--microbatch 3")));
    assert!(told.contains("the global batch 8 is not a multiple of the microbatch 3"), "{told}");
    let told = fail(&place, 3, &format!("{train} --steps 30"));
    assert!(told.contains("started 3 processes, and --mesh tp=2 has 2"), "{told}");
}

#[test]
fn processes_that_do_not_fit_each_other_are_refused_once_and_by_name() {
    let place = place();
    let once =
        |told: &str, expected: &str| assert_eq!(told.matches(expected).count(), 1, "{expected}: {told}");
    let told = fail(&place, 2, &format!("{TRAIN} --mesh dp=4 --steps 1 -o run"));
    once(&told, "started 2 processes, and --mesh dp=4 has 4");
    let told = fail(&place, 2, "compile nothing.onnx --train text.txt -o run");
    once(&told, "nothing.onnx");
    let ranks = format!("{TRAIN} --steps 1 -o run");
    let told = fail(&place, 1, &format!("{ranks} : {ranks} --lr 0.5"));
    once(&told, "rank 1 has another --lr than rank 0");
    // A run that would fail in the middle is refused at its start.
    let told = fail(&place, 1, &format!("{ranks} --keep 5 : {ranks} --keep 7"));
    once(&told, "rank 1 has another --keep than rank 0");
    once(&told, "rank 0 has 5, and rank 1 has 7");
    let told = fail(&place, 1, &format!("{ranks} : {}", ranks.replace("text.txt", "nothing.txt")));
    once(&told, "rank 1: ");
    assert!(told.contains("nothing.txt"), "{told}");
    let mut other = place.read("text.txt");
    other[0] ^= 1;
    place.write("other.txt", &other);
    let told = fail(&place, 1, &format!("{ranks} : {}", ranks.replace("text.txt", "other.txt")));
    once(&told, "rank 1 has another set of data files than rank 0");
    let told = fail(&place, 1, &format!("{ranks} --init gpt2 : {ranks} --init gpt2 --seed 5"));
    once(&told, "rank 1 has another --seed than rank 0");
    assert!(!place.path("run").exists(), "a run that cannot begin leaves nothing");
    let told = fail(&place, 1, &format!("{ranks} : {}", ranks.replace("-o run", "-o other")));
    once(&told, "rank 1: other is another folder than that of rank 0");
    assert_eq!(
        fs::read_dir(place.path("run")).map_or(0, Iterator::count),
        0,
        "nothing is left in the folder"
    );
}

/// The log of a rank.
fn log(place: &Workplace, rank: usize) -> String {
    String::from_utf8_lossy(&place.read(&format!("run/logs/rank-{rank}.txt"))).into_owned()
}

#[test]
fn each_rank_has_a_log_in_the_folder_of_the_run() {
    let place = place();
    let run = format!("{TRAIN} --mesh tp=2 -o run");
    succeed(&place, 2, &format!("{run} --steps 1"));
    let told = succeed(&place, 2, &format!("{run} --steps 2 --resume"));
    for rank in 0..2 {
        let log = log(&place, rank);
        let heading = format!(": rank {rank} of 2 at tp={rank}, process ");
        assert_eq!(log.matches(&heading).count(), 2, "each start has a heading: {log}");
        assert!(log.contains("step 1/1  loss ") && log.contains("step 2/2  loss "), "{log}");
        assert!(log.contains("mesh: tp=2, 2 ranks as processes"), "{log}");
    }
    assert!(told.contains("done: 2 steps"), "{told}");
    let told = fail(&place, 2, &format!("{run} --steps 30 --lr 1e30 --force"));
    assert!(told.contains("is not finite") || told.contains("infinite") || told.contains("NaN"), "{told}");
    for rank in 0..2 {
        let log = log(&place, rank);
        assert!(log.contains("error: the "), "the reason of the end is in the log of rank {rank}: {log}");
    }
}

/// A job whose ranks are killed or stopped.
struct Job {
    launcher: Child,
    output: String,
}

impl Job {
    fn start(place: &Workplace, processes: usize, arguments: &str, output: &str) -> Self {
        let mut command = mpirun(place, processes, &format!("{arguments} -o {output}"));
        let launcher =
            command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the launcher starts");
        Self { launcher, output: output.to_owned() }
    }

    /// Waits until a file of the run exists.
    fn wait_for(&self, place: &Workplace, file: &str) {
        let path = place.path(&format!("{}/{file}", self.output));
        self.wait_until(|| path.exists());
    }

    /// Waits until a condition is true.
    fn wait_until(&self, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(120), "the run does not come that far");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal to a rank, which must be running.
    fn signal(&self, signal: i32, rank: usize) {
        assert!(self.try_signal(signal, rank), "rank {rank} runs");
    }

    /// Sends a signal to a rank. Returns whether it was running.
    fn try_signal(&self, signal: i32, rank: usize) -> bool {
        let mut ranks: Vec<i32> = fs::read_dir("/proc")
            .expect("the system tells of processes")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|id| {
                let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
                let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
                words.first() == Some(&TRAINYARD.as_bytes()) && words.contains(&self.output.as_bytes())
            })
            .collect();
        ranks.sort_unstable();
        let Some(&id) = ranks.get(rank) else { return false };
        // SAFETY: sending a signal touches no memory of this process.
        #[allow(unsafe_code)]
        let sent = unsafe { libc::kill(id, signal) };
        sent == 0
    }

    /// Waits for the end. Returns whether the job succeeded, the text of standard error, and the time until then.
    fn end(self) -> (bool, String, Duration) {
        let begun = Instant::now();
        let Output { status, stderr, .. } = self.launcher.wait_with_output().expect("the launcher ends");
        (status.success(), String::from_utf8_lossy(&stderr).into_owned(), begun.elapsed())
    }
}

const LONG: &str = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 4 --threads 1 --save-every 5 \
                    --mesh dp=2 --zero 1 --timeout 5";

/// The moment at which a rank is killed or stopped.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Between two checkpoints. The rank is most likely computing.
    Step,
    /// The rank waits for another rank, which is stopped meanwhile.
    Exchange,
    /// A checkpoint is being written.
    Save,
}

impl Moment {
    fn wait(self, job: &Job, place: &Workplace) {
        job.wait_for(place, "checkpoints/step-5");
        match self {
            Self::Step => {}
            Self::Exchange => {
                job.signal(libc::SIGSTOP, 0);
                thread::sleep(Duration::from_millis(300));
            }
            Self::Save => job.wait_until(|| {
                let folder = place.path(&format!("{}/checkpoints", job.output));
                let entries = fs::read_dir(folder).expect("it is there");
                entries.flatten().any(|entry| !entry.file_name().to_string_lossy().starts_with("step-"))
            }),
        }
    }
}

/// A rank is killed or stopped in the middle of a run. All ranks end within 30 s, and the run resumes from its last checkpoint.
#[test]
fn a_rank_that_is_killed_or_stands_still_ends_all_and_the_run_goes_on_bit_for_bit() {
    let place = place();
    let run = format!("{} --steps 60", LONG.replace("dp=2", "dp=4"));
    succeed(&place, 4, &format!("{run} -o whole"));
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        for moment in [Moment::Step, Moment::Exchange, Moment::Save] {
            let output = format!("{signal}-{moment:?}");
            let job = Job::start(&place, 4, &run, &output);
            moment.wait(&job, &place);
            job.signal(signal, 1);
            let _ = job.try_signal(libc::SIGCONT, 0);
            let (done, text, time) = job.end();
            assert!(!done && time < Duration::from_secs(30), "{output} {time:?}: {text}");
            if signal == libc::SIGSTOP {
                assert!(text.contains(" waited for 5 s for the ranks [1] in `"), "{output}: {text}");
                let record = (0..4).find_map(|rank| {
                    fs::read_to_string(place.path(&format!("{output}/flight/rank-{rank}.txt"))).ok()
                });
                let record = record.expect("a rank leaves its flight record");
                assert!(record.lines().last().is_some_and(|last| last.contains("not done")), "{record}");
            }
            succeed(&place, 4, &format!("{run} -o {output} --resume"));
            assert_eq!(numbers(&place, &output), numbers(&place, "whole"), "{output}");
            assert!(place.states(&output, 60) == place.states("whole", 60), "the run went on otherwise");
            assert!(
                !place.path(&format!("{output}/flight")).exists(),
                "a run that goes on removes the records"
            );
        }
    }
}

/// Rank 1 is stopped in the middle of a long step, so that rank 0 waits for its message. Then rank 1 is killed.
#[test]
fn a_rank_that_waits_for_a_killed_one_tells_its_stage_phase_and_microbatch() {
    if env::var("MPIRUN").is_ok_and(|launcher| launcher.ends_with("mpich")) {
        // MPICH's launcher kills the other processes at once, so they have no time to report anything.
        return;
    }
    let place = place();
    let run = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 1 --global-batch 512 --threads 1 \
               --steps 1000 --mesh pp=2 --schedule 1f1b";
    let job = Job::start(&place, 2, run, "of-stages");
    job.wait_until(|| {
        fs::read_to_string(place.path("of-stages/metrics.jsonl")).is_ok_and(|metrics| metrics.contains('\n'))
    });
    thread::sleep(Duration::from_millis(100));
    job.signal(libc::SIGSTOP, 1);
    thread::sleep(Duration::from_millis(500));
    job.signal(libc::SIGKILL, 1);
    let (done, text, time) = job.end();
    assert!(!done && time < Duration::from_secs(30), "{time:?}: {text}");
    let told = text.lines().find(|line| line.contains("rank 0") || line.starts_with("error"));
    let told = told.unwrap_or_else(|| panic!("rank 0 tells nothing: {text}"));
    assert!(told.starts_with("rank 0 waits in `receive` of "), "{text}");
    let (_, task) =
        told.split_once(", in backward of stage 0, microbatch ").unwrap_or_else(|| panic!("{text}"));
    let microbatch = task.strip_suffix("; it stops after this step").and_then(|number| number.parse().ok());
    assert!(microbatch.is_some_and(|number: u32| number < 512), "{text}");
}

/// Ranks are killed at any moment: while processes start, compile, train, exchange or save. `TRAINYARD_KILLS` is their number.
#[test]
fn a_run_that_is_killed_again_and_again_ends_as_one_that_is_not() {
    let kills: u64 =
        env::var("TRAINYARD_KILLS").map_or(10, |number| number.parse().expect("a number of kills"));
    let place = place();
    let run = format!("{LONG} --steps 100000");
    for kill in 0..kills {
        let resume = if kill == 0 { "" } else { " --resume" };
        let job = Job::start(&place, 2, &format!("{run}{resume}"), "run");
        let [draw, _, rank, _] = ir::random::philox(kill, [0; 4]);
        thread::sleep(Duration::from_millis(u64::from(draw) % 2500));
        let begun = Instant::now();
        while !job.try_signal(libc::SIGKILL, rank as usize % 2) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the ranks do not start");
            thread::sleep(Duration::from_millis(1));
        }
        let (done, text, time) = job.end();
        assert!(!done && time < Duration::from_secs(30), "{time:?}: {text}");
    }
    let steps = place.checkpoints("run").into_iter().max().unwrap_or(0) + 10;
    println!("{kills} kills; the run goes on to step {steps}");
    let last = run.replace("100000", &steps.to_string());
    succeed(&place, 2, &format!("{last} -o run --resume"));
    succeed(&place, 2, &format!("{last} -o whole"));
    assert_eq!(numbers(&place, "run"), numbers(&place, "whole"));
    assert!(place.states("run", steps) == place.states("whole", steps), "the run went on otherwise");
}

#[test]
fn a_loss_that_is_not_finite_is_told_once() {
    let place = place();
    let told = fail(&place, 2, &format!("{TRAIN} --mesh dp=2 --steps 20 --lr 1e30 -o run"));
    assert_eq!(told.matches("error: ").count(), 1, "{told}");
    assert!(
        told.contains("error: the loss of step") || told.contains("error: the gradient's norm"),
        "{told}"
    );
}

#[test]
fn a_disk_that_is_full_on_one_rank_is_told_with_its_number() {
    if env::var("MPIRUN").is_ok_and(|launcher| launcher.ends_with("mpich")) {
        // The limit below also applies to the files through which MPICH shares memory, so MPICH does not start.
        return;
    }
    let place = place();
    // The limit on file size stands for a full disk of one rank. That rank's shell sets it; the other rank has none.
    let run = format!("{LONG} --steps 20 -o run");
    let limited = place.path("limited.sh");
    fs::write(&limited, format!("ulimit -f 200; exec {TRAINYARD} \"$@\"\n"))
        .expect("the folder can be written");
    let mut command = mpirun(&place, 1, &run);
    command.args([":", "-n", "1", "sh"]).arg(&limited).args(run.split_whitespace());
    let output = command.output().expect("the launcher starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("error: rank 1: "), "{told}");
    assert!(told.contains("checkpoints/step-5"), "{told}");
    assert!(place.checkpoints("run").is_empty(), "nothing half written has a checkpoint's name");
}

#[test]
fn a_signal_to_stop_on_any_rank_saves_on_all() {
    let place = place();
    let job = Job::start(&place, 2, &format!("{LONG} --steps 100000"), "run");
    job.wait_for(&place, "checkpoints/step-5");
    job.signal(libc::SIGTERM, 1);
    let (_, text, time) = job.end();
    assert!(text.contains("stopped after") && time < Duration::from_secs(30), "{time:?}: {text}");
    let steps = place.metrics("run").len() as u64;
    assert!(place.checkpoints("run").contains(&steps), "{steps} steps, and {:?}", place.checkpoints("run"));
}
