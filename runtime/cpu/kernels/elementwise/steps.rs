//! One elementwise operator on one block, in the types in which steps compute.

use crate::element::{Element, with_half, with_integer, with_real, with_width};
use crate::math::{Float, Real};
use crate::simd::{Map1, Map2, map1, map2};
use crate::storage::{computed, is_half};
use ir::ops::elementwise::{Binary, Compare, Logical, Unary};
use ir::{DType, Op};
use program::ChainStep;

/// Applies a step to blocks of equal length. A step with a result of f16 or bf16 writes f32 numbers that are not yet rounded.
pub(super) fn apply(step: &ChainStep, sources: &[(DType, &[u8])], out: &mut [u8]) {
    let (dtype, x) = sources[0];
    match &step.op {
        Op::Unary(Unary::Not) => map1(Not, x, out),
        Op::Unary(Unary::IsNan) => {
            with_real!(dtype, T => map1(IsNan, bytemuck::cast_slice::<u8, T>(x), out));
        }
        Op::Unary(op) if dtype.is_float() => {
            with_real!(dtype, T => unary::<T>(*op, bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out)));
        }
        Op::Unary(op) => {
            with_integer!(dtype, T => unary_integer::<T>(*op, bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out)));
        }
        Op::Binary(op) => {
            let y = sources[1].1;
            if dtype.is_float() {
                with_real!(dtype, T => {
                    binary::<T>(*op, bytemuck::cast_slice(x), bytemuck::cast_slice(y), bytemuck::cast_slice_mut(out));
                });
            } else {
                with_integer!(dtype, T => {
                    let pairs = bytemuck::cast_slice::<u8, T>(x).iter().zip(bytemuck::cast_slice::<u8, T>(y));
                    let out = bytemuck::cast_slice_mut::<u8, T>(out).iter_mut();
                    out.zip(pairs).for_each(|(out, (x, y))| *out = T::from_i64(op.integer(x.to_i64(), y.to_i64())));
                });
            }
        }
        Op::Bitwise(op) => with_integer!(dtype, T => {
            let pairs = bytemuck::cast_slice::<u8, T>(x).iter().zip(bytemuck::cast_slice::<u8, T>(sources[1].1));
            let out = bytemuck::cast_slice_mut::<u8, T>(out).iter_mut();
            out.zip(pairs).for_each(|(out, (x, y))| *out = T::from_i64(op.integer(dtype, x.to_i64(), y.to_i64())));
        }),
        Op::Compare(op) => compare(*op, dtype, x, sources[1].1, out),
        Op::Logical(op) => match op {
            Logical::And => map2(And, x, sources[1].1, out),
            Logical::Or => map2(Or, x, sources[1].1, out),
            Logical::Xor => map2(Xor, x, sources[1].1, out),
        },
        Op::Select(_) => with_width!(computed(step.dtype).bytes(), T => {
            let (first, second) = (bytemuck::cast_slice::<u8, T>(sources[1].1), bytemuck::cast_slice::<u8, T>(sources[2].1));
            let picks = x.iter().zip(first.iter().zip(second));
            let out = bytemuck::cast_slice_mut::<u8, T>(out).iter_mut();
            out.zip(picks).for_each(|(out, (&condition, (&first, &second)))| *out = if condition != 0 { first } else { second });
        }),
        Op::Cast(_) => cast(dtype, step.dtype, x, out),
        other => unreachable!("`{}` is not elementwise", other.name()),
    }
}

/// Defines a function of one element or of two, which may be generic, as a type.
macro_rules! function {
    ($vis:vis $name:ident<$($t:ident: $bound:ident)?>($x:ident: $from:ty) -> $to:ty { $body:expr }) => {
        #[derive(Clone, Copy)]
        $vis struct $name;
        impl<$($t: $bound)?> Map1<$from, $to> for $name {
            #[inline(always)]
            fn at(self, $x: $from) -> $to {
                $body
            }
        }
    };
    ($vis:vis $name:ident<$($t:ident: $bound:ident)?>($x:ident, $y:ident: $from:ty) -> $to:ty { $body:expr }) => {
        #[derive(Clone, Copy)]
        $vis struct $name;
        impl<$($t: $bound)?> Map2<$from, $to> for $name {
            #[inline(always)]
            fn at(self, $x: $from, $y: $from) -> $to {
                $body
            }
        }
    };
}

/// Defines the functions of one number and the match over their kinds.
macro_rules! unary {
    ($($kind:ident |$x:ident| $body:expr;)*) => {
        $(function!($kind<T: Real>($x: T) -> T { $body });)*

        fn unary<T: Real>(op: Unary, x: &[T], out: &mut [T]) {
            match op {
                $(Unary::$kind => map1($kind, x, out),)*
                Unary::Not | Unary::IsNan => unreachable!("`apply` has these, whose types differ"),
            }
        }
    };
}

