//! The mesh of devices: named axes.

use cranelift_entity::{PrimaryMap, entity_impl};
use std::fmt;

/// An axis of the mesh.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AxisId(u32);
entity_impl!(AxisId, "axis");

/// What an axis splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AxisRole {
    /// The batch.
    Data,
    /// Hidden dims, heads and the vocabulary.
    Tensor,
    /// The layers, in stages.
    Pipeline,
    /// The experts.
    Expert,
    /// The sequence.
    Context,
}

/// A named axis with its size in devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Name as the user wrote it, such as `dp` or `dp.outer`.
    pub name: String,
    /// What it splits.
    pub role: AxisRole,
    /// Number of devices along it; at least 1.
    pub size: u64,
}

/// All axes, outermost first. A mesh without axes is one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// The axes.
    pub axes: PrimaryMap<AxisId, Axis>,
}

impl Mesh {
    /// The number of devices.
    pub fn devices(&self) -> u64 {
        self.axes.values().map(|axis| axis.size).product()
    }

    /// The axis of that name.
    pub fn find(&self, name: &str) -> Option<AxisId> {
        self.axes.iter().find(|(_, axis)| axis.name == name).map(|(id, _)| id)
    }

    /// The role an axis name stands for: `dp`, `tp`, `pp`, `ep`, `cp`, each also with a suffix (`dp.inner`).
    pub fn role(name: &str) -> Option<AxisRole> {
        Some(match name.split('.').next()? {
            "dp" => AxisRole::Data,
            "tp" => AxisRole::Tensor,
            "pp" => AxisRole::Pipeline,
            "ep" => AxisRole::Expert,
            "cp" => AxisRole::Context,
            _ => return None,
        })
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self.axes.values().map(|a| format!("{}={}", a.name, a.size)).collect();
        write!(f, "[{}]", axes.join(", "))
    }
}
