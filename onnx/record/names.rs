//! Names: whether the author gave a tensor its name, according to its form, and the forms of names that exporters make up.

/// Whether a name has the form of an author's name: the path of an attribute in Python, such as `layers.0.weight`.
pub(crate) fn is_author_name(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    let starts = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    starts && !is_generated(name) && name.split('.').all(is_part)
}

/// Whether a name has the form of a result of the trace: `sub_1`.
pub(crate) fn is_result(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && !is_generated(name)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a name is one that the trace gives to the result of an operator that creates a tensor from numbers.
pub(crate) fn is_created(name: &str) -> bool {
    let operator = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    let operator = operator.strip_prefix("new_").unwrap_or(operator);
    let operator =
        ["_like", "_default"].iter().fold(operator, |name, end| name.strip_suffix(end).unwrap_or(name));
    matches!(operator, "zeros" | "ones" | "full" | "empty" | "eye" | "arange" | "linspace" | "scalar_tensor")
}

/// Whether the legacy exporter gives such a name to the transposed weight of a layer, or to the operand of an exponential.
pub(crate) fn is_folded_weight(name: &str) -> bool {
    ["onnx::MatMul_", "onnx::Gemm_", "onnx::Exp_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a name was made up by an exporter.
pub(crate) fn is_generated(name: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix("val_").is_some_and(digits) || name.starts_with("onnx::") || digits(name)
}

/// Whether a name is one that the trace gives to the result of a transposition: `t`, `permute_3`.
pub(super) fn is_transposition(name: &str) -> bool {
    ["t", "permute", "transpose"].iter().any(|operator| {
        let number = name.strip_prefix(operator).map(|rest| rest.strip_prefix('_').unwrap_or(rest));
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    })
}

/// The key of a node's metadata with the modules whose forward functions led to its call.
pub(crate) const SCOPES_KEY: &str = "pkg.torch.onnx.name_scopes";

/// Returns the innermost module of a list such as `['', 'm', 'm.layers.0', 'linear']`, whose last entry is the call.
pub(crate) fn innermost_module(scopes: &str) -> Option<&str> {
    let inner = scopes.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut names = inner.split(',').map(|name| name.trim().trim_matches(['\'', '"'])).rev();
    names.next()?;
    names.find(|name| !name.is_empty())
}

/// Returns the module path in a name that the legacy exporter gave to a node.
pub(crate) fn legacy_module_path(name: &str) -> Option<String> {
    // `/transformer/h.0/mlp/c_fc/MatMul`: the last part is the operator.
    let path = name.strip_prefix('/')?.rsplit_once('/')?.0;
    (!path.is_empty()).then(|| legacy_path(path))
}

/// Returns a path without the repetitions that the legacy exporter writes for lists of modules: `/net/net.0` is `net.0`.
fn legacy_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        let repeats = parts
            .last()
            .is_some_and(|last| part.strip_prefix(last).is_some_and(|rest| rest.starts_with('.')));
        if repeats {
            parts.pop();
        }
        parts.push(part);
    }
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_legacy_names_give_the_module() {
        let scopes = "['', 'm', 'm.model.layers.0.self_attn.q_proj', 'linear']";
        assert_eq!(innermost_module(scopes), Some("m.model.layers.0.self_attn.q_proj"));
        assert_eq!(legacy_path("m/net/net.0"), "m.net.0");
        assert_eq!(legacy_path("transformer/h.0/mlp/c_fc"), "transformer.h.0.mlp.c_fc");
        assert!(is_generated("onnx::MatMul_596") && is_generated("val_110") && !is_generated("value"));
    }
}
