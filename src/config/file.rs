//! Config files, turned into command-line arguments. A `trainyard.toml` has flat keys, named as the flags, and one kind of
//! section: `[[group]]`, a table for each use of `--group`. A file that ends in `.json` is DeepSpeed's ([`deepspeed`]).
//!
//! Unknown keys and values of the wrong type are collected, each with its line, before anything else is done.

use std::any::TypeId;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command};
use ir::Diagnostic;
use passes::precision::Scaling;
use toml::Spanned;
use toml::de::DeValue;

use super::Settings;
use super::check::exclusive;
use super::command_line::CommandLine;
use super::deepspeed::{self, Notes};
use super::nearest::nearest;
use super::optimizer::{Share, group};
use super::text_file::TextFile;

/// The keys of a config file, each as the command-line arguments that mean the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFile {
    entries: Vec<Entry>,
    /// The keys of a DeepSpeed config that are not honoured.
    notes: Option<Notes>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The name of the flag.
    pub(super) key: String,
    /// `--key=value`, or `--key` for a switch; several for a list; none for a switch that is off.
    pub(super) arguments: Vec<String>,
}

impl ConfigFile {
    /// Reads a config file, for a command line.
    ///
    /// # Errors
    /// A file that cannot be read, or is not TOML, or for the ending `.json` not JSON; else every unknown key, wrong type,
    /// refused value and pair of keys that exclude each other, with their lines.
    pub fn read(path: &Path, line: &CommandLine) -> Result<Self, Vec<Diagnostic>> {
        let file = TextFile::read(path, "the config file").map_err(|error| vec![error])?;
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
            Self::of_json(&file, line)
        } else {
            Self::of(&file)
        }
    }

    /// Reads the text of a `trainyard.toml`; `name` stands in the errors.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<Diagnostic>> {
        Self::of(&TextFile::new(name, text))
    }

    /// Reads the text of DeepSpeed's or PatrickStar's JSON, for a command line; `name` stands in the errors.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse_json(name: &str, text: &str, line: &CommandLine) -> Result<Self, Vec<Diagnostic>> {
        Self::of_json(&TextFile::new(name, text), line)
    }

    fn of_json(file: &TextFile, line: &CommandLine) -> Result<Self, Vec<Diagnostic>> {
        let (entries, notes) = deepspeed::translate(file, line)?;
        Self::checked(file, entries, Some(notes))
    }

    /// Refuses keys that exclude each other.
    fn checked(file: &TextFile, entries: Vec<Entry>, notes: Option<Notes>) -> Result<Self, Vec<Diagnostic>> {
        let given = entries.iter().filter(|entry| !entry.arguments.is_empty());
        let given: Vec<&str> = given.map(|entry| entry.key.as_str()).collect();
        if let Some((one, other)) = exclusive(&given) {
            let error = Diagnostic::new(format!("`{one}` and `{other}` exclude each other"));
            return Err(vec![error.at(file.name())]);
        }
        Ok(Self { entries, notes })
    }

    fn of(file: &TextFile) -> Result<Self, Vec<Diagnostic>> {
        let table = file.table().map_err(|error| vec![error])?;
        let flags = flags();
        let mut items: Vec<(&Spanned<_>, &Spanned<DeValue<'_>>)> = table.get_ref().iter().collect();
        items.sort_by_key(|(key, _)| key.span().start);

        let mut entries = Vec::new();
        let mut errors = Vec::new();
        for (key, value) in items {
            match read_entry(&flags, key.get_ref(), value.get_ref()) {
                Ok(entry) => entries.push(entry),
                Err(error) => errors.push(error.at(file.line(key.span().start))),
            }
        }
        if errors.is_empty() { Self::checked(file, entries, None) } else { Err(errors) }
    }

    /// The arguments for a command line: the keys that its subcommand takes, less those that it gives or excludes. Other keys
    /// belong to other subcommands.
    pub fn arguments_for(&self, line: &CommandLine) -> Vec<String> {
        let entries = self.entries.iter().filter(|entry| line.admits(&entry.key));
        entries.flat_map(|entry| entry.arguments.iter().cloned()).collect()
    }

    /// The notes on a DeepSpeed config that became these arguments; `None` for a `trainyard.toml`.
    pub fn notes(&self, arguments: &[String]) -> Option<Notes> {
        self.notes.clone().map(|notes| notes.beside(arguments))
    }
}

/// A command whose flags are the known keys.
pub(super) fn flags() -> Command {
    Settings::augment_args(
        Command::new("trainyard.toml")
            .disable_help_flag(true)
            .no_binary_name(true)
            .allow_negative_numbers(true),
    )
}

/// The flag of a key.
fn find<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key))
}

