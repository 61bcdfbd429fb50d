//! The backends that the command line knows: each has its line here.

use cpu::Bf16Products;
use ir::machine::DeviceKind;
use program::Target;
use ranks::Platform;

/// The backends. Of several for one kind of device, the first runs the devices that are only described.
pub const BACKENDS: &[&dyn Platform] = &[
    &cpu::Processor::PORTABLE,
    &cpu::Processor(Bf16Products::Amx),
    &cpu::Processor(Bf16Products::Avx512),
    &cuda::Gpus,
];

/// Returns the target of a kind of device.
pub fn of(kind: DeviceKind) -> Target {
    let backend = BACKENDS.iter().find(|backend| backend.kind() == kind);
    backend.expect("every kind of device has a backend").target()
}

/// Returns the backend of a target of the list.
pub fn backend(target: Target) -> &'static dyn Platform {
    let backend = BACKENDS.iter().find(|backend| backend.target() == target);
    *backend.expect("the command line has the targets of the list")
}

/// Returns the target with a name.
///
/// # Errors
/// No target has the name.
pub fn named(name: &str) -> Result<Target, String> {
    let targets = || BACKENDS.iter().map(|backend| backend.target());
    targets().find(|target| target.name() == name).ok_or_else(|| {
        let names = targets().map(|target| target.name()).collect::<Vec<_>>().join(", ");
        format!("there is no target `{name}`; there are {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_device_has_a_target_and_every_target_a_backend() {
        for (kind, _) in DeviceKind::ALL {
            assert_eq!(backend(of(kind)).kind(), kind);
        }
    }
}
