//! Ranks as processes of MPI, each on the stand-in of a GPU: they make the same calls of NCCL in the same order.
//!
//! Without a launcher, this program starts itself with two processes by `mpirun`, or by the program in `MPIRUN`. It needs a C++
//! compiler.

use comm::agreement::Agreement;
use comm::{CommError, Communicator};
use std::env;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use testing::models::calls::{program, run};
use testing::models::{self, Fixture};

/// The variable that is set in the processes of a job.
const RANK: &str = "TRAINYARD_STAND_IN";

/// The models and the meshes of the job.
const MODELS: [(&str, &Fixture); 3] =
    [("GPT-2", &models::GPT2_DYNAMO), ("Llama", &models::LLAMA_DYNAMO), ("Mixtral", &models::MIXTRAL_DYNAMO)];
const MESHES: [&str; 4] = ["mesh=tp:2", "mesh=dp:2, zero=1", "mesh=dp:2, zero=2", "mesh=dp:2, zero=3"];

fn main() {
    match env::var_os(RANK) {
        Some(_) => work_as_rank(),
        None => launch(),
    }
}

/// Runs two processes, and checks their output.
fn launch() {
    let launcher = env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let program = env::current_exe().expect("this program has a path");
    let mut command = Command::new(&launcher);
    command.args(["-n", "2"]).arg(program).env(RANK, "1");
    // Open MPI needs permission to run as root, and to run more processes than cores.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    let output = command.output().unwrap_or_else(|error| panic!("{launcher} does not start: {error}"));
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && told.matches(" calls are equal").count() == MODELS.len() * MESHES.len(),
        "{told}"
    );
    print!("{told}");
}

/// Trains as one rank, and compares its calls with those of the other rank.
fn work_as_rank() {
    let world = transport_mpi::World::start().expect("MPI starts");
    let give_up = Box::new(|error: &CommError| eprintln!("{error}"));
    let communicator: Arc<dyn Communicator> =
        world.communicator(Duration::from_secs(300), give_up).expect("MPI gives a communicator");
    let agreement = Agreement::of(communicator.clone(), world.size());
    for ((name, model), spmd) in MODELS.iter().flat_map(|model| MESHES.map(|spmd| (model, spmd))) {
        let own = run(program(model, spmd), communicator.clone());
        let all = agreement.gather(own.expect("it runs")).expect("the ranks meet");
        assert!(all[0].len() > 4 && all[0] == all[1], "{name}, {spmd}: {all:?}");
        if agreement.is_first() {
            println!("{name}, {spmd}: {} calls are equal", all[0].len());
        }
    }
}
