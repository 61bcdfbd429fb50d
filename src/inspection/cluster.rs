//! A step on a cluster: the links that the axes of its mesh use, and the time of its collectives: `inspect --cluster`.

use super::collectives::CollectiveFacts;
use super::step::PIPELINE_AXIS;
use ir::analysis::CollectiveExchange;
use ir::machine::{Cluster, Link};
use ir::units::{bytes, count, grouped, milliseconds};
use ir::{Module, StageTable, visible};
use serde::Serialize;
use std::fmt;

/// A cluster, and a step on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterFacts {
    /// The number of nodes.
    pub nodes: u64,
    /// The number of devices in each node.
    pub devices_per_node: u64,
    /// The name of each device.
    pub device: String,
    /// Bytes of the memory of each device.
    pub device_memory: u64,
    /// Bytes of the host's memory in each node.
    pub host_memory: u64,
    /// Watts of all devices under load.
    pub watts: f64,
    /// Dollars per hour of all devices.
    pub price_per_hour: f64,
    /// The links, from the fastest between devices to the disk.
    pub links: Vec<LinkFacts>,
    /// The axes of the mesh, outermost first.
    pub axes: Vec<AxisFacts>,
    /// The pipeline rank whose collectives take longest. The collectives below are those of its devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_rank: Option<u32>,
    /// The collectives of a step: those of one kind, phase and group of axes together.
    pub collectives: Vec<CollectiveTimeFacts>,
    /// Milliseconds of all collectives of a step, one after the other.
    pub collectives_ms: f64,
    /// Bytes that a device sends in a step, by the links that it sends them over.
    pub sent: Vec<SentFacts>,
}

/// Bytes that a device sends in a step over links of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SentFacts {
    /// The ends of the links.
    pub link: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkFacts {
    /// Its ends.
    pub between: &'static str,
    /// Bytes per second that transfers attain in each direction.
    pub rate: f64,
    /// Microseconds that a message takes however small it is.
    pub latency_us: f64,
}

/// An axis of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AxisFacts {
    /// Its name.
    pub name: String,
    /// The number of devices along it.
    pub size: u64,
    /// The link that its collectives use.
    pub link: &'static str,
}

/// Collectives that are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveTimeFacts {
    /// The operator.
    pub kind: &'static str,
    /// The axes that they go over.
    pub axes: Vec<String>,
    /// The phase that they run in.
    pub phase: &'static str,
    /// The link that they use.
    pub link: &'static str,
    /// How often one of them runs in a step.
    pub runs: u64,
    /// Bytes that a device sends in a step.
    pub bytes: u64,
    /// Milliseconds of a step.
    pub ms: f64,
}

/// Names of the links between devices.
const INSIDE: &str = "devices of a node";
const NETWORK: &str = "nodes";

impl ClusterFacts {
    /// A step of so many microbatches of a placed program, whose mesh is not larger than the cluster.
    pub(super) fn of(module: &Module, microbatches: u64, cluster: &Cluster) -> Self {
        let Cluster { nodes, node, network } = cluster;
        let (device, devices) = (&node.device, cluster.devices() as f64);
        let links = [
            (INSIDE, device.link),
            (NETWORK, *network),
            ("a device and its host", node.host_link),
            ("a host and its disk", node.disk),
        ];
        let axis = |id| AxisFacts {
            name: module.mesh.axes[id].name.clone(),
            size: module.mesh.axes[id].size,
            link: name(cluster.is_inside(&module.mesh, &[id])),
        };
        let link = |(between, link): (&'static str, Link)| LinkFacts {
            between,
            rate: link.rate(),
            latency_us: link.latency * 1e6,
        };
        let stages = module.pipeline.as_ref().map(|pipeline| AxisFacts {
            name: PIPELINE_AXIS.to_owned(),
            size: pipeline.ranks().into(),
            link: name(module.ranks() <= node.devices),
        });
        let ms = |collectives: &[CollectiveTimeFacts]| collectives.iter().map(|one| one.ms).sum::<f64>();
        let of = |rank| CollectiveTimeFacts::all(&module.of_pipeline_rank(rank), microbatches, cluster);
        let ranks = (0..module.pipeline.as_ref().map_or(1, StageTable::ranks)).map(|rank| (rank, of(rank)));
        let slowest = ranks.max_by(|(_, one), (_, other)| ms(one).total_cmp(&ms(other)));
        let (rank, collectives) = slowest.unwrap_or_default();
        let sent = |link| {
            let over = collectives.iter().filter(|one| one.link == link).map(|one| one.bytes);
            SentFacts { link, bytes: over.fold(0, u64::saturating_add) }
        };
        Self {
            nodes: *nodes,
            devices_per_node: node.devices,
            device: device.name.clone(),
            device_memory: device.memory,
            host_memory: node.host_memory,
            watts: device.watts * devices,
            price_per_hour: device.price_per_hour * devices,
            links: links.map(link).into(),
            pipeline_rank: stages.is_some().then_some(rank),
            axes: stages.into_iter().chain(module.mesh.axes.keys().map(axis)).collect(),
            collectives_ms: ms(&collectives),
            sent: [INSIDE, NETWORK].map(sent).into(),
            collectives,
        }
    }
}

