//! JSON files: values that know their place in the text.
//!
//! A value stays text until a caller asks for it. So a number keeps its digits, and nothing recurses into a value that nobody reads.

use std::collections::BTreeSet;
use std::fmt;

use ir::Diagnostic;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::text_file::TextFile;

/// A value, whose parts are still text.
#[derive(Clone, Debug)]
pub(super) enum Json<'a> {
    Null,
    Switch(bool),
    /// The digits as they stand in the file.
    Number(&'a str),
    Text(String),
    List(Vec<&'a RawValue>),
    Object(Vec<Member<'a>>),
}

/// A key of an object with its value.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    pub(super) key: String,
    pub(super) value: &'a RawValue,
}

impl TextFile {
    /// The members of the object that the file holds, in their order.
    ///
    /// # Errors
    /// Text that is not JSON, or not an object; a key that occurs twice.
    pub(super) fn object(&self) -> Result<Vec<Member<'_>>, Diagnostic> {
        let whole: &RawValue = serde_json::from_str(self.text()).map_err(|error| {
            let place = format!("{}:{}:{}", self.name(), error.line(), error.column());
            not_json(&error).at(place)
        })?;
        match self.json(whole)? {
            Json::Object(members) => Ok(members),
            other => {
                let error =
                    Diagnostic::new(format!("a config in JSON is an object, not {}", other.described()));
                Err(error.at(self.place(whole)))
            }
        }
    }

    /// A value of this file.
    ///
    /// # Errors
    /// A string that is not valid Unicode; an object with a key that occurs twice.
    pub(super) fn json<'a>(&self, raw: &'a RawValue) -> Result<Json<'a>, Diagnostic> {
        let text = raw.get();
        let read = match text.as_bytes().first() {
            Some(b'n') => Ok(Json::Null),
            Some(b't') => Ok(Json::Switch(true)),
            Some(b'f') => Ok(Json::Switch(false)),
            Some(b'"') => serde_json::from_str(text).map(Json::Text),
            Some(b'[') => serde_json::from_str(text).map(Json::List),
            Some(b'{') => serde_json::from_str(text).map(|Members(members)| Json::Object(members)),
            _ => Ok(Json::Number(text)),
        };
        let json = read.map_err(|error| not_json(&error).at(self.place(raw)))?;
        if let Json::Object(members) = &json {
            let mut seen = BTreeSet::new();
            if let Some(twice) = members.iter().find(|member| !seen.insert(&member.key)) {
                let error = Diagnostic::new(format!("the key `{}` is given twice", twice.key));
                return Err(error.at(self.place(twice.value)).note("remove one of them"));
            }
        }
        Ok(json)
    }

    /// The line of a value of this file, as `FILE:LINE`.
    pub(super) fn place(&self, raw: &RawValue) -> String {
        // Values are parts of the text: the distance of their first bytes is the offset.
        let offset = (raw.get().as_ptr() as usize).saturating_sub(self.text().as_ptr() as usize);
        self.line(offset)
    }
}

impl Json<'_> {
    /// A value for an error message.
    pub(super) fn described(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Switch(value) => value.to_string(),
            Self::Number(digits) => format!("the number {digits}"),
            Self::Text(text) => format!("the string {text:?}"),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// The error of the parser, without the place that its text ends with.
fn not_json(error: &serde_json::Error) -> Diagnostic {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default();
    Diagnostic::new(format!("not JSON: {reason}")).note(
        "DeepSpeed itself also takes Hjson: here, comments and commas before a closing bracket are errors",
    )
}

/// The members of an object, in their order.
struct Members<'a>(Vec<Member<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = vec![];
                while let Some((key, value)) = map.next_entry()? {
                    members.push(Member { key, value });
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        TextFile::new("ds.json", text).object().expect_err(text).to_string()
    }

    #[test]
    fn a_value_knows_its_line_and_keeps_its_digits() {
        let file = TextFile::new("ds.json", "{\"a\": 1,\n \"b\": {\"c\": 3.10e-05}}");
        let members = file.object().expect("it is an object");
        let Ok(Json::Object(inner)) = file.json(members[1].value) else { panic!("{members:?}") };
        assert_eq!(file.place(inner[0].value), "ds.json:2");
        assert!(matches!(file.json(inner[0].value), Ok(Json::Number("3.10e-05"))));
    }

    #[test]
    fn faults_are_told_with_their_place() {
        assert!(error("{\n\"a\": 1,\n}").contains("ds.json:3:1"), "{}", error("{\n\"a\": 1,\n}"));
        assert!(error("[1]").contains("an object, not a list"));
        assert!(error("{\"a\": 1, \"a\": 2}").contains("`a` is given twice"));
        assert!(error("{\"\\ud800\": 1}").contains("not JSON"));
    }

    #[test]
    fn depth_costs_no_stack() {
        let text = format!("{{\"a\": {}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        let file = TextFile::new("ds.json", text);
        let members = file.object().expect("it is an object");
        assert!(matches!(file.json(members[0].value), Ok(Json::List(items)) if items.len() == 1));
    }
}
