//! The check that every attribute of a node has an effect on the import; otherwise the node is refused. [`Call`] records which
//! attributes the import has requested; [`check`] refuses the others.

use super::call::Call;
use super::context::Problem;

/// Attributes that an import may ignore, or reads only where they matter: operators, attributes, and the reason.
const CONDITIONAL: &[(&[&str], &[&str], &str)] = &[
    (&["Attention"], &["qk_matmul_output_mode"], "sets the content of an optional output"),
    (
        &["Attention"],
        &["softmax_precision"],
        "softmax is computed in f32 at least, whatever the scores are in",
    ),
    (&["AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool"], &["pads"], "auto_pad decides"),
    (&["BatchNormalization"], &["momentum"], "updates running statistics, which inference leaves unchanged"),
    (
        &["Cast", "CastLike", "QuantizeLinear"],
        &["round_mode", "saturate"],
        "apply to 8-bit floats, which are not supported",
    ),
    (&["ConvTranspose"], &["output_padding", "pads"], "auto_pad or output_shape decides"),
    (&["CumProd", "CumSum"], &["exclusive", "reverse"], "the operand is a scalar or known integers"),
    (&["DequantizeLinear", "QuantizeLinear"], &["axis", "block_size"], "there is one scale for all"),
    (
        &["Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"],
        &["seed"],
        "random numbers come from --seed",
    ),
    (&["Dropout"], &["ratio", "seed"], "nothing is dropped in inference; random numbers come from --seed"),
    (&["Gemm"], &["beta"], "scales an optional summand"),
    (&["Gemm"], &["broadcast"], "the dims of the summand tell whether it broadcasts"),
    (&["GRU", "LSTM", "RNN"], &["output_sequence"], "said up to opset 6 whether the first output is there"),
    (&["If"], &["else_branch", "then_branch"], "the other branch is taken"),
    (&["IsInf"], &["detect_negative", "detect_positive"], "the other attribute decides"),
    (&["MaxPool"], &["storage_order"], "is for the output of indices"),
    (&["Pad"], &["value"], "is for the mode `constant`"),
    (&[REDUCTION], &["keepdims", "noop_with_empty_axes"], "there are axes, or no dims"),
    (&["Reshape"], &["allowzero"], "no dim is 0"),
    (
        &["Resize", "Upsample"],
        &[
            "antialias",
            "axes",
            "coordinate_transformation_mode",
            "cubic_coeff_a",
            "exclude_outside",
            "extrapolation_value",
            "keep_aspect_ratio_policy",
            "nearest_mode",
        ],
        "each attribute applies to some modes, and exporters write all of them",
    ),
    (
        &["RotaryEmbedding"],
        &["is_packed_batching", "num_heads", "rotary_embedding_dim", "scale"],
        "the shapes determine the value, or an earlier attribute refuses the node",
    ),
    (&["SequenceEmpty"], &["dtype"], "the sequence is empty"),
    (&["SplitToSequence"], &["keepdims"], "is for parts of one element"),
    (&["TopK"], &["sorted"], "the sorted order is allowed"),
];

/// A prefix that stands for every operator whose name begins with it.
const REDUCTION: &str = "Reduce";

/// Refuses a node with an attribute that its import has not requested.
pub(super) fn check(call: &Call) -> Result<(), Problem> {
    // Up to opset 5, an attribute told a runtime which buffers it may overwrite.
    let is_hint = |name: &str| name == "consumed_inputs" && call.opset() <= 5;
    let names = call.unasked().into_iter().filter(|name| !is_conditional(call.op(), name) && !is_hint(name));
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return Ok(());
    }
    let (op, opset) = (call.op(), call.opset());
    let problem = Problem::new(format!("{op} of opset {opset} with {} is not supported", names.join(", ")));
    Err(problem.note("the compiler would ignore this attribute: export the model without it"))
}

fn is_conditional(op: &str, attribute: &str) -> bool {
    let of = |ops: &[&str]| {
        ops.iter().any(|name| *name == op || (*name == REDUCTION && op.starts_with(REDUCTION)))
    };
    CONDITIONAL.iter().any(|(ops, attributes, _)| of(ops) && attributes.contains(&attribute))
}
