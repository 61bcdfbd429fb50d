//! Scan: a graph that is applied along a dim of its inputs, unrolled. Up to opset 8 it also runs over a batch.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use super::subgraph;
use crate::Graph;
use ir::{Dim, ValueId, ensure};

/// A Scan: its body, the number of carried values, and the values that are read and written step by step.
struct Scan<'a> {
    body: &'a Graph,
    carried: usize,
    read: Vec<ScanDim>,
    written: Vec<ScanDim>,
}

/// The dim along which a value is read or written, and the direction.
#[derive(Clone, Copy)]
struct ScanDim {
    axis: i64,
    backwards: bool,
}

/// Scan, in the form of opset 9 and later, or of opset 8.
pub(super) fn scan(cx: &mut Context, call: &Call) -> Outputs {
    let batched = call.opset() < 9;
    let first = usize::from(batched);
    let scan = Scan::of(call, first)?;
    let inputs: Vec<ValueId> =
        (first..call.input_count()).map(|i| cx.value(call, i)).collect::<Result<_, _>>()?;
    if !batched {
        return scan.run(cx, call, inputs);
    }
    let Some(&any) = inputs.first() else { return Err(Problem::new("the scan has no inputs")) };
    ensure!(cx.ty(any).ndim() != 0, "an input of the scan has no batch dim");
    if call.input(0).is_some() {
        let steps = inputs.last().filter(|&&input| cx.ty(input).ndim() > 1);
        let steps = cx.bound(*steps.unwrap_or(&any), 1, "walks along")?;
        let lengths = cx.numbers(call, 0, "sequence_lens")?.unwrap_or_default();
        if lengths.iter().any(|&length| u64::try_from(length) != Ok(steps)) {
            return Err(Problem::new(format!(
                "the sequence lengths {lengths:?} differ from the scan's {steps} steps"
            ))
            .note("export with sequences of one length, or at opset 9 or later"));
        }
    }
    let batch = cx.bound(any, 0, "runs over")?;
    let mut parts: Vec<Vec<Entry>> = vec![vec![]; scan.carried + scan.written.len()];
    for i in 0..batch {
        let entry = inputs.iter().map(|&input| at(cx, input, 0, i)).collect::<Result<Vec<_>, _>>()?;
        let results = scan.run(cx, call, entry)?;
        parts.iter_mut().zip(results).for_each(|(parts, part)| parts.push(part));
    }
    parts.iter().map(|parts| cx.stacked(parts, 0)).collect()
}

impl<'a> Scan<'a> {
    fn of(call: &Call<'a>, first: usize) -> Result<Self, Problem> {
        let body = call.graph("body")?;
        let inputs = call.input_count().saturating_sub(first);
        let count = call.int("num_scan_inputs").and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|&count| (1..=inputs).contains(&count));
        let count = count.ok_or_else(|| {
            Problem::new(format!("the scan reads none of its {inputs} inputs step by step"))
        })?;
        let carried = inputs - count;
        let written = body.outputs.len().checked_sub(carried);
        let written =
            written.ok_or_else(|| Problem::new("the scan carries more values than its body has outputs"))?;
        let (directions, axes) = if first == 1 {
            ("directions", "scan_input_axes")
        } else {
            ("scan_input_directions", "scan_input_axes")
        };
        Ok(Self {
            body,
            carried,
            read: along(call, axes, directions, count)?,
            written: along(call, "scan_output_axes", "scan_output_directions", written)?,
        })
    }

    /// Runs all steps. Returns the final carried values, and the written values, stacked.
    fn run(&self, cx: &mut Context, call: &Call, inputs: Vec<ValueId>) -> Outputs {
        let (carried, read) = inputs.split_at(self.carried);
        let mut steps = None;
        for (&input, along) in read.iter().zip(&self.read) {
            let dim = cx.axis(input, along.axis)?;
            let size = cx.bound(input, dim, "walks along")?;
            ensure!(
                steps.is_none_or(|steps| steps == size),
                "{} gives the scan {size} steps, and another input gives a different number",
                cx.ty(input)
            );
            steps = Some(size);
        }
        let (steps, nodes) = (steps.unwrap_or(0), subgraph::node_count(self.body));
        let mut carried: Vec<Entry> = carried.iter().map(|&value| Entry::Value(value)).collect();
        let mut written: Vec<Vec<Entry>> = vec![vec![]; self.written.len()];
        for step in 0..steps {
            cx.unroll(nodes)?;
            for (&input, along) in read.iter().zip(&self.read) {
                let dim = cx.axis(input, along.axis)?;
                let place = if along.backwards { steps - 1 - step } else { step };
                let value = at(cx, input, dim, place)?;
                carried.push(cx.folded(Entry::Value(value)));
            }
            let mut results = subgraph::run(cx, self.body, carried)?;
            let parts = results.split_off(self.carried);
            carried = results;
            written.iter_mut().zip(parts).for_each(|(parts, part)| parts.push(part));
            cx.b.origin(call.origin());
        }
        for (i, (parts, along)) in written.iter_mut().zip(&self.written).enumerate() {
            if along.backwards {
                parts.reverse();
            }
            carried.push(match &parts[..] {
                [] => cx.empty_stack(self.body, self.carried + i, along.axis)?,
                parts => cx.stacked(parts, along.axis)?,
            });
        }
        Ok(carried)
    }
}

/// Returns the axis and direction of each value. By default the first dim is walked forwards.
fn along(call: &Call, axes: &str, directions: &str, count: usize) -> Result<Vec<ScanDim>, Problem> {
    let list = |name: &str| match call.ints(name) {
        Some(numbers) if numbers.len() == count => Ok(numbers),
        Some(numbers) => {
            Err(Problem::new(format!("`{name}` has {} numbers for {count} values", numbers.len())))
        }
        None => Ok(vec![0; count]),
    };
    let (axes, directions) = (list(axes)?, list(directions)?);
    Ok(axes.into_iter().zip(directions).map(|(axis, way)| ScanDim { axis, backwards: way != 0 }).collect())
}

/// Returns one place along a dim, and removes the dim.
fn at(cx: &mut Context, x: ValueId, dim: u32, place: u64) -> Result<ValueId, Problem> {
    let slice = cx.b.slice(x, dim, place, Dim::known(1))?;
    cx.without(slice, dim)
}
