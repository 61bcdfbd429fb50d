//! Instructions of PTX that compute a number from numbers, each as a function of up to three registers.
//!
//! `modifiers` are the words of an instruction after its name: those of `fma.rn.f32` are `rn` and `f32`. A function takes the modifiers
//! that it models; the caller refuses an instruction with modifiers left over. The meaning of each instruction is that of the PTX ISA,
//! version 9.0, chapter 9.7. Approximations (`ex2.approx`) are rounded from f64 here, and differ on a device by a few units in the last
//! place.

use super::types::{Real, Type};
use std::cmp::Ordering;

/// Computes a register from three registers. Registers that an instruction lacks are zeros.
pub(super) type Evaluate = Box<dyn Fn([u64; 3]) -> u64 + Send + Sync>;

/// The words of an instruction after its name, in their order.
#[derive(Clone, Debug)]
pub(super) struct Modifiers<'a>(pub(super) Vec<&'a str>);

impl<'a> Modifiers<'a> {
    /// Takes a modifier, and returns whether it was there.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        let place = self.0.iter().position(|&word| word == modifier);
        place.map(|place| self.0.remove(place)).is_some()
    }

    /// Takes the first of these modifiers that is there.
    pub(super) fn take_one(&mut self, modifiers: &[&'static str]) -> Option<&'static str> {
        modifiers.iter().copied().find(|modifier| self.take(modifier))
    }

    /// Drops modifiers that change nothing here.
    pub(super) fn drop(&mut self, modifiers: &[&str]) {
        self.0.retain(|word| !modifiers.contains(word));
    }

    /// Takes the first type.
    pub(super) fn take_type(&mut self) -> Option<Type> {
        let place = self.0.iter().position(|word| Type::of(word).is_some())?;
        Type::of(self.0.remove(place))
    }
}

/// Returns the number of operands from which an instruction computes its result.
pub(super) fn operands(name: &str, modifiers: &Modifiers) -> usize {
    let has = |words: &[&str]| words.iter().any(|word| modifiers.0.contains(word));
    match name {
        "cvt" => 1 + usize::from(has(&["f16x2", "bf16x2"])),
        "setp" => 2 + usize::from(has(&["and", "or", "xor"])),
        "mov" | "neg" | "abs" | "not" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
        | "popc" | "clz" | "testp" => 1,
        "fma" | "mad" | "selp" | "prmt" | "shf" | "bfe" | "dp2a" => 3,
        _ => 2,
    }
}

/// Returns the function of an instruction other than `cvt`; `None` if it is not modelled.
pub(super) fn evaluate(name: &str, modifiers: &mut Modifiers) -> Option<Evaluate> {
    match name {
        "setp" => return comparison(modifiers),
        "testp" => return class(modifiers),
        "dp2a" => return products_of_halves(modifiers),
        "prmt" => return permutation(modifiers),
        "shf" => return funnel_shift(modifiers),
        _ => {}
    }
    let ty = modifiers.take_type()?;
    match (name, ty) {
        ("mov", _) => Some(Box::new(|[x, ..]| x)),
        ("selp", _) => Some(Box::new(|[x, y, choice]| if choice & 1 == 1 { x } else { y })),
        ("and" | "or" | "xor" | "not" | "shl", _) => bits(name, ty),
        (_, Type::F32) => real::<f32>(name, modifiers),
        (_, Type::F64) => real::<f64>(name, modifiers),
        _ if ty.is_integer() => integer(name, ty, modifiers),
        _ => None,
    }
}

/// Returns the function of an instruction on bits, without a sign.
fn bits(name: &str, ty: Type) -> Option<Evaluate> {
    let mask = if ty == Type::Predicate { 1 } else { u64::MAX >> (64 - ty.bits()) };
    let of = |f: fn(u64, u64) -> u64| -> Option<Evaluate> { Some(Box::new(move |[x, y, _]| f(x, y) & mask)) };
    match name {
        "and" => of(|x, y| x & y),
        "or" => of(|x, y| x | y),
        "xor" => of(|x, y| x ^ y),
        "not" => of(|x, _| !x),
        // The distance is an unsigned number of 32 bits, and may shift all bits out.
        "shl" => of(|x, distance| x.checked_shl(distance as u32).unwrap_or(0)),
        _ => None,
    }
}

/// Returns the function of an instruction on integers.
fn integer(name: &str, ty: Type, modifiers: &mut Modifiers) -> Option<Evaluate> {
    type Of = fn(i128, i128, i128) -> i128;
    let of = |f: Of| -> Option<Evaluate> {
        Some(Box::new(move |[x, y, z]| ty.register(f(ty.integer(x), ty.integer(y), ty.integer(z)))))
    };
    let bits = ty.bits();
    match name {
        "add" => of(|x, y, _| x + y),
        "sub" => of(|x, y, _| x - y),
        "min" => of(|x, y, _| x.min(y)),
        "max" => of(|x, y, _| x.max(y)),
        // A quotient by zero has no defined value; a device gives all ones.
        "div" => of(|x, y, _| if y == 0 { -1 } else { x / y }),
        "rem" => of(|x, y, _| if y == 0 { x } else { x % y }),
        "abs" => of(|x, _, _| x.abs()),
        "neg" => of(|x, _, _| -x),
        "mul" | "mad" => match modifiers.take_one(&["lo", "hi", "wide"])? {
            "lo" => of(|x, y, z| x.wrapping_mul(y).wrapping_add(z)),
            "hi" => Some(Box::new(move |[x, y, z]| {
                let product = ty.integer(x).wrapping_mul(ty.integer(y)) as u128 >> bits;
                ty.register((product as i128).wrapping_add(ty.integer(z)))
            })),
            // The result and the addend are twice as wide as the factors.
            _ if bits > 32 => None,
            _ => Some(Box::new(move |[x, y, z]| {
                let all = u64::MAX >> (64 - (2 * bits).min(64));
                (ty.integer(x) * ty.integer(y)).wrapping_add(i128::from(z)) as u64 & all
            })),
        },
        "shr" => {
            Some(Box::new(move |[x, distance, _]| ty.register(ty.integer(x) >> (distance as u32).min(bits))))
        }
        "popc" => of(|x, _, _| x.count_ones().into()),
        "clz" => {
            Some(Box::new(move |[x, ..]| (ty.register(ty.integer(x)).leading_zeros() - (64 - bits)).into()))
        }
        "bfe" if !ty.is_signed() => Some(Box::new(move |[x, first, count]| {
            let value = ty.integer(x) >> (first & 255).min(127);
            ty.register(value & field(count))
        })),
        _ => None,
    }
}

/// Returns the mask of `count` bits.
fn field(count: u64) -> i128 {
    (1 << (count & 255).min(64)) - 1
}

/// `bfi`: returns `base` with the lowest `count` bits of `value` in place of its bits from `first` on.
pub(super) fn insert_field(ty: Type, value: u64, base: u64, [first, count]: [u64; 2]) -> u64 {
    let first = first & 255;
    let mask = if first >= u64::from(ty.bits()) { 0 } else { field(count) << first };
    let value = i128::from(value) << first.min(63);
    ty.register(ty.integer(base) & !mask | value & mask)
}

/// Returns the function of an instruction on floating-point numbers.
fn real<F: Real>(name: &str, modifiers: &mut Modifiers) -> Option<Evaluate> {
    let [flushes, saturates] = ["ftz", "sat"].map(|modifier| modifiers.take(modifier));
    let is_approximate = modifiers.take("approx");
    let propagates_nan = modifiers.take("NaN");
    let rounding = modifiers.take_one(&["rn", "rz", "rm", "rp"]).unwrap_or("rn");
    let flushed = move |x: f64| if flushes && x.abs() < F::LEAST_NORMAL { 0f64.copysign(x) } else { x };
    let ended = move |x: F| {
        let x = x.double();
        let clamped = if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) };
        F::nearest(flushed(if saturates { clamped } else { x })).register()
    };
    let given = move |register: u64| flushed(F::of(register).double());
    let one = |f: fn(f64) -> f64| -> Option<Evaluate> {
        Some(Box::new(move |[x, ..]| ended(F::nearest(f(given(x))))))
    };
    // A sum, a product or a quotient in f64, rounded to f32, equals the result that is rounded once.
    let two = |f: fn(f64, f64) -> f64| -> Option<Evaluate> {
        Some(Box::new(move |[x, y, _]| ended(F::nearest(f(given(x), given(y))))))
    };
    if rounding != "rn" {
        let is_single = size_of::<F>() == size_of::<f32>();
        return (name == "fma" && is_single).then(|| -> Evaluate {
            Box::new(move |all| {
                let [x, y, z] = all.map(given);
                ended(F::nearest(directed_sum(rounding, x * y, z).into()))
            })
        });
    }
    match name {
        "add" => two(|x, y| x + y),
        "sub" => two(|x, y| x - y),
        "mul" => two(|x, y| x * y),
        "div" => {
            modifiers.take("full");
            two(|x, y| x / y)
        }
        "fma" => Some(Box::new(move |all| {
            let [x, y, z] = all.map(|register| F::nearest(given(register)));
            ended(x.fused(y, z))
        })),
        "min" => Some(Box::new(move |[x, y, _]| {
            ended(F::nearest(extreme(Ordering::Less, propagates_nan, given(x), given(y))))
        })),
        "max" => Some(Box::new(move |[x, y, _]| {
            ended(F::nearest(extreme(Ordering::Greater, propagates_nan, given(x), given(y))))
        })),
        "abs" => one(f64::abs),
        "neg" => one(|x| -x),
        "copysign" => two(|sign, x| x.copysign(sign)),
        "sqrt" => one(f64::sqrt),
        // The approximation of an f64 has zeros in its lower half.
        "rcp" if is_approximate && size_of::<F>() == 8 => {
            one(|x| f64::from_bits((1.0 / x).to_bits() & !0xffff_ffff))
        }
        "rcp" => one(|x| 1.0 / x),
        "rsqrt" => one(|x| 1.0 / x.sqrt()),
        "ex2" => one(f64::exp2),
        "lg2" => one(f64::log2),
        "sin" => one(f64::sin),
        "cos" => one(f64::cos),
        "tanh" => one(f64::tanh),
        _ => None,
    }
}

