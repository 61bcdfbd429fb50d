//! Escaping of text from files before it is printed. Characters that control a terminal, or that hide or reorder the text beside
//! them, become escapes.
//!
//! Names in a model, a table or a checkpoint are chosen by the author of the file. [`Diagnostic`](crate::Diagnostic) escapes its
//! own parts; all other code passes names through [`visible`] before printing them. Letters of every script stay.

use std::borrow::Cow;

/// Whether a character is escaped: control characters, line breaks of every kind, and the marks and overrides that change the
/// direction of text (Unicode's property `Bidi_Control`).
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' // line and paragraph separators
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Returns the text on one line, with hidden characters as Rust escapes: `\n`, `\u{1b}`, `\u{202e}`. Text that was already escaped
/// stays unchanged.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            hidden if is_hidden(hidden) => visible.extend(hidden.escape_default()),
            shown => visible.push(shown),
        }
    }
    Cow::Owned(visible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_steer_a_terminal_are_escaped() {
        assert_eq!(visible("a\x1b[2J\nb\r\t\u{9b}\u{7f}\0"), r"a\u{1b}[2J\nb\r\t\u{9b}\u{7f}\u{0}");
    }

    #[test]
    fn characters_that_reorder_text_are_escaped() {
        assert_eq!(visible("\u{202e}gpj\u{2066}.exe\u{200f}"), r"\u{202e}gpj\u{2066}.exe\u{200f}");
        assert_eq!(visible("a\u{2028}b\u{2029}"), r"a\u{2028}b\u{2029}");
    }

    #[test]
    fn letters_of_every_script_stay() {
        let text = "Größe, 重み, веса, وزن, עברית, می‌خواهم, 👩‍💻 `x\\n`";
        assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn escaped_text_is_not_escaped_again() {
        let once = visible("a\n\u{202e}").into_owned();
        assert_eq!(visible(&once), once);
    }
}
