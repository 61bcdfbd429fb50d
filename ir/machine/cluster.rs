//! The links that groups of devices use, when the axes of a mesh are laid out on a cluster.

use super::{Cluster, Device, Link, Machine};
use crate::{AxisId, Mesh};

impl Cluster {
    /// Returns the number of devices.
    pub fn devices(&self) -> u64 {
        self.nodes.saturating_mul(self.node.devices)
    }

    /// Returns the link of a collective over these axes. Ranks fill one node after the other, so the innermost axes lie inside
    /// nodes and the outermost axes between them.
    ///
    /// A group with several devices per node sends over the network links of all of them: its ring enters and leaves a node
    /// through each of these links with an equal share of the bytes.
    pub fn link(&self, mesh: &Mesh, axes: &[AxisId]) -> Link {
        let inside = self.node.device.link;
        let in_node = self.ranks_in_node(mesh, axes);
        if in_node >= mesh.size(axes) {
            return inside;
        }
        let shared = self.network.bandwidth * in_node as f64;
        let most = inside.rate() / self.network.attained;
        Link { bandwidth: shared.min(most), ..self.network }
    }

    /// Returns the slowest link between neighbouring stages of a pipeline on so many devices. Stages are the outermost axis, so a
    /// pipeline on more than one node sends between nodes. Each device sends over its own link.
    pub fn link_of_stages(&self, devices: u64) -> Link {
        if devices <= self.node.devices { self.node.device.link } else { self.network }
    }

    /// Whether a collective over these axes stays inside nodes.
    pub fn is_inside(&self, mesh: &Mesh, axes: &[AxisId]) -> bool {
        self.ranks_in_node(mesh, axes) >= mesh.size(axes)
    }

    /// Returns the number of ranks of a group that share a node. If the axes do not fill nodes evenly, the result is 1.
    pub fn ranks_in_node(&self, mesh: &Mesh, axes: &[AxisId]) -> u64 {
        axes.iter().map(|&axis| self.ranks_of_axis(mesh, axis)).product()
    }

    fn ranks_of_axis(&self, mesh: &Mesh, axis: AxisId) -> u64 {
        let (devices, size) = (self.node.devices.max(1), mesh.axes[axis].size);
        // Neighbours along the axis differ by this number of ranks.
        let apart: u64 =
            mesh.axes.iter().filter(|(other, _)| *other > axis).map(|(_, inner)| inner.size).product();
        if devices.is_multiple_of(apart.saturating_mul(size)) {
            size
        } else if devices.is_multiple_of(apart) && size.is_multiple_of(devices / apart) {
            devices / apart
        } else {
            1
        }
    }
}

impl Machine {
    /// Returns the device of which the machine consists.
    pub fn device(&self) -> &Device {
        match self {
            Self::Node(device) => device,
            Self::Cluster(cluster) => &cluster.node.device,
        }
    }

    /// Returns the link of a collective over these axes.
    pub fn link(&self, mesh: &Mesh, axes: &[AxisId]) -> Link {
        match self {
            Self::Node(device) => device.link,
            Self::Cluster(cluster) => cluster.link(mesh, axes),
        }
    }

    /// Returns the link between two pipeline ranks of `devices` devices each. Ranks fill one node of a cluster after the other.
    pub fn link_of_pipeline_ranks(&self, devices: u64, from: u64, to: u64) -> Link {
        let inside = self.device().link;
        let Self::Cluster(cluster) = self else { return inside };
        let node = |rank: u64| rank / cluster.node.devices.max(1);
        let (first, last) =
            (from.min(to).saturating_mul(devices), (from.max(to) + 1).saturating_mul(devices));
        if node(first) == node(last.saturating_sub(1)) { inside } else { cluster.network }
    }

    /// Returns the number of devices to rent for so many devices: those of whole nodes in a cluster.
    pub fn rented(&self, devices: u64) -> u64 {
        match self {
            Self::Node(_) => devices,
            Self::Cluster(cluster) => devices.next_multiple_of(cluster.node.devices.max(1)),
        }
    }

    /// Whether a collective over these axes stays inside nodes.
    pub fn is_inside(&self, mesh: &Mesh, axes: &[AxisId]) -> bool {
        match self {
            Self::Node(_) => true,
            Self::Cluster(cluster) => cluster.is_inside(mesh, axes),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::{Machine, Preset};
    use crate::{Axis, AxisRole, Mesh};

    fn mesh(axes: &[(&str, u64)]) -> Mesh {
        let mut mesh = Mesh::default();
        for &(name, size) in axes {
            mesh.axes.push(Axis {
                name: name.into(),
                role: Mesh::role(name).unwrap_or(AxisRole::Data),
                size,
            });
        }
        mesh
    }

    #[test]
    fn the_outermost_axis_lies_on_the_slowest_link() {
        let cluster = Preset::H100.cluster(2);
        let mesh = mesh(&[("dp", 2), ("tp", 8)]);
        let [dp, tp] = ["dp", "tp"].map(|name| mesh.find(name).expect("an axis"));
        assert_eq!(cluster.link(&mesh, &[tp]), cluster.node.device.link);
        assert_eq!(cluster.link(&mesh, &[dp]), cluster.network);
        assert!(cluster.is_inside(&mesh, &[tp]) && !cluster.is_inside(&mesh, &[dp]));
    }

    #[test]
    fn a_group_of_whole_nodes_sends_over_all_their_network_links_and_no_faster_than_inside() {
        let cluster = Preset::H100.cluster(2);
        let both = mesh(&[("dp", 2), ("tp", 8)]);
        let all: Vec<_> = both.axes.keys().collect();
        let link = cluster.link(&both, &all);
        assert_eq!(link.latency, cluster.network.latency);
        assert!(
            (link.rate() - (8.0 * cluster.network.rate()).min(cluster.node.device.link.rate())).abs() < 1.0
        );
        let mut fast = cluster.clone();
        fast.network.bandwidth = 400e9;
        assert!((fast.link(&both, &all).rate() - fast.node.device.link.rate()).abs() < 1.0);
    }

    #[test]
    fn a_pipeline_that_one_node_does_not_hold_sends_between_nodes() {
        let cluster = Preset::H100.cluster(2);
        assert_eq!(cluster.link_of_stages(8), cluster.node.device.link);
        assert_eq!(cluster.link_of_stages(16), cluster.network);
    }

    #[test]
    fn pipeline_ranks_in_different_nodes_send_over_the_network() {
        let cluster = Preset::H100.cluster(2);
        let (inside, network) = (cluster.node.device.link, cluster.network);
        let machine = Machine::Cluster(cluster);
        assert_eq!(machine.link_of_pipeline_ranks(4, 0, 1), inside);
        assert_eq!(machine.link_of_pipeline_ranks(4, 2, 1), network);
        assert_eq!(machine.link_of_pipeline_ranks(1, 7, 0), inside);
    }

    #[test]
    fn a_group_that_no_node_holds_whole_goes_between_nodes() {
        // Nodes of 8 devices cut groups of 6 at rank 8.
        let cluster = Preset::A100.cluster(2);
        let mesh = mesh(&[("dp", 2), ("tp", 6)]);
        let tp = mesh.find("tp").expect("an axis");
        assert!(!cluster.is_inside(&mesh, &[tp]));
        assert_eq!(cluster.link(&mesh, &[tp]), cluster.network);
    }
}