/// Returns the smaller or the larger of two numbers. Zeros are ordered by their signs. If one operand is NaN, returns the other
/// operand, unless NaN is propagated.
fn extreme(wanted: Ordering, propagates_nan: bool, x: f64, y: f64) -> f64 {
    match (x.is_nan(), y.is_nan()) {
        (true, _) | (_, true) if propagates_nan => f64::NAN,
        (true, _) => y,
        (_, true) => x,
        _ if x.total_cmp(&y) == wanted => x,
        _ => y,
    }
}

/// Returns the sum of two f64 as an f32, rounded down (`rm`), up (`rp`) or towards zero (`rz`).
///
/// The sum in f64 and its error (Knuth's TwoSum) tell on which side of the nearest f32 the exact sum lies.
pub(super) fn directed_sum(rounding: &str, x: f64, y: f64) -> f32 {
    let sum = x + y;
    let part = sum - x;
    let error = (x - (sum - part)) + (y - part);
    let nearest = sum as f32;
    let beyond = (sum - f64::from(nearest)) + error;
    match rounding {
        "rm" if beyond < 0.0 => nearest.next_down(),
        "rp" if beyond > 0.0 => nearest.next_up(),
        "rz" if beyond < 0.0 && nearest > 0.0 => nearest.next_down(),
        "rz" if beyond > 0.0 && nearest < 0.0 => nearest.next_up(),
        _ => nearest,
    }
}

