//! Machines as plain data that passes may read: devices, links, nodes and clusters.
//!
//! The numbers of a device are the peaks of its data sheet. [`Attained`] and [`Link::attained`] are the fractions of these peaks
//! that programs attain; `attained` has their table with its sources. `presets` has the machines that are known by name. `time` is
//! the cost model: the time of a node, a collective, a transfer and a copy on a machine.

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
    /// The name, for messages.
    pub name: String,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The number of multiprocessors of a GPU, by which kernels choose their number of blocks; the number of cores of a processor.
    pub multiprocessors: u32,
    /// The bytes of its memory.
    pub memory: u64,
    /// The bytes per second to and from its memory.
    pub memory_bandwidth: f64,
    /// The peak rates of matrix multiplication.
    pub matrices: FlopRates,
    /// The peak rates of arithmetic on single elements.
    pub elements: FlopRates,
    /// The fractions of these peaks that programs attain.
    pub attained: Attained,
    /// The link to the other devices of its node.
    pub link: Link,
    /// The seconds from the end of a kernel to the beginning of the next kernel on its stream.
    pub launch: f64,
    /// The power under load, in watts.
    pub watts: f64,
    /// The price in dollars per hour.
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
    /// The rate in f64.
    pub f64: f64,
    /// The rate in f32, and on integers.
    pub f32: f64,
    /// The rate in f16.
    pub f16: f64,
    /// The rate in bf16.
    pub bf16: f64,
}

impl FlopRates {
    /// Returns the same rate for every element type.
    pub const fn uniform(rate: f64) -> Self {
        Self { f64: rate, f32: rate, f16: rate, bf16: rate }
    }

    /// Returns the rate for an element type. Integers have the rate of f32.
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

/// The fractions of a device's peaks that programs attain, above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attained {
    /// The fraction of the memory bandwidth that a streaming kernel attains.
    pub memory: f64,
    /// The fraction of the matrix rates that a large multiplication attains.
    pub multiply: f64,
    /// The fraction of the matrix rates that a convolution attains.
    pub convolve: f64,
    /// The fraction of the matrix rates that attention attains.
    pub attention: f64,
}

/// A unit of arithmetic: the part of a device that does the operations of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The unit that multiplies matrices of this type: tensor cores where the device has them for the type.
    Matrices(DType),
    /// The unit that multiplies matrices of this type, used by a convolution.
    Convolution(DType),
    /// The unit that multiplies matrices of this type, used by attention, which also computes a softmax.
    Attention(DType),
    /// Plain arithmetic of this type.
    Elements(DType),
}

impl Unit {
    /// Returns the unit of an operator whose operands have this element type.
    pub fn of(op: &Op, dtype: DType) -> Self {
        match op {
            Op::Attention(_) | Op::AttentionGrad(_) => Self::Attention(dtype),
            Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => Self::Convolution(dtype),
            Op::Contract(_)
            | Op::Experts(_)
            | Op::ExpertsGrad(_)
            | Op::Recurrent(_)
            | Op::RecurrentGrad(_) => Self::Matrices(dtype),
            _ => Self::Elements(dtype),
        }
    }
}

impl Device {
    /// Returns the operations per second that a kernel attains on a unit.
    pub fn rate(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Matrices(dtype) => self.matrices.of(dtype) * self.attained.multiply,
            Unit::Convolution(dtype) => self.matrices.of(dtype) * self.attained.convolve,
            Unit::Attention(dtype) => self.matrices.of(dtype) * self.attained.attention,
            Unit::Elements(dtype) => self.elements.of(dtype),
        }
    }

    /// Returns the bytes per second to and from memory that a kernel attains.
    pub fn memory_rate(&self) -> f64 {
        self.memory_bandwidth * self.attained.memory
    }
}

/// A connection between devices, between nodes, between a device and its host, or between a host and its disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second in each direction, according to the data sheet.
    pub bandwidth: f64,
    /// The fraction of the bandwidth that transfers attain, from above 0 to 1.
    pub attained: f64,
    /// The seconds that the smallest message takes.
    pub latency: f64,
}

impl Link {
    /// Returns the bytes per second that transfers attain in each direction.
    pub fn rate(&self) -> f64 {
        self.bandwidth * self.attained
    }
}

/// A node: devices of one kind and their host.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The number of its devices.
    pub devices: u64,
    /// The kind of its devices, with the link between them.
    pub device: Device,
    /// The link from a device to the memory of the host.
    pub host_link: Link,
    /// Bytes of the host's memory.
    pub host_memory: u64,
    /// The bytes per second of the host's memory, which all devices of the node share.
    pub host_bandwidth: f64,
    /// The link to the disk, which all devices of the node share.
    pub disk: Link,
}

/// Nodes of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The number of nodes.
    pub nodes: u64,
    /// The kind of its nodes.
    pub node: Node,
    /// The link of each device to the other nodes.
    pub network: Link,
}

impl Node {
    /// Returns the bytes per second of the host's memory for each device's updates, when `devices` devices of a program update.
    pub fn host_rate(&self, devices: u64) -> f64 {
        self.host_bandwidth * attained::PROCESSOR.memory / self.at_once(devices)
    }

    /// Returns the bytes per second of the disk for each device, when the host reads or writes for `devices` devices of a program.
    pub fn disk_rate(&self, devices: u64) -> f64 {
        self.disk.rate() / self.at_once(devices)
    }

    /// Returns the number of devices on one node, for a program on `devices` devices.
    fn at_once(&self, devices: u64) -> f64 {
        devices.min(self.devices).max(1) as f64
    }

    /// Returns a node for a device whose node is not described: a machine with one processor, or a DGX H100.
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
