//! Hierarchy: replaces a reduction over a group that spans nodes by three collectives, two of which stay inside nodes.
//!
//! An `all_reduce` over axes inside nodes and axes between nodes becomes a `reduce_scatter` inside, an `all_reduce` between and an
//! `all_gather` inside. Each device then sends only its share over the network, in a ring of as many steps as there are nodes
//! (Cho et al., BlueConnect, MLSys 2019, without its pipelining). The replacement is made if it is faster on the machine that the
//! options describe. The pass does not look at the machine that it runs on, because the replacement changes the order of sums.
//!
//! Invariants: operands and results keep their types; every node stays in its phase, after the producers of its operands.

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use ir::machine::{Cluster, Device, Link, Node as ClusterNode, Preset};
use ir::ops::collective::{Change, Collective};
use ir::{At, AxisId, Builder, Changed, Diagnostic, Mesh, Module, Node, NodeId, Op, Sharding, Type, ValueId};

/// The pass `hierarchy`. `hierarchy(devices=8, link=360, latency=1000, network=40, network_latency=5000, launch=1500)` describes the
/// nodes of a cluster, by default those of [`Preset::H100`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// The number of devices in a node.
    pub devices: u64,
    /// GB/s that a device sends to others of its node.
    pub link: u64,
    /// Nanoseconds of a message inside a node.
    pub latency: u64,
    /// GB/s that a device sends to other nodes.
    pub network: u64,
    /// Nanoseconds of a message between nodes.
    pub network_latency: u64,
    /// Nanoseconds of the launch of a kernel.
    pub launch: u64,
}

impl Default for Hierarchy {
    fn default() -> Self {
        Self::of(&Preset::H100.cluster(2))
    }
}

const NANO: f64 = 1e-9;
const GIGA: f64 = 1e9;

impl Hierarchy {
    /// Returns the options for the nodes of a cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let in_units = |rate: f64, unit: f64| (rate / unit).round() as u64;
        let device = &cluster.node.device;
        Self {
            devices: cluster.node.devices,
            link: in_units(device.link.rate(), GIGA).max(1),
            latency: in_units(device.link.latency, NANO),
            network: in_units(cluster.network.rate(), GIGA).max(1),
            network_latency: in_units(cluster.network.latency, NANO),
            launch: in_units(device.launch, NANO),
        }
    }

    /// Returns a cluster of these nodes that is large enough for a mesh.
    fn cluster(&self, mesh: &Mesh) -> Cluster {
        let link = |rate: u64, latency: u64| Link {
            bandwidth: rate as f64 * GIGA,
            attained: 1.0,
            latency: latency as f64 * NANO,
        };
        let preset = Preset::H100.cluster(mesh.devices().div_ceil(self.devices.max(1)));
        let launch = self.launch as f64 * NANO;
        let device = Device { link: link(self.link, self.latency), launch, ..preset.node.device };
        let node = ClusterNode { devices: self.devices, device, ..preset.node };
        Cluster { node, network: link(self.network, self.network_latency), ..preset }
    }
}

impl Transform for Hierarchy {
    const NAME: &'static str = "hierarchy";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        let default = Self::default();
        options.value("devices", &mut self.devices, default.devices);
        options.value("link", &mut self.link, default.link);
        options.value("latency", &mut self.latency, default.latency);
        options.value("network", &mut self.network, default.network);
        options.value("network_latency", &mut self.network_latency, default.network_latency);
        options.value("launch", &mut self.launch, default.launch);
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        apply(module, &decide(module, self))
    }
}

/// The reductions that are replaced.
pub type Decision = Vec<(NodeId, Division)>;

/// A reduction in three parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    inside: Vec<AxisId>,
    between: Vec<AxisId>,
    /// For each operand, the dim that is split inside nodes between the first and the last part.
    dims: Vec<usize>,
}

/// Finds the reductions that are faster in three parts.
pub fn decide(module: &Module, options: &Hierarchy) -> Decision {
    let cluster = options.cluster(&module.mesh);
    let division = |(id, node)| Some((id, Division::of(module, node, &cluster)?));
    module.nodes().filter_map(division).collect()
}

