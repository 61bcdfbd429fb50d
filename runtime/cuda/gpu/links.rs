//! The links between the GPUs of one machine.

use super::handles::refused;
use crate::driver::DriverError;
use cudarc::driver::{result, sys};
use serde::Serialize;

/// The link from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The GPU that reads and writes.
    pub from: usize,
    /// The GPU that has the memory.
    pub to: usize,
    /// Whether the memory is reached directly, and not through the host's.
    pub peer_access: bool,
    /// Whether atomic additions work there as in the GPU's own memory: the link is then NVLink, and hardly ever PCIe.
    pub native_atomics: bool,
    /// The rank of the link's speed among the links of the machine, from the driver: 0 is the fastest.
    pub performance_rank: i32,
}

/// Returns all links between this number of GPUs, in both directions. The driver must be open: see [`crate::probe`].
///
/// # Errors
/// The driver does not describe a link.
pub fn links(gpus: usize) -> Result<Vec<Link>, DriverError> {
    let pairs = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).map(|(from, to)| link(from, to)).collect()
}

fn link(from: usize, to: usize) -> Result<Link, DriverError> {
    use sys::CUdevice_P2PAttribute as Attribute;
    let failed = |error| refused(&format!("the link from GPU {from} to GPU {to}"))(error);
    let device = |ordinal: usize| result::device::get(ordinal as i32).map_err(failed);
    let devices = [device(from)?, device(to)?];
    let attribute = |attribute| attribute_of(attribute, devices).map_err(failed);
    Ok(Link {
        from,
        to,
        peer_access: attribute(Attribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? != 0,
        native_atomics: attribute(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        performance_rank: attribute(Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
    })
}

#[allow(unsafe_code)]
fn attribute_of(
    attribute: sys::CUdevice_P2PAttribute,
    [from, to]: [sys::CUdevice; 2],
) -> Result<i32, result::DriverError> {
    let mut value = 0;
    // SAFETY: the driver has just returned both devices, and writes one number to the given place.
    unsafe { sys::cuDeviceGetP2PAttribute(&mut value, attribute, from, to) }.result()?;
    Ok(value)
}
