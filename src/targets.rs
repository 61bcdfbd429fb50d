//! The kinds of devices that programs are compiled for: a backend has its line here.

use ir::machine::DeviceKind;
use program::Target;

/// All targets.
pub const ALL: [Target; 2] = [cpu::TARGET, cuda::TARGET];

/// Returns the target of a kind of device.
pub fn of(kind: DeviceKind) -> Target {
    match kind {
        DeviceKind::Cpu => cpu::TARGET,
        DeviceKind::Gpu => cuda::TARGET,
    }
}

/// Returns the target with a name.
///
/// # Errors
/// No target has the name.
pub fn named(name: &str) -> Result<Target, String> {
    ALL.into_iter().find(|target| target.name() == name).ok_or_else(|| {
        let names = ALL.map(|target| target.name()).join(", ");
        format!("there is no target `{name}`; there are {names}")
    })
}