/// Replaces the reductions.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Hierarchy::NAME);
    decision.iter().try_for_each(|(id, division)| division.insert(&mut b, *id))?;
    Ok(b.finish())
}

impl Division {
    /// Returns the division of an `all_reduce` whose axes lie both inside nodes and between them, if it is faster.
    fn of(module: &Module, node: &Node, cluster: &Cluster) -> Option<Self> {
        let (Op::Collective(Collective::AllReduce), mesh) = (&node.op, &module.mesh) else { return None };
        let of_operand = |(&from, &to): (&ValueId, &ValueId)| {
            let (from, to) = (module.ty(from), module.ty(to));
            Change::between(&from.sharding, &to.sharding, from.ndim()).ok()
        };
        let axes = node.operands.iter().zip(&node.results).find_map(of_operand)?.axes;
        let (inside, between): (Vec<_>, Vec<_>) =
            axes.iter().partition(|&&axis| cluster.is_inside(mesh, &[axis]));
        if inside.is_empty() || between.is_empty() || !cluster.is_inside(mesh, &inside) {
            return None;
        }
        let devices = mesh.size(&inside);
        let dim = |&operand: &ValueId| {
            let local = module.ty(operand).local(mesh)?;
            local.iter().position(|size| size.is_multiple_of(devices))
        };
        let dims = node.operands.iter().map(dim).collect::<Option<Vec<usize>>>()?;
        let bytes =
            node.operands.iter().map(|&operand| module.ty(operand).local_bytes(mesh)).sum::<Option<u64>>()?;
        let time = |kind: Collective, axes: &[AxisId], bytes: u64| {
            let link = cluster.link(mesh, axes);
            cluster.node.device.collective_time(&link, kind, bytes, mesh.size(axes)).total()
        };
        // All shares of a node go to other nodes at the same time, each over the network link of its device.
        let parts = time(Collective::ReduceScatter, &inside, bytes)
            .saturating_add(time(Collective::AllReduce, &between, bytes / devices))
            .saturating_add(time(Collective::AllGather, &inside, bytes));
        (parts < time(Collective::AllReduce, &axes, bytes)).then_some(Self { inside, between, dims })
    }

    /// Replaces the reduction by its three parts.
    fn insert(&self, b: &mut Builder, id: NodeId) -> Result<(), Diagnostic> {
        let node = b.module().node(id).clone();
        b.at(At::Before(id)).stage(node.stage).copy(node.copy).origin(node.origin.clone());
        let types = |b: &Builder, values: &[ValueId]| -> Vec<Type> {
            values.iter().map(|&value| b.ty(value).clone()).collect()
        };
        let whole = types(b, &node.results);
        let mut split = types(b, &node.operands);
        for (ty, &dim) in split.iter_mut().zip(&self.dims) {
            ty.sharding.dims.resize(ty.dims.len().max(ty.sharding.dims.len()), Default::default());
            ty.sharding.dims[dim].extend(self.inside.iter().copied());
            without(&mut ty.sharding, &self.inside);
        }
        let mut summed = split.clone();
        summed.iter_mut().for_each(|ty| without(&mut ty.sharding, &self.between));
        let mut values = node.operands.to_vec();
        let parts = [
            (Collective::ReduceScatter, split),
            (Collective::AllReduce, summed),
            (Collective::AllGather, whole),
        ];
        for (kind, types) in parts {
            values = b
                .push_typed(Op::Collective(kind), &values, &types)
                .map_err(|error| Diagnostic::new(format!("hierarchy built an ill-typed node: {error}")))?
                .to_vec();
            for (&value, ty) in values.iter().zip(types) {
                b.shard(value, ty.sharding);
            }
        }
        node.results.iter().zip(values).for_each(|(&result, value)| b.replace(result, value));
        b.remove(id);
        Ok(())
    }
}

/// Removes axes from those over which a value is partial.
fn without(sharding: &mut Sharding, gone: &[AxisId]) {
    if let Some((_, axes)) = &mut sharding.partial {
        axes.retain(|axis| !gone.contains(axis));
        if axes.is_empty() {
            sharding.partial = None;
        }
    }
}
