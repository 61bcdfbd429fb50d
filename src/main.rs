//! The `trainyard` command.

use std::env;
use std::process::ExitCode;

use trainyard::cli;
use trainyard::signals;

fn main() -> ExitCode {
    give_each_stream_a_queue();
    signals::ignore_file_size_limit();
    cli::run(env::args_os())
}

/// The variable by which CUDA's driver is told how many hardware queues a process has on each GPU: 1 to 32, 8 by default.
const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Asks for the most hardware queues, unless the user has asked for a number of them. A run has seven streams, one for inputs, and
/// in a pipeline one for each channel, and NCCL has its own. Streams beyond the number of queues share one, and a command
/// there waits for commands of another stream that it does not depend on. The driver reads the variable when it starts. The
/// command sets it, and not the library, whose caller owns the environment of the process.
#[allow(unsafe_code)]
fn give_each_stream_a_queue() {
    if env::var_os(QUEUES).is_none() {
        // SAFETY: the process has no other thread yet, so nobody reads the environment meanwhile.
        unsafe { env::set_var(QUEUES, "32") };
    }
}