/// Parses the arguments of one key, to find a value that its flag refuses.
pub(super) fn parse_arguments(flags: &Command, arguments: &[String]) -> Result<(), clap::Error> {
    flags.clone().try_get_matches_from(arguments).map(drop)
}

/// Turns a key and its value into arguments.
fn read_entry(flags: &Command, key: &str, value: &DeValue<'_>) -> Result<Entry, Diagnostic> {
    if let DeValue::Table(_) = value {
        let error = Diagnostic::new(format!(
            "`{key}` is a section, and a config file has only keys and [[group]] tables"
        ));
        return Err(if group::KEY == key {
            error.note("each group is a table of its own: [[group]]")
        } else {
            error.note("write each key at the top of the file, named as its flag: lr = 0.001")
        });
    }
    let Some(arg) = find(flags, key) else {
        let near = nearest(key, known_keys(flags)).unwrap_or_default();
        return Err(Diagnostic::new(format!("unknown key `{key}`"))
            .note(format!("the nearest known key is `{near}`")));
    };
    let entry = Entry { key: key.to_owned(), arguments: to_arguments(arg, key, value)? };
    parse_arguments(flags, &entry.arguments)
        .map_err(|error| Diagnostic::new(format!("`{key}`: {}", explain(&error))))?;
    Ok(entry)
}

/// The names that keys may have.
fn known_keys(flags: &Command) -> impl Iterator<Item = &str> {
    flags.get_arguments().filter_map(Arg::get_long)
}

/// The kind of value that a key takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Number,
    NumberOrText,
    Text,
    TextOrSwitch,
    List,
}

impl Kind {
    fn of(arg: &Arg) -> Self {
        let parsed = arg.get_value_parser().type_id();
        let numbers = [TypeId::of::<u64>(), TypeId::of::<i64>(), TypeId::of::<usize>(), TypeId::of::<f64>()];
        let is_number = numbers.iter().any(|id| parsed == *id);
        match arg.get_action() {
            ArgAction::SetTrue => Self::Switch,
            ArgAction::Append => Self::List,
            _ if is_number => Self::Number,
            _ if parsed == TypeId::of::<Share>() || parsed == TypeId::of::<Scaling>() => Self::NumberOrText,
            _ if arg.get_num_args().is_some_and(|number| number.min_values() == 0) => Self::TextOrSwitch,
            _ => Self::Text,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Switch => "true or false",
            Self::Number => "a number",
            Self::NumberOrText => "a number or a string",
            Self::Text => "a string",
            Self::TextOrSwitch => "a string, true or false",
            Self::List => "a list of strings, or one string",
        }
    }
}

/// The arguments that mean the same as a key with its value.
fn to_arguments(arg: &Arg, key: &str, value: &DeValue<'_>) -> Result<Vec<String>, Diagnostic> {
    let kind = Kind::of(arg);
    let argument = |text: &str| format!("--{key}={text}");
    let wrong = |value: &DeValue<'_>| {
        Diagnostic::new(format!("`{key}` wants {}, not {}", kind.wanted(), describe(value)))
    };
    Ok(match (kind, value) {
        (Kind::Switch | Kind::TextOrSwitch, DeValue::Boolean(true)) => vec![format!("--{key}")],
        (Kind::Switch | Kind::TextOrSwitch, DeValue::Boolean(false)) => vec![],
        (Kind::Number | Kind::NumberOrText, DeValue::Integer(_) | DeValue::Float(_)) => {
            digits(value).iter().map(|digits| argument(digits)).collect()
        }
        (Kind::NumberOrText | Kind::Text | Kind::TextOrSwitch | Kind::List, DeValue::String(text)) => {
            vec![argument(text)]
        }
        (Kind::List, DeValue::Array(items)) => items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::String(text) => Ok(argument(text)),
                DeValue::Table(table) if key == group::KEY => {
                    group::text_of(table).map(|text| argument(&text))
                }
                other => Err(wrong(other)),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong(value)),
    })
}

/// The decimal digits of a number; `None` for another value.
pub(super) fn digits(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::Integer(number) => {
            // A number that does not fit in 128 bits is passed on as it is: its reader refuses it.
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            Some(decimal.map_or_else(|_| number.as_str().to_owned(), |number| number.to_string()))
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

/// A value for an error message.
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {text:?}"),
        DeValue::Integer(number) => format!("the number {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(date) => format!("the date {date}"),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The text of clap's error, in one line and without clap's advice on command lines.
pub(super) fn explain(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidValue => {
            let value = text(ContextKind::InvalidValue);
            format!("`{value}` is not one of {}", text(ContextKind::ValidValue))
        }
        ErrorKind::ValueValidation => {
            std::error::Error::source(error).map_or_else(String::new, ToString::to_string)
        }
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}
