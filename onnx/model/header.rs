//! The checks of a model's header: format version, operator sets, and ignored parts.

use std::collections::BTreeMap;

use crate::error::{Problem, Problems, quoted};
use crate::proto::{ModelProto, OperatorSetIdProto};

/// The oldest and newest supported version of the format.
pub(super) const IR_VERSIONS: (i64, i64) = (3, 14);
/// The oldest and newest supported operator set of `ai.onnx`.
pub(super) const OPSETS: (i64, i64) = (5, 28);

/// Operator sets by domain. `ai.onnx` is the empty domain.
pub(super) type Imports = BTreeMap<String, i64>;

/// The domain of ONNX Runtime's own operators. It has only one version, which also applies to files that do not import it.
const MICROSOFT: &str = "com.microsoft";

/// Returns the version of a domain that a file imports, or the only version that the domain has.
pub(super) fn version(imports: &Imports, domain: &str) -> Option<i64> {
    imports.get(domain).copied().or((domain == MICROSOFT).then_some(1))
}

/// Returns the canonical spelling of a domain.
pub(super) fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Checks the format version.
pub(super) fn check_ir_version(model: &ModelProto, problems: &mut Problems) -> i64 {
    let (oldest, newest) = IR_VERSIONS;
    match model.ir_version {
        Some(version) if (oldest..=newest).contains(&version) => version,
        Some(version) => {
            let side = if version < oldest { "older" } else { "newer" };
            let message = format!(
                "the file has ONNX IR version {version}, which is {side} than the supported versions \
                 {oldest} to {newest}"
            );
            problems.push(
                Problem::new(message).note("export the model again with another version of the exporter"),
            );
            version
        }
        None => {
            problems.push(Problem::new("the file has no ONNX IR version, so it is not an ONNX model"));
            0
        }
    }
}

/// Returns the operator sets that a model or a function imports; `place` names it in errors.
pub(super) fn imports(entries: &[OperatorSetIdProto], place: &str, problems: &mut Problems) -> Imports {
    let mut imports = Imports::new();
    for entry in entries {
        let domain = canonical_domain(entry.domain.as_deref().unwrap_or_default());
        let version = entry.version.unwrap_or(0);
        let shown = if domain.is_empty() { "ai.onnx".to_owned() } else { quoted(domain) };
        let (oldest, newest) = OPSETS;
        if domain.is_empty() && !(oldest..=newest).contains(&version) {
            let message =
                format!("opset {version} of ai.onnx is outside the supported range {oldest} to {newest}");
            let note = "convert the model with onnx.version_converter.convert_version, or export it again with a \
                 supported opset";
            problems.push(Problem::new(message).at(place).note(note));
        }
        if imports.insert(domain.to_owned(), version).is_some_and(|other| other != version) {
            problems
                .push(Problem::new(format!("opset {shown} is imported in two different versions")).at(place));
        }
    }
    imports
}

/// Returns warnings about ignored parts of the model.
pub(super) fn warnings(model: &ModelProto) -> Vec<Problem> {
    let mut warnings = Vec::new();
    if !model.training_info.is_empty() {
        let message = "the training steps in the file (training_info) are ignored";
        warnings.push(Problem::new(message).note("the loss and the optimizer come from the command line"));
    }
    if !model.configuration.is_empty() {
        let message = "the device configurations in the file are ignored";
        warnings.push(Problem::new(message).note("--mesh and --shard set the sharding"));
    }
    if model.graph.as_ref().is_some_and(|graph| !graph.quantization_annotation.is_empty()) {
        warnings.push(Problem::new("the quantization annotations in the file are ignored"));
    }
    warnings
}
