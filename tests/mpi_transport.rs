//! Ranks that are processes compute the same bits as ranks that are threads.
//!
//! Without a launcher, this program starts itself with 2 and with 4 processes by `mpirun`, or by the program in `MPIRUN`.

use comm::samples::{Collective, Sample, on_threads};
use comm::{CommError, Communicator};
use ir::{DType, random};
use std::env;
use std::process::{Command, ExitCode};
use std::time::Duration;
use transport_mpi::World;

/// Collectives that are compared.
const SAMPLES: u64 = 300;

/// The variable that names the check of a process.
const CHECK: &str = "TRAINYARD_MPI_CHECK";

fn main() -> ExitCode {
    match env::var(CHECK).as_deref() {
        Ok("bits") => bits(),
        Ok("different") => different(),
        Ok("late") => late(),
        Ok("refused") => refused(),
        _ => launch(),
    }
}

/// Runs every check as a job of its own.
fn launch() -> ExitCode {
    for processes in [2, 4] {
        let (done, output) = job("bits", processes);
        assert!(done && output.contains("300 collectives are equal"), "{processes} processes:\n{output}");
        let (_, output) = job("different", processes);
        let told = "rank 1 issued `all_reduce` (max) of f32[4] among the ranks [0, 1]";
        assert!(output.contains(told), "{processes} processes:\n{output}");
        let (done, output) = job("late", processes);
        assert!(
            !done && output.contains("rank 0 waited for 1 s for the ranks [1]"),
            "{processes}:\n{output}"
        );
        let (done, output) = job("refused", processes);
        assert!(
            !done && output.contains("rank 0 cannot exchange messages"),
            "{processes} processes:\n{output}"
        );
        println!(
            "{processes} processes: equal bits; different collectives, a missing rank and an error of MPI are told"
        );
    }
    ExitCode::SUCCESS
}

/// Runs a check in `processes` processes. Returns whether it succeeded, and its output.
fn job(check: &str, processes: u32) -> (bool, String) {
    let launcher = env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let program = env::current_exe().expect("this program has a path");
    let mut command = Command::new(&launcher);
    command.args(["-n", &processes.to_string()]).arg(program).env(CHECK, check);
    // Open MPI needs permission to run as root, and to run more processes than cores.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    let output = command.output().unwrap_or_else(|error| panic!("{launcher} does not start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Compares made-up collectives.
fn bits() -> ExitCode {
    let world = World::start().expect("MPI starts");
    let (ranks, communicator) = (world.size(), communicator(&world, 60));
    for number in 0..SAMPLES {
        let sample = sample(number, ranks);
        let own = sample.run(&*communicator).unwrap_or_else(|error| panic!("{sample:?}: {error}"));
        let expected = on_threads(ranks, |thread| sample.run(&*thread).expect("threads meet"));
        assert!(own == expected[world.rank() as usize], "{sample:?}");
    }
    let mut seen = [0];
    if world.rank() > 0 {
        communicator.receive(world.rank() - 1, 0, &mut seen).expect("the rank before sends");
    }
    communicator.send((world.rank() + 1) % ranks, 0, &[seen[0] + 1]).expect("the next rank receives");
    if world.rank() == 0 {
        communicator.receive(ranks - 1, 0, &mut seen).expect("the last rank sends");
        assert_eq!(u64::from(seen[0]), ranks);
        println!("{SAMPLES} collectives are equal");
    }
    ExitCode::SUCCESS
}

/// Issues different collectives on two ranks, which must be refused.
fn different() -> ExitCode {
    let world = World::start().expect("MPI starts");
    if world.rank() < 2 {
        let collective = if world.rank() == 0 { Collective::Sum } else { Collective::Max };
        let sample = Sample { collective, group: vec![0, 1], tensors: vec![(DType::F32, vec![4])] };
        let error = sample.run(&*communicator(&world, 60)).expect_err("they differ");
        assert!(matches!(error, CommError::Different { .. }));
        println!("{error}");
    } else {
        communicator(&world, 60);
    }
    ExitCode::SUCCESS
}

/// Waits for a rank that does not come.
fn late() -> ExitCode {
    let world = World::start().expect("MPI starts");
    let communicator = communicator(&world, 1);
    match world.rank() {
        0 => drop(communicator.receive(1, 0, &mut [0])),
        _ => std::thread::sleep(Duration::from_secs(30)),
    }
    ExitCode::SUCCESS
}

/// Asks MPI for a rank that it does not have, while a message of another rank is still to come.
fn refused() -> ExitCode {
    let world = World::start().expect("MPI starts");
    let communicator = communicator(&world, 60);
    match world.rank() {
        0 => {
            let (group, tensors) = (vec![0, 1, world.size()], vec![(DType::F32, vec![4])]);
            drop(Sample { collective: Collective::Sum, group, tensors }.run(&*communicator));
        }
        _ => std::thread::sleep(Duration::from_secs(30)),
    }
    ExitCode::SUCCESS
}

fn communicator(world: &World, seconds: u64) -> std::sync::Arc<dyn Communicator> {
    let give_up = Box::new(|error: &CommError| eprintln!("{error}"));
    world.communicator(Duration::from_secs(seconds), give_up).expect("MPI gives a communicator")
}

/// The collective of a number, the same on all ranks.
fn sample(number: u64, ranks: u64) -> Sample {
    let draw = |stream: u64, below: u64| {
        u64::from(random::philox(5, [stream as u32, number as u32, 0, 0])[0]) % below
    };
    let collective = Collective::ALL[draw(0, 8) as usize];
    // A rotated run of the ranks, which need not have all of them.
    let (first, count) = (draw(1, ranks), 1 + draw(2, ranks));
    let group: Vec<u64> = (0..count).map(|index| (first + index) % ranks).collect();
    let tensor = |index: u64| {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::U8]
            [draw(3 + index, 6) as usize];
        let columns = [1, 7, 3000][draw(5 + index, 3) as usize];
        (dtype, vec![(draw(7 + index, 4) * count) as usize, (columns * count) as usize])
    };
    Sample { collective, group, tensors: (0..1 + draw(9, 2)).map(tensor).collect() }
}
