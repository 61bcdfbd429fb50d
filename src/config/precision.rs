//! Precision: the element types that a step computes in, and the scale of the loss in fp16.

mod loss_scale;

use clap::Args;
use ir::{DType, Diagnostic};
use passes::precision::Scaling;
use serde::{Serialize, Serializer};

use super::value::{name_of, one_of, serialize_optional_name};

/// Flags of precision. Weights and optimizer states are f32 under all of them.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Precision")]
#[serde(rename_all = "kebab-case")]
pub struct Precision {
    /// Precision of a step's computation: fp32; bf16, with the range of fp32 and 8 bits of precision; or fp16, with 11 bits of precision and a
    /// small range, for which the loss is scaled; values that need the range or the precision of fp32 stay in fp32 [default: fp32]
    #[arg(long, value_parser = one_of(&PRECISIONS))]
    #[serde(serialize_with = "serialize_precision")]
    pub precision: Option<DType>,
    /// Same as --precision bf16
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bf16: bool,
    /// Same as --precision fp16; the loss is scaled so that gradients stay within the range of fp16
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fp16: bool,
    /// Scale of the loss with fp16: a number, which stays; or dynamic[:initial=X,interval=N,hysteresis=N,min=X]: it begins at initial,
    /// doubles after interval steps without an overflow, and is halved, not below min, from the hysteresis-th overflow on
    /// [default: dynamic:initial=65536.0,interval=2000,hysteresis=2,min=1.0]
    #[arg(long, value_name = "X|dynamic[:KEY=X,…]", value_parser = loss_scale::parse)]
    #[serde(serialize_with = "loss_scale::serialize", skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<Scaling>,
    /// Element type in which gradients are summed over devices and microbatches [default: f32]
    #[arg(long, value_name = "DTYPE", value_parser = one_of(&GRADIENTS))]
    #[serde(serialize_with = "serialize_gradients")]
    pub grad_dtype: Option<DType>,
}

/// The values of `--precision`.
const PRECISIONS: [(DType, &str); 3] = [(DType::F32, "fp32"), (DType::BF16, "bf16"), (DType::F16, "fp16")];

/// The values of `--grad-dtype`.
const GRADIENTS: [(DType, &str); 3] = [(DType::F32, "f32"), (DType::BF16, "bf16"), (DType::F16, "f16")];

impl Precision {
    /// The element type that a step computes in, from `--precision`, `--bf16` or `--fp16`.
    pub fn dtype(&self) -> DType {
        match (self.bf16, self.fp16) {
            (true, _) => DType::BF16,
            (_, true) => DType::F16,
            _ => self.precision.unwrap_or(DType::F32),
        }
    }

    /// The pass that these flags ask for.
    pub fn pass(&self) -> passes::precision::Precision {
        passes::precision::Precision {
            compute: self.dtype(),
            grad_dtype: self.grad_dtype.unwrap_or(DType::F32),
            scaling: self.loss_scale.unwrap_or_default(),
        }
    }

    /// The rule between these flags: only fp16 scales the loss.
    pub fn check(&self) -> Option<Diagnostic> {
        let scales = self.loss_scale.is_none() || self.dtype() == DType::F16;
        (!scales).then(|| {
            let message =
                format!("--loss-scale does not apply to a step in {}", name_of(&PRECISIONS, &self.dtype()));
            Diagnostic::new(message).note("add --fp16, or remove --loss-scale")
        })
    }
}

fn serialize_precision<S: Serializer>(dtype: &Option<DType>, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_optional_name(&PRECISIONS, dtype, serializer)
}

fn serialize_gradients<S: Serializer>(dtype: &Option<DType>, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_optional_name(&GRADIENTS, dtype, serializer)
}