/// The link of a group of devices.
fn name(is_inside: bool) -> &'static str {
    if is_inside { INSIDE } else { NETWORK }
}

impl CollectiveTimeFacts {
    fn all(module: &Module, microbatches: u64, cluster: &Cluster) -> Vec<Self> {
        let mut alike: Vec<Self> = Vec::new();
        for (_, node) in module.nodes() {
            let exchange =
                CollectiveExchange::of(module, node).filter(|exchange| exchange.kind.communicates());
            let Some(exchange) = exchange else { continue };
            let link = cluster.link(&module.mesh, &exchange.axes);
            let time = exchange.time(&module.mesh, &cluster.node.device, &link).total();
            let facts = CollectiveFacts::of(module, node, &exchange, microbatches);
            let CollectiveFacts { kind, axes, phase, runs, bytes, .. } = facts;
            let link = name(cluster.is_inside(&module.mesh, &exchange.axes));
            let one = Self { kind, axes, phase, link, runs, bytes, ms: time as f64 * 1e-9 * runs as f64 };
            match alike.iter_mut().find(|other| other.key() == one.key()) {
                Some(other) => {
                    other.runs += one.runs;
                    other.bytes = other.bytes.saturating_add(one.bytes);
                    other.ms += one.ms;
                }
                None => alike.push(one),
            }
        }
        alike
    }

    fn key(&self) -> (&str, &[String], &str) {
        (self.kind, &self.axes, self.phase)
    }
}

impl fmt::Display for ClusterFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, device) = (count(self.nodes as usize, "node"), visible(&self.device));
        let kilowatts = self.watts / 1e3;
        writeln!(
            f,
            "\na cluster of {nodes} with {} {device} each: {kilowatts:.1} kW, {:.2} dollars per hour",
            grouped(self.devices_per_node),
            self.price_per_hour
        )?;
        let (memory, host) = (bytes(self.device_memory), bytes(self.host_memory));
        writeln!(f, "  memory: {memory} of each device, {host} of each host")?;
        for LinkFacts { between, rate, latency_us } in &self.links {
            writeln!(f, "  between {between:21}  {:>6.1} GB/s  {latency_us:>6.1} µs", rate / 1e9)?;
        }
        for AxisFacts { name, size, link } in &self.axes {
            writeln!(f, "  axis {}={size} lies between {link}", visible(name))?;
        }
        if self.axes.is_empty() {
            return Ok(());
        }
        let ms = milliseconds(self.collectives_ms);
        let of = self.pipeline_rank.map(|rank| format!(" of pipeline rank {rank}")).unwrap_or_default();
        writeln!(f, "  collectives{of} take {ms} per step, one after the other")?;
        let sent = self.sent.iter().map(|sent| format!("{} between {}", bytes(sent.bytes), sent.link));
        writeln!(f, "  each device{of} sends per step {}", sent.collect::<Vec<_>>().join(", "))?;
        let width = self.collectives.iter().map(|one| one.axes.join("*").len()).max().unwrap_or(0);
        for one in &self.collectives {
            let CollectiveTimeFacts { kind, phase, link, runs, .. } = one;
            writeln!(
                f,
                "    {phase:8}  {kind:14}  {:width$}  {:>6}  {:>10}  {:>9}  between {link}",
                visible(&one.axes.join("*")),
                format!("{runs} x"),
                bytes(one.bytes),
                milliseconds(one.ms)
            )?;
        }
        Ok(())
    }
}
