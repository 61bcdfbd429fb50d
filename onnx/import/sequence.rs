//! Sequences and optionals. Their contents are known at compile time, so entries of their parts replace them, and they never reach
//! the program.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, dim, one};
use super::subgraph;
use ir::ops::shape::Concat;
use ir::{DType, Dim, ValueId, ensure};

/// The meaning of a position in a sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PositionKind {
    /// The position of a part.
    Part,
    /// The position of a part, or the end.
    Gap,
}

/// Returns the parts of an input that is a sequence.
fn parts(cx: &Context, call: &Call, i: usize) -> Result<Vec<Entry>, Problem> {
    match cx.entry(call, i)? {
        Entry::Sequence(parts) => Ok(parts.clone()),
        Entry::Absent => Err(Problem::new("the sequence is missing")),
        _ => Err(Problem::new("the node needs a sequence, and its input is a tensor")),
    }
}

/// Returns the position in an input, counted from the end if negative. Without the input it is the last position.
fn place(cx: &Context, call: &Call, i: usize, count: usize, of: PositionKind) -> Result<usize, Problem> {
    let places = count + usize::from(of == PositionKind::Gap);
    let given = cx.numbers(call, i, "position")?;
    let at = match given.as_deref() {
        None => places.checked_sub(1),
        // A negative position counts from the end in the same way: -1 is before the last part.
        Some([at]) if *at < 0 => dim(*at, count).map(|at| at as usize),
        Some([at]) => dim(*at, places).map(|at| at as usize),
        Some(_) => None,
    };
    at.ok_or_else(|| {
        let shown = given.map_or_else(|| "the last tensor".to_owned(), |at| format!("position {at:?}"));
        Problem::new(format!("{shown} does not exist in a sequence of {count} tensors"))
    })
}

/// SequenceConstruct: a sequence of the inputs. SequenceEmpty: an empty sequence.
pub(super) fn construct(cx: &mut Context, call: &Call) -> Outputs {
    let parts = (0..call.input_count()).map(|i| cx.entry(call, i).cloned()).collect::<Result<_, _>>()?;
    Ok(vec![Entry::Sequence(parts)])
}

/// Imports SequenceLength.
pub(super) fn length(cx: &mut Context, call: &Call) -> Outputs {
    let count = parts(cx, call, 0)?.len();
    Ok(vec![subgraph::number(count as i64, DType::I64)])
}

/// Imports SequenceAt.
pub(super) fn at(cx: &mut Context, call: &Call) -> Outputs {
    let parts = parts(cx, call, 0)?;
    let at = place(cx, call, 1, parts.len(), PositionKind::Part)?;
    Ok(vec![parts[at].clone()])
}

/// Imports SequenceInsert.
pub(super) fn insert(cx: &mut Context, call: &Call) -> Outputs {
    let mut parts = parts(cx, call, 0)?;
    let part = cx.entry(call, 1)?.clone();
    let at = place(cx, call, 2, parts.len(), PositionKind::Gap)?;
    parts.insert(at, part);
    Ok(vec![Entry::Sequence(parts)])
}

/// Imports SequenceErase.
pub(super) fn erase(cx: &mut Context, call: &Call) -> Outputs {
    let mut parts = parts(cx, call, 0)?;
    let at = place(cx, call, 1, parts.len(), PositionKind::Part)?;
    parts.remove(at);
    Ok(vec![Entry::Sequence(parts)])
}

/// ConcatFromSequence: along an existing dim, or along a new one.
pub(super) fn concat(cx: &mut Context, call: &Call) -> Outputs {
    let parts = parts(cx, call, 0)?;
    let axis = call.int("axis").ok_or_else(|| Problem::new("needs `axis`"))?;
    ensure!(!parts.is_empty(), "the sequence to join is empty");
    if call.int("new_axis").unwrap_or(0) != 0 {
        return Ok(vec![cx.stacked(&parts, axis)?]);
    }
    let values = parts.iter().map(|part| cx.materialize(part)).collect::<Result<Vec<ValueId>, _>>()?;
    let dim = cx.axis(values[0], axis)?;
    one(if let [only] = values[..] { only } else { cx.b.one(Concat { dim }, &values)? })
}

