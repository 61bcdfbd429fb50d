//! Devices as a model of cost sees them: what their data sheets promise, and what of that kernels attain.

use super::work::Unit;
use crate::target::Multiprocessors;
use ir::DType;

/// A device. Rates are a second's: bytes, or floating-point operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Accelerator {
    /// Its name, for people.
    pub name: &'static str,
    /// Its multiprocessors, by which kernels choose their number of blocks.
    pub multiprocessors: Multiprocessors,
    /// Bytes to and from memory, as the data sheet has it.
    pub bandwidth: f64,
    /// Tensor cores on f16 and bf16, dense, as the data sheet has it.
    pub half: f64,
    /// Plain f32, as the data sheet has it.
    pub single: f64,
    /// Tensor cores on f64, as the data sheet has it.
    pub double: f64,
    /// Bytes to other devices by NVLink, each way, as the data sheet has it.
    pub link: f64,
    /// What of this is attained.
    pub attained: Attained,
}

/// What kernels attain on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attained {
    /// Of the bandwidth, by a kernel that streams.
    pub bandwidth: f64,
    /// Of any rate of operations, by a large multiplication of matrices.
    pub multiply: f64,
    /// Of the rate of tensor cores, by attention.
    pub attention: f64,
    /// Of the link.
    pub link: f64,
    /// Seconds from the end of a command to the beginning of the next one on its stream.
    pub launch: f64,
}

/// From the end of a kernel to the beginning of the next one of a CUDA graph, seconds: between the 1 µs of a straight line and
/// the 2 µs where streams meet.
const LAUNCH: f64 = 1.5e-6;

/// Of the bandwidth: STREAM's triad moves 3.0 to 3.1 of the 3.35 TB/s of an H100 SXM.
const STREAMED: f64 = 0.9;

/// Of a link: 380 of 450 GB/s one way between two H100 SXM (NCCL's issue 1264).
const SENT: f64 = 0.84;

impl Accelerator {
    /// H200 SXM. Peaks: NVIDIA's data sheet "H200 Tensor Core GPU" (its tensor rates are with sparsity, here halved).
    /// Multiplications attain 794.5 of 989 TFLOP/s in bf16 (S. Bekman, Machine Learning Engineering, "Maximum Achievable
    /// Matmul FLOPS": H100 SXM, "H200 is the same"); attention 355, cuDNN 9.19 with causal heads of 64.
    pub const H200: Self = Self {
        name: "H200 SXM",
        multiprocessors: Multiprocessors(132),
        bandwidth: 4.8e12,
        half: 989.5e12,
        single: 67e12,
        double: 67e12,
        link: 450e9,
        attained: Attained {
            bandwidth: STREAMED,
            multiply: 0.803,
            attention: 0.36,
            link: SENT,
            launch: LAUNCH,
        },
    };

    /// H100 SXM. Peaks: NVIDIA's data sheet "H100 Tensor Core GPU"; the rest as of [`Self::H200`].
    pub const H100: Self = Self { name: "H100 SXM", bandwidth: 3.35e12, ..Self::H200 };

    /// A100 SXM with 80 GB. Peaks: NVIDIA's data sheet "A100 80GB". Multiplications attain 271.2 of 312 TFLOP/s in bf16
    /// (source as of [`Self::H200`]); attention somewhat over half (Dao, FlashAttention-2, arXiv 2307.08691, figure 5).
    pub const A100: Self = Self {
        name: "A100 SXM 80 GB",
        multiprocessors: Multiprocessors(108),
        bandwidth: 2.039e12,
        half: 312e12,
        single: 19.5e12,
        double: 19.5e12,
        link: 300e9,
        attained: Attained {
            bandwidth: STREAMED,
            multiply: 0.869,
            attention: 0.55,
            link: SENT,
            launch: LAUNCH,
        },
    };

    /// Every device, with the name that flags give it.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::H200, "h200"), (Self::H100, "h100"), (Self::A100, "a100")];

    /// Operations a second that a kernel attains.
    pub fn rate(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Matrices(DType::F16 | DType::BF16) => self.half * self.attained.multiply,
            Unit::Matrices(DType::F64) => self.double * self.attained.multiply,
            Unit::Matrices(_) => self.single * self.attained.multiply,
            Unit::Attention => self.half * self.attained.attention,
            // Without tensor cores half of theirs.
            Unit::Elements(DType::F64) => self.double / 2.0,
            Unit::Elements(_) => self.single,
        }
    }

    /// Bytes a second that reach other devices.
    pub fn sent(&self) -> f64 {
        self.link * self.attained.link
    }

    /// Bytes a second that a kernel attains.
    pub fn streamed(&self) -> f64 {
        self.bandwidth * self.attained.bandwidth
    }
}
