//! Operators of the domain `trainyard`: one node for each node of the program, with its attributes.
//!
//! Integers, bools, numbers and lists become attributes of these types. A number that is not exactly an f32, and every other
//! attribute, becomes text, as in the text of the program.

use super::Form;
use super::attribute;
use super::draft::Draft;
use super::operators::Results;
use crate::proto::AttributeProto;
use ir::{Diagnostic, Node};

/// The domain of the compiler's own operators.
pub(super) const DOMAIN: &str = "trainyard";

/// Writes a node of the program as a node of the domain `trainyard`.
///
/// # Errors
/// The form allows only standard operators.
pub(super) fn write(draft: &mut Draft, node: &Node) -> Results {
    if draft.form != Form::Program {
        let error = Diagnostic::new(format!("ONNX has no form of the operator `{}`", node.op.name()));
        let note = "a model can have only operators of a forward pass on one device";
        return Err(error.at(node.origin.to_string()).note(note));
    }
    let inputs = draft.operands(node)?;
    let attributes = node.op.attributes().iter().map(|(name, text)| typed(name, text)).collect();
    let outputs = draft.push_own(node.op.name(), &inputs, node.results.len(), attributes);
    Ok(outputs.into_iter().map(Some).collect())
}

/// Makes an attribute from its text in a program.
fn typed(name: &str, text: &str) -> AttributeProto {
    if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let words: Vec<&str> = inner.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let numbers: Result<Vec<i64>, _> = words.iter().map(|word| word.parse()).collect();
        return match numbers {
            Ok(numbers) => attribute::ints(name, numbers),
            Err(_) => attribute::texts(name, words),
        };
    }
    let number = || attribute::exact(text.parse().ok()?);
    match (text, text.parse::<i64>(), number()) {
        ("true" | "false", ..) => attribute::flag(name, text == "true"),
        (_, Ok(number), _) => attribute::int(name, number),
        (_, _, Some(number)) => attribute::float(name, number),
        _ => attribute::text(name, text),
    }
}

#[cfg(test)]
mod tests {
    use super::typed;
    use crate::program::attribute;

    #[test]
    fn an_attribute_has_the_type_of_its_text() {
        assert_eq!(typed("a", "true"), attribute::flag("a", true));
        assert_eq!(typed("a", "-3"), attribute::int("a", -3));
        assert_eq!(typed("a", "0.1"), attribute::float("a", 0.1));
        assert_eq!(typed("a", "0.3333333333333333"), attribute::text("a", "0.3333333333333333"));
        assert_eq!(typed("a", "[1, 2]"), attribute::ints("a", [1, 2]));
        assert_eq!(typed("a", "[k3s2d1p0.1]"), attribute::texts("a", ["k3s2d1p0.1"]));
        assert_eq!(typed("a", "bsh"), attribute::text("a", "bsh"));
    }
}
