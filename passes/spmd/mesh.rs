//! Builds the mesh of a module from `dp=2,tp=4`, and finds its axes by their roles.

use crate::pass::PassContext;
use ir::{Axis, AxisId, AxisRole, Diagnostic, Mesh, Module, Op};
use std::fmt;

/// An axis as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisSize {
    /// The name: `dp`, `tp`, or one of these with a suffix.
    pub name: String,
    /// The number of devices along the axis.
    pub size: u64,
}

impl AxisSize {
    /// Reads `dp:2`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, size) =
            text.split_once(':').ok_or_else(|| format!("`{text}` is not an axis; write an axis as dp:2"))?;
        let size = size.parse().map_err(|_| format!("`{size}` is not a number of devices"))?;
        Ok(Self { name: name.into(), size })
    }
}

impl fmt::Display for AxisSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.size)
    }
}

/// Builds the mesh with these axes for a module. Axes of one device are left out.
///
/// A tensor axis that is larger than an attention's number of key and value heads becomes two: the heads are split over the first, and
/// repeated over the second (`tp=4` with two heads: `tp.0=2,tp.1=2`). So gradients are summed over the second as over any axis.
pub(super) fn build(axes: &[AxisSize], module: &Module, cx: &mut PassContext) -> Result<Mesh, Diagnostic> {
    let mut mesh = Mesh::default();
    for AxisSize { name, size } in axes.iter().filter(|axis| axis.size != 1) {
        let role = Mesh::role(name).ok_or_else(|| {
            Diagnostic::new(format!("the mesh has an axis `{name}`; axes are dp, tp, pp, ep and cp"))
        })?;
        if *size == 0 || mesh.find(name).is_some() {
            return Err(Diagnostic::new(format!("axis `{name}` occurs twice in the mesh, or has no device")));
        }
        if !matches!(role, AxisRole::Data | AxisRole::Tensor | AxisRole::Expert) {
            return Err(
                Diagnostic::new(format!("axis `{name}` is not supported yet")).note("use dp, tp and ep")
            );
        }
        let axis = |name: String, size| Axis { name, role, size };
        match if role == AxisRole::Tensor { shared_heads(module, name, *size)? } else { *size } {
            split if split == *size || split == 1 => drop(mesh.axes.push(axis(name.clone(), *size))),
            split => {
                let repeats =
                    format!("{name}={size} is more than the {split} key and value heads of an attention");
                cx.warn(Diagnostic::new(repeats).note(format!(
                    "each key and value head is repeated on {} devices, along `{name}.1`; the gradients of \
                     its weights are summed over these devices",
                    *size / split
                )));
                mesh.axes.push(axis(format!("{name}.0"), split));
                mesh.axes.push(axis(format!("{name}.1"), *size / split));
            }
        }
    }
    Ok(mesh)
}

/// Returns the number of devices, of `size`, over which the key and value heads of every attention can be split. The others repeat heads.
fn shared_heads(module: &Module, name: &str, size: u64) -> Result<u64, Diagnostic> {
    let mut split = size;
    for (_, node) in module.nodes() {
        let Op::Attention(_) = node.op else { continue };
        let heads = |operand: usize| module.ty(node.operands[operand]).dims[1].size().unwrap_or(1);
        let (queries, keys) = (heads(0), heads(1));
        let fits = |size: u64| {
            queries.is_multiple_of(size) && (keys.is_multiple_of(size) || size.is_multiple_of(keys))
        };
        if !fits(size) {
            let legal: Vec<String> =
                (1..=queries).filter(|&size| fits(size)).map(|n| n.to_string()).collect();
            let message = format!(
                "the {queries} heads of an attention cannot be divided into {name}={size} equal parts"
            );
            let grouped =
                if keys == queries { String::new() } else { format!(" ({keys} for keys and values)") };
            return Err(Diagnostic::new(format!("{message}{grouped}"))
                .at(node.origin.to_string())
                .note(format!("{name} can be {}", legal.join(", "))));
        }
        split = split.min(if keys.is_multiple_of(size) { size } else { keys });
    }
    Ok(split)
}

/// Returns the axes of a role, outermost first.
pub(super) fn of_role(mesh: &Mesh, role: AxisRole) -> Vec<AxisId> {
    mesh.axes.iter().filter(|(_, axis)| axis.role == role).map(|(id, _)| id).collect()
}

/// Returns the axes of the batch over which ZeRO shards: the data axis `dp.inner` if there is one, else all data axes; and the expert axes.
pub(super) fn zero_axes(mesh: &Mesh) -> Vec<AxisId> {
    let data = of_role(mesh, AxisRole::Data);
    let inner = data.iter().copied().find(|&axis| mesh.axes[axis].name.ends_with(".inner"));
    let data = inner.map_or(data, |axis| vec![axis]);
    data.into_iter().chain(of_role(mesh, AxisRole::Expert)).collect()
}
