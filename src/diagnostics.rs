//! Diagnostics as text for a person.

use std::fmt::Write as _;

use ir::{Diagnostic, visible};

/// The word before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The command stops.
    Error,
    /// The command goes on.
    Warning,
}

/// Diagnostics as text, an empty line between two. Every part is one line: hidden characters, which a hostile file's
/// names may have, are escaped.
pub fn render(severity: Severity, diagnostics: &[Diagnostic], coloured: bool) -> String {
    let paint = |code: &str, text: &str| {
        if coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    };
    let heading = match severity {
        Severity::Error => paint("1;31", "error:"),
        Severity::Warning => paint("1;33", "warning:"),
    };
    let mut text = String::new();
    for (index, diagnostic) in diagnostics.iter().enumerate() {
        let gap = if index > 0 { "\n" } else { "" };
        let _ = writeln!(text, "{gap}{heading} {}", visible(diagnostic.message.trim_end()));
        if let Some(origin) = &diagnostic.origin {
            let _ = writeln!(text, "  {} {}", paint("34", "-->"), visible(origin));
        }
        for note in &diagnostic.notes {
            let _ = writeln!(text, "  {} {}", paint("34", "="), visible(note.trim_end()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_diagnostic_says_what_where_and_what_to_do() {
        let diagnostic = Diagnostic::new("cannot bind dim `batch` to 3")
            .at("gpt2.onnx, node \"/h.0/attn\" (Reshape, opset 20)")
            .note("it is 2 in the file");
        expect![[r#"
            error: cannot bind dim `batch` to 3
              --> gpt2.onnx, node "/h.0/attn" (Reshape, opset 20)
              = it is 2 in the file

            error: another
        "#]]
        .assert_eq(&render(Severity::Error, &[diagnostic, Diagnostic::new("another")], false));
    }

    #[test]
    fn a_hostile_name_cannot_steer_the_terminal() {
        let diagnostic = Diagnostic::new("no operator `\x1b[2J\x07`").note("two\nlines, and \u{202e}back");
        expect![[r"
            warning: no operator `\u{1b}[2J\u{7}`
              = two\nlines, and \u{202e}back
        "]]
        .assert_eq(&render(Severity::Warning, &[diagnostic], false));
    }
}
