//! Checks that programs fit on a device, from their plans, before a kernel is compiled or memory is allocated.

use crate::device::{DeviceError, TooLarge};
use crate::{Program, Section};
use files::memory;
use ir::Role;
use std::collections::BTreeMap;

/// The number of largest values in a message.
const TOLD: usize = 3;

/// The memory of the device on which programs are to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device, as messages show it.
    pub device: String,
    /// Bytes that are free there.
    pub free: u64,
    /// Bytes that a rank takes besides the arena and constants of its programs.
    pub beside: u64,
    /// Ranks that share the device.
    pub ranks: u64,
    /// Whether the device's memory is the host's, so that values on the host take it too.
    pub is_host: bool,
}

/// Refuses programs that share an arena if a device has no room for them.
pub fn check<'p>(
    programs: impl Iterator<Item = &'p Program> + Clone,
    place: &DeviceMemory,
) -> Result<(), TooLarge> {
    let Some(program) = programs.clone().max_by_key(|program| program.memory.arena) else { return Ok(()) };
    let constants = programs.clone().map(|program| program.memory.constants).fold(0, u64::saturating_add);
    let beside = place.beside;
    let host = if place.is_host { on_host(programs) } else { 0 };
    let needed = [program.memory.arena, constants, host, beside].into_iter().fold(0, u64::saturating_add);
    if needed.saturating_mul(place.ranks) <= place.free {
        return Ok(());
    }
    let [weights, optimizer] = states(program);
    let kinds = [
        ("weights", weights),
        ("optimizer", optimizer),
        ("activations and gradients", program.memory.arena - weights - optimizer),
        ("constants", constants),
        ("states and values on the host", host),
        ("libraries and input buffers", beside),
    ];
    Err(TooLarge {
        program: program.name.clone(),
        device: place.device.clone(),
        ranks: place.ranks,
        free: place.free,
        kinds: kinds.into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
        largest: made(program),
        of_programs: (place.free / place.ranks.max(1)).saturating_sub(beside),
    })
}

/// Refuses programs that do not fit this machine's memory. Each rank that runs them as a thread takes as much.
pub fn check_processor<'p>(
    programs: impl Iterator<Item = &'p Program> + Clone,
    ranks: u64,
) -> Result<(), TooLarge> {
    match memory::available() {
        Some(free) => {
            let device = "this machine".into();
            check(programs, &DeviceMemory { device, free, beside: 0, ranks, is_host: true })
        }
        None => Ok(()),
    }
}

/// Refuses programs of GPUs whose values on the host do not fit this machine's memory. Each rank takes as much.
pub fn check_host<'p>(
    programs: impl Iterator<Item = &'p Program> + Clone,
    ranks: u64,
) -> Result<(), DeviceError> {
    let bytes = on_host(programs);
    match memory::available() {
        Some(free) if bytes.saturating_mul(ranks) > free => {
            Err(DeviceError::NoRoomOnHost { bytes, ranks, free })
        }
        _ => Ok(()),
    }
}

/// Returns the bytes on the host of programs that share their memory.
fn on_host<'p>(programs: impl Iterator<Item = &'p Program>) -> u64 {
    programs.map(|program| program.memory.host.total).max().unwrap_or(0)
}

/// Returns the bytes of the model's own states, and of the states that training adds.
fn states(program: &Program) -> [u64; 2] {
    let mut bytes = [0; 2];
    for state in program.states.iter().filter(|state| state.view.region.is_in_arena()) {
        let own = matches!(state.role, Role::Parameter | Role::Buffer);
        bytes[usize::from(!own)] += state.view.bytes().end - state.view.bytes().start;
    }
    bytes
}

/// Returns the largest results of a microbatch, each place once.
fn made(program: &Program) -> Vec<(String, u64)> {
    let mut by_place: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for instruction in program.section(Section::Microbatch) {
        for view in instruction.results.iter().filter(|view| view.region.is_in_arena()) {
            let (base, bytes) = (view.base, view.bytes().end - view.bytes().start);
            let known = by_place.entry(base).or_default();
            if bytes > known.0 {
                let origin = &instruction.origin;
                let of = if origin.is_empty() { String::new() } else { format!(" of {origin}") };
                *known = (bytes, format!("`{}`{of}", instruction.name()));
            }
        }
    }
    let mut all: Vec<(u64, String)> = by_place.into_values().collect();
    all.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    all.into_iter().take(TOLD).map(|(bytes, name)| (name, bytes)).collect()
}
