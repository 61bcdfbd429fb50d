//! Checks that programs fit on a device, from their plans, before a kernel is compiled or memory is allocated.

use crate::device::DeviceError;
use crate::program::{Program, Section};
use files::memory;
use ir::Role;
use std::collections::BTreeMap;
use std::fmt;

/// The error of programs that take more memory than a device has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TooLarge {
    /// The program that takes the most.
    pub program: String,
    /// The device, as messages show it.
    pub device: String,
    /// Ranks that share the device, each with programs of its own.
    pub ranks: u64,
    /// Bytes that are free there.
    pub free: u64,
    /// The bytes that one rank takes, by kind, for the kinds that it has.
    pub kinds: Vec<(&'static str, u64)>,
    /// The largest values of a microbatch: the instruction with its ONNX node, and the bytes.
    pub largest: Vec<(String, u64)>,
    /// The bytes of `free` that remain for the arena and constants of one rank's programs.
    pub of_programs: u64,
}

/// The number of largest values in a message.
const TOLD: usize = 3;

/// The device on which programs are to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The device, as messages show it.
    pub(crate) device: String,
    /// Bytes that are free there.
    pub(crate) free: u64,
    /// Bytes that a rank takes besides the arena and constants of its programs.
    pub(crate) beside: u64,
    /// Ranks that share the device.
    pub(crate) ranks: u64,
    /// Whether the device's memory is the host's, so that values on the host take it too.
    pub(crate) is_host: bool,
}

/// Refuses programs that share an arena if a place has no room for them.
pub(crate) fn check<'p>(
    programs: impl Iterator<Item = &'p Program> + Clone,
    place: &Place,
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
pub(crate) fn check_processor<'p>(
    programs: impl Iterator<Item = &'p Program> + Clone,
    ranks: u64,
) -> Result<(), TooLarge> {
    match memory::available() {
        Some(free) => {
            let device = "this machine".into();
            check(programs, &Place { device, free, beside: 0, ranks, is_host: true })
        }
        None => Ok(()),
    }
}

/// Refuses programs of GPUs whose values on the host do not fit this machine's memory. Each rank takes as much.
pub(crate) fn check_host<'p>(
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

/// Bytes in the form that messages show.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kibibytes = self.0 as f64 / 1024.0;
        match kibibytes {
            ..1024.0 => write!(f, "{kibibytes:.1} KiB"),
            1024.0..1_048_576.0 => write!(f, "{:.1} MiB", kibibytes / 1024.0),
            1_048_576.0..1_073_741_824.0 => write!(f, "{:.1} GiB", kibibytes / 1_048_576.0),
            _ => write!(f, "{:.1} TiB", kibibytes / 1_073_741_824.0),
        }
    }
}

impl TooLarge {
    /// Formats bytes for messages: `1.5 GiB`.
    pub fn size(bytes: u64) -> String {
        Size(bytes).to_string()
    }

    /// Describes the largest results of a microbatch for messages.
    pub fn told(&self) -> String {
        let all = self.largest.iter().map(|(name, bytes)| format!("{} by {name}", Size(*bytes)));
        format!("the largest results of a microbatch: {}", all.collect::<Vec<_>>().join(", "))
    }
}

/// `the program needs 81.2 GiB (12.0 GiB weights, …); GPU 0 (NVIDIA H200) has 79.0 GiB free`
impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = self.kinds.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let kinds = self.kinds.iter().map(|(kind, bytes)| format!("{} {kind}", Size(*bytes)));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        write!(f, "the program `{}` needs {} ({kinds})", self.program, Size(needed))?;
        if self.ranks > 1 {
            write!(f, " on each of {} ranks", self.ranks)?;
        }
        write!(f, "; {} has {} free", self.device, Size(self.free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{LowerOptions, lower};

    /// A program with 4 KiB on the host and fewer on the device.
    fn program() -> Program {
        let text = r#"trainyard-ir 1
            module @m training {
              state @u : f32[1024] optimizer host = zeros
              func @train(%0 "x" batched : f32[2], %1 = @u) {
                %2 = neg %1 : f32[1024] !{update, on host}
              }
              update @u = %2
            }"#;
        lower(&ir::text::parse(text).expect("it parses"), &LowerOptions::default()).expect("it lowers")
    }

    #[test]
    fn values_on_the_host_take_memory_of_a_processor_and_none_of_a_gpu() {
        let program = program();
        assert!(program.memory.host.total >= 4096 && program.memory.peak() < 4096, "{:?}", program.memory);
        let place = |is_host| Place { device: "it".into(), free: 4000, beside: 0, ranks: 1, is_host };
        assert_eq!(check([&program].into_iter(), &place(false)), Ok(()));
        let error = check([&program].into_iter(), &place(true)).expect_err("there is no room");
        assert!(error.to_string().contains("4.0 KiB states and values on the host"), "{error}");
    }

    #[test]
    fn a_host_that_is_too_small_is_told_with_the_number_of_its_ranks() {
        assert!(check_host([&program()].into_iter(), 1).is_ok());
        let Err(error) = check_host([&program()].into_iter(), u64::MAX) else { panic!("memory has an end") };
        assert!(error.to_string().contains("--memory host=BYTES"), "{error}");
    }
}
