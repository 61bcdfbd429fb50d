//! The table of flags in `docs/flags.md`, generated from the flags' definition so that it cannot be out of date.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// Returns every flag of every subcommand as a Markdown table, in the order of `--help`. A shared flag has one row.
pub fn flags_table() -> String {
    let mut cli = super::command();
    cli.build();
    let subcommands: Vec<&Command> =
        cli.get_subcommands().filter(|command| command.get_name() != "help").collect();
    let mut table = String::from("| flag | effect | commands |\n| --- | --- | --- |\n");
    let mut seen: Vec<&str> = vec!["help", "version"];
    for subcommand in &subcommands {
        for arg in subcommand.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long().filter(|long| !seen.contains(long)) else { continue };
            seen.push(long);
            let takes = |command: &&&Command| command.get_arguments().any(|it| it.get_long() == Some(long));
            let takers = subcommands.iter().filter(takes).map(|command| command.get_name());
            let takes_it = takers.collect::<Vec<&str>>();
            let _ = writeln!(table, "| {} | {} | {} |", usage(arg, long), meaning(arg), takes_it.join(", "));
        }
    }
    table
}

/// `--flag VALUE`, as in `--help`.
fn usage(arg: &Arg, long: &str) -> String {
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let value = match arg.get_action() {
        ArgAction::SetTrue => String::new(),
        _ if !values.is_empty() => format!(" {}", values.join("|")),
        _ => format!(" {}", arg.get_value_names().unwrap_or_default().join(" ")),
    };
    let value = if arg.is_require_equals_set() { format!("[={}]", value.trim()) } else { value };
    in_a_cell(format!("`{short}--{long}{value}`"))
}

/// The help text and the default.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let shows_default = !default.is_empty() && !matches!(arg.get_action(), ArgAction::SetTrue);
    let default = if shows_default { format!(" [default: {}]", default.join(",")) } else { String::new() };
    in_a_cell(format!("{help}{default}"))
}

/// Text that does not end its cell of a Markdown table.
fn in_a_cell(text: String) -> String {
    text.replace('|', "\\|")
}
