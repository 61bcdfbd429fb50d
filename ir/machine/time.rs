//! The cost model: the time that a node, a collective, a transfer or a copy takes on a machine, in picoseconds.
//!
//! Times are whole numbers, so their sums and comparisons are exact. A time that does not fit saturates.

use super::{Device, Link, Unit};
use crate::ops::collective::Collective;
use crate::ops::{Cost, Operator};
use crate::{Op, Signature};

/// The launch of a collective takes as long as this number of steps of its ring, in addition to the launch of a kernel.
const LAUNCH_STEPS: u64 = 5;

/// The time of a collective, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveTime {
    /// The time of the launch and of the steps' latencies, which is the time of a collective without bytes.
    pub latency: u64,
    /// The time to move the bytes.
    pub moving: u64,
}

impl CollectiveTime {
    /// Returns the whole time.
    pub fn total(self) -> u64 {
        self.latency.saturating_add(self.moving)
    }
}

impl Device {
    /// Returns the time of an operator on this device: a launch, plus the longer of the time of its operations and of its bytes.
    /// The types are those of the part that the device computes.
    pub fn node_time(&self, op: &Op, part: &Signature) -> u64 {
        let Cost { flops, read, written } = op.cost(part);
        let dtype = part.operands.first().or(part.results.first()).map_or(crate::DType::F32, |ty| ty.dtype);
        let computing = picoseconds(flops, self.rate(Unit::of(op, dtype)));
        let moving = picoseconds(read.saturating_add(written), self.memory_rate());
        self.launch_time().saturating_add(computing.max(moving))
    }

    /// Returns the time of a copy within the memory of this device: a launch, plus reading and writing each byte.
    pub fn copy_time(&self, bytes: u64) -> u64 {
        self.launch_time().saturating_add(picoseconds(bytes.saturating_mul(2), self.memory_rate()))
    }

    /// Returns the time of a collective by its ring over a link: a launch, the latency of the steps, and the bytes that a device
    /// sends. `bytes` is the size of the value that a group of `devices` has together ([`Collective::group_bytes`]). An
    /// `all_slice` is a copy.
    pub fn collective_time(&self, link: &Link, kind: Collective, bytes: u64, devices: u64) -> CollectiveTime {
        if !kind.communicates() {
            return CollectiveTime { latency: 0, moving: self.copy_time(bytes / devices.max(1)) };
        }
        let steps = LAUNCH_STEPS.saturating_add(kind.steps(devices));
        CollectiveTime {
            latency: self.launch_time().saturating_add(steps.saturating_mul(link.latency_time())),
            moving: picoseconds(kind.bytes_sent(bytes, devices), link.rate()),
        }
    }

    fn launch_time(&self) -> u64 {
        whole(self.launch)
    }
}

impl Link {
    /// Returns the time of a message of so many bytes.
    pub fn transfer_time(&self, bytes: u64) -> u64 {
        self.latency_time().saturating_add(picoseconds(bytes, self.rate()))
    }

    fn latency_time(&self) -> u64 {
        whole(self.latency)
    }
}

/// Converts seconds to whole picoseconds.
fn whole(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

/// Returns the time of an amount at a rate per second, in picoseconds, rounded down.
fn picoseconds(amount: u64, rate: f64) -> u64 {
    let time = u128::from(amount) * 1_000_000_000_000 / (rate as u128).max(1);
    u64::try_from(time).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Preset;
    use crate::ops::contract::Contract;
    use crate::ops::elementwise::Unary;
    use crate::{DType, Type};

    fn time(device: &Device, op: impl Into<Op>, operands: &[Type], result: Type) -> u64 {
        device.node_time(&op.into(), &Signature { operands: operands.to_vec(), results: vec![result] })
    }

    #[test]
    fn a_node_is_bound_by_its_operations_or_by_its_bytes() {
        let device = Device::assumed();
        let square = |dtype| Type::of(dtype, &[4096, 4096]);
        let half = square(DType::BF16);
        let multiply = Contract::new("mk,kn->mn");
        // 2 · 4096³ operations at 600 TFLOP/s; 2 · 64 MiB at 3 TB/s.
        assert_eq!(time(&device, multiply.clone(), &[half.clone(), half.clone()], half.clone()), 229_064_922);
        assert_eq!(time(&device, Unary::Neg, &[square(DType::F32)], square(DType::F32)), 44_739_242);
        // The unit of f32 matrices is slower on a real device, and a launch is added.
        let h100 = Preset::H100.device();
        let single = square(DType::F32);
        let slow = time(&h100, multiply.clone(), &[single.clone(), single.clone()], single);
        let fast = time(&h100, multiply, &[half.clone(), half.clone()], half);
        assert!(slow > 10 * fast, "{slow} {fast}");
        let nothing = Type::of(DType::F32, &[0]);
        assert_eq!(time(&h100, Unary::Neg, std::slice::from_ref(&nothing), nothing.clone()), 1_500_000);
    }

    #[test]
    fn a_collective_launches_steps_and_sends() {
        let device = Device::assumed();
        let of = |kind, bytes, devices| device.collective_time(&device.link, kind, bytes, devices);
        // 8 devices: 5 + 14 steps of 1 µs; 2 · 7/8 of 450 MB at 450 GB/s.
        let reduce = of(Collective::AllReduce, 450_000_000, 8);
        assert_eq!(reduce, CollectiveTime { latency: 19_000_000, moving: 1_750_000_000 });
        // The reduce-scatter and the all-gather send as many bytes together, and are launched twice.
        let halves = [Collective::ReduceScatter, Collective::AllGather].map(|kind| of(kind, 450_000_000, 8));
        assert_eq!(halves[0].moving + halves[1].moving, reduce.moving);
        assert_eq!(halves[0].latency + halves[1].latency, reduce.latency + 5_000_000);
        assert_eq!(of(Collective::AllSlice, 3_000_000, 2).total(), device.copy_time(1_500_000));
    }

    #[test]
    fn a_transfer_has_a_latency_and_a_copy_moves_each_byte_twice() {
        let device = Device::assumed();
        assert_eq!(device.link.transfer_time(0), 1_000_000);
        assert_eq!(device.link.transfer_time(450_000), 2_000_000);
        assert_eq!(device.copy_time(3_000_000), 2_000_000);
        assert_eq!(picoseconds(u64::MAX, 1.0), u64::MAX);
    }
}
