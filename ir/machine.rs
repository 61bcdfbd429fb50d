//! Machines as plain data that passes may read: devices, links, nodes and clusters.
//!
//! The numbers of a device are peaks, as its data sheet has them. [`Attained`] and [`Link::attained`] are the fractions of these
//! peaks that programs attain; `attained` has the table of them with its sources. `presets` has the machines that are
//! known by name, and `time` is the cost model: the time of a node, a collective, a transfer and a copy on a machine.

mod attained;
mod cluster;
mod presets;
mod time;

pub use presets::Preset;
pub use time::CollectiveTime;

use crate::{DType, Op};

/// A device that runs programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name, for people.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// The number of a GPU's multiprocessors, by which kernels choose their number of blocks; of a processor its cores.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes per second to and from its memory.
    pub memory_bandwidth: f64,
    /// Peak rates of the multiplication of matrices.
    pub matrices: FlopRates,
    /// Peak rates of arithmetic on single elements.
    pub elements: FlopRates,
    /// The fractions of these peaks that programs attain.
    pub attained: Attained,
    /// The link to the other devices of its node.
    pub link: Link,
    /// Seconds from the end of a kernel to the beginning of the next kernel on its stream.
    pub launch: f64,
    /// Watts under load.
    pub watts: f64,
    /// Dollars per hour.
    pub price_per_hour: f64,
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A processor.
    Cpu,
    /// A GPU.
    Gpu,
}

impl DeviceKind {
    /// Every kind, with its name.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Cpu, "cpu"), (Self::Gpu, "gpu")];
}

/// Floating-point operations per second, by element type; a multiply-add is two operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopRates {
    /// In f64.
    pub f64: f64,
    /// In f32, and on integers.
    pub f32: f64,
    /// In f16.
    pub f16: f64,
    /// In bf16.
    pub bf16: f64,
}

impl FlopRates {
    /// The same rate for every element type.
    pub const fn uniform(rate: f64) -> Self {
        Self { f64: rate, f32: rate, f16: rate, bf16: rate }
    }

    /// The rate for an element type. Integers have the rate of f32.
    pub fn of(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F64 => self.f64,
            DType::F16 => self.f16,
            DType::BF16 => self.bf16,
            DType::F32
            | DType::I64
            | DType::I32
            | DType::I16
            | DType::I8
            | DType::U64
            | DType::U32
            | DType::U16
            | DType::U8
            | DType::Bool => self.f32,
        }
    }
}

/// The fractions of a device's peaks that programs attain, from above 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attained {
    /// Of the bandwidth of memory, by a kernel that streams.
    pub memory: f64,
    /// Of the rates of matrices, by a large multiplication.
    pub multiply: f64,
    /// Of the rates of matrices, by a convolution.
    pub convolve: f64,
    /// Of the rates of matrices, by attention.
    pub attention: f64,
}

/// A unit of arithmetic: the part of a device that does the operations of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The unit that multiplies matrices of this type: tensor cores where the device has them for the type.
    Matrices(DType),
    /// The unit that multiplies matrices of this type, by a convolution.
    Convolution(DType),
    /// The unit that multiplies matrices of this type, between the rows of a softmax.
    Attention(DType),
    /// Plain arithmetic of this type.
    Elements(DType),
}

impl Unit {
    /// The unit of an operator whose operands have this element type.
    pub fn of(op: &Op, dtype: DType) -> Self {
        match op {
            Op::Attention(_) | Op::AttentionGrad(_) => Self::Attention(dtype),
            Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => Self::Convolution(dtype),
            Op::Contract(_) | Op::Experts(_) | Op::ExpertsGrad(_) => Self::Matrices(dtype),
            _ => Self::Elements(dtype),
        }
    }
}

impl Device {
    /// Operations per second that a kernel attains on a unit.
    pub fn rate(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Matrices(dtype) => self.matrices.of(dtype) * self.attained.multiply,
            Unit::Convolution(dtype) => self.matrices.of(dtype) * self.attained.convolve,
            Unit::Attention(dtype) => self.matrices.of(dtype) * self.attained.attention,
            Unit::Elements(dtype) => self.elements.of(dtype),
        }
    }

    /// Bytes per second to and from memory that a kernel attains.
    pub fn memory_rate(&self) -> f64 {
        self.memory_bandwidth * self.attained.memory
    }
}

/// A way for bytes: between devices, nodes, a device and its host, or a host and its disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second in each direction, as the data sheet has it.
    pub bandwidth: f64,
    /// The fraction of the bandwidth that transfers attain, from above 0 to 1.
    pub attained: f64,
    /// Seconds that a message takes however small it is.
    pub latency: f64,
}

impl Link {
    /// Bytes per second that transfers attain in each direction.
    pub fn rate(&self) -> f64 {
        self.bandwidth * self.attained
    }
}

/// A node: devices of one kind and their host.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The number of its devices.
    pub devices: u64,
    /// Each of its devices, with the link between them.
    pub device: Device,
    /// The link from a device to the memory of the host.
    pub host_link: Link,
    /// Bytes of the host's memory.
    pub host_memory: u64,
    /// Bytes per second of the host's memory, which all devices of the node share.
    pub host_bandwidth: f64,
    /// The link to the disk, which all devices of the node share.
    pub disk: Link,
}

/// Nodes of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The number of nodes.
    pub nodes: u64,
    /// Each of its nodes.
    pub node: Node,
    /// The link of each device to the other nodes.
    pub network: Link,
}

impl Node {
    /// Bytes per second of the host's memory that each device's updates attain, while so many devices of a program update.
    pub fn host_rate(&self, devices: u64) -> f64 {
        self.host_bandwidth * attained::PROCESSOR.memory / self.at_once(devices)
    }

    /// Bytes per second of the disk that the host attains for each device, while it reads or writes for so many devices of a program.
    pub fn disk_rate(&self, devices: u64) -> f64 {
        self.disk.rate() / self.at_once(devices)
    }

    /// The devices of a node among so many devices of a program.
    fn at_once(&self, devices: u64) -> f64 {
        devices.min(self.devices).max(1) as f64
    }

    /// The node of a device whose node is not described: a machine with one processor, or a DGX H100.
    pub fn of_device(device: &Device) -> Self {
        let preset = if device.kind == DeviceKind::Cpu { Preset::Cpu } else { Preset::H100 };
        Self { device: device.clone(), ..preset.node() }
    }
}

/// The devices of a mesh, with the links between them.
#[derive(Clone, Debug, PartialEq)]
pub enum Machine {
    /// Devices of one node, as many as a mesh has.
    Node(Device),
    /// A cluster.
    Cluster(Cluster),
}
