//! A file read against the table of keys: the values of honoured keys, checked and with their places.

use std::collections::BTreeMap;

use ir::Diagnostic;

use super::super::json_file::{Json, Member};
use super::super::nearest::nearest;
use super::super::text_file::TextFile;
use super::keys::{self, Key, Kind, Meaning};
use super::notes::Notes;

/// The honoured keys that a file gives, `auto` and `null` left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    leaves: BTreeMap<&'static str, Leaf>,
    /// Whether a key at the top of the file is PatrickStar's own.
    pub(super) is_patrickstar: bool,
    /// Whether the value `auto` stands at these keys.
    automatic: Vec<&'static str>,
}

/// The value of a key.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) path: &'static str,
    value: Value,
    /// The place in the file, as `FILE:LINE`.
    pub(super) place: String,
}

/// A value, checked.
#[derive(Clone, Debug)]
enum Value {
    Switch(bool),
    Count(u64),
    /// The digits as they stand in the file.
    Number(String),
    Numbers(Vec<String>),
    Text(String),
    /// A value that nobody reads.
    Unread,
}

/// PatrickStar's own keys at the top of a file.
const PATRICKSTAR: [&str; 5] =
    ["default_chunk_size", "release_after_init", "use_cpu_embedding", "use_fake_dist", "client"];

impl Document {
    /// Reads a file. Keys that are not honoured go to the notes.
    ///
    /// # Errors
    /// Text that is not a JSON object; else every value of the wrong type, with its line.
    pub(super) fn read(file: &TextFile, notes: &mut Notes) -> Result<Self, Vec<Diagnostic>> {
        let members = file.object().map_err(|error| vec![error])?;
        let is_own = |member: &Member| PATRICKSTAR.contains(&member.key.as_str());
        let is_patrickstar = members.iter().any(is_own);
        let document = Self { is_patrickstar, ..Self::default() };
        let mut reader = Reader { file, document, notes, errors: vec![] };
        reader.section("", &members);
        if reader.errors.is_empty() { Ok(reader.document) } else { Err(reader.errors) }
    }

    /// The value of a key of the table, if the file gives one.
    pub(super) fn leaf(&self, path: &str) -> Option<&Leaf> {
        debug_assert!(keys::find(path).is_some(), "`{path}` is no key of the table");
        self.leaves.get(path)
    }

    /// A whole number.
    pub(super) fn count(&self, path: &str) -> Option<u64> {
        self.leaf(path)?.count()
    }

    /// The digits of a number.
    pub(super) fn digits(&self, path: &str) -> Option<&str> {
        self.leaf(path)?.digits()
    }

    /// A number.
    pub(super) fn number(&self, path: &str) -> Option<f64> {
        self.digits(path)?.parse().ok()
    }

    /// A string.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.leaf(path)?.text()
    }

    /// Whether a key is `true`.
    pub(super) fn is_on(&self, path: &str) -> bool {
        self.leaf(path).is_some_and(|leaf| matches!(leaf.value, Value::Switch(true)))
    }

    /// Whether a key is `false`.
    pub(super) fn is_off(&self, path: &str) -> bool {
        self.leaf(path).is_some_and(|leaf| matches!(leaf.value, Value::Switch(false)))
    }

    /// Whether a key is `auto`.
    pub(super) fn is_automatic(&self, path: &str) -> bool {
        self.automatic.contains(&path)
    }

    /// The values of all keys, sorted by their paths.
    pub(super) fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.values()
    }
}

impl Leaf {
    pub(super) fn count(&self) -> Option<u64> {
        if let Value::Count(count) = self.value { Some(count) } else { None }
    }

    pub(super) fn digits(&self) -> Option<&str> {
        if let Value::Number(digits) = &self.value { Some(digits) } else { None }
    }

    pub(super) fn numbers(&self) -> &[String] {
        if let Value::Numbers(numbers) = &self.value { numbers } else { &[] }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The value of a key that means the same as a flag, as the flag takes it; `None` for a switch that is off.
    pub(super) fn argument(&self, flag: &str) -> Option<String> {
        match &self.value {
            Value::Switch(false) | Value::Unread => None,
            Value::Switch(true) => Some(format!("--{flag}")),
            Value::Count(count) => Some(format!("--{flag}={count}")),
            Value::Number(text) | Value::Text(text) => Some(format!("--{flag}={text}")),
            Value::Numbers(numbers) => Some(format!("--{flag}={}", numbers.join(","))),
        }
    }
}

/// Reads sections.
struct Reader<'a> {
    file: &'a TextFile,
    document: Document,
    notes: &'a mut Notes,
    errors: Vec<Diagnostic>,
}

