//! Elementwise operators. Most have an IR operator with another name.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use super::integers::{Int, Ints};
use ir::ops::elementwise::{Binary, Compare, Logical, Select, Unary};
use ir::ops::softmax::{LogSoftmax, Softmax};
use ir::{DType, Dim, Dims, ValueId, ensure};

/// Imports operators of one operand.
pub(super) fn unary(cx: &mut Context, call: &Call) -> Outputs {
    let op = match call.op() {
        "Abs" => Unary::Abs,
        "Atan" => Unary::Atan,
        "Ceil" => Unary::Ceil,
        "Cos" => Unary::Cos,
        "Erf" => Unary::Erf,
        "Exp" => Unary::Exp,
        "Floor" => Unary::Floor,
        "IsNaN" => Unary::IsNan,
        "Log" => Unary::Log,
        "Neg" => Unary::Neg,
        "Not" => Unary::Not,
        "Reciprocal" => Unary::Reciprocal,
        "Relu" => Unary::Relu,
        "Round" => Unary::Round,
        "Sigmoid" => Unary::Sigmoid,
        "Sign" => Unary::Sign,
        "Sin" => Unary::Sin,
        "Sqrt" => Unary::Sqrt,
        "Tanh" => Unary::Tanh,
        other => {
            return Err(Problem::new(format!("`{other}` is not an elementwise function of one operand")));
        }
    };
    if let (Some(ints), Unary::Not | Unary::Neg) = (cx.ints(call, 0), op)
        && ints.numbers().is_some()
    {
        let f = |n: i64| if op == Unary::Not { i64::from(n == 0) } else { n.wrapping_neg() };
        let ints = ints.map(|int| int.known().map_or(int, |n| Int::Known(f(n))));
        return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 0))]);
    }
    let x = cx.value(call, 0)?;
    if op == Unary::Sqrt && is_of_variance(call) {
        return one(super::composed_reduction::root_of_squares(cx, x)?);
    }
    one(cx.b.one(op, &[x])?)
}

/// Whether a root is that of a variance, according to the name of its operand in PyTorch's decomposition of `std`.
fn is_of_variance(call: &Call) -> bool {
    let operand = call.traced().and_then(|traced| traced.values().first().copied());
    operand.is_some_and(|value| value.starts_with("var") || value.starts_with("broadcast_in_dim"))
}

/// Gelu, exact or by tanh (opset 20).
pub(super) fn gelu(cx: &mut Context, call: &Call) -> Outputs {
    let op = match call.string("approximate").unwrap_or("none") {
        "none" => Unary::Gelu,
        "tanh" => Unary::GeluTanh,
        other => return Err(Problem::new(format!("the GELU approximation `{other}` is unknown"))),
    };
    let x = cx.value(call, 0)?;
    one(cx.b.one(op, &[x])?)
}

/// Arithmetic, comparisons and logic of two operands; Max, Min and Sum may have more.
pub(super) fn binary(cx: &mut Context, call: &Call) -> Outputs {
    if let (2, Some(x), Some(y)) = (call.input_count(), cx.ints(call, 0), cx.ints(call, 1))
        && let Some(ints) = Ints::arithmetic(call.op(), &x, &y)
    {
        let truth = matches!(
            call.op(),
            "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or"
        );
        let dtype = if truth { DType::Bool } else { cx.known_dtype(call, 0) };
        return Ok(vec![Entry::Ints(ints, dtype)]);
    }
    ensure!(
        call.input_count() <= 2 || matches!(call.op(), "Max" | "Min" | "Sum"),
        "`{}` takes two inputs, not {}",
        call.op(),
        call.input_count()
    );
    let mut result = cx.value(call, 0)?;
    for i in 1..call.input_count() {
        let y = cx.value(call, i)?;
        let is_clamp = is_clamp(cx, call, y);
        let y = aligned(cx, call, result, y)?;
        result = match call.op() {
            "Max" if is_clamp => cx.build(Binary::AtLeast.of(result, y))?,
            "Min" if is_clamp => cx.build(Binary::AtMost.of(result, y))?,
            op => apply(cx, op, result, y)?,
        };
    }
    one(result)
}