/// SplitToSequence: parts of equal size, of given sizes, or of one element each; in the last case `keepdims` says whether the dim
/// stays.
pub(super) fn split(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dim = cx.axis(x, call.int("axis").unwrap_or(0))?;
    let size = cx.bound(x, dim, "splits")?;
    let given = cx.numbers(call, 1, "split")?;
    let sizes = match (&given, cx.ints(call, 1)) {
        (Some(sizes), Some(ints)) if !ints.sizes().is_empty() => {
            sizes.iter().map(|&n| u64::try_from(n).unwrap_or(u64::MAX)).collect()
        }
        _ => equal_parts(size, given.as_deref().map_or(Some(1), |n| u64::try_from(*n.first()?).ok()))?,
    };
    ensure!(
        sizes.iter().try_fold(0u64, |sum, &part| sum.checked_add(part)) == Some(size),
        "the sizes {sizes:?} of the parts do not add up to dim {dim} of {}",
        cx.ty(x)
    );
    let gone = given.is_none() && call.int("keepdims").unwrap_or(1) == 0;
    let (mut start, mut parts) = (0, Vec::new());
    for size in sizes {
        let part = cx.b.slice(x, dim, start, Dim::known(size))?;
        parts.push(Entry::Value(if gone { cx.without(part, dim)? } else { part }));
        start += size;
    }
    Ok(vec![Entry::Sequence(parts)])
}

/// The most parts of a sequence.
const MOST_PARTS: u64 = 65_536;

fn equal_parts(size: u64, part: Option<u64>) -> Result<Vec<u64>, Problem> {
    let part = part.filter(|&part| part > 0).ok_or_else(|| Problem::new("the size of the parts is 0"))?;
    let count = size.div_ceil(part);
    ensure!(
        count <= MOST_PARTS,
        "a split into {count} parts is not supported; at most {MOST_PARTS} parts are"
    );
    Ok((0..count).map(|i| part.min(size - i * part)).collect())
}

/// SequenceMap: applies a graph to each part of a sequence, together with the same parts of other sequences, and with whole
/// tensors.
pub(super) fn map(cx: &mut Context, call: &Call) -> Outputs {
    let body = call.graph("body")?;
    let count = parts(cx, call, 0)?.len();
    let inputs = (0..call.input_count()).map(|i| cx.entry(call, i).cloned());
    let inputs = inputs.collect::<Result<Vec<Entry>, _>>()?;
    let mut outputs: Vec<Vec<Entry>> = vec![vec![]; body.outputs.len()];
    let nodes = subgraph::node_count(body);
    for i in 0..count {
        cx.unroll(nodes)?;
        let given = inputs.iter().map(|input| match input {
            Entry::Sequence(parts) => parts.get(i).cloned().ok_or_else(|| {
                Problem::new(format!("the sequences have different lengths: {count} and {}", parts.len()))
            }),
            whole => Ok(whole.clone()),
        });
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let results = subgraph::run(cx, body, given)?;
        outputs.iter_mut().zip(results).for_each(|(parts, part)| parts.push(part));
    }
    Ok(outputs.into_iter().map(Entry::Sequence).collect())
}

/// Optional: the input, or an optional without an element.
pub(super) fn optional(cx: &mut Context, call: &Call) -> Outputs {
    // The attribute is the type of a missing element.
    call.unneeded(&["type"]);
    Ok(vec![if call.input(0).is_some() { cx.entry(call, 0)?.clone() } else { Entry::Absent }])
}

/// Imports OptionalHasElement.
pub(super) fn has_element(cx: &mut Context, call: &Call) -> Outputs {
    let has = call.input(0).is_some() && !matches!(cx.entry(call, 0)?, Entry::Absent);
    Ok(vec![subgraph::number(i64::from(has), DType::Bool)])
}

/// Imports OptionalGetElement.
pub(super) fn get_element(cx: &mut Context, call: &Call) -> Outputs {
    match cx.entry(call, 0)? {
        Entry::Absent => Err(Problem::new("the node reads an optional that has no element")),
        entry => Ok(vec![entry.clone()]),
    }
}
