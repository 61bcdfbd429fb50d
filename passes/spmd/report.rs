//! Reports the reason for the sharding of each state and input, for `inspect --why`.

use super::propagation::Layouts;
use super::zero::Demands;
use crate::reports::ShardingReport;
use ir::{AxisId, Mesh, Module, ValueId};

/// Reports every input and state.
pub(super) fn shardings(
    module: &Module,
    mesh: &Mesh,
    layouts: &Layouts,
    demands: &Demands,
) -> Vec<ShardingReport> {
    let inputs = module.inputs.iter().map(|input| (input.name.as_str(), input.value, None));
    let states =
        module.states.iter().map(|(id, state)| (state.name.as_str(), state.input, demands.states.get(&id)));
    let report = |(name, value, stored): (&str, ValueId, Option<&super::propagation::Layout>)| {
        let layout = stored.unwrap_or(layouts.of(value));
        let dims: Vec<String> = (0..module.ty(value).ndim())
            .map(|dim| match layout.get(dim).filter(|axes| !axes.is_empty()) {
                Some(axes) => {
                    axes.iter().map(|&axis| mesh.axes[axis].name.as_str()).collect::<Vec<_>>().join("*")
                }
                None => "-".into(),
            })
            .collect();
        let axes = layout.iter().flatten();
        let reasons = axes.map(|&axis| reason(module, mesh, layouts, value, axis)).collect();
        ShardingReport { name: name.into(), sharding: format!("{{{}}}", dims.join(", ")), reasons }
    };
    inputs.chain(states).map(report).collect()
}

fn reason(module: &Module, mesh: &Mesh, layouts: &Layouts, value: ValueId, axis: AxisId) -> String {
    let name = &mesh.axes[axis].name;
    let Some((words, path)) = layouts.cause(value, axis) else {
        return format!("`{name}`: no reason is kept");
    };
    let by = |id: &ir::NodeId| {
        let node = module.node(*id);
        if node.origin.is_empty() {
            format!("`{}`", node.op.name())
        } else {
            format!("`{}` ({})", node.op.name(), node.origin)
        }
    };
    match path.len() {
        0 => format!("`{name}`: {words}"),
        1..=4 => format!(
            "`{name}`: {words}; it follows through {}",
            path.iter().map(by).collect::<Vec<_>>().join(", ")
        ),
        count => {
            let near: Vec<String> = path[..3].iter().map(by).collect();
            format!("`{name}`: {words}; it follows through {} and {} more nodes", near.join(", "), count - 3)
        }
    }
}
