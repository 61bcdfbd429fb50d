//! Matrix multiplication: MatMul and Gemm.

use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::Labels;
use ir::ops::contract::Contract;
use ir::{Dims, ValueId};

/// MatMul, with numpy's rules: leading dims broadcast, and vectors get a temporary dim.
pub(super) fn matmul(cx: &mut Context, call: &Call) -> Outputs {
    let (x, y) = (cx.value(call, 0)?, cx.value(call, 1)?);
    one(multiply(cx, x, y)?)
}

/// Builds the product of matrices or vectors. Leading dims broadcast.
pub(super) fn multiply(cx: &mut Context, x: ValueId, y: ValueId) -> Result<ValueId, Problem> {
    let (x_dims, y_dims) = (cx.ty(x).dims.clone(), cx.ty(y).dims.clone());
    let wrong = || Problem::new(format!("matrices of dims {x_dims:?} and {y_dims:?} cannot be multiplied"));
    if x_dims.is_empty() || y_dims.is_empty() {
        return Err(wrong());
    }
    // Labels of the matrix dims: m k, k n; a vector has only k. Leading dims are labelled from the right: a is the innermost.
    let x_matrix: &[u8] = if x_dims.len() == 1 { b"k" } else { b"mk" };
    let y_matrix: &[u8] = if y_dims.len() == 1 { b"k" } else { b"kn" };
    let leading = (x_dims.len() - x_matrix.len()).max(y_dims.len() - y_matrix.len());
    if leading > 10 {
        return Err(wrong());
    }
    let mut out: Vec<u8> = (0..leading).rev().map(|i| b'a' + i as u8).collect();
    out.extend(x_matrix.iter().chain(y_matrix).filter(|&&label| label != b'k'));
    let (x, x_labels) = labelled(cx, x, x_matrix, &y_dims, y_matrix.len())?;
    let (y, y_labels) = labelled(cx, y, y_matrix, &x_dims, x_matrix.len())?;
    // A leading dim of size one that was removed on both sides is added again by a reshape.
    let kept: Vec<u8> =
        out.iter().copied().filter(|label| x_labels.contains(label) || y_labels.contains(label)).collect();
    let [lhs, rhs, result] =
        [x_labels, y_labels, kept.clone()].map(|labels| Labels(labels.into_iter().collect()));
    let product = cx.b.one(Contract { lhs, rhs, out: result }, &[x, y]).map_err(|_| wrong())?;
    let mut sizes = cx.ty(product).dims.clone().into_iter();
    let dims: Dims = out
        .iter()
        .map(|label| if kept.contains(label) { sizes.next().unwrap_or(1.into()) } else { 1.into() })
        .collect();
    Ok(cx.b.reshape(product, dims)?)
}

/// Returns the labels of one side, and that side without the leading dims of size one that the other side stretches.
fn labelled(
    cx: &mut Context,
    x: ValueId,
    matrix: &[u8],
    other: &Dims,
    other_matrix: usize,
) -> Result<(ValueId, Vec<u8>), Problem> {
    let dims = cx.ty(x).dims.clone();
    let leading = dims.len() - matrix.len();
    let mut labels = Vec::new();
    let mut kept = Dims::new();
    for (i, dim) in dims[..leading].iter().enumerate() {
        let from_right = leading - 1 - i;
        if !dim.is_one() {
            labels.push(b'a' + from_right as u8);
            kept.push(dim.clone());
        } else if (other.len() - other_matrix).checked_sub(from_right + 1).is_none_or(|j| other[j].is_one()) {
            continue; // size one on both sides: added again at the end
        }
    }
    labels.extend(matrix);
    kept.extend(dims[leading..].iter().cloned());
    Ok((cx.b.reshape(x, kept)?, labels))
}

/// Gemm: `alpha · A' · B' + beta · C`.
pub(super) fn gemm(cx: &mut Context, call: &Call) -> Outputs {
    let (a, b) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let flag = |name: &str| call.int(name).unwrap_or(0) != 0;
    let labels =
        |transposed: bool, plain: &str, swapped: &str| Labels::from(if transposed { swapped } else { plain });
    let contract = Contract {
        lhs: labels(flag("transA"), "mk", "km"),
        rhs: labels(flag("transB"), "kn", "nk"),
        out: "mn".into(),
    };
    let mut result = cx.b.one(contract, &[a, b])?;
    let scale = |name: &str| call.float(name).unwrap_or(1.0);
    if scale("alpha") != 1.0 {
        result = cx.build(result * scale("alpha"))?;
    }
    if let Some(mut bias) = cx.optional(call, 2)? {
        if scale("beta") != 1.0 {
            bias = cx.build(bias * scale("beta"))?;
        }
        result = cx.build(result + bias)?;
    }
    one(result)
}
