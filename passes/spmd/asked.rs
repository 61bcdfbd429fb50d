//! Shardings that the user fixed: `--shard 'PATTERN=DIMS'`.

use super::propagation::{Cause, Layouts, Rules};
use crate::arguments::pattern;
use crate::pass::PassContext;
use ir::{AxisId, Diagnostic, Mesh, Module, State, ValueId, ViewStep};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The states whose names match a pattern, and the axes that split each dim of their tensors in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// A pattern over names of states, and over those of their tensors in the file.
    pub pattern: String,
    /// The names of the axes of each dim of the file's tensor, major first.
    pub dims: Vec<Vec<String>>,
}

/// Reads `h.*.c_fc.weight=-,tp`: `-` for no axis, `dp*tp` for several. No axis may stand twice.
impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((pattern, dims)) = text.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty()) else {
            return Err(format!("`{text}` is not a sharding; write PATTERN=DIMS, such as 'h.*.weight=-,tp'"));
        };
        let mut seen: Vec<&str> = Vec::new();
        let mut shard = Self { pattern: pattern.to_owned(), dims: Vec::new() };
        for dim in dims.split(',').map(str::trim) {
            let axes: Vec<&str> = if dim == "-" { vec![] } else { dim.split('*').map(str::trim).collect() };
            for axis in &axes {
                if axis.is_empty() {
                    return Err(format!(
                        "`{dims}` has an empty dim; write `-` for a dim that no axis splits, such as -,tp"
                    ));
                }
                if seen.contains(axis) {
                    return Err(format!("axis `{axis}` is given twice in `{dims}`"));
                }
                seen.push(axis);
            }
            shard.dims.push(axes.into_iter().map(str::to_owned).collect());
        }
        Ok(shard)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |axes: &Vec<String>| if axes.is_empty() { "-".into() } else { axes.join("*") };
        write!(f, "{}={}", self.pattern, self.dims.iter().map(dim).collect::<Vec<_>>().join(","))
    }
}

/// Seeds the states that the user named and closes them. Returns the seeded values.
pub(super) fn seed(
    rules: &Rules,
    layouts: &mut Layouts,
    shards: &[Shard],
    cx: &PassContext,
) -> Result<Vec<ValueId>, Diagnostic> {
    let mut by: BTreeMap<&str, &Shard> = BTreeMap::new();
    let mut seeded = Vec::new();
    for shard in shards {
        let fits = |state| Some((state, view_of_named(&shard.pattern, rules.module, cx, state)?));
        let states: Vec<(&State, &[ViewStep])> = rules.module.states.values().filter_map(fits).collect();
        if states.is_empty() {
            let names: Vec<&str> =
                rules.module.states.values().map(|state| state.name.as_str()).take(8).collect();
            return Err(Diagnostic::new(format!("--shard {shard}: no state matches the pattern"))
                .note(format!("names of states are, for example, {}", names.join(", "))));
        }
        for (state, view) in states {
            if let Some(other) = by.insert(&state.name, shard).filter(|other| other.dims != shard.dims) {
                let message = format!("--shard {other} and --shard {shard} both match `{}`", state.name);
                return Err(Diagnostic::new(message).note("remove one of the flags, or narrow its pattern"));
            }
            for (dim, axis) in axes(rules.mesh, shard, state, view)? {
                let cause = Cause::Seed(format!("--shard {shard} names it"));
                layouts.split(state.input, state.ty.ndim(), dim, axis, cause);
            }
            layouts.close(state.input);
            seeded.push(state.input);
        }
    }
    Ok(seeded)
}

/// Returns the steps from the tensor that the pattern names to the state. `None` if the pattern names neither the state nor a tensor
/// that the state is a part of, by the file's name or the module's. A tied tensor may have its dims in another order.
fn view_of_named<'a>(
    pattern: &str,
    module: &'a Module,
    cx: &'a PassContext,
    state: &'a State,
) -> Option<&'a [ViewStep]> {
    let named = |data: &String| {
        let aliases = cx.aliases.get(data).into_iter().flatten();
        aliases.chain([data]).any(|name| pattern::matches(pattern, name))
    };
    let data = state.initializer.data().map(|data| &module.data[data].name);
    if pattern::matches(pattern, &state.name) || data.is_some_and(named) {
        return Some(&state.view);
    }
    let tied = cx.reports.parameters.iter().filter(|report| report.tied.is_some() && named(&report.data));
    tied.flat_map(|report| &report.states).find(|part| part.state == state.name).map(|part| &part.view[..])
}