/// `setp`: a comparison, which may be combined with a predicate, the third operand.
fn comparison(modifiers: &mut Modifiers) -> Option<Evaluate> {
    let ty = modifiers.take_type()?;
    let combined = modifiers.take_one(&["and", "or", "xor"]);
    let [word] = modifiers.0[..] else { return None };
    modifiers.0.clear();
    // A comparison that ends in `u` holds if an operand is NaN.
    let (relation, holds_unordered) = match word.strip_suffix('u') {
        Some(relation) => (relation, true),
        None => (word, word == "ne" && ty.is_integer()),
    };
    let holds: fn(Option<Ordering>) -> bool = match relation {
        "eq" => |order| order == Some(Ordering::Equal),
        "ne" => |order| matches!(order, Some(Ordering::Less | Ordering::Greater)),
        "lt" | "lo" => |order| order == Some(Ordering::Less),
        "le" | "ls" => |order| matches!(order, Some(Ordering::Less | Ordering::Equal)),
        "gt" | "hi" => |order| order == Some(Ordering::Greater),
        "ge" | "hs" => |order| matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        "num" => |order| order.is_some(),
        "nan" => |order| order.is_none(),
        _ => return None,
    };
    let order = move |x: u64, y: u64| match ty {
        _ if ty.is_integer() || ty == Type::Predicate => Some(ty.integer(x).cmp(&ty.integer(y))),
        _ => ty.real(x)?.partial_cmp(&ty.real(y)?),
    };
    Some(Box::new(move |[x, y, other]| {
        let order = order(x, y);
        let holds = holds(order) || holds_unordered && order.is_none();
        let other = other & 1 == 1;
        u64::from(match combined {
            Some("and") => holds && other,
            Some("or") => holds || other,
            Some(_) => holds != other,
            None => holds,
        })
    }))
}

