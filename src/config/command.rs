//! Settings as the words of a command line: a command that a shell runs gives the same settings.

use std::path::Path;

use clap::{Arg, FromArgMatches};
use toml::{Table, Value};

use super::Settings;
use super::file::flags;
use super::optimizer::algorithm;
use super::run::Resume;

impl Settings {
    /// Returns the command that compiles a model with these settings. Its flags are in the order of `--help`.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn command(&self, model: &Path) -> Result<String, toml::ser::Error> {
        let own = self.changed()?;
        let mut words =
            vec!["trainyard".to_owned(), "compile".to_owned(), model.to_string_lossy().into_owned()];
        for arg in flags().get_arguments() {
            let key = arg.get_long().unwrap_or_default();
            words.extend(own.get(key).into_iter().flat_map(|value| words_of(arg, key, value)));
        }
        Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
    }

    /// The settings that are not those of a command without flags, under the names of their flags.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub(super) fn changed(&self) -> Result<Table, toml::ser::Error> {
        let (mut own, default) = (self.table()?, Self::defaults().table()?);
        own.retain(|key, value| default.get(key) != Some(value));
        Ok(own)
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

/// The words of a flag with a value: two, unless the flag wants one, or the value alone would be read as a flag.
fn words_of(arg: &Arg, key: &str, value: &Value) -> Vec<String> {
    let text = match value {
        Value::Boolean(is_on) => return is_on.then(|| format!("--{key}")).into_iter().collect(),
        Value::Array(items) => return items.iter().flat_map(|item| words_of(arg, key, item)).collect(),
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    if arg.is_require_equals_set() || text.starts_with('-') {
        vec![format!("--{key}={text}")]
    } else {
        vec![format!("--{key}"), text]
    }
}

/// A word in quotes, if a shell would read more into it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
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
