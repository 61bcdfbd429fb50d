//! Settings as the words of a command line: a command that a shell runs gives the same settings.

use std::path::Path;

use clap::{Arg, FromArgMatches};
use toml::de::DeTable;
use toml::{Table, Value};

use super::Settings;
use super::file::{flags, to_arguments};
use super::optimizer::algorithm;
use super::run::Resume;

impl Settings {
    /// Returns the command that compiles a model with these settings.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn command(&self, model: &Path) -> Result<String, toml::ser::Error> {
        let flags = self.flags_beside(&Self::defaults())?;
        Ok(["trainyard compile ", &quoted(&model.to_string_lossy()), " ", &flags]
            .concat()
            .trim_end()
            .to_owned())
    }

    /// Returns the flags by which these settings differ from other ones, in the order of `--help`, for a shell.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn flags_beside(&self, other: &Self) -> Result<String, toml::ser::Error> {
        let (own, other) = (self.table()?, other.table()?);
        let mut words = vec![];
        for arg in flags().get_arguments() {
            let key = arg.get_long().unwrap_or_default();
            if let Some(value) = own.get(key).filter(|value| other.get(key) != Some(*value)) {
                words.extend(words_of(arg, key, value)?);
            }
        }
        Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
    }

    /// The settings of a command without flags.
    fn defaults() -> Self {
        let matches = flags().get_matches_from::<_, &str>([]);
        Self::from_arg_matches(&matches).expect("each flag has a default or is optional")
    }

    /// All settings under the names of their flags, with those of one call, which a `config.toml` leaves out.
    fn table(&self) -> Result<Table, toml::ser::Error> {
        let mut table = Table::try_from(self)?;
        table.extend(Table::try_from(&self.look)?);
        table.extend(Table::try_from(&self.out)?);
        let resume = self.run.resume.as_ref().map(|resume| match resume {
            Resume::Output => true.into(),
            Resume::Folder(folder) => Value::from(folder.to_string_lossy().into_owned()),
        });
        table.extend(resume.map(|resume| ("resume".to_owned(), resume)));
        table.insert("profile".into(), self.run.profile.into());
        table.insert("optimizer".into(), algorithm::short(self.compile.optimizer.optimizer).into());
        Ok(table)
    }
}

/// The words of a flag with a value.
fn words_of(arg: &Arg, key: &str, value: &Value) -> Result<Vec<String>, toml::ser::Error> {
    let text = toml::to_string(&Table::from_iter([(key.to_owned(), value.clone())]))?;
    let table = DeTable::parse(&text).expect("TOML that was just written is TOML");
    let value = table.get_ref().get(key).expect("the table has this key").get_ref();
    let arguments = to_arguments(arg, key, value).expect("a flag has a value of its own type");
    Ok(arguments.into_iter().flat_map(|argument| apart(arg, argument)).collect())
}

/// The words of `--key=value`: two, unless the flag wants one, or the value alone would be read as a flag.
fn apart(arg: &Arg, argument: String) -> Vec<String> {
    match argument.split_once('=') {
        Some((flag, value)) if !arg.is_require_equals_set() && !value.starts_with('-') => {
            vec![flag.to_owned(), value.to_owned()]
        }
        _ => vec![argument],
    }
}

/// A word in quotes, if a shell would read more into it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:@%+".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        let quote = |words: &[&str]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        assert_eq!(quote(&["--shard", "*.weight=tp,-"]), "--shard '*.weight=tp,-'");
        assert_eq!(quote(&["it's", ""]), r"'it'\''s' ''");
    }
}