/// Returns the number of parts that the user asks for in each dim of a state, whether they divide the dim or not.
pub(super) fn parts(
    module: &Module,
    mesh: &Mesh,
    shards: &[Shard],
    cx: &PassContext,
) -> BTreeMap<(ValueId, usize), u64> {
    let mut parts = BTreeMap::new();
    for (shard, state) in
        shards.iter().flat_map(|shard| module.states.values().map(move |state| (shard, state)))
    {
        let Some(view) = view_of_named(&shard.pattern, module, cx, state) else { continue };
        // A fault in the flag is reported when the state is seeded.
        for (dim, axes) in dims(mesh, shard, state, view).into_iter().flatten().enumerate() {
            if !axes.is_empty() {
                parts.insert((state.input, dim), mesh.size(&axes));
            }
        }
    }
    parts
}

/// Returns the dims of the state to split, in order, with their axes. Errors: an axis does not divide a dim.
fn axes(
    mesh: &Mesh,
    shard: &Shard,
    state: &State,
    view: &[ViewStep],
) -> Result<Vec<(usize, AxisId)>, Diagnostic> {
    let dims = dims(mesh, shard, state, view)?;
    for (axes, size) in dims.iter().zip(&state.ty.dims) {
        let (size, parts) = (size.size().unwrap_or(0), mesh.size(axes));
        if !size.is_multiple_of(parts) {
            let legal: Vec<String> =
                (1..=size.min(64)).filter(|n| size % n == 0).map(|n| n.to_string()).collect();
            let message = format!(
                "the dim of size {size} of `{}` cannot be divided into {parts} equal parts",
                state.name
            );
            return Err(Diagnostic::new(format!("--shard {shard}: {message}"))
                .note(format!("it can be divided into {} parts", legal.join(", "))));
        }
    }
    Ok(dims
        .into_iter()
        .enumerate()
        .flat_map(|(dim, axes)| axes.into_iter().map(move |axis| (dim, axis)))
        .collect())
}

/// Returns the axes of each dim of the state.
fn dims(
    mesh: &Mesh,
    shard: &Shard,
    state: &State,
    view: &[ViewStep],
) -> Result<Vec<Vec<AxisId>>, Diagnostic> {
    let fault = |message: String| Diagnostic::new(format!("--shard {shard}: {message}"));
    let mut dims: Vec<Vec<AxisId>> = Vec::new();
    let mut used: Vec<AxisId> = Vec::new();
    for names in &shard.dims {
        let mut axes = Vec::new();
        for name in names {
            let named = |axis: &AxisId| {
                let own = &mesh.axes[*axis].name;
                own == name || own.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
            };
            let found: Vec<AxisId> = mesh.axes.keys().filter(named).collect();
            if found.is_empty() {
                return Err(fault(format!("the mesh {mesh} has no axis `{name}` of two devices or more")));
            }
            if found.iter().any(|axis| used.contains(axis)) {
                return Err(fault(format!("axis `{name}` is given twice")));
            }
            used.extend(&found);
            axes.extend(found);
        }
        dims.push(axes);
    }
    let dims = through_view(dims, view).filter(|dims| dims.len() == state.ty.ndim());
    dims.ok_or_else(|| {
        let file = shard.dims.len();
        fault(format!(
            "`{}` is {}, and --shard must give its {file} dims of the file's tensor",
            state.name, state.ty
        ))
    })
}

/// Returns the lists of the file's dims in the order of the state's dims. `None` if a step splits or merges dims.
fn through_view(mut dims: Vec<Vec<AxisId>>, view: &[ViewStep]) -> Option<Vec<Vec<AxisId>>> {
    for step in view {
        match step {
            ViewStep::Transpose(permutation) => {
                dims = permutation
                    .iter()
                    .map(|&from| dims.get(from as usize).cloned())
                    .collect::<Option<_>>()?;
            }
            ViewStep::Slice { .. } | ViewStep::Pad { .. } | ViewStep::Cast(_) => {}
            ViewStep::Reshape(_) | ViewStep::Repeat(_) => return None,
        }
    }
    Some(dims)
}
