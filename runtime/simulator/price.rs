//! The time of a command on a machine, resource by resource.

use super::schedule::Task;
use super::{Bound, Command};
use ir::Mesh;
use ir::machine::Machine;
use smallvec::smallvec;

/// The resources of a device, by their place in [`Task::uses`].
const RESOURCES: [Bound; 4] = [Bound::Memory, Bound::Compute, Bound::Link, Bound::Link];

/// The places of the links inside a node and between nodes.
const INSIDE: usize = 2;
const NETWORK: usize = 3;

/// The latency of a command, and the seconds that it uses each resource.
pub(super) fn task(command: &Command, mesh: &Mesh, machine: &Machine) -> Task {
    let (device, work) = (machine.device(), &command.work);
    let memory = work.bytes() as f64 / device.memory_rate();
    let arithmetic = work.flops as f64 / device.rate(work.unit);
    let mut task = Task {
        queue: command.queue as usize,
        waits: command.waits.clone(),
        latency: device.launch,
        uses: smallvec![memory, arithmetic, 0.0, 0.0],
    };
    if let Some(exchange) = &command.exchange {
        let (link, devices) = (machine.link(mesh, &exchange.axes), mesh.size(&exchange.axes));
        let time = device.collective_time(&link, exchange.kind, exchange.group_bytes, devices);
        let place = if machine.is_inside(mesh, &exchange.axes) { INSIDE } else { NETWORK };
        task.latency = seconds(time.latency);
        task.uses[place] = seconds(time.moving);
    }
    task
}

/// The longest part of a command's time.
pub(super) fn bound(task: &Task) -> Bound {
    let longer = |a: (Bound, f64), b: (Bound, f64)| if b.1 > a.1 { b } else { a };
    let uses = RESOURCES.into_iter().zip(task.uses.iter().copied());
    uses.fold((Bound::Launch, task.latency), longer).0
}

fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 * 1e-12
}
