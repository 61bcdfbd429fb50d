//! `--group PATTERN:lr=FACTOR,weight-decay=X`, and the table `[[group]]` of a config file, which says the same.

use ir::Diagnostic;
use toml::de::{DeTable, DeValue};

use crate::config::file::{describe, digits};
use crate::config::nearest::nearest;

/// The name of the flag and of the table.
pub(in crate::config) const KEY: &str = "group";

const PATTERN: &str = "pattern";
const SETTINGS: [&str; 2] = ["lr", "weight-decay"];

/// The value of the flag that means the same as a table. Errors: keys that are missing or that a group does not have; values of the wrong
/// type.
pub(in crate::config) fn text_of(table: &DeTable<'_>) -> Result<String, Diagnostic> {
    let known = || std::iter::once(PATTERN).chain(SETTINGS);
    if let Some((key, _)) = table.iter().find(|(key, _)| !known().any(|known| known == &**key.get_ref())) {
        let near = nearest(key.get_ref(), known()).unwrap_or_default();
        let error = Diagnostic::new(format!("a group has no key `{}`", key.get_ref()));
        return Err(error.note(format!("it has pattern, lr and weight-decay; the nearest is `{near}`")));
    }
    let wrong = |key: &str, wanted: &str, value: &DeValue<'_>| {
        Diagnostic::new(format!("`{key}` of a group must be {wanted}, not {}", describe(value)))
    };
    let pattern = match table.get(PATTERN).map(|value| value.get_ref()) {
        Some(DeValue::String(pattern)) => pattern,
        Some(other) => return Err(wrong(PATTERN, "a string", other)),
        None => {
            return Err(Diagnostic::new("a group has no `pattern`")
                .note("`pattern` selects parameters by their names: pattern = '*.bias'"));
        }
    };
    let mut settings = Vec::new();
    for key in SETTINGS {
        if let Some(value) = table.get(key) {
            let number = digits(value.get_ref()).ok_or_else(|| wrong(key, "a number", value.get_ref()))?;
            settings.push(format!("{key}={number}"));
        }
    }
    if settings.is_empty() {
        return Err(Diagnostic::new(format!("the group `{pattern}` sets nothing"))
            .note("give the group lr (a factor on --lr) or weight-decay"));
    }
    Ok(format!("{pattern}:{}", settings.join(",")))
}