impl Reader<'_> {
    /// Reads the keys of a section. `path` is that of the section, empty for the top.
    fn section(&mut self, path: &str, members: &[Member]) {
        for member in members {
            let below = match path {
                "" => member.key.clone(),
                _ => format!("{path}.{}", member.key),
            };
            match self.file.json(member.value) {
                Ok(value) => self.member(path, &below, member, &value),
                Err(error) => self.errors.push(error),
            }
        }
    }

    fn member(&mut self, section: &str, path: &str, member: &Member, value: &Json) {
        // A dot in a name would make it look like a path.
        let is_name = !member.key.contains('.');
        let is_section = is_name && keys::is_section(path);
        let key = keys::find(path).filter(|_| is_name);
        match (value, key) {
            (Json::Object(members), _) if is_section => self.section(path, members),
            (_, Some(key)) => self.key(key, member, value),
            (_, None) if is_section && keys::is_off(value) => {}
            (_, None) if is_section => {
                let message = format!("`{path}` wants an object, not {}", value.described());
                self.errors.push(Diagnostic::new(message).at(self.file.place(member.value)));
            }
            (_, None) => {
                let reason = match nearest(&member.key, keys::names_in(section)) {
                    Some(near) => format!("unknown; the nearest known key is `{near}`"),
                    None => "unknown".to_owned(),
                };
                self.notes.drop_key(path, reason);
            }
        }
    }

    fn key(&mut self, key: &'static Key, member: &Member, value: &Json) {
        let is_automatic = matches!(value, Json::Text(text) if text == "auto");
        match key.meaning {
            Meaning::Dropped(_) | Meaning::Asks(..) if keys::is_off(value) => {}
            Meaning::Dropped(reason) => self.notes.drop_key(&key.path, reason),
            Meaning::Always(expected, _) if is_automatic || is_value(value, expected) => {}
            Meaning::Always(_, reason) => {
                self.notes.drop_key(format!("{} {}", key.path, short(value)), reason);
            }
            Meaning::Asks(_, reason) => {
                self.notes.drop_key(&key.path, reason);
                self.keep(key, Value::Unread, member);
            }
            Meaning::Same(_) | Meaning::Part(_) if matches!(value, Json::Null) => {}
            Meaning::Same(_) | Meaning::Part(_) if is_automatic => {
                self.notes.leave_key(&key.path);
                self.document.automatic.push(&key.path);
            }
            Meaning::Same(_) | Meaning::Part(_) => match self.checked(key.kind, value) {
                Some(checked) => self.keep(key, checked, member),
                None => {
                    let message =
                        format!("`{}` wants {}, not {}", key.path, key.kind.wants(), value.described());
                    self.errors.push(Diagnostic::new(message).at(self.file.place(member.value)));
                }
            },
        }
    }

    fn keep(&mut self, key: &'static Key, value: Value, member: &Member) {
        let leaf = Leaf { path: &key.path, value, place: self.file.place(member.value) };
        self.document.leaves.insert(&key.path, leaf);
    }

    /// The value, if it is of the kind.
    fn checked(&self, kind: Kind, value: &Json) -> Option<Value> {
        match (kind, value) {
            (Kind::Switch, Json::Switch(value)) => Some(Value::Switch(*value)),
            (Kind::Count, Json::Number(digits)) => whole(digits).map(Value::Count),
            (Kind::Size, Json::Number(digits)) => {
                whole(digits).filter(|number| *number > 0).map(Value::Count)
            }
            (Kind::Number, Json::Number(digits)) => Some(Value::Number((*digits).to_owned())),
            (Kind::Numbers, Json::List(items)) => {
                let number = |item: &_| match self.file.json(item) {
                    Ok(Json::Number(digits)) => Some(digits.to_owned()),
                    _ => None,
                };
                items.iter().map(|item| number(*item)).collect::<Option<_>>().map(Value::Numbers)
            }
            (Kind::Text, Json::Text(text)) => Some(Value::Text(text.clone())),
            (Kind::Any, _) => Some(Value::Unread),
            _ => None,
        }
    }
}

/// Returns a whole number, which may be written as `5e8`. `None` for any other text.
fn whole(digits: &str) -> Option<u64> {
    let exact = |number: &f64| number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(number);
    digits.parse().ok().or_else(|| digits.parse::<f64>().ok().filter(exact).map(|number| number as u64))
}

/// Returns whether a value equals the text `expected`.
fn is_value(value: &Json, expected: &str) -> bool {
    match value {
        Json::Null => true,
        Json::Switch(value) => value.to_string() == expected,
        Json::Text(text) => text.eq_ignore_ascii_case(expected),
        Json::Number(digits) => match (digits.parse::<f64>(), expected.parse::<f64>()) {
            (Ok(number), Ok(expected)) => number == expected,
            _ => false,
        },
        Json::List(_) | Json::Object(_) => false,
    }
}

/// A value for a note.
fn short(value: &Json) -> String {
    match value {
        Json::Number(digits) => (*digits).to_owned(),
        Json::Text(text) => format!("{text:?}"),
        _ => value.described(),
    }
}
