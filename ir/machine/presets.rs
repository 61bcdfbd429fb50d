//! The machines that are known by name. Peaks are from NVIDIA's data sheets, nodes are NVIDIA's DGX systems.
//!
//! Prices and watts are assumptions, close to those of rented machines of each kind in 2025. They change often and differ between
//! sellers. A machine description in TOML replaces them.

use super::{Cluster, Device, DeviceKind, FlopRates, Link, Node, attained};

/// A machine that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// H200 SXM with 141 GB.
    H200,
    /// H100 SXM with 80 GB.
    H100,
    /// A100 SXM with 80 GB.
    A100,
    /// A100 SXM with 40 GB.
    A100With40,
    /// V100 SXM2 with 32 GB.
    V100,
    /// V100 SXM2 with 16 GB.
    V100With16,
    /// A processor with fixed rates.
    Cpu,
}

/// Seconds from the end of a kernel to the beginning of the next kernel of a CUDA graph: between 1 µs (kernels in sequence) and 2
/// µs (where streams meet).
const LAUNCH: f64 = 1.5e-6;

const GB: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

impl Preset {
    /// Every preset, with its names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::H200, "h200"),
        (Self::H100, "h100"),
        (Self::A100, "a100"),
        (Self::A100With40, "a100-40"),
        (Self::V100, "v100"),
        (Self::V100, "v100-32"),
        (Self::V100With16, "v100-16"),
        (Self::Cpu, "cpu"),
    ];

    /// Returns the preset with this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(preset, _)| preset)
    }

    /// Returns a device of this kind.
    pub fn device(self) -> Device {
        match self {
            Self::H200 => h200(),
            Self::H100 => h100(),
            Self::A100 => a100(),
            // Data sheet "A100 Tensor Core GPU", A100 40 GB SXM.
            Self::A100With40 => Device {
                name: "A100 SXM 40 GB".into(),
                memory: 40 * GB,
                memory_bandwidth: 1.555e12,
                price_per_hour: 2.74,
                ..a100()
            },
            Self::V100 => v100(),
            Self::V100With16 => {
                Device { name: "V100 SXM2 16 GB".into(), memory: 16 * GB, price_per_hour: 3.06, ..v100() }
            }
            Self::Cpu => processor(),
        }
    }

    /// Returns a node of such devices: DGX H200, DGX H100, DGX A100 (640 GB and 320 GB), DGX-1; a machine with one processor.
    pub fn node(self) -> Node {
        let device = self.device();
        let own_bandwidth = device.memory_bandwidth;
        let node = |host_link: f64, (host_memory, host_bandwidth): (u64, f64), disk: f64| Node {
            devices: 8,
            device,
            host_link: attained::host(host_link),
            host_memory,
            host_bandwidth,
            disk: attained::disk(disk),
        };
        match self {
            // 16 lanes of PCIe 5.0; two processors with eight channels of DDR5-4800; eight disks with PCIe 4.0.
            Self::H200 | Self::H100 => node(64e9, (2000 * GB, 614.4e9), 50e9),
            // 16 lanes of PCIe 4.0; two processors with eight channels of DDR4-3200; eight or four disks with PCIe 4.0.
            Self::A100 => node(32e9, (2000 * GB, 409.6e9), 50e9),
            Self::A100With40 => node(32e9, (1000 * GB, 409.6e9), 25e9),
            // 16 lanes of PCIe 3.0; two processors with four channels of DDR4-2133; four disks with SATA.
            Self::V100 | Self::V100With16 => node(16e9, (512 * GB, 136.5e9), 2e9),
            // The host's memory is the device's memory, and a transfer is a copy; one disk with PCIe 4.0.
            Self::Cpu => Node { devices: 1, ..node(25.6e9, (64 * GIB, own_bandwidth), 5e9) },
        }
    }

    /// Returns the link of each device to other nodes: InfiniBand of 400, 200 and 50 Gbit/s per device; Ethernet of 10 Gbit/s.
    pub fn network(self) -> Link {
        attained::network(match self {
            Self::H200 | Self::H100 => 50e9,
            Self::A100 | Self::A100With40 => 25e9,
            Self::V100 | Self::V100With16 => 6.25e9,
            Self::Cpu => 1.25e9,
        })
    }

    /// Returns a cluster of so many nodes of this kind.
    pub fn cluster(self, nodes: u64) -> Cluster {
        Cluster { nodes, node: self.node(), network: self.network() }
    }
}

impl Device {
    /// Returns the device by which passes price programs, unless their options name other rates: an H100 in its node, with rounded
    /// attained rates. The resulting choices are the same on any machine whose links are slower than its memory.
    pub fn assumed() -> Self {
        Self::with_rates(Link { bandwidth: 450e9, attained: 1.0, latency: 1e-6 }, 3e12, 600e12)
    }

    /// Returns an H100 with these attained rates: a link, bytes per second of memory, and operations per second in every kind of
    /// arithmetic. Launching a kernel takes no time.
    pub fn with_rates(link: Link, memory_bandwidth: f64, flops: f64) -> Self {
        Self {
            memory_bandwidth,
            matrices: FlopRates::uniform(flops),
            elements: FlopRates::uniform(flops),
            attained: attained::WHOLE,
            link,
            launch: 0.0,
            ..h100()
        }
    }
}

