// Functions of single numbers: those that CUDA's own do not cover, or not with every number. `T` is float or double.

namespace elementwise {

template <class T> DEVICE T sign(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : (T)0; }
template <class T> DEVICE T reciprocal_root(T x) { return (T)1 / sqrt(x); }
template <class T> DEVICE T sigmoid(T x) { return (T)1 / ((T)1 + exp(-x)); }
// A NaN stays.
template <class T> DEVICE T relu(T x) { return x < 0 ? (T)0 : x; }

// The normal distribution's: from erfc, which keeps its digits far to the left.
template <class T> DEVICE T normal_cdf(T x) { return (T)0.5 * erfc(x * (T)-0.70710678118654752440); }
template <class T> DEVICE T gelu(T x) { return x * normal_cdf(x); }
template <class T> DEVICE T gelu_grad(T x, T d) {
    const T density = exp((T)-0.5 * x * x) * (T)0.39894228040143267794;
    return d * (normal_cdf(x) + x * density);
}

// sqrt(2/pi) (x + 0.044715 x^3)
template <class T> DEVICE T gelu_tanh_inner(T x) {
    return (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x);
}
template <class T> DEVICE T gelu_tanh(T x) { return (T)0.5 * x * ((T)1 + tanh(gelu_tanh_inner(x))); }
template <class T> DEVICE T gelu_tanh_grad(T x, T d) {
    const T t = tanh(gelu_tanh_inner(x));
    const T slope = (T)0.79788456080286535588 * ((T)1 + (T)(3 * 0.044715) * x * x);
    return d * ((T)0.5 * ((T)1 + t) + (T)0.5 * x * ((T)1 - t * t) * slope);
}

template <class T> DEVICE T silu(T x) { return x * sigmoid(x); }
template <class T> DEVICE T silu_grad(T x, T d) {
    const T s = sigmoid(x);
    return d * s * ((T)1 + x * ((T)1 - s));
}
template <class T> DEVICE T relu_grad(T x, T d) { return x > 0 ? d : (T)0; }

// The remainder with the sign of `y`.
template <class T> DEVICE T modulo(T x, T y) {
    const T rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
template <class T> DEVICE T power(T x, T y) {
    if (y == (T)2) return x * x;
    if (y == (T)3) return x * x * x;
    return pow(x, y);
}

// A float as an integer: towards zero, the nearest where there is none, NaN as 0.
DEVICE i64 to_integer(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775807.0) return 9223372036854775807ll;
    if (x <= -9223372036854775808.0) return -9223372036854775807ll - 1;
    return (i64)x;
}

}  // namespace elementwise

// Integers are computed in 64 bits, and wrap.
namespace integer {

DEVICE i64 neg(i64 x) { return (i64)(0 - (u64)x); }
DEVICE i64 abs(i64 x) { return x < 0 ? neg(x) : x; }
DEVICE i64 sign(i64 x) { return (x > 0) - (x < 0); }
DEVICE i64 add(i64 x, i64 y) { return (i64)((u64)x + (u64)y); }
DEVICE i64 sub(i64 x, i64 y) { return (i64)((u64)x - (u64)y); }
DEVICE i64 mul(i64 x, i64 y) { return (i64)((u64)x * (u64)y); }
DEVICE i64 largest(i64 x, i64 y) { return x > y ? x : y; }
DEVICE i64 smallest(i64 x, i64 y) { return x < y ? x : y; }
// By zero 0, and so is the one quotient that does not fit.
DEVICE i64 div(i64 x, i64 y) { return y == 0 || (y == -1 && x == -9223372036854775807ll - 1) ? 0 : x / y; }
DEVICE i64 modulo(i64 x, i64 y) {
    if (y == 0 || y == -1) return 0;
    const i64 rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
DEVICE i64 power(i64 x, i64 y) {
    if (y < 0 || y > 0xffffffffll) return 0;
    u64 result = 1, base = (u64)x;
    for (; y > 0; y /= 2, base *= base) if (y % 2) result *= base;
    return (i64)result;
}
// `width` is that of the type, in bits.
DEVICE i64 shift_left(i64 x, i64 by, i64 width) { return by < 0 || by >= width ? 0 : (i64)((u64)x << by); }
DEVICE i64 shift_right(i64 x, i64 by, i64 width) { return by < 0 || by >= width ? (x < 0 ? -1 : 0) : x >> by; }
DEVICE i64 shift_right(u64 x, i64 by, i64 width) { return by < 0 || by >= width ? 0 : (i64)(x >> by); }

}  // namespace integer
