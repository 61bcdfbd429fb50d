//! The report of programs that do not fit into the memory of a device.

use ir::units::bytes_in_tenths;
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

impl TooLarge {
    /// Describes the largest results of a microbatch for messages.
    pub fn told(&self) -> String {
        let all = self.largest.iter().map(|(name, size)| format!("{} by {name}", bytes_in_tenths(*size)));
        format!("the largest results of a microbatch: {}", all.collect::<Vec<_>>().join(", "))
    }
}

/// ``the program `main` needs 81.2 GiB (12.0 GiB weights, …); GPU 0 (NVIDIA H200) has 79.0 GiB free``
impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = self.kinds.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let kinds = self.kinds.iter().map(|(kind, size)| format!("{} {kind}", bytes_in_tenths(*size)));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        write!(f, "the program `{}` needs {} ({kinds})", self.program, bytes_in_tenths(needed))?;
        if self.ranks > 1 {
            write!(f, " on each of {} ranks", self.ranks)?;
        }
        write!(f, "; {} has {} free", self.device, bytes_in_tenths(self.free))
    }
}