/// Data sheet "H200 Tensor Core GPU". Its tensor rates are given with sparsity and are halved here.
fn h200() -> Device {
    Device {
        name: "H200 SXM".into(),
        memory: 141 * GB,
        memory_bandwidth: 4.8e12,
        price_per_hour: 7.91,
        ..h100()
    }
}

/// Data sheet "H100 Tensor Core GPU". Its tensor rates are given with sparsity and are halved here. The rate in f64 without tensor
/// cores is half of the rate with them.
fn h100() -> Device {
    Device {
        name: "H100 SXM".into(),
        kind: DeviceKind::Gpu,
        multiprocessors: 132,
        memory: 80 * GB,
        memory_bandwidth: 3.35e12,
        matrices: FlopRates { f64: 67e12, f32: 67e12, f16: 989.5e12, bf16: 989.5e12 },
        elements: FlopRates { f64: 33.5e12, ..FlopRates::uniform(67e12) },
        attained: attained::HOPPER,
        link: attained::nvlink(450e9),
        launch: LAUNCH,
        watts: 700.0,
        price_per_hour: 6.88,
    }
}

/// Data sheet "A100 Tensor Core GPU", A100 80 GB SXM. The rate in f64 without tensor cores is half of the rate with them.
fn a100() -> Device {
    Device {
        name: "A100 SXM 80 GB".into(),
        kind: DeviceKind::Gpu,
        multiprocessors: 108,
        memory: 80 * GB,
        memory_bandwidth: 2.039e12,
        matrices: FlopRates { f64: 19.5e12, f32: 19.5e12, f16: 312e12, bf16: 312e12 },
        elements: FlopRates { f64: 9.75e12, ..FlopRates::uniform(19.5e12) },
        attained: attained::AMPERE,
        link: attained::nvlink(300e9),
        launch: LAUNCH,
        watts: 400.0,
        price_per_hour: 3.43,
    }
}

/// Data sheet "Tesla V100", V100 SXM2. Its tensor cores multiply only in f16; bf16 has the rate of f32.
fn v100() -> Device {
    let plain = FlopRates { f64: 7.8e12, ..FlopRates::uniform(15.7e12) };
    Device {
        name: "V100 SXM2 32 GB".into(),
        kind: DeviceKind::Gpu,
        multiprocessors: 80,
        memory: 32 * GB,
        memory_bandwidth: 900e9,
        matrices: FlopRates { f16: 125e12, ..plain },
        elements: plain,
        attained: attained::VOLTA,
        link: attained::nvlink(150e9),
        launch: LAUNCH,
        watts: 300.0,
        price_per_hour: 3.90,
    }
}

/// A processor with eight cores of 3 GHz, each with two multiply-adds of 256 bits per cycle, and two channels of DDR4-3200.
/// Processors share memory: a transfer between two of them is a copy.
fn processor() -> Device {
    let plain = FlopRates { f64: 384e9, ..FlopRates::uniform(768e9) };
    Device {
        name: "processor of 8 cores".into(),
        kind: DeviceKind::Cpu,
        multiprocessors: 8,
        memory: 64 * GIB,
        memory_bandwidth: 51.2e9,
        matrices: plain,
        elements: plain,
        attained: attained::PROCESSOR,
        link: Link { bandwidth: 25.6e9, attained: attained::PROCESSOR.memory, latency: 1e-6 },
        launch: 1e-6,
        watts: 95.0,
        price_per_hour: 0.71,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::machine::{Attained, Unit};

    #[test]
    fn presets_are_plausible_machines() {
        for (preset, name) in Preset::ALL {
            assert_eq!(Preset::find(name), Some(preset));
            let Cluster { node, network, .. } = preset.cluster(2);
            let Device { ref attained, ref link, .. } = node.device;
            let Attained { memory, multiply, convolve, attention } = *attained;
            let links = [*link, node.host_link, node.disk, network];
            let fractions =
                [memory, multiply, convolve, attention].into_iter().chain(links.map(|link| link.attained));
            assert!(fractions.into_iter().all(|part| part > 0.0 && part <= 1.0), "{name}");
            // Links are slower than memory, and the network is slower than the links of a node.
            let of = |link: &Link| link.rate() < node.device.memory_rate();
            assert!(links.iter().all(of) && network.rate() < link.rate(), "{name}");
            assert!(node.host_memory >= node.device.memory, "{name}");
        }
        assert_eq!(Preset::find("b200"), None);
    }

    #[test]
    fn the_devices_of_a_node_share_its_disk() {
        let node = Preset::H100.node();
        let shares = [1, 4, 8, 16].map(|devices| (node.disk.rate() / node.disk_rate(devices)).round());
        // A program on 16 devices runs on two nodes.
        assert_eq!(shares, [1.0, 4.0, 8.0, 8.0]);
    }

    #[test]
    fn attained_rates_are_those_that_were_measured() {
        let h100 = Preset::H100.device();
        assert!((h100.rate(Unit::Matrices(DType::BF16)) - 794.5e12).abs() < 1e12);
        assert!((h100.rate(Unit::Attention(DType::BF16)) - 355e12).abs() < 2e12);
        assert_eq!(h100.rate(Unit::Elements(DType::F64)), 33.5e12);
        let v100 = Preset::V100.device();
        assert!((v100.rate(Unit::Matrices(DType::F16)) - 83e12).abs() < 1e9);
        assert_eq!(v100.rate(Unit::Matrices(DType::BF16)), v100.rate(Unit::Matrices(DType::F32)));
    }
}
