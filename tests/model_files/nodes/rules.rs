//! The rules that exclude tests. Every other test passes or fails.

use super::case::{self, Case};
use onnx::ElementType;
use onnx::proto::{NodeProto, TensorProto, TypeProto, TypeProtoValue};
use prost::Message;

/// A rule that excludes tests, with its reason.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    applies: fn(&Case) -> bool,
}

/// The rules in order. The first rule that applies to a test excludes it.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "opsets before 7",
        why: "the loader refuses them, because they broadcast by other rules, and no exporter has written them since 2017",
        applies: |case| {
            case.model
                .opset_import
                .iter()
                .any(|set| matches!(set.domain(), "" | "ai.onnx") && set.version() < 7)
        },
    },
    Rule {
        name: "other operator sets",
        why: "`ai.onnx.ml` has trees and text; `ai.onnx.preview.training` has optimizers, which are a flag of Trainyard",
        applies: |case| !case.graph().node.iter().all(|node| matches!(node.domain(), "" | "ai.onnx")),
    },
    Rule {
        name: "sequences and optionals",
        why: "an input or output is not a tensor",
        applies: |case| types(case).any(|ty| !matches!(ty.value, Some(TypeProtoValue::TensorType(_)))),
    },
    Rule {
        name: "strings",
        why: "the core has no such element type",
        applies: |case| has_type(case, |ty| ty == ElementType::String),
    },
    Rule {
        name: "complex numbers",
        why: "the core has no such element type",
        applies: |case| has_type(case, |ty| matches!(ty, ElementType::C64 | ElementType::C128)),
    },
    Rule {
        name: "floats of 8 bits or fewer",
        why: "the core has no such element type",
        applies: |case| {
            has_type(case, |ty| {
                use ElementType::*;
                matches!(ty, F8E4M3Fn | F8E4M3Fnuz | F8E5M2 | F8E5M2Fnuz | F8E8M0 | F4E2M1 | F6E2M3 | F6E3M2)
            })
        },
    },
    Rule {
        name: "integers of less than a byte",
        why: "the core has no such element type",
        applies: |case| {
            has_type(case, |ty| {
                matches!(ty, ElementType::U4 | ElementType::I4 | ElementType::U2 | ElementType::I2)
            })
        },
    },
    Rule {
        name: "sizes that depend on data",
        why: "a static program knows every size",
        applies: |case| uses(case, &["Compress", "NonMaxSuppression", "NonZero", "Unique"]),
    },
    Rule {
        name: "random numbers",
        why: "Trainyard draws other numbers (Philox), so they cannot be compared",
        applies: |case| uses(case, RANDOM) || drops(case),
    },
    Rule {
        name: "image files",
        why: "decoding is the loader's work, not the program's",
        applies: |case| uses(case, &["ImageDecoder"]),
    },
];

const RANDOM: &[&str] =
    &["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

/// Returns the name of the rule that excludes a test.
pub(crate) fn excluding(case: &Case) -> Option<&'static str> {
    RULES.iter().find(|rule| (rule.applies)(case)).map(|rule| rule.name)
}

/// The declared types of a test's inputs and outputs.
fn types(case: &Case) -> impl Iterator<Item = &TypeProto> {
    let graph = case.graph();
    graph.input.iter().chain(&graph.output).filter_map(|value| value.r#type.as_ref())
}

fn has_type(case: &Case, is: impl Fn(ElementType) -> bool) -> bool {
    types(case).any(|ty| match &ty.value {
        Some(TypeProtoValue::TensorType(tensor)) => {
            tensor.elem_type.and_then(ElementType::from_code).is_some_and(&is)
        }
        _ => false,
    })
}

fn uses(case: &Case, operators: &[&str]) -> bool {
    case.graph().node.iter().any(|node| operators.contains(&node.op_type()))
}

/// Whether a Dropout drops elements: it is in training mode, and its ratio is not zero.
fn drops(case: &Case) -> bool {
    let given = |name: &str| {
        let i = case.graph().input.iter().position(|input| input.name() == name)?;
        let proto = TensorProto::decode(case.sets.first()?.inputs.get(i)?.clone()).ok()?;
        case::tensors(&[proto]).ok()?.first().map(|tensor| tensor.item())
    };
    let number = |node: &NodeProto, i: usize| node.input.get(i).and_then(|name| given(name));
    let drops = |node: &NodeProto| {
        node.op_type() == "Dropout" && number(node, 2).unwrap_or(0.0) != 0.0 && number(node, 1) != Some(0.0)
    };
    case.graph().node.iter().any(drops)
}
