//! The messages of attributes.

use crate::proto::{AttributeProto, AttributeType, TensorProto};
use bytes::Bytes;

fn named(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(kind as i32), ..AttributeProto::default() }
}

/// Makes an integer attribute.
pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..named(name, AttributeType::Int) }
}

/// Makes an attribute from a bool, which is an integer in ONNX.
pub(super) fn flag(name: &str, value: bool) -> AttributeProto {
    int(name, i64::from(value))
}

/// Makes a float attribute.
pub(super) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..named(name, AttributeType::Float) }
}

/// Makes an attribute with a list of integers.
pub(super) fn ints(name: &str, values: impl IntoIterator<Item = i64>) -> AttributeProto {
    AttributeProto { ints: values.into_iter().collect(), ..named(name, AttributeType::Ints) }
}

/// Makes a text attribute.
pub(super) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(Bytes::copy_from_slice(value.as_bytes())), ..named(name, AttributeType::String) }
}

/// Makes an attribute with a list of texts.
pub(super) fn texts<'t>(name: &str, values: impl IntoIterator<Item = &'t str>) -> AttributeProto {
    let strings = values.into_iter().map(|value| Bytes::copy_from_slice(value.as_bytes())).collect();
    AttributeProto { strings, ..named(name, AttributeType::Strings) }
}

/// Makes a tensor attribute.
pub(super) fn tensor(name: &str, value: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(Box::new(value)), ..named(name, AttributeType::Tensor) }
}

/// Returns the f32 whose shortest decimal is this number, as the import reads attributes; `None` if there is none.
pub(super) fn exact(value: f64) -> Option<f32> {
    let rounded = value as f32;
    (rounded.to_string().parse() == Ok(value)).then_some(rounded)
}

#[cfg(test)]
mod tests {
    use super::exact;

    #[test]
    fn a_number_is_exact_if_the_import_reads_the_same() {
        for number in [1e-5, 0.1, 0.125, 1e-12, 3.0, f64::INFINITY] {
            assert_eq!(exact(number), Some(number as f32), "{number}");
        }
        for number in [1.0 / 3.0, f64::from(0.1f32), 1e300] {
            assert_eq!(exact(number), None, "{number}");
        }
    }
}
