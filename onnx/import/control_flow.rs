//! If with a condition that is known at compile time is replaced by the chosen branch. Loop with a known number of steps is
//! unrolled.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use super::subgraph;
use ir::DType;

/// If: imports the branch that its condition chooses.
pub(super) fn branch(cx: &mut Context, call: &Call) -> Outputs {
    let condition = cx.entry(call, 0)?.clone();
    let picked = cx.truth(condition, "the condition of the branch")?;
    call.unneeded(&["then_branch", "else_branch"]);
    let graph = call.graph(if picked { "then_branch" } else { "else_branch" })?;
    subgraph::run(cx, graph, vec![])
}

/// Loop: runs at most as many steps as its first input says, as long as the condition computed in each step holds. The first
/// outputs are the values that steps carry on; the other results of the body are stacked over the steps.
pub(super) fn repeat(cx: &mut Context, call: &Call) -> Outputs {
    let body = call.graph("body")?;
    let most = most_steps(cx, call)?;
    let mut goes_on = match call.input(1) {
        Some(_) => {
            let condition = cx.entry(call, 1)?.clone();
            cx.truth(condition, "the initial condition of the loop")?
        }
        None => true,
    };
    let mut carried: Vec<Entry> =
        (2..call.input_count()).map(|i| cx.entry(call, i).cloned()).collect::<Result<_, _>>()?;
    let count = carried.len();
    if body.outputs.len() <= count {
        let outputs = body.outputs.len();
        return Err(Problem::new(format!(
            "the loop carries {count} values, and its body has only {outputs} outputs"
        )));
    }
    let mut yielded: Vec<Vec<Entry>> = vec![vec![]; body.outputs.len() - 1 - count];
    let (nodes, mut step) = (subgraph::node_count(body), 0);
    while goes_on && most.is_none_or(|most| step < most) {
        cx.unroll(nodes)?;
        let given = [subgraph::number(step, DType::I64), subgraph::number(1, DType::Bool)];
        let mut results = subgraph::run(cx, body, given.into_iter().chain(carried).collect())?.into_iter();
        let condition = results.next().unwrap_or(Entry::Failed);
        goes_on = cx.truth(condition, "the condition that the loop's body computes")?;
        carried = results.by_ref().take(count).collect();
        yielded.iter_mut().zip(results).for_each(|(parts, part)| parts.push(part));
        step += 1;
    }
    cx.b.origin(call.origin());
    for (i, parts) in yielded.iter().enumerate() {
        let output = 1 + count + i;
        carried.push(match &parts[..] {
            [] if call.output(count + i).is_none() => Entry::Failed,
            [] => cx.empty_stack(body, output, 0)?,
            parts => cx.stacked(parts, 0)?,
        });
    }
    Ok(carried)
}

/// Returns the largest number of steps, if the loop has one.
fn most_steps(cx: &mut Context, call: &Call) -> Result<Option<i64>, Problem> {
    if call.input(0).is_none() {
        return Ok(None);
    }
    let entry = cx.entry(call, 0)?.clone();
    match cx.folded(entry) {
        Entry::Ints(ints, _) => match ints.elements() {
            [count] => count.known().map(Some).ok_or_else(|| {
                Problem::new("the number of the loop's steps is a size that is not bound")
                    .note("bind the size with --bind NAME=SIZE")
            }),
            _ => Err(Problem::new(format!(
                "the number of the loop's steps must be one number; there are {}",
                ints.elements().len()
            ))),
        },
        _ => Err(Problem::new(
            "the number of the loop's steps is computed from data; a static program needs a constant number",
        )
        .note("export with a constant number of steps: trace the model, or pad to a fixed length")),
    }
}
