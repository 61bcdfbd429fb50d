//! The mesh of devices and its named axes.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use std::fmt;

/// An axis of the mesh.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AxisId(u32);
entity_impl!(AxisId, "axis");

/// The kind of dims that an axis splits.
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
    /// The kind of dims that the axis splits.
    pub role: AxisRole,
    /// The number of devices along the axis; at least 1.
    pub size: u64,
}

/// All axes, outermost first. A mesh without axes is one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// The axes.
    pub axes: PrimaryMap<AxisId, Axis>,
}

impl Mesh {
    /// Returns the number of devices.
    pub fn devices(&self) -> u64 {
        self.axes.values().map(|axis| axis.size).product()
    }

    /// Returns the coordinate of a rank along each axis. Ranks are row-major: the last axis varies fastest.
    pub fn coordinates(&self, rank: u64) -> SecondaryMap<AxisId, u64> {
        let mut coordinates = SecondaryMap::with_capacity(self.axes.len());
        let mut rest = rank;
        for (id, axis) in self.axes.iter().rev() {
            coordinates[id] = rest % axis.size;
            rest /= axis.size;
        }
        coordinates
    }

    /// Returns the ranks that share a collective over these axes with this rank: all ranks that differ from it along these axes
    /// only, including itself. They are ordered by their place along the axes, the first axis major.
    pub fn group(&self, rank: u64, axes: &[AxisId]) -> Vec<u64> {
        let stride = |axis: AxisId| -> u64 {
            self.axes.iter().filter(|(other, _)| *other > axis).map(|(_, axis)| axis.size).product()
        };
        let own = self.coordinates(rank);
        let base = axes.iter().fold(rank, |base, &axis| base - own[axis] * stride(axis));
        axes.iter().fold(vec![base], |ranks, &axis| {
            let step = |rank: u64| (0..self.axes[axis].size).map(move |i| rank + i * stride(axis));
            ranks.into_iter().flat_map(step).collect()
        })
    }

    /// Returns the place of a rank in its [`Mesh::group`] along these axes.
    pub fn place(&self, rank: u64, axes: &[AxisId]) -> u64 {
        let own = self.coordinates(rank);
        axes.iter().fold(0, |place, &axis| place * self.axes[axis].size + own[axis])
    }

    /// Returns the number of devices along these axes together.
    pub fn size(&self, axes: &[AxisId]) -> u64 {
        axes.iter().map(|&axis| self.axes[axis].size).product()
    }

    /// Returns the axis of that name.
    pub fn find(&self, name: &str) -> Option<AxisId> {
        self.axes.iter().find(|(_, axis)| axis.name == name).map(|(id, _)| id)
    }

    /// Returns the role of an axis with this name: `dp`, `tp`, `pp`, `ep`, `cp`, each also with a suffix (`dp.inner`).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_counted_by_its_axes_first_one_major() {
        let mut mesh = Mesh::default();
        let [dp, tp] = [("dp", 2), ("tp", 3)].map(|(name, size)| {
            let role = Mesh::role(name).expect("a known axis");
            mesh.axes.push(Axis { name: name.into(), role, size })
        });
        assert_eq!(mesh.group(4, &[tp]), [3, 4, 5]);
        assert_eq!(mesh.group(4, &[dp]), [1, 4]);
        assert_eq!(mesh.group(4, &[tp, dp]), [0, 3, 1, 4, 2, 5]);
        for rank in 0..6 {
            for axes in [&[dp, tp][..], &[tp, dp], &[dp], &[]] {
                assert_eq!(mesh.group(rank, axes)[mesh.place(rank, axes) as usize], rank);
            }
        }
    }
}
