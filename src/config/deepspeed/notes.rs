//! The notes on a config: the flags that it became, and every key that is not honoured, with the reason.

use std::fmt;

use ir::visible;

/// The notes on a config, for the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The name of the file.
    name: String,
    /// The arguments that the file became, without those that the command line overrules.
    arguments: Vec<String>,
    /// Keys that are not honoured, each with the reason, in the order in which they were found.
    dropped: Vec<(String, String)>,
    /// Honoured keys with the value `auto`.
    automatic: Vec<String>,
}

impl Notes {
    /// No notes on a file yet.
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// A key is not honoured.
    pub(super) fn drop_key(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.dropped.push((path.into(), reason.into()));
    }

    /// Removes the notes on the keys of a section that is off.
    pub(super) fn forget_section(&mut self, section: &str) {
        self.dropped
            .retain(|(path, _)| path.strip_prefix(section).is_none_or(|below| !below.starts_with('.')));
    }

    /// A key leaves the choice to the program.
    pub(super) fn leave_key(&mut self, path: &str) {
        self.automatic.push(path.to_owned());
    }

    /// The notes on a file that became these arguments.
    pub(in crate::config) fn beside(self, arguments: &[String]) -> Self {
        Self { arguments: arguments.to_vec(), ..self }
    }
}

/// The values of each key, in the order in which the keys come up first.
pub(super) fn grouped<K: PartialEq, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = vec![];
    for (key, value) in pairs {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

impl fmt::Display for Notes {
    /// One line with the flags, one for each reason with its keys, and one with the keys that are `auto`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = visible(&self.name);
        let arguments = if self.arguments.is_empty() { "no flag".into() } else { self.arguments.join(" ") };
        writeln!(f, "{name} stands for {}", visible(&arguments))?;
        if !self.dropped.is_empty() {
            writeln!(f, "{name} has keys that are not honoured:")?;
        }
        for (reason, paths) in grouped(self.dropped.iter().map(|(path, reason)| (reason, path.as_str()))) {
            writeln!(f, "  {}: {}", visible(&paths.join(", ")), visible(reason))?;
        }
        if !self.automatic.is_empty() {
            let paths = self.automatic.join(", ");
            writeln!(f, "{name} leaves to flags and their defaults (auto): {}", visible(&paths))?;
        }
        Ok(())
    }
}
