//! The mask of an Attention node: the keys that each query sees, by mask, causal order, window and number of valid keys.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Problem};
use ir::ops::elementwise::{Compare, Logical, Select};
use ir::{DType, Dim, Dims, ValueId};

/// A mask of scores, in dims that broadcast to `[batch, heads, queries, keys]`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mask {
    /// Bools that are true for visible keys.
    pub(super) seen: Option<ValueId>,
    /// Floats that are added to the scores.
    pub(super) added: Option<ValueId>,
}

impl Mask {
    /// Merges the mask into one operand: bools, or floats that are −∞ for hidden keys.
    pub(super) fn merged(self, cx: &mut Context) -> Result<Option<ValueId>, Problem> {
        match (self.seen, self.added) {
            (Some(seen), Some(added)) => Ok(Some(cx.build(Select.of(seen, added, f64::NEG_INFINITY))?)),
            (seen, added) => Ok(seen.or(added)),
        }
    }

    /// Hides further keys. A key stays visible if it is also visible in `seen`.
    pub(super) fn and(&mut self, cx: &mut Context, seen: ValueId) -> Result<(), Problem> {
        self.seen = Some(match self.seen {
            Some(other) => cx.build(Logical::And.of(other, seen))?,
            None => seen,
        });
        Ok(())
    }
}

/// Builds the mask of queries and keys in four dims. `past` keys precede the new keys. With `causal`, a query sees no key after
/// its own.
pub(super) fn mask(
    cx: &mut Context,
    call: &Call,
    [q, k]: [ValueId; 2],
    past: u64,
    causal: bool,
) -> Result<Mask, Problem> {
    let mut mask = given(cx, call, [q, k])?;
    let window = |name: &str| call.int(name).filter(|&size| size >= 0);
    let (left, right) = (window("left_window_size"), window("right_window_size"));
    let ordered = causal || left.is_some() || right.is_some();
    if !ordered && call.input(6).is_none() {
        return Ok(mask);
    }
    let keys = cx.ty(k).dims[2].clone();
    let key = cx.counted(DType::I64, 4, 3, keys)?;
    let present = match cx.optional(call, 6)? {
        Some(counts) => {
            let counts = cx.b.cast(counts, DType::I64)?;
            let ones = [Dim::known(1), Dim::known(1), Dim::known(1)];
            let dims: Vec<Dim> = [cx.ty(q).dims[0].clone()].into_iter().chain(ones).collect();
            Some(cx.b.reshape(counts, dims)?)
        }
        None => None,
    };
    if ordered {
        let place = places(cx, q, past, present)?;
        if causal {
            let seen = cx.build(Compare::LessEqual.of(key, place))?;
            mask.and(cx, seen)?;
        }
        let before = cx.build(place - key)?;
        if let Some(left) = left {
            let seen = cx.build(Compare::LessEqual.of(before, left as f64))?;
            mask.and(cx, seen)?;
        }
        if let Some(right) = right {
            let seen = cx.build(Compare::GreaterEqual.of(before, -(right as f64)))?;
            mask.and(cx, seen)?;
        }
    }
    if let Some(present) = present {
        let seen = cx.build(Compare::Less.of(key, present))?;
        mask.and(cx, seen)?;
    }
    Ok(mask)
}

/// Builds the index of each query's own key: after the past keys or, if the number of valid keys is given, among the last of them.
fn places(cx: &mut Context, q: ValueId, past: u64, present: Option<ValueId>) -> Built {
    let queries = cx.ty(q).dims[2].clone();
    let query = cx.counted(DType::I64, 4, 2, queries)?;
    match present {
        Some(present) => {
            let queries = cx.bound(q, 2, "counts")?;
            cx.build(query + (present - queries as f64))
        }
        None if past > 0 => cx.build(query + past as f64),
        None => Ok(query),
    }
}

/// Reads the node's mask operand. If it is shorter than the keys, the remaining keys are hidden.
fn given(cx: &mut Context, call: &Call, [q, k]: [ValueId; 2]) -> Result<Mask, Problem> {
    let Some(given) = cx.optional(call, 3)? else { return Ok(Mask::default()) };
    let mut wide = four_dims(cx, given)?;
    let dims = cx.ty(wide).dims.clone();
    let is_bool = cx.ty(wide).dtype == DType::Bool;
    if let (Some(width), Some(keys)) = (dims[3].size(), cx.ty(k).dims[2].size())
        && width < keys
    {
        wide = cx.padded(wide, 3, [0, keys - width], if is_bool { 0.0 } else { f64::NEG_INFINITY })?;
    }
    if is_bool {
        return Ok(Mask { seen: Some(wide), added: None });
    }
    let dtype = cx.ty(q).dtype;
    Ok(Mask { seen: None, added: Some(cx.b.cast(wide, dtype)?) })
}

/// Adds leading dims of size one to a mask, up to four dims.
fn four_dims(cx: &mut Context, mask: ValueId) -> Built {
    let dims = cx.ty(mask).dims.clone();
    let missing = 4usize.checked_sub(dims.len());
    let missing = missing
        .ok_or_else(|| Problem::new(format!("the mask has {} dims, which is not supported", dims.len())))?;
    let wide: Dims = std::iter::repeat_n(Dim::known(1), missing).chain(dims).collect();
    Ok(cx.b.reshape(mask, wide)?)
}