/// Returns the second operand with dims that broadcast to the first. Up to opset 6, `axis` is the first operand's dim with which
/// the second's first dim is aligned.
pub(super) fn aligned(cx: &mut Context, call: &Call, x: ValueId, y: ValueId) -> Result<ValueId, Problem> {
    if call.opset() >= 7 || call.int("broadcast").unwrap_or(0) == 0 {
        return Ok(y);
    }
    let Some(axis) = call.int("axis") else { return Ok(y) };
    let (axis, dims) = (cx.axis(x, axis)? as usize, cx.ty(y).dims.clone());
    let behind = cx.ty(x).ndim().checked_sub(axis + dims.len());
    let behind = behind.ok_or_else(|| {
        Problem::new(format!("{} does not broadcast to {} from dim {axis} on", cx.ty(y), cx.ty(x)))
    })?;
    let ones = (0..behind).map(|_| Dim::known(1));
    Ok(cx.b.reshape(y, dims.into_iter().chain(ones).collect::<Dims>())?)
}

fn apply(cx: &mut Context, op: &str, x: ValueId, y: ValueId) -> Result<ValueId, Problem> {
    let mut arithmetic = |op: Binary| Ok(cx.b.one(op, &[x, y])?);
    match op {
        "Add" | "Sum" => arithmetic(Binary::Add),
        "Sub" => arithmetic(Binary::Sub),
        "Mul" => arithmetic(Binary::Mul),
        "Div" => arithmetic(Binary::Div),
        "Max" => arithmetic(Binary::Max),
        "Min" => arithmetic(Binary::Min),
        "Mod" => arithmetic(Binary::Mod),
        "Equal" => cx.build(Compare::Equal.of(x, y)),
        "Less" => cx.build(Compare::Less.of(x, y)),
        "LessOrEqual" => cx.build(Compare::LessEqual.of(x, y)),
        "Greater" => cx.build(Compare::Greater.of(x, y)),
        "GreaterOrEqual" => cx.build(Compare::GreaterEqual.of(x, y)),
        "And" => cx.build(Logical::And.of(x, y)),
        "Or" => cx.build(Logical::Or.of(x, y)),
        "Xor" => cx.build(Logical::Xor.of(x, y)),
        other => Err(Problem::new(format!("`{other}` is not an elementwise function of two operands"))),
    }
}

/// Pow. The exponent may have another type than the base, and the result has the base's type. An integer to the power of a float
/// is computed in floats and truncated.
pub(super) fn pow(cx: &mut Context, call: &Call) -> Outputs {
    let (x, y) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let dtype = cx.ty(x).dtype;
    let y = aligned(cx, call, x, y)?;
    let computed = if dtype.is_integer() && cx.ty(y).dtype.is_float() { DType::F64 } else { dtype };
    let (base, exponent) = (cx.b.cast(x, computed)?, cx.b.cast(y, computed)?);
    one(cx.build(Binary::Pow.of(base, exponent).cast(dtype))?)
}

/// Imports Where.
pub(super) fn select(cx: &mut Context, call: &Call) -> Outputs {
    if let [Some(condition), Some(x), Some(y)] = [0, 1, 2].map(|i| cx.ints(call, i))
        && let Some(ints) = Ints::select(&condition, &x, &y)
    {
        return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 1))]);
    }
    let operands = [cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?];
    one(cx.b.one(Select, &operands)?)
}

