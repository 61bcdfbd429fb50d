//! Dropout, and nothing where it is off. Up to opset 6 the attribute `is_test` says whether it is; from 12 on the input
//! `training_mode` does; between, a file has it for inference alone.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use ir::ops::Float;
use ir::ops::dropout::Dropout;
use ir::{DType, Diagnostic};

/// The dropouts of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Dropouts {
    /// How many are on: each has the number of those before it as its id.
    on: u32,
    /// How many are off although the file gives them something to drop.
    off: u32,
    /// The first of these.
    first_off: String,
}

impl Dropouts {
    /// What the user may not expect: of a model exported for training, some dropouts do nothing.
    pub(super) fn warning(&self) -> Option<Diagnostic> {
        let Self { on, off, first_off } = self;
        let warning = (*on > 0 && *off > 0).then(|| {
            Diagnostic::new(format!("{off} of the model's {} dropouts are off in the file", on + off))
        })?;
        Some(warning.at(first_off).note(
            "PyTorch's TorchScript exporter leaves the training mode out of scaled_dot_product_attention; \
             an eager attention keeps it",
        ))
    }
}

/// Dropout: the second output tells what is kept.
pub(super) fn dropout(cx: &mut Context, call: &Call) -> Outputs {
    let training = match call.opset() {
        ..=6 => call.int("is_test") == Some(0),
        7..=11 => false,
        _ => {
            let flag = cx.numbers(call, 2, "training_mode")?;
            flag.is_some_and(|flag| flag.first() == Some(&1))
        }
    };
    let ratio = match cx.optional(call, 1)? {
        Some(ratio) => super::constant_number(cx, ratio),
        None => call.float("ratio").or(Some(0.5)),
    };
    match ratio {
        Some(0.0) => off(cx, call),
        Some(ratio) if training => on(cx, call, ratio),
        None if training => Err(Problem::new("drops a share that is computed from data")
            .note("export with a constant ratio, or in eval mode")),
        _ => {
            let dropouts = &mut cx.dropouts;
            dropouts.off += 1;
            if dropouts.off == 1 {
                dropouts.first_off = call.origin();
            }
            off(cx, call)
        }
    }
}

/// The input itself; everything is kept.
fn off(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.entry(call, 0)?.clone();
    if call.output(1).is_none() {
        return Ok(vec![x]);
    }
    let value = cx.value(call, 0)?;
    let ty = cx.ty(value).with_dtype(DType::Bool);
    let mask = cx.b.splat(ty, 1.0)?;
    Ok(vec![x, Entry::Value(mask)])
}

/// A share dropped at random. The mask is what the same numbers leave of ones.
fn on(cx: &mut Context, call: &Call, ratio: f64) -> Outputs {
    let x = cx.value(call, 0)?;
    // The shortest decimal that the file's f32 stands for, so that 0.1 is 0.1.
    let ratio = Float::new((ratio as f32).to_string().parse().unwrap_or(ratio));
    let op = Dropout { ratio, id: cx.dropouts.on, seed: 0, dim: 0 };
    cx.dropouts.on += 1;
    let dropped = cx.b.one(op.clone(), &[x])?;
    if call.output(1).is_none() {
        return one(dropped);
    }
    let ones = cx.b.splat(cx.ty(x).clone(), 1.0)?;
    let kept = cx.b.one(op, &[ones])?;
    let mask = cx.b.cast(kept, DType::Bool)?;
    Ok(vec![Entry::Value(dropped), Entry::Value(mask)])
}
