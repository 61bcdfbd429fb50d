//! The `trainyard` command.

use std::process::ExitCode;

use trainyard::cli::{Cli, report};
use trainyard::signals;

fn main() -> ExitCode {
    signals::ignore_file_size_limit();
    match Cli::parse_with_config(std::env::args_os()) {
        Ok(cli) => report::finish(cli.run()),
        Err(error) => report::finish_parse_error(error),
    }
}
