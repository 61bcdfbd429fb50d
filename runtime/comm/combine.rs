//! Combines the parts of several ranks element by element: by sum, maximum or minimum.

use super::stores::Stores;
use ir::{DType, PartialKind};

/// The number of elements that are combined while they are in the first-level cache.
const BLOCK: usize = 1024;

/// An element type, and the type in which it is combined.
trait Element: bytemuck::Pod {
    type Wide: Copy + Default;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
}

macro_rules! floats {
    ($($ty:ty as $wide:ty, $widen:expr, $narrow:expr);* $(;)?) => { $(
        impl Element for $ty {
            type Wide = $wide;
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            fn sum(a: $wide, b: $wide) -> $wide {
                a + b
            }
            /// Returns NaN if one argument is NaN, as the operator `max` does.
            fn max(a: $wide, b: $wide) -> $wide {
                if a > b || a.is_nan() { a } else { b }
            }
            fn min(a: $wide, b: $wide) -> $wide {
                if a < b || a.is_nan() { a } else { b }
            }
        }
    )* };
}
floats! {
    f64 as f64, |x| x, |x| x;
    f32 as f32, |x| x, |x| x;
    half::f16 as f32, half::f16::to_f32, half::f16::from_f32;
    half::bf16 as f32, half::bf16::to_f32, half::bf16::from_f32;
}

macro_rules! integers {
    ($($ty:ty),*) => { $(
        impl Element for $ty {
            type Wide = $ty;
            fn widen(self) -> $ty {
                self
            }
            fn narrow(wide: $ty) -> Self {
                wide
            }
            fn sum(a: $ty, b: $ty) -> $ty {
                a.wrapping_add(b)
            }
            fn max(a: $ty, b: $ty) -> $ty {
                a.max(b)
            }
            fn min(a: $ty, b: $ty) -> $ty {
                a.min(b)
            }
        }
    )* };
}
integers!(i64, i32, i16, i8, u64, u32, u16, u8);

/// The bytes of a rank's tensor; `None` if they lie in the place of the result.
pub(super) type Addend<'a> = Option<&'a [u8]>;

/// Computes `out = parts[0] ∘ parts[1] ∘ …`, from left to right. All parts have the same length in bytes.
pub(super) fn combine(dtype: DType, kind: PartialKind, parts: &[Addend], out: &mut [u8], stores: Stores) {
    match dtype {
        DType::F64 => combine_by::<f64>(kind, parts, out, stores),
        DType::F32 => combine_by::<f32>(kind, parts, out, stores),
        DType::F16 => combine_by::<half::f16>(kind, parts, out, stores),
        DType::BF16 => combine_by::<half::bf16>(kind, parts, out, stores),
        DType::I64 => combine_by::<i64>(kind, parts, out, stores),
        DType::I32 => combine_by::<i32>(kind, parts, out, stores),
        DType::I16 => combine_by::<i16>(kind, parts, out, stores),
        DType::I8 => combine_by::<i8>(kind, parts, out, stores),
        DType::U64 => combine_by::<u64>(kind, parts, out, stores),
        DType::U32 => combine_by::<u32>(kind, parts, out, stores),
        DType::U16 => combine_by::<u16>(kind, parts, out, stores),
        // If bools are added, at most one part is not zero.
        DType::U8 | DType::Bool => combine_by::<u8>(kind, parts, out, stores),
    }
}

fn combine_by<T: Element>(kind: PartialKind, parts: &[Addend], out: &mut [u8], stores: Stores) {
    match kind {
        PartialKind::Sum => fold::<T>(parts, out, stores, T::sum),
        PartialKind::Max => fold::<T>(parts, out, stores, T::max),
        PartialKind::Min => fold::<T>(parts, out, stores, T::min),
    }
}

