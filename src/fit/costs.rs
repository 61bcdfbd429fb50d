//! The costs of a candidate: predicted times, and the bytes of the device that every plan needs.

use ir::machine::Node;
use ir::{Module, Op, Phase, Tier};
use passes::recompute::Recompute;
use program::UpdateTime;

/// Predicted seconds of a step's copies over the link to the host, and to and from the file.
pub fn seconds_of_copies(module: &Module, microbatches: u64, node: &Node) -> [f64; 2] {
    let disk_rate = node.disk_rate(module.mesh.devices());
    let mut seconds = [0.0; 2];
    for (_, copy) in module.nodes().filter(|(_, copy)| matches!(copy.op, Op::Copy(_))) {
        let bytes = module.ty(copy.results[0]).local_bytes(&module.mesh).unwrap_or(0);
        let is_in_file = [copy.result_tier(), module.tier_of(copy.operands[0])].contains(&Tier::Disk);
        let runs = if copy.phase.is_microbatch() { microbatches } else { 1 };
        let (link, rate) =
            if is_in_file { (&node.disk, disk_rate) } else { (&node.host_link, node.host_link.rate()) };
        seconds[usize::from(is_in_file)] += (link.latency + bytes as f64 / rate) * runs as f64;
    }
    seconds
}

/// Predicted seconds by which the nodes of a step that run on the host take longer there than on the device: the time to read and write
/// their bytes in either memory. Look-ups in embeddings are left out, since they read only a part of their operand.
pub(super) fn seconds_on_host(module: &Module, node: &Node) -> f64 {
    let on_host = module.nodes().filter(|(_, node)| {
        node.place == Tier::Host && !node.phase.is_microbatch() && !matches!(node.op, Op::Copy(_))
    });
    let values = on_host.flat_map(|(_, node)| node.operands.iter().chain(&node.results));
    let bytes =
        values.filter_map(|&value| module.ty(value).local_bytes(&module.mesh)).fold(0, u64::saturating_add);
    let longer = 1.0 / node.host_rate(module.mesh.devices()) - 1.0 / node.device.memory_rate();
    bytes as f64 * longer.max(0.0)
}

/// Bytes of the device that every plan of a step needs.
pub(super) fn least_of_device(module: &Module, update: UpdateTime) -> u64 {
    let bytes = |value| module.ty(value).local_bytes(&module.mesh).unwrap_or(u64::MAX);
    let states = module.states.values().filter(|state| state.tier == Tier::Device).map(|state| state.input);
    let lasting = module.nodes().filter(|(_, node)| match &node.op {
        Op::Copy(copy) => node.phase == Phase::Prepare && copy.to == Tier::Device,
        Op::Accumulate(_) => update == UpdateTime::Late && node.place == Tier::Device,
        _ => false,
    });
    states.chain(lasting.map(|(_, node)| node.results[0])).map(bytes).fold(0, u64::saturating_add)
}

/// The price of a kept byte at which an activation is copied to the host and back rather than kept. Activations that take longer than the
/// copies are not computed again.
pub(super) fn price_of_copies(node: &Node) -> Recompute {
    let picoseconds_of_kib = 2.0 * 1024.0 / node.host_link.rate() * 1e12;
    Recompute { price: picoseconds_of_kib as u64, ..Recompute::FULL.on(&node.device) }
}
