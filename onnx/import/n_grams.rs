//! TfIdfVectorizer: counts the n-grams of a pool in a sequence of numbers.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Compare, Logical};
use ir::ops::reduce::ReduceKind;
use ir::{DType, Dim, Tensor, ValueId, ensure};

/// The largest supported `max_skip_count`.
const MOST_SKIPS: u64 = 64;

/// The n-grams of one length.
struct Grams {
    length: usize,
    /// The numbers of all n-grams, one after the other.
    numbers: Vec<i64>,
    /// The column in which each n-gram is counted.
    columns: Vec<usize>,
}

/// TfIdfVectorizer (opset 9) of numbers: the counts times weights (`TFIDF`), or the weights of the n-grams that occur (`IDF`).
pub(super) fn tf_idf(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    ensure!(
        ty.dtype.is_integer() && matches!(ty.ndim(), 1 | 2),
        "n-grams are counted in integers of one or two dims, not in {ty}"
    );
    let (grams, width) = pool(call)?;
    let number = |name: &str| {
        let number = call.int(name).and_then(|n| u64::try_from(n).ok());
        number.ok_or_else(|| Problem::new(format!("needs `{name}`")))
    };
    let (shortest, longest) = (number("min_gram_length")?, number("max_gram_length")?);
    let skips = number("max_skip_count")?;
    ensure!(skips <= MOST_SKIPS, "{skips} skipped places are not supported; at most {MOST_SKIPS} are");
    let rows = if ty.ndim() == 2 { x } else { cx.with_dim(x, 0)? };
    let size = cx.bound(rows, 1, "counts n-grams in")?;
    let batch = cx.ty(rows).dims[0].clone();
    let mut counts = cx.b.splat(ir::Type::new(DType::F32, [batch, Dim::known(width as u64)]), 0.0)?;
    for grams in grams.iter().filter(|grams| (shortest..=longest).contains(&(grams.length as u64))) {
        // An n-gram of one number has nothing to skip.
        let steps = if grams.length == 1 { 1 } else { skips + 1 };
        for step in 1..=steps {
            if step.saturating_mul(grams.length as u64 - 1) < size {
                let found = counted(cx, rows, grams, [step, size], width)?;
                counts = cx.build(counts + found)?;
            }
        }
    }
    let weights = call.floats("weights").unwrap_or_default();
    let mode = call.string("mode").unwrap_or_default();
    let result = match mode {
        "TF" => counts,
        "TFIDF" => weighted(cx, counts, &weights)?,
        "IDF" => {
            let there = cx.build(Compare::Greater.of(counts, 0.0).cast(DType::F32))?;
            weighted(cx, there, &weights)?
        }
        other => return Err(Problem::new(format!("the mode `{other}` is unknown"))),
    };
    one(if ty.ndim() == 2 { result } else { cx.without(result, 0)? })
}

/// Returns the n-grams by length, and the number of columns.
fn pool(call: &Call) -> Result<(Vec<Grams>, usize), Problem> {
    let wrong = || Problem::new("the pool of n-grams does not fit its counts and indexes");
    ensure!(
        call.strings("pool_strings").is_none_or(|pool| pool.is_empty()),
        "n-grams of strings are not supported; programs compute with numbers only"
    );
    let (pool, starts) =
        (call.ints("pool_int64s").ok_or_else(wrong)?, call.ints("ngram_counts").ok_or_else(wrong)?);
    let columns = call.ints("ngram_indexes").ok_or_else(wrong)?;
    let columns: Vec<usize> = columns
        .iter()
        .map(|&column| usize::try_from(column))
        .collect::<Result<_, _>>()
        .map_err(|_| wrong())?;
    let width = columns.iter().max().and_then(|&last| last.checked_add(1)).ok_or_else(wrong)?;
    let starts: Vec<usize> =
        starts.iter().map(|&start| usize::try_from(start)).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let (mut all, mut rest) = (Vec::new(), &columns[..]);
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(pool.len());
        let (numbers, length) = (pool.get(start..end).ok_or_else(wrong)?, i + 1);
        let count = numbers.len() / length;
        let (own, later) = rest.split_at_checked(count).ok_or_else(wrong)?;
        rest = later;
        // Each n-gram needs a row of the matrix that adds counts to columns.
        if !numbers.len().is_multiple_of(length)
            || (count as u64).saturating_mul(width as u64) > Context::MOST_COMPUTED
        {
            return Err(wrong());
        }
        if count > 0 {
            all.push(Grams { length, numbers: numbers.to_vec(), columns: own.to_vec() });
        }
    }
    Ok((all, width))
}

/// Counts the n-grams in the rows, with their numbers `step` places apart: `[rows, columns]`.
fn counted(cx: &mut Context, rows: ValueId, grams: &Grams, [step, size]: [u64; 2], width: usize) -> Built {
    let places = Dim::known(size - step * (grams.length as u64 - 1));
    let dtype = cx.ty(rows).dtype;
    let mut found = None;
    for i in 0..grams.length {
        let read = cx.b.slice(rows, 1, i as u64 * step, places.clone())?;
        let read = cx.with_dim(read, 1)?;
        let numbers: Vec<i64> = grams.numbers.iter().skip(i).step_by(grams.length).copied().collect();
        let numbers = cx.computed(Tensor::int(DType::I64, vec![numbers.len(), 1], numbers))?;
        let numbers = cx.b.cast(numbers, dtype)?;
        let equal = cx.build(Compare::Equal.of(read, numbers))?;
        found = Some(match found {
            Some(found) => cx.build(Logical::And.of(found, equal))?,
            None => equal,
        });
    }
    let found = found.ok_or_else(|| Problem::new("the n-grams have length 0"))?;
    let found = cx.b.cast(found, DType::F32)?;
    let counts = cx.reduced(ReduceKind::Sum, found, &[2])?;
    let counts = cx.without(counts, 2)?;
    let place = |i: usize| if grams.columns[i / width] == i % width { 1.0 } else { 0.0 };
    let placed = (0..grams.columns.len() * width).map(place).collect();
    let placed = cx.computed(Tensor::float(DType::F32, vec![grams.columns.len(), width], placed))?;
    Ok(cx.b.one(Contract::new("bg,gc->bc"), &[counts, placed])?)
}

/// Multiplies columns by their weights, if there are any.
fn weighted(cx: &mut Context, x: ValueId, weights: &[f64]) -> Built {
    if weights.is_empty() {
        return Ok(x);
    }
    let weights = cx.computed(Tensor::float(DType::F32, vec![weights.len()], weights.to_vec()))?;
    cx.build(x * weights)
}
