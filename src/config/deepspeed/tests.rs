//! Files in the forms in which DeepSpeed's examples, Hugging Face's documentation and PatrickStar's examples have them.

mod faults;
mod files;

use clap::Command;
use expect_test::Expect;

use super::keys::{KEYS, Kind, Meaning};
use crate::config::CommandLine;
use crate::config::file::{ConfigFile, flags};
use crate::diagnostics::{Severity, render};

/// The notes on a file beside these flags on the command line, or its errors.
#[track_caller]
fn check(json: &str, line: &str, expected: Expect) {
    expected.assert_eq(&translated(json, line, None));
}

/// As [`check`], with this number of processes that a launcher started.
fn translated(json: &str, line: &str, ranks: Option<u64>) -> String {
    let command = Command::new("trainyard").subcommand(flags().name("compile"));
    let words = ["trainyard", "compile"].into_iter().chain(line.split_whitespace());
    let matches = command.clone().try_get_matches_from(words).expect(line);
    let line = CommandLine::new(&command, &matches, ranks);
    match ConfigFile::parse_json("ds.json", json, &line) {
        Ok(file) => {
            let arguments = file.arguments_for(&line);
            let notes = file.notes(&arguments).expect("a file in JSON has notes");
            notes.to_string()
        }
        Err(errors) => render(Severity::Error, &errors, false),
    }
}

#[test]
fn a_key_stands_once_in_the_table_and_its_flag_exists() {
    let flags = flags();
    for (index, key) in KEYS.iter().enumerate() {
        assert!(KEYS[..index].iter().all(|other| other.path != key.path), "{} is given twice", key.path);
        if let Meaning::Same(flag) = key.meaning {
            assert!(flags.get_arguments().any(|arg| arg.get_long() == Some(flag)), "--{flag}");
            assert_ne!(key.kind, Kind::Any, "{}: a value that becomes a flag is checked", key.path);
        }
        if let Meaning::Part(text) | Meaning::Asks(text, _) = key.meaning {
            for flag in text.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
                assert!(flags.get_arguments().any(|arg| arg.get_long() == Some(flag)), "--{flag}");
            }
        }
    }
}

/// Each `part` stands in a file of the folder that reads it. `offload` builds its paths from sections.
#[test]
fn every_key_that_is_read_with_others_has_a_reader() {
    let sources = [
        include_str!("../deepspeed.rs"),
        include_str!("batch.rs"),
        include_str!("mesh.rs"),
        include_str!("offload.rs"),
        include_str!("optimizer.rs"),
        include_str!("precision.rs"),
        include_str!("schedule.rs"),
    ];
    let in_offload = ["zero_optimization.offload_optimizer.", "zero_optimization.offload_param."];
    for key in KEYS.iter().filter(|key| matches!(key.meaning, Meaning::Part(_))) {
        let quoted = format!("\"{}\"", key.path);
        let is_read = sources.iter().any(|source| source.contains(&quoted));
        assert!(is_read || in_offload.iter().any(|section| key.path.starts_with(section)), "{quoted}");
    }
}
