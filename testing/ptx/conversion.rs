//! `cvt`: conversions between types of numbers.

use super::arithmetic::{Evaluate, Modifiers, directed_sum};
use super::types::{Real, Type};

/// Returns the function of `cvt`, which makes a number of another type. The type of the result stands first.
pub(super) fn conversion(modifiers: &mut Modifiers) -> Option<Evaluate> {
    let [to, from] = [modifiers.take_type()?, modifiers.take_type()?];
    let [flushes, saturates] = ["ftz", "sat"].map(|modifier| modifiers.take(modifier));
    let whole = modifiers.take_one(&["rni", "rzi", "rmi", "rpi"]);
    let rounding = modifiers.take_one(&["rn", "rz", "rm", "rp"]);
    if let Some(half) = match to {
        Type::F16Pair => Some(Type::F16),
        Type::BF16Pair => Some(Type::BF16),
        _ => None,
    } {
        let is_modelled = from == Type::F32 && rounding == Some("rn") && whole.is_none() && !saturates;
        return is_modelled.then(|| -> Evaluate {
            Box::new(move |[high, low, _]| {
                let [high, low] = [high, low].map(|x| half.rounded(from.real(x).unwrap_or(0.0)).unwrap_or(0));
                high << 16 | low
            })
        });
    }
    if !to.is_integer() && to.rounded(0.0).is_none() || !from.is_integer() && from.real(0).is_none() {
        return None;
    }
    // A conversion to a narrower type rounds to the nearest, except for f64 to f32, which may round towards zero.
    let to_zero = rounding == Some("rz") && (from, to) == (Type::F64, Type::F32);
    let narrows_twice = from == Type::F64 && matches!(to, Type::F16 | Type::BF16);
    if !matches!(rounding, None | Some("rn")) && !to_zero || narrows_twice || flushes && from != Type::F32 {
        return None;
    }
    let given = move |register: u64| {
        let x = from.real(register)?;
        let is_small = flushes && x.abs() < f32::LEAST_NORMAL;
        Some(if is_small { 0f64.copysign(x) } else { x })
    };
    let whole_number = move |x: f64| match whole {
        Some("rni") => x.round_ties_even(),
        Some("rmi") => x.floor(),
        Some("rpi") => x.ceil(),
        _ => x.trunc(),
    };
    let [least, largest] = if to.is_integer() { to.limits() } else { [0, 0] };
    Some(match (from.is_integer(), to.is_integer()) {
        (true, true) => Box::new(move |[x, ..]| {
            let x = from.integer(x);
            to.register(if saturates { x.clamp(least, largest) } else { x })
        }),
        (true, false) => Box::new(move |[x, ..]| of_integer(to, from.integer(x))),
        (false, true) => Box::new(move |[x, ..]| {
            let x = given(x).unwrap_or(0.0);
            // For NaN only the highest bit is set, or none (PTX ISA 9.0, 9.7.9.21).
            let is_wide = from == Type::F64 || to.bits() == 64;
            let of_nan = if is_wide { 1 << (to.bits() - 1) } else { 0 };
            to.register(if x.is_nan() { of_nan } else { (whole_number(x) as i128).clamp(least, largest) })
        }),
        (false, false) => Box::new(move |[x, ..]| {
            let x = given(x).unwrap_or(0.0);
            let x = if whole.is_some() { whole_number(x) } else { x };
            let clamped = if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) };
            let x = if saturates { clamped } else { x };
            if to_zero { directed_sum("rz", x, 0.0).to_bits().into() } else { to.rounded(x).unwrap_or(0) }
        }),
    })
}

/// Returns the nearest number of a type. A 64-bit integer becomes an f32 directly: over f64 it would be rounded twice.
fn of_integer(to: Type, integer: i128) -> u64 {
    match to {
        Type::F32 => (integer as f32).to_bits().into(),
        Type::F64 => (integer as f64).to_bits(),
        _ => to.rounded(integer as f64).unwrap_or(0),
    }
}
