//! Values of flags: numbers with limits, and the form `NAME[:key=value,…]` that several flags share.

use std::fmt::Display;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Serialize, Serializer};

/// Why the text of a flag or key is not a value for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl ValueError {
    /// An error with this text, which names the value and what would be accepted.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The largest size or count that a flag takes: products of a few of them still fit in 128 bits.
pub const LARGEST_COUNT: u64 = u32::MAX as u64;

/// Parses a number and refuses those outside `[low, high)`, infinities and NaN.
fn number_in(text: &str, low: f64, high: f64) -> Result<f64, ValueError> {
    let range = match (low, high) {
        (f64::NEG_INFINITY, _) => "a finite number".to_owned(),
        (_, f64::INFINITY) => format!("a finite number, {low} or more"),
        _ => format!("a number from {low} to below {high}"),
    };
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && (low..high).contains(&number) => Ok(number),
        _ => Err(ValueError::new(format!("`{text}` is not {range}"))),
    }
}

/// A finite number that is not negative: a learning rate, a decay.
pub(super) fn not_negative(text: &str) -> Result<f64, ValueError> {
    number_in(text, 0.0, f64::INFINITY)
}

/// A number in `[0, 1)`: a momentum, a share.
pub(super) fn below_one(text: &str) -> Result<f64, ValueError> {
    number_in(text, 0.0, 1.0)
}

/// A finite number above zero: a limit, a tolerance, an epsilon.
pub(crate) fn positive(text: &str) -> Result<f64, ValueError> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err(ValueError::new(format!("`{text}` is not a finite number above 0"))),
    }
}

/// A whole number from `low` up to [`LARGEST_COUNT`].
pub(super) fn count_from(low: u64, text: &str) -> Result<u64, ValueError> {
    whole_number(low, LARGEST_COUNT, text)
}

/// A seed: TOML's integers are signed, so it has 63 bits.
pub(super) fn seed(text: &str) -> Result<u64, ValueError> {
    whole_number(0, i64::MAX as u64, text)
}

/// A whole number from `low` to `high`.
pub(super) fn whole_number(low: u64, high: u64, text: &str) -> Result<u64, ValueError> {
    match text.parse::<u64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(ValueError::new(format!("`{text}` is not a whole number from {low} to {high}"))),
    }
}

/// The form `NAME[:key=value,…]`, its settings taken out one by one.
pub(super) struct Spec<'a> {
    /// The text before the colon.
    pub(super) name: &'a str,
    settings: Vec<(&'a str, &'a str)>,
    known: &'a [&'a str],
}

impl<'a> Spec<'a> {
    /// Splits `text` at its colon and commas.
    pub(super) fn parse(text: &'a str) -> Result<Self, ValueError> {
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let mut settings: Vec<(&str, &str)> = Vec::new();
        for item in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let Some((key, value)) = item.split_once('=') else {
                return Err(ValueError::new(format!("`{item}` in `{text}` is not of the form key=value")));
            };
            if settings.iter().any(|(other, _)| *other == key) {
                return Err(ValueError::new(format!("`{key}` is given twice in `{text}`")));
            }
            settings.push((key, value));
        }
        Ok(Self { name, settings, known: &[] })
    }

    /// The keys that [`Self::take`] will ask for: any other is refused.
    pub(super) fn allow(mut self, known: &'a [&'a str]) -> Result<Self, ValueError> {
        self.known = known;
        let Some((key, _)) = self.settings.iter().find(|(key, _)| !known.contains(key)) else {
            return Ok(self);
        };
        let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(ValueError::new(format!("`{}` has no setting `{key}`; it has {has}", self.name)))
    }

    /// The text of `key`, if it is given.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.settings.iter().find(|(other, _)| *other == key).map(|(_, text)| *text)
    }

    /// The value of `key`, read by `parse`, or `default` when it is not given.
    pub(super) fn take<T>(
        &self,
        key: &str,
        default: T,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<T, ValueError> {
        debug_assert!(self.known.contains(&key), "`{key}` is asked for but not allowed");
        match self.settings.iter().find(|(other, _)| *other == key) {
            Some((_, value)) => parse(value).map_err(|error| ValueError::new(format!("{key}: {error}"))),
            None => Ok(default),
        }
    }
}

/// A parser that takes one of the given names and returns its value.
pub(super) fn one_of<T>(choices: &'static [(T, &'static str)]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = choices.iter().map(|(_, name)| *name);
    PossibleValuesParser::new(names).map(move |text| {
        let choice = choices.iter().find(|(_, name)| *name == text);
        choice.expect("clap accepts these names only").0
    })
}

/// The name that stands for a value.
pub(super) fn name_of<T: PartialEq>(choices: &[(T, &'static str)], value: &T) -> &'static str {
    choices.iter().find(|(choice, _)| choice == value).expect("every value has a name").1
}

/// Writes a value to a config file as its name.
pub(super) fn serialize_name<T: PartialEq, S: Serializer>(
    choices: &[(T, &'static str)],
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name_of(choices, value))
}

/// As [`serialize_name`], for a flag that may be left out.
pub(super) fn serialize_optional_name<T: PartialEq, S: Serializer>(
    choices: &[(T, &'static str)],
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(|value| name_of(choices, value)).serialize(serializer)
}

/// Writes a value to a config file as the text that its `FromStr` reads.
pub(super) fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// As [`as_text`], for a flag that may be left out.
pub(super) fn as_optional_text<T: Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

/// As [`as_text`], for a flag that may be repeated.
pub(super) fn as_texts<T: Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

/// The error for a name that is none of `names`.
pub(super) fn unknown_name(what: &str, name: &str, names: &[&str]) -> ValueError {
    ValueError::new(format!("`{name}` is not a {what}; there are {}", names.join(", ")))
}

/// Writes a type to a config file as the text its `FromStr` reads.
macro_rules! serialize_as_text {
    ($($name:ty),+ $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}
pub(super) use serialize_as_text;