/// `testp`: whether a number is of a class.
fn class(modifiers: &mut Modifiers) -> Option<Evaluate> {
    let ty = modifiers.take_type()?;
    let is_single = ty == Type::F32;
    let of = |f: fn(f64) -> bool| -> Option<Evaluate> {
        Some(Box::new(move |[x, ..]| u64::from(ty.real(x).is_some_and(f))))
    };
    match modifiers.take_one(&["finite", "infinite", "number", "notanumber", "normal"])? {
        "finite" => of(f64::is_finite),
        "infinite" => of(f64::is_infinite),
        "number" => of(|x| !x.is_nan()),
        "notanumber" => of(f64::is_nan),
        _ if is_single => of(|x| (x as f32).is_normal()),
        _ => of(f64::is_normal),
    }
}

/// `dp2a.lo.u32.u32`: adds the products of two numbers of 16 bits and two numbers of 8 bits to a third operand.
fn products_of_halves(modifiers: &mut Modifiers) -> Option<Evaluate> {
    let is_modelled = modifiers.0 == ["lo", "u32", "u32"];
    modifiers.0.clear();
    is_modelled.then(|| -> Evaluate {
        Box::new(|[x, y, z]| {
            let products = (x & 0xffff) * (y & 0xff) + (x >> 16 & 0xffff) * (y >> 8 & 0xff);
            (products + z) & 0xffff_ffff
        })
    })
}

/// `prmt.b32`: each byte of the result is one of the eight bytes of both operands, or that byte's sign.
fn permutation(modifiers: &mut Modifiers) -> Option<Evaluate> {
    (modifiers.take_type()? == Type::U32).then(|| -> Evaluate {
        Box::new(|[low, high, selection]| {
            let bytes = (low & 0xffff_ffff | high << 32).to_le_bytes();
            let byte = |place: u32| {
                let selected = selection >> (4 * place) & 15;
                let byte = bytes[(selected & 7) as usize];
                if selected < 8 { byte } else { 0u8.wrapping_sub(byte >> 7) }
            };
            u32::from_le_bytes([0, 1, 2, 3].map(byte)).into()
        })
    })
}

