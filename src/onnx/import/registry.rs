//! Which function imports which operator: one line each.

use super::call::Call;
use super::context::{Context, Outputs};
use super::{attention, contraction, dropout, elementwise, indexing, loss, norm, reduction, shape};

/// Imports one node.
pub(super) type Import = fn(&mut Context, &Call) -> Outputs;

/// The function for a node's operator, if there is one.
pub(super) fn find(call: &Call) -> Option<Import> {
    if !call.is_standard() {
        return None;
    }
    OPERATORS.iter().find(|(names, _)| names.contains(&call.op())).map(|(_, import)| *import)
}

/// Every operator of `ai.onnx` that is imported.
const OPERATORS: &[(&[&str], Import)] = &[
    (
        &[
            "Abs",
            "Ceil",
            "Cos",
            "Erf",
            "Exp",
            "Floor",
            "IsNaN",
            "Log",
            "Neg",
            "Not",
            "Reciprocal",
            "Relu",
            "Round",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sqrt",
            "Tanh",
        ],
        elementwise::unary,
    ),
    (
        &[
            "Add",
            "And",
            "Div",
            "Equal",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "Max",
            "Min",
            "Mod",
            "Mul",
            "Or",
            "Sub",
            "Sum",
            "Xor",
        ],
        elementwise::binary,
    ),
    (&["Attention"], attention::attention),
    (&["Cast", "CastLike"], elementwise::cast),
    (&["Clip"], elementwise::clip),
    (&["Concat"], shape::concat),
    (&["ConstantOfShape"], shape::constant_of_shape),
    (&["CumSum"], indexing::cumulative_sum),
    (&["Dropout"], dropout::dropout),
    (&["Expand"], shape::expand),
    (&["Flatten"], shape::flatten),
    (&["Gather"], indexing::gather),
    (&["GatherElements"], indexing::gather_elements),
    (&["GatherND"], indexing::gather_nd),
    (&["Gelu"], elementwise::gelu),
    (&["Gemm"], contraction::gemm),
    (&["GlobalAveragePool"], reduction::global_average_pool),
    (&["Identity"], elementwise::identity),
    (&["LayerNormalization"], norm::layer_norm),
    (&["LogSoftmax", "Softmax"], elementwise::softmax),
    (&["MatMul"], contraction::matmul),
    (&["Pad"], shape::pad),
    (&["Pow"], elementwise::pow),
    (&["RMSNormalization"], norm::rms_norm),
    (&["Range"], shape::range),
    (&["ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"], reduction::reduce),
    (&["Reshape"], shape::reshape),
    (&["SequenceAt"], shape::sequence_at),
    (&["Shape"], shape::shape),
    (&["Size"], shape::size),
    (&["Slice"], shape::slice),
    (&["SoftmaxCrossEntropyLoss"], loss::softmax_cross_entropy),
    (&["Split"], shape::split),
    (&["SplitToSequence"], shape::split_to_sequence),
    (&["Squeeze"], shape::squeeze),
    (&["Tile"], shape::tile),
    (&["Transpose"], shape::transpose),
    (&["Unsqueeze"], shape::unsqueeze),
    (&["Where"], elementwise::select),
];