unary! {
    Neg |x| -x;
    Abs |x| x.abs();
    Sign |x| if x > T::ZERO { T::ONE } else if x < T::ZERO { -T::ONE } else { T::ZERO };
    Exp |x| x.exp();
    Log |x| x.ln();
    Sqrt |x| x.sqrt();
    Rsqrt |x| T::ONE / x.sqrt();
    Reciprocal |x| T::ONE / x;
    Sin |x| x.sin();
    Cos |x| x.cos();
    Atan |x| x.atan();
    Tanh |x| x.tanh();
    Erf |x| x.erf();
    Sigmoid |x| x.sigmoid();
    // A NaN stays.
    Relu |x| if x < T::ZERO { T::ZERO } else { x };
    Gelu |x| x * x.normal_cdf();
    GeluTanh |x| (T::of(0.5) * x) * (T::ONE + gelu_tanh_inner(x).tanh());
    Silu |x| x * x.sigmoid();
    Floor |x| x.floor();
    Ceil |x| x.ceil();
    Round |x| x.round_ties_even();
}

/// √(2/π)
const GELU_TANH_SCALE: f64 = 0.797_884_560_802_865_4;
const GELU_TANH_CUBE: f64 = 0.044715;

/// √(2/π)(x + 0.044715x³)
#[inline(always)]
fn gelu_tanh_inner<T: Real>(x: T) -> T {
    let inner = (T::of(GELU_TANH_CUBE) * x * x).mul_add(x, x);
    T::of(GELU_TANH_SCALE) * inner
}

function!(Not<>(x: u8) -> u8 { u8::from(x == 0) });
function!(IsNan<T: Real>(x: T) -> u8 { u8::from(x.is_nan()) });

fn unary_integer<T: Element>(op: Unary, x: &[T], out: &mut [T]) {
    let f: fn(i64) -> i64 = match op {
        Unary::Neg => i64::wrapping_neg,
        Unary::Abs => i64::wrapping_abs,
        Unary::Sign => i64::signum,
        other => unreachable!("{other:?} takes floats"),
    };
    out.iter_mut().zip(x).for_each(|(out, x)| *out = T::from_i64(f(x.to_i64())));
}

/// Defines the functions of two numbers and the match over their kinds.
macro_rules! binary {
    ($($kind:ident |$x:ident, $y:ident| $body:expr;)*) => {
        mod two {
            use super::*;
            $(function!(pub(super) $kind<T: Real>($x, $y: T) -> T { $body });)*
        }

        fn binary<T: Real>(op: Binary, x: &[T], y: &[T], out: &mut [T]) {
            match op {
                $(Binary::$kind => map2(two::$kind, x, y, out),)*
                Binary::Pow => power(x, y, out),
            }
        }
    };
}

binary! {
    Add |x, y| x + y;
    Sub |x, y| x - y;
    Mul |x, y| x * y;
    Div |x, y| x / y;
    Max |x, y| x.larger(y);
    Min |x, y| x.smaller(y);
    AtLeast |x, y| x.larger(y);
    AtMost |x, y| x.smaller(y);
    Mod |x, y| {
        let rest = x.rest(y);
        if rest != T::ZERO && (rest < T::ZERO) != (y < T::ZERO) { rest + y } else { rest }
    };
    GeluGrad |x, y| {
        let density = (T::of(-0.5) * x * x).exp() * T::of(FRAC_1_SQRT_2_PI);
        y * x.mul_add(density, x.normal_cdf())
    };
    GeluTanhGrad |x, y| {
        let tanh = gelu_tanh_inner(x).tanh();
        let slope = T::of(GELU_TANH_SCALE) * (T::of(3.0 * GELU_TANH_CUBE) * x).mul_add(x, T::ONE);
        let half = T::of(0.5);
        y * (half * x * (T::ONE - tanh * tanh)).mul_add(slope, half.mul_add(tanh, half))
    };
    SiluGrad |x, y| {
        let sigmoid = x.sigmoid();
        y * sigmoid * x.mul_add(T::ONE - sigmoid, T::ONE)
    };
    ReluGrad |x, y| if x > T::ZERO { y } else { T::ZERO };
}

/// 1/√(2π)
const FRAC_1_SQRT_2_PI: f64 = 0.398_942_280_401_432_7;

/// Computes `xʸ`. The constant exponents that models use avoid the general function.
fn power<T: Real>(x: &[T], y: &[T], out: &mut [T]) {
    let exponent = y.first().copied().filter(|first| y.iter().all(|y| y == first));
    match exponent.map(Element::to_f64) {
        Some(2.0) => map1(Square, x, out),
        Some(3.0) => map1(Cube, x, out),
        Some(0.5) => map1(Sqrt, x, out),
        Some(-0.5) => map1(Rsqrt, x, out),
        Some(-1.0) => map1(Reciprocal, x, out),
        _ => map2(Power, x, y, out),
    }
}