/// `shf`: shifts two registers of 32 bits as one.
fn funnel_shift(modifiers: &mut Modifiers) -> Option<Evaluate> {
    let is_left = modifiers.take_one(&["l", "r"])? == "l";
    let wraps = modifiers.take_one(&["wrap", "clamp"])? == "wrap";
    (modifiers.take_type()? == Type::U32).then(|| -> Evaluate {
        Box::new(move |[low, high, distance]| {
            let both = low & 0xffff_ffff | high << 32;
            let distance = distance as u32;
            let distance = if wraps { distance & 31 } else { distance.min(32) };
            if is_left { (both << distance) >> 32 } else { both >> distance & 0xffff_ffff }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::decode::function;
    use super::*;

    /// Returns the result of an instruction on registers.
    fn result(instruction: &str, registers: [u64; 3]) -> u64 {
        let mut words = instruction.split('.');
        let name = words.next().expect("a name");
        let mut modifiers = Modifiers(words.collect());
        let evaluate =
            function(name, &mut modifiers).unwrap_or_else(|| panic!("{instruction} is not modelled"));
        assert!(modifiers.0.is_empty(), "{:?} of {instruction} are not modelled", modifiers.0);
        evaluate(registers)
    }

    fn single(instruction: &str, numbers: [f32; 3]) -> f32 {
        f32::from_bits(result(instruction, numbers.map(|x| x.to_bits().into())) as u32)
    }

    #[test]
    fn integers_wrap_and_widen() {
        assert_eq!(result("add.u32", [0xffff_ffff, 2, 0]), 1);
        assert_eq!(result("mul.hi.u64", [u64::MAX, u64::MAX, 0]), u64::MAX - 1);
        assert_eq!(result("mul.hi.s32", [0xffff_fffe, 3, 0]) as u32, u32::MAX);
        assert_eq!(result("mad.wide.s32", [0xffff_fffe, 3, 10]), 4);
        assert_eq!(result("mul.wide.u16", [0xffff, 0xffff, 0]), 0xfffe_0001);
        assert_eq!(result("shr.s32", [0x8000_0000, 31, 0]) as u32, u32::MAX);
        assert_eq!(result("shr.u32", [0x8000_0000, 32, 0]), 0);
        assert_eq!(result("shl.b32", [1, 32, 0]), 0);
        assert_eq!(result("shl.b64", [1, 32, 0]), 1 << 32);
        assert_eq!(result("clz.b32", [1, 0, 0]), 31);
        assert_eq!(result("div.s32", [0xffff_fff9, 2, 0]) as u32 as i32, -3);
        assert_eq!(result("bfe.u32", [0xabcd, 4, 8]), 0xbc);
        assert_eq!(insert_field(Type::U32, 0xf, 0xabcd_0000, [8, 4]), 0xabcd_0f00);
    }

    #[test]
    fn bytes_are_chosen_and_shifted() {
        assert_eq!(result("prmt.b32", [0x3322_1100, 0x7766_5544, 0x7610]), 0x7766_1100);
        assert_eq!(result("prmt.b32", [0x80, 0, 0x8888]), 0xffff_ffff);
        assert_eq!(result("shf.l.wrap.b32", [0x8000_0000, 1, 1]), 3);
        assert_eq!(result("shf.r.clamp.b32", [5, 7, 40]), 7);
    }

    #[test]
    fn sums_round_as_asked() {
        let least = 2f32.powi(-30);
        assert_eq!(single("fma.rm.f32", [1.0, 1.0, -least]), 1f32.next_down());
        assert_eq!(single("fma.rp.f32", [1.0, 1.0, least]), 1f32.next_up());
        assert_eq!(single("fma.rz.f32", [-1.0, 1.0, least]), (-1f32).next_up());
        assert_eq!(single("fma.rn.f32", [1.0, 1.0, least]), 1.0);
        assert_eq!(single("add.sat.f32", [0.75, 0.75, 0.0]), 1.0);
        assert_eq!(single("mul.ftz.f32", [1e-30, 1e-10, 0.0]), 0.0);
        assert_eq!(single("mul.f32", [1e-30, 1e-10, 0.0]), 1e-30f32 * 1e-10);
    }

    #[test]
    fn nan_is_no_extreme_unless_it_is_asked_for() {
        assert_eq!(single("max.f32", [f32::NAN, 1.0, 0.0]), 1.0);
        assert!(single("max.NaN.f32", [f32::NAN, 1.0, 0.0]).is_nan());
        assert_eq!(single("min.f32", [0.0, -0.0, 0.0]).to_bits(), (-0f32).to_bits());
        let nan = f32::NAN.to_bits().into();
        assert_eq!(
            ["setp.ne.f32", "setp.neu.f32", "setp.lt.f32", "setp.gtu.f32"]
                .map(|setp| result(setp, [nan, 0, 0])),
            [0, 1, 0, 1]
        );
        assert_eq!(result("setp.lt.and.s32", [u64::MAX, 0, 1]), 1);
        assert_eq!(result("setp.lt.and.u32", [u64::MAX, 0, 1]), 0);
    }

    #[test]
    fn conversions_round_and_saturate() {
        let of = |x: f64| x.to_bits();
        assert_eq!(result("cvt.rzi.s32.f64", [of(-2.7), 0, 0]) as u32 as i32, -2);
        assert_eq!(result("cvt.rni.u32.f64", [of(2.5), 0, 0]), 2);
        assert_eq!(result("cvt.rzi.u32.f64", [of(-1.0), 0, 0]), 0);
        assert_eq!(result("cvt.rzi.s64.f64", [of(1e30), 0, 0]), i64::MAX as u64);
        assert_eq!(result("cvt.rn.f32.u64", [u64::MAX, 0, 0]) as u32, (u64::MAX as f32).to_bits());
        assert_eq!(
            result("cvt.rn.bf16x2.f32", [1f32.to_bits().into(), 2f32.to_bits().into(), 0]),
            0x3f80_4000
        );
        assert_eq!(result("cvt.sat.u8.s32", [300, 0, 0]), 255);
        assert_eq!(result("cvt.s32.s8", [0xff, 0, 0]) as u32 as i32, -1);
        assert_eq!(result("cvt.u16.u32", [0x1_ffff, 0, 0]), 0xffff);
    }

    #[test]
    fn an_instruction_that_is_not_modelled_has_no_function() {
        for instruction in
            ["lop3.b32", "add.rz.f32", "setp.sometimes.f32", "cvt.rm.f16.f32", "dp2a.hi.u32.u32"]
        {
            let mut words = instruction.split('.');
            let name = words.next().expect("a name");
            assert!(function(name, &mut Modifiers(words.collect())).is_none(), "{instruction}");
        }
    }
}
