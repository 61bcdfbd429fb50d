//! Loops compiled for the vector instructions of the present machine, which the `pulp` crate selects at run time.

use super::math::Real;

/// Defines functions whose bodies are compiled once for each instruction set that `pulp` knows, and dispatched when called. All functions
/// that a body calls must be `#[inline(always)]`.
macro_rules! vectorized {
    ($(
        $(#[$meta:meta])* $vis:vis fn $name:ident<$($life:lifetime),*; $($t:ident: $bound:path),*>
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )+) => { $(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$($life,)* $($t: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            struct Call<$($life,)* $($t: $bound),*> { $($arg: $ty),* }
            impl<$($life,)* $($t: $bound),*> pulp::WithSimd for Call<$($life,)* $($t),*> {
                type Output = crate::simd::returned!($($ret)?);
                #[inline(always)]
                fn with_simd<Instructions: pulp::Simd>(self, _: Instructions) -> Self::Output {
                    let Self { $($arg),* } = self;
                    $body
                }
            }
            pulp::Arch::new().dispatch(Call { $($arg),* })
        }
    )+ };
}
pub(super) use vectorized;

macro_rules! returned {
    () => {
        ()
    };
    ($ret:ty) => {
        $ret
    };
}
pub(super) use returned;

/// A function of one element.
pub(super) trait Map1<A, B>: Copy {
    fn at(self, x: A) -> B;
}

/// A function of two elements.
pub(super) trait Map2<A, B>: Copy {
    fn at(self, x: A, y: A) -> B;
}

vectorized! {
    /// `out[i] = f(x[i])`
    pub(super) fn map1<'a; A: Copy, B: Copy, F: Map1<A, B>>(f: F, x: &'a [A], out: &'a mut [B]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = f.at(x);
        }
    }
}

/// The number of partial sums of a row's reduction. Several let it vectorize; a fixed number makes it deterministic.
const LANES: usize = 32;

/// Returns `Σ f([a[i], b[i], …])` with [`LANES`] partial sums, over the length of the shortest slice.
#[inline(always)]
pub(super) fn sum<A: Copy, T: Real, const N: usize>(slices: [&[A]; N], f: impl Fn([A; N]) -> T) -> T {
    let mut partial = [T::ZERO; LANES];
    let count = slices.iter().map(|slice| slice.len()).min().unwrap_or(0);
    let whole = count / LANES * LANES;
    let mut start = 0;
    while start < whole {
        // The bounds are checked once per chunk: a check at every element would prevent vectorization.
        let chunks = slices.map(|slice| &slice[start..start + LANES]);
        for (lane, partial) in partial.iter_mut().enumerate() {
            *partial = *partial + f(chunks.map(|chunk| chunk[lane]));
        }
        start += LANES;
    }
    for i in whole..count {
        partial[i - whole] = partial[i - whole] + f(slices.map(|slice| slice[i]));
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            partial[lane] = partial[lane] + partial[lane + width];
        }
        width /= 2;
    }
    partial[0]
}

/// Returns the largest element, or `-∞`. It may pass over a NaN; the sum of a softmax is then NaN in any case.
#[inline(always)]
pub(super) fn max<T: Real>(x: &[T]) -> T {
    let mut partial = [T::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (partial, &x) in partial.iter_mut().zip(chunk) {
            *partial = if *partial >= x { *partial } else { x };
        }
    }
    for (partial, &x) in partial.iter_mut().zip(rest) {
        *partial = if *partial >= x { *partial } else { x };
    }
    let mut largest = T::NEG_INFINITY;
    for partial in partial {
        largest = largest.larger(partial);
    }
    largest
}

vectorized! {
    /// `out[i] = f(x[i], y[i])`
    pub(super) fn map2<'a; A: Copy, B: Copy, F: Map2<A, B>>(f: F, x: &'a [A], y: &'a [A], out: &'a mut [B]) {
        for (out, (&x, &y)) in out.iter_mut().zip(x.iter().zip(y)) {
            *out = f.at(x, y);
        }
    }
}