function!(Square<T: Real>(x: T) -> T { x * x });
function!(Cube<T: Real>(x: T) -> T { x * x * x });
function!(Power<T: Real>(x, y: T) -> T { x.powf(y) });

function!(And<>(x, y: u8) -> u8 { u8::from(x != 0 && y != 0) });
function!(Or<>(x, y: u8) -> u8 { u8::from(x != 0 || y != 0) });
function!(Xor<>(x, y: u8) -> u8 { u8::from((x != 0) != (y != 0)) });

macro_rules! compare {
    ($($kind:ident |$x:ident, $y:ident| $body:expr;)*) => {
        $(function!($kind<T: Element>($x, $y: T) -> u8 { u8::from($body) });)*

        fn compare_as<T: Element>(op: Compare, x: &[T], y: &[T], out: &mut [u8]) {
            match op {
                $(Compare::$kind => map2($kind, x, y, out),)*
            }
        }
    };
}

compare! {
    Equal |x, y| x == y;
    Less |x, y| x < y;
    LessEqual |x, y| x <= y;
    Greater |x, y| x > y;
    GreaterEqual |x, y| x >= y;
}

fn compare(op: Compare, dtype: DType, x: &[u8], y: &[u8], out: &mut [u8]) {
    match dtype {
        DType::Bool => compare_as::<u8>(op, x, y, out),
        dtype if dtype.is_float() => {
            with_real!(dtype, T => compare_as::<T>(op, bytemuck::cast_slice(x), bytemuck::cast_slice(y), out));
        }
        dtype => {
            with_integer!(dtype, T => compare_as::<T>(op, bytemuck::cast_slice(x), bytemuck::cast_slice(y), out))
        }
    }
}

/// Converts elements to another type: integers wrap, floats truncate to integers, and bools are `x ≠ 0`.
fn cast(from: DType, to: DType, x: &[u8], out: &mut [u8]) {
    match (kind(from), kind(to)) {
        // f16 and bf16 are computed in f32, and rounded at the end of this step.
        _ if from == computed(to) => out.copy_from_slice(x),
        (Kind::Bool, Kind::Bool) => out.copy_from_slice(x),
        // A conversion through f32 would round twice.
        (Kind::Float, Kind::Float) if is_half(to) => with_half!(to, S => with_real!(from, F => {
            convert(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out), |x: F| <S as Element>::from_f64(x.to_f64()).widen());
        })),
        (Kind::Integer, Kind::Float) if is_half(to) => with_half!(to, S => with_integer!(from, F => {
            convert(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out), |x: F| S::from_i64(x.to_i64()).widen());
        })),
        (Kind::Bool, Kind::Float) => with_real!(to, T => {
            convert(x, bytemuck::cast_slice_mut(out), |x: u8| T::from_i64(i64::from(x != 0)));
        }),
        (Kind::Bool, Kind::Integer) => with_integer!(to, T => {
            convert(x, bytemuck::cast_slice_mut(out), |x: u8| T::from_i64(i64::from(x != 0)));
        }),
        (Kind::Float, Kind::Bool) => with_real!(from, F => {
            convert(bytemuck::cast_slice(x), out, |x: F| u8::from(x != 0.0));
        }),
        (Kind::Integer, Kind::Bool) => with_integer!(from, F => {
            convert(bytemuck::cast_slice(x), out, |x: F| u8::from(x != 0));
        }),
        (Kind::Float, Kind::Float) => with_real!(from, F => with_real!(to, T => {
            convert(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out), |x: F| T::from_f64(x.to_f64()));
        })),
        (Kind::Float, Kind::Integer) => with_real!(from, F => with_integer!(to, T => {
            convert(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out), |x: F| T::from_i64(x.to_f64() as i64));
        })),
        (Kind::Integer, Kind::Float) => with_integer!(from, F => with_real!(to, T => {
            convert(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out), |x: F| T::from_f64(x.to_i64() as f64));
        })),
        (Kind::Integer, Kind::Integer) => with_integer!(from, F => with_integer!(to, T => {
            convert(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out), |x: F| T::from_i64(x.to_i64()));
        })),
    }
}

enum Kind {
    Float,
    Integer,
    Bool,
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool => Kind::Bool,
        dtype if dtype.is_float() => Kind::Float,
        _ => Kind::Integer,
    }
}

fn convert<A: Copy, B>(x: &[A], out: &mut [B], f: impl Fn(A) -> B) {
    out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
}
