//! Config files.

use clap::ArgMatches;
use std::sync::LazyLock;
use trainyard::cli::{Cli, Command, ParseError};
use trainyard::config::file::ConfigFile;
use trainyard::config::{CommandLine, Settings};

/// Reads a `trainyard.toml`, or DeepSpeed's JSON if the text begins with a brace. The settings for `compile` are checked. They must be the
/// same after they are written and read again.
pub(super) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(settings) = read(text) else { return };
    let _ = settings.check();
    let Ok(written) = settings.to_toml() else { return };
    let again = read(&written).unwrap_or_else(|| panic!("what was written is refused:\n{written}"));
    assert_eq!(lasting(again), lasting(settings), "writing and reading changed the settings:\n{written}");
}

/// The settings of a config file, `None` if it is refused.
fn read(text: &str) -> Option<Settings> {
    static COMMAND: LazyLock<clap::Command> = LazyLock::new(|| {
        let mut command = trainyard::cli::command();
        command.build();
        command
    });
    static NOTHING_GIVEN: LazyLock<ArgMatches> =
        LazyLock::new(|| COMMAND.clone().get_matches_from(["trainyard", "compile", "model.onnx"]));
    let line = CommandLine::new(&COMMAND, &NOTHING_GIVEN, None);
    let parsed = if text.trim_start().starts_with('{') {
        ConfigFile::parse_json("ds.json", text, &line)
    } else {
        ConfigFile::parse("trainyard.toml", text)
    };
    let file = match parsed {
        Ok(file) => file,
        Err(errors) => {
            assert!(!errors.is_empty(), "a file is refused without a reason");
            return None;
        }
    };
    let arguments = file.arguments_for(&line);
    let _ = file.notes(&arguments).map(|notes| notes.to_string());
    let before = ["trainyard", "compile"].map(str::to_owned);
    let arguments = before.into_iter().chain(arguments).chain(["model.onnx".to_owned()]);
    // Each key was accepted alone, so clap accepts all of them together. Only the rules between flags may refuse them.
    let cli = match Cli::parse_with_config(arguments) {
        Ok(cli) => cli,
        Err(ParseError::Settings(_) | ParseError::Rules(_)) => return None,
        Err(ParseError::Usage(error)) => panic!("a key is taken, and its flag is not: {error}"),
    };
    match cli.command {
        Command::Compile(compile) => Some(compile.settings),
        other => panic!("`compile` was parsed as {other:?}"),
    }
}

/// The settings without those of one call, which are not written to a config file.
fn lasting(mut settings: Settings) -> Settings {
    (settings.run.resume, settings.run.profile) = (None, false);
    (settings.look, settings.out) = Default::default();
    settings
}
