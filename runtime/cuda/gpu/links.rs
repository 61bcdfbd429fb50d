//! How GPUs of one machine reach each other.

use super::handles::refused;
use crate::cuda::driver::DriverError;
use cudarc::driver::{result, sys};
use serde::Serialize;

/// From one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The GPU that reads and writes.
    pub from: usize,
    /// The GPU whose memory it is.
    pub to: usize,
    /// Whether its memory is reached directly, not through the host's.
    pub peer_access: bool,
    /// Whether it can be added to there as at home: so it is over NVLink, and hardly ever over PCIe.
    pub native_atomics: bool,
    /// How fast it is among the links of the machine, as the driver ranks them: 0 is the fastest.
    pub performance_rank: i32,
}

/// All links between so many GPUs, both ways. The driver is there: see [`crate::cuda::probe`].
///
/// # Errors
/// What the driver does not say.
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
    // SAFETY: the driver gave both devices just now, and writes one number to the place it is given.
    unsafe { sys::cuDeviceGetP2PAttribute(&mut value, attribute, from, to) }.result()?;
    Ok(value)
}