fn fold<T: Element>(
    parts: &[Addend],
    out: &mut [u8],
    stores: Stores,
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    if parts.is_empty() {
        return;
    }
    let count = out.len() / size_of::<T>();
    let stores = if count < BLOCK { Stores::Cached } else { stores };
    let (mut wide, mut aside, mut held) = (vec![], vec![], vec![]);
    if parts.len() != 2 {
        wide.resize(BLOCK.min(count), T::Wide::default());
    }
    if parts.iter().any(Option::is_none) {
        held.resize(BLOCK.min(count), T::zeroed());
    }
    if stores == Stores::PastCaches {
        aside.resize(BLOCK, T::zeroed());
    }
    for start in (0..count).step_by(BLOCK) {
        let end = (start + BLOCK).min(count);
        let here = start * size_of::<T>()..end * size_of::<T>();
        // The addend in the place of the result is read before the result is written over it.
        if let Some(held) = held.get_mut(..end - start) {
            held.copy_from_slice(elements(&out[here.clone()]));
        }
        let block = |part: usize| parts[part].map_or(&held[..], |part| elements(&part[here.clone()]));
        let narrow: &mut [T] = match stores {
            Stores::Cached => bytemuck::cast_slice_mut(&mut out[here.clone()]),
            Stores::PastCaches => &mut aside[..end - start],
        };
        match parts.len() {
            // Two parts are combined in one pass, since most groups of threads are pairs.
            2 => {
                let both = block(0).iter().zip(block(1)).map(|(x, y)| combine(x.widen(), y.widen()));
                narrow.iter_mut().zip(both).for_each(|(out, x)| *out = T::narrow(x));
            }
            count => {
                let wide = &mut wide[..end - start];
                each::<T>(block(0), wide, |_, x| x);
                (1..count).for_each(|part| each::<T>(block(part), wide, &combine));
                narrow.iter_mut().zip(wide).for_each(|(out, &mut x)| *out = T::narrow(x));
            }
        }
        if stores == Stores::PastCaches {
            stores.copy(bytemuck::cast_slice(&aside[..end - start]), &mut out[here]);
        }
    }
}

fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(bytes)
}

/// `wide = combine(wide, part)`, element by element.
fn each<T: Element>(part: &[T], wide: &mut [T::Wide], combine: impl Fn(T::Wide, T::Wide) -> T::Wide) {
    wide.iter_mut().zip(part).for_each(|(wide, x)| *wide = combine(*wide, x.widen()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Tensor, Type};

    fn combined(dtype: DType, kind: PartialKind, parts: &[&[f64]]) -> Vec<f64> {
        let bytes = |x: &&[f64]| Tensor::float(dtype, vec![x.len()], x.to_vec()).to_bytes();
        let parts: Vec<Vec<u8>> = parts.iter().map(bytes).collect();
        let addends: Vec<Addend> = parts.iter().map(|part| Some(&part[..])).collect();
        let mut out = vec![0; parts[0].len()];
        combine(dtype, kind, &addends, &mut out, Stores::Cached);
        for stores in [Stores::Cached, Stores::PastCaches] {
            let mut other = vec![0; out.len()];
            combine(dtype, kind, &addends, &mut other, stores);
            assert_eq!(out, other);
            // Each addend once in the place of the result.
            for (place, part) in parts.iter().enumerate() {
                let mut addends = addends.clone();
                addends[place] = None;
                let mut in_place = part.clone();
                combine(dtype, kind, &addends, &mut in_place, stores);
                assert_eq!(out, in_place, "{place}");
            }
        }
        let ty = Type::of(dtype, &[out.len() as u64 / dtype.bytes()]);
        Tensor::from_bytes(&ty, &out).unwrap().numbers()
    }

    #[test]
    fn sums_of_half_types_are_rounded_once() {
        // In bf16, 256 + 1 is 256: three ones added one by one would be lost.
        let parts: [&[f64]; 4] = [&[256.0], &[1.0], &[1.0], &[1.0]];
        assert_eq!(combined(DType::BF16, PartialKind::Sum, &parts), [260.0]);
        assert_eq!(combined(DType::F16, PartialKind::Sum, &[&[2048.0], &[1.0], &[1.0]]), [2050.0]);
    }

    #[test]
    fn the_largest_of_a_nan_is_one_wherever_it_stands() {
        let max = |parts: &[&[f64]]| combined(DType::F32, PartialKind::Max, parts);
        assert_eq!(max(&[&[1.0, -2.0], &[0.5, -1.0]]), [1.0, -1.0]);
        assert!(max(&[&[f64::NAN, 1.0], &[1.0, f64::NAN]]).iter().all(|x| x.is_nan()));
        assert_eq!(combined(DType::F64, PartialKind::Min, &[&[1.0], &[-3.0], &[2.0]]), [-3.0]);
    }

    #[test]
    fn blocks_longer_than_the_cache_are_combined_to_the_end() {
        let parts = [1.0, 2.0].map(|x| vec![x; 2 * BLOCK + 3]);
        let sum = combined(DType::F64, PartialKind::Sum, &[&parts[0], &parts[1]]);
        assert_eq!(sum, vec![3.0; 2 * BLOCK + 3]);
    }
}
