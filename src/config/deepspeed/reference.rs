//! The tables of keys in `docs/deepspeed.md`, generated from the keys so that they cannot be out of date.

use std::fmt::Write as _;

use super::keys::{KEYS, Key, Meaning};
use super::notes::grouped;

/// Returns two Markdown tables: keys with their flags, and reasons with the keys that are not honoured for them.
pub fn keys_table() -> String {
    let mut text = String::from("| keys | flags |\n| --- | --- |\n");
    for (flags, keys) in grouped(KEYS.iter().filter_map(flags)) {
        let _ = writeln!(text, "| {} | {flags} |", keys.join(", "));
    }
    text += "\n| not honoured | reason |\n| --- | --- |\n";
    for (reason, keys) in grouped(KEYS.iter().filter_map(reason)) {
        let _ = writeln!(text, "| {} | {reason} |", keys.join(", "));
    }
    text
}

/// The cell of flags for an honoured key, and the cell of the key.
fn flags(key: &Key) -> Option<(String, String)> {
    let path = format!("`{}`", key.path);
    match key.meaning {
        Meaning::Same(flag) => Some((format!("`--{flag}`"), path)),
        Meaning::Always(..) | Meaning::Dropped(_) => None,
        Meaning::Part(flags) | Meaning::Asks(flags, _) => Some((format!("`{flags}`"), path)),
    }
}

/// The reason for a key that is not honoured, and the cell of the key.
fn reason(key: &Key) -> Option<(String, String)> {
    let path = &key.path;
    match key.meaning {
        Meaning::Same(_) | Meaning::Part(_) => None,
        Meaning::Asks(_, reason) => Some((reason.to_owned(), format!("the value of `{path}`"))),
        Meaning::Always(value, reason) => Some((reason.to_owned(), format!("`{path}` but `{value}`"))),
        Meaning::Dropped(reason) => Some((reason.to_owned(), format!("`{path}`"))),
    }
}