/// Imports Cast and CastLike.
pub(super) fn cast(cx: &mut Context, call: &Call) -> Outputs {
    let to = match call.op() {
        "CastLike" => {
            let like = cx.value(call, 1)?;
            cx.ty(like).dtype
        }
        _ => call.dtype("to")?,
    };
    // A float that becomes an integer may later be used as a bound or an axis.
    if let Some(number) = stored_number(cx, call, 0).filter(|_| to.is_integer()) {
        let ints = Ints::scalar(Int::Known(number as i64));
        return Ok(vec![Entry::Ints(ints, to)]);
    }
    if let Some(ints) = cx.ints(call, 0)
        && (to.is_integer() || (to == DType::Bool && ints.numbers().is_some()))
    {
        let truth = |int: Int| match (to, int.known()) {
            (DType::Bool, Some(n)) => Int::Known(i64::from(n != 0)),
            _ => int,
        };
        return Ok(vec![Entry::Ints(ints.map(truth), to)]);
    }
    let x = cx.value(call, 0)?;
    one(cx.b.cast(x, to)?)
}

/// Returns the number of an input, if it is a scalar of the file.
fn stored_number(cx: &Context, call: &Call, i: usize) -> Option<f64> {
    match cx.entries.get(call.input(i)?)? {
        Entry::Stored(data) => {
            let row = &cx.b.module().data[*data];
            (row.ty.ndim() == 0).then(|| ir::interp::file_tensor(row))?.map(|tensor| tensor.item())
        }
        _ => None,
    }
}

/// Clip. Bounds are attributes before opset 11, and inputs from then on.
pub(super) fn clip(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    for (i, name, op) in [(1, "min", Binary::AtLeast), (2, "max", Binary::AtMost)] {
        let bound = match call.float(name) {
            Some(bound) => Some(cx.b.splat_like(x, bound)?),
            None => cx.optional(call, i)?,
        };
        if let Some(bound) = bound {
            x = cx.build(op.of(x, bound))?;
        }
    }
    one(x)
}

/// Whether a Max or Min was PyTorch's `clamp` to a number, whose gradient at a tie differs from that of `maximum`. Decided by the
/// traced call or, without one, by a number as the second operand.
fn is_clamp(cx: &Context, call: &Call, bound: ValueId) -> bool {
    match call.traced() {
        // The exporter turns the numbers of the call into tensors with this name.
        Some(traced) => {
            let is_number = |value: &&str| value.starts_with("scalar_tensor");
            traced.operator.starts_with("clamp") && traced.values().iter().any(is_number)
        }
        None => stored_number(cx, call, 1).is_some() || cx.b.module().splat_number(bound).is_some(),
    }
}

/// Softmax and LogSoftmax. Before opset 13 they flatten the operand to a matrix at `axis`.
pub(super) fn softmax(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    let flat = call.opset() < 13;
    let axis = call.int("axis").unwrap_or(if flat { 1 } else { -1 });
    let mut dim = cx.axis(x, axis)?;
    let ty = cx.ty(x).clone();
    let last = ty.ndim() as u32 - 1;
    if flat && dim != last {
        let rows = ty.dims[..dim as usize].iter().cloned();
        let product = ty.dims[dim as usize..].iter().try_fold(ir::Dim::known(1), |n, d| n.product(d));
        let row = product.ok_or_else(|| Problem::new(format!("{ty} is too large")))?;
        x = cx.b.reshape(x, rows.chain([row]).collect::<Vec<_>>())?;
    }
    dim = if flat { cx.ty(x).ndim() as u32 - 1 } else { dim };
    let y = match call.op() {
        "LogSoftmax" => cx.b.one(LogSoftmax { dim }, &[x])?,
        _ => cx.b.one(Softmax { dim }, &[x])?,
    };
    one(cx.b.reshape(y, ty.dims)?)
}

/// Identity: the input itself.
pub(super) fn identity(cx: &mut Context, call: &Call) -> Outputs {
    // A detached value is a different value.
    if !cx.detached.is_empty() {
        return one(cx.value(call, 0)?);
    }
    let entry = cx.entry(call, 0)?.clone();
    Ok(vec![entry])
}
