//! Dropout and random tensors. A written model draws other random numbers than the compiler.

use super::attribute;
use super::constants::code;
use super::draft::Draft;
use super::operators::{Results, one};
use super::{Form, own};
use ir::ops::Float;
use ir::ops::dropout::Dropout;
use ir::ops::random::RandomUniform;
use ir::{DType, Node, Tensor};

/// Dropout, or the operand itself in inference form.
pub(super) fn dropout(draft: &mut Draft, node: &Node, op: &Dropout) -> Results {
    if draft.form == Form::Program {
        return own::write(draft, node);
    }
    let x = draft.operand(node, 0)?;
    if draft.form == Form::Inference {
        return one(draft.push("Identity", &[x], []));
    }
    let ratio = draft.number(DType::F32, f64::from(share(op.ratio)));
    let training = draft.stored(&Tensor::bool(vec![], vec![true]));
    one(draft.push("Dropout", &[x, ratio, training], []))
}

/// Returns the ratio as it is stored in the file. The import takes the shortest decimal of this f32.
fn share(ratio: Float) -> f32 {
    ratio.get() as f32
}

/// RandomUniformLike of a tensor with these dims.
pub(super) fn uniform(draft: &mut Draft, node: &Node, _: &RandomUniform) -> Results {
    if draft.form == Form::Program {
        return own::write(draft, node);
    }
    draft.draws = true;
    let ty = draft.ty(node.results[0]);
    let shape = draft.shape(&ty.dims)?;
    let like = draft.push("ConstantOfShape", &[shape], []);
    let drawn = draft.push("RandomUniformLike", &[like], [attribute::int("dtype", code(DType::F32))]);
    one(draft.cast(drawn, DType::F32, ty.dtype))
}
