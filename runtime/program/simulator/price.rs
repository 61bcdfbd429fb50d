//! The time of a command on a machine, resource by resource.

use super::Bound;
use super::schedule::Task;
use crate::commands::{Command, CommandClass};
use ir::Mesh;
use ir::machine::{DeviceKind, Machine, Node};
use smallvec::{SmallVec, smallvec};

/// A machine and a mesh, which price the commands of a program.
pub(super) struct Prices<'a> {
    /// The machine.
    pub(super) machine: &'a Machine,
    /// The devices of the program.
    pub(super) mesh: &'a Mesh,
}

/// The seconds for which a command uses each resource if it runs alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    kind: DeviceKind,
    /// The time before it uses any resource.
    latency: f64,
    memory: f64,
    arithmetic: f64,
    /// The links to devices of its node.
    inside: f64,
    /// The links to other nodes.
    network: f64,
    /// The link from the host.
    upload: f64,
    /// The link to the host.
    download: f64,
    /// The memory of the host.
    host: f64,
    /// The disk of the node.
    disk: f64,
}

impl Prices<'_> {
    pub(super) fn of(&self, command: &Command) -> Price {
        let Self { machine, mesh } = self;
        let (device, work) = (machine.device(), &command.work);
        let mut price = Price {
            kind: device.kind,
            latency: device.launch,
            memory: work.bytes() as f64 / device.memory_rate(),
            arithmetic: work.flops as f64 / device.rate(work.unit),
            inside: 0.0,
            network: 0.0,
            upload: 0.0,
            download: 0.0,
            host: 0.0,
            disk: 0.0,
        };
        let node = || match machine {
            Machine::Node(device) => Node::of_device(device),
            Machine::Cluster(cluster) => cluster.node.clone(),
        };
        match command.class {
            CommandClass::Upload(bytes) | CommandClass::Download(bytes) => {
                let link = node().host_link;
                let is_upload = matches!(command.class, CommandClass::Upload(_));
                *(if is_upload { &mut price.upload } else { &mut price.download }) =
                    bytes as f64 / link.rate();
                (price.latency, price.arithmetic) = (link.latency, 0.0);
                price.memory = bytes as f64 / device.memory_rate();
            }
            CommandClass::OnHost => {
                (price.memory, price.arithmetic) = (0.0, 0.0);
                price.host = work.bytes() as f64 / node().host_rate(mesh.devices());
            }
            CommandClass::Disk(bytes) => {
                let node = node();
                price.disk = bytes as f64 / node.disk_rate(mesh.devices());
                (price.latency, price.arithmetic) = (node.disk.latency, 0.0);
                // A processor's own memory is the host's.
                if device.kind == DeviceKind::Gpu {
                    (price.memory, price.host) = (0.0, work.bytes() as f64 / node.host_rate(mesh.devices()));
                }
            }
            CommandClass::Kernel
            | CommandClass::Multiplication
            | CommandClass::Library
            | CommandClass::Collective(_) => {}
        }
        if let Some(exchange) = command.exchange() {
            let (link, devices) = (machine.link(mesh, &exchange.axes), mesh.size(&exchange.axes));
            let time = device.collective_time(&link, exchange.kind, exchange.group_bytes, devices);
            price.latency = seconds(time.latency);
            let inside = machine.is_inside(mesh, &exchange.axes);
            *(if inside { &mut price.inside } else { &mut price.network }) = seconds(time.moving);
        }
        price
    }
}

impl Price {
    /// Returns the command as a task. A GPU moves bytes while it computes. Within a kernel of a processor, loads and arithmetic wait for
    /// each other, so their times are added.
    pub(super) fn task(&self, command: &Command) -> Task {
        let Self { kind, latency, memory, arithmetic, inside, network, upload, download, host, disk } = *self;
        let uses: SmallVec<[f64; 8]> = match kind {
            DeviceKind::Cpu => smallvec![memory + arithmetic, 0.0, inside, network, disk],
            DeviceKind::Gpu => smallvec![memory, arithmetic, inside, network, upload, download, host, disk],
        };
        // On a processor these instructions run in its only queue.
        let is_on_host_thread =
            kind == DeviceKind::Gpu && matches!(command.class, CommandClass::OnHost | CommandClass::Disk(_));
        let (queue, waits) = (command.stream as usize, command.waits.clone());
        Task { queue, waits, is_on_host_thread, latency, uses }
    }

    /// Returns the resource with the longest time.
    pub(super) fn bound(&self) -> Bound {
        let longer = |a: (Bound, f64), b: (Bound, f64)| if b.1 > a.1 { b } else { a };
        let parts = [
            (Bound::Memory, self.memory),
            (Bound::Compute, self.arithmetic),
            (Bound::Link, self.inside + self.network + self.upload + self.download),
            (Bound::Host, self.host),
            (Bound::Disk, self.disk),
        ];
        parts.into_iter().fold((Bound::Launch, self.latency), longer).0
    }
}

fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 * 1e-12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::work::Work;
    use crate::commands::{CommandClass, Stream};
    use ir::DType;
    use ir::machine::{Preset, Unit};

    /// The price of a kernel that reads for 2 s and computes for 3 s on a device.
    fn price(preset: Preset) -> (Price, Task) {
        let device = preset.device();
        let unit = Unit::Elements(DType::F32);
        let (read, flops) = ((2.0 * device.memory_rate()) as u64, (3.0 * device.rate(unit)) as u64);
        let command = Command {
            class: CommandClass::Kernel,
            kind: String::new(),
            sizes: vec![],
            origin: "".into(),
            stream: Stream::Main,
            waits: SmallVec::new(),
            layers: 1,
            work: Work { read, written: 0, flops, unit },
        };
        let (mesh, machine) = (Mesh::default(), Machine::Node(device));
        let price = Prices { machine: &machine, mesh: &mesh }.of(&command);
        (price, price.task(&command))
    }

    #[test]
    fn a_gpu_moves_bytes_while_it_computes_and_a_processor_does_one_after_the_other() {
        for (preset, seconds) in [(Preset::H100, 3.0), (Preset::Cpu, 5.0)] {
            let (price, task) = price(preset);
            assert!((task.alone() - seconds).abs() < 1e-6, "{preset:?}: {}", task.alone());
            assert_eq!(price.bound(), Bound::Compute);
        }
    }
}
