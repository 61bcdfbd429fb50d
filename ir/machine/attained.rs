//! The fractions of peaks that programs attain, with their sources. Convolutions are assumed to attain the same fraction as
//! multiplications.

use super::{Attained, Link};

/// H100 and H200 SXM. STREAM's triad moves 3.0 to 3.1 of the 3.35 TB/s of an H100 SXM. Multiplications attain 794.5 of 989
/// TFLOP/s in bf16 (S. Bekman, Machine Learning Engineering, "Maximum Achievable Matmul FLOPS": H100 SXM, "H200 is the same");
/// attention 355, cuDNN 9.19 with causal heads of 64.
pub(super) const HOPPER: Attained =
    Attained { memory: 0.9, multiply: 0.803, convolve: 0.803, attention: 0.36 };

/// A100 SXM. Memory as for [`HOPPER`]. Multiplications attain 271.2 of 312 TFLOP/s in bf16 (the source of [`HOPPER`]); attention
/// somewhat over half (Dao, FlashAttention-2, arXiv 2307.08691, figure 5).
pub(super) const AMPERE: Attained =
    Attained { memory: 0.9, multiply: 0.869, convolve: 0.869, attention: 0.55 };

/// V100 SXM2. Memory moves 750 of 900 GB/s (Jia et al., arXiv 1804.06826). Multiplications attain 83 of 125 TFLOP/s in mixed
/// precision (Markidis et al., arXiv 1803.04014). No measurement of attention is published: half of a multiplication is assumed.
pub(super) const VOLTA: Attained =
    Attained { memory: 0.833, multiply: 0.664, convolve: 0.664, attention: 0.332 };

/// A processor. These fractions are assumed; they are fixed so that predictions are the same on every machine.
pub(super) const PROCESSOR: Attained = Attained { memory: 0.8, multiply: 0.8, convolve: 0.8, attention: 0.4 };

/// The fractions for rates that are already attained rates.
pub(super) const WHOLE: Attained = Attained { memory: 1.0, multiply: 1.0, convolve: 1.0, attention: 1.0 };

/// The fraction of a link: 380 of 450 GB/s one way between two H100 SXM (NCCL's issue 1264). Assumed for every other link.
const SENT: f64 = 0.84;

/// Seconds of a step of a ring. NCCL's table of latencies (src/graph/tuning.cc, rings) has 0.6 µs for small and 3.4 µs for large
/// messages over NVLink, and 2.7 to 14 µs over a network.
const NVLINK_LATENCY: f64 = 1e-6;
const NETWORK_LATENCY: f64 = 5e-6;

/// Seconds until a copy between the host and a device begins. Assumed.
const HOST_LATENCY: f64 = 10e-6;

/// Seconds until a solid-state disk answers. Assumed.
const DISK_LATENCY: f64 = 100e-6;

/// Returns an NVLink of this bandwidth, in bytes per second in each direction.
pub(super) const fn nvlink(bandwidth: f64) -> Link {
    Link { bandwidth, attained: SENT, latency: NVLINK_LATENCY }
}

/// Returns a network link of this bandwidth per device, in bytes per second in each direction.
pub(super) const fn network(bandwidth: f64) -> Link {
    Link { bandwidth, attained: SENT, latency: NETWORK_LATENCY }
}

/// Returns a link between a device and its host, of this bandwidth in bytes per second in each direction.
pub(super) const fn host(bandwidth: f64) -> Link {
    Link { bandwidth, attained: SENT, latency: HOST_LATENCY }
}

/// Returns a disk that reads or writes this number of bytes per second.
pub(super) const fn disk(bandwidth: f64) -> Link {
    Link { bandwidth, attained: SENT, latency: DISK_LATENCY }
}
