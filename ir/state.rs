//! The state table: everything that outlives a step.

use crate::{DataId, StateId, Type, ValueId};
use smallvec::SmallVec;

/// A tensor that outlives a step. A checkpoint is the table of all states plus the data position.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Name, unique in the module: the module path of a parameter, or `adam.m(NAME)` and the like for other states.
    pub name: String,
    /// Global type and sharding.
    pub ty: Type,
    /// The purpose of the state.
    pub role: Role,
    /// The value before step 0.
    pub initializer: Initializer,
    /// The memory in which the state rests between its uses.
    pub tier: Tier,
    /// The steps that cut the state out of the file's tensor named by `initializer`.
    pub view: View,
    /// The pipeline stage that has the state, or [`crate::EVERY_STAGE`].
    pub stage: u32,
    /// The value when the step begins.
    pub input: ValueId,
    /// The value when the step ends; `None` leaves it unchanged.
    pub output: Option<ValueId>,
}

/// The purpose of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Trained.
    Parameter,
    /// Part of the model, not trained (batch-norm statistics, frozen parameters).
    Buffer,
    /// Kept by the optimizer, such as momentum.
    Optimizer,
    /// The loss scale.
    Scaler,
    /// Seed of random values.
    Rng,
    /// A count, such as the steps done.
    Counter,
    /// An earlier version of a trained state, which a stage of an asynchronous pipeline reads. It starts as a copy of the trained
    /// state.
    Version,
    /// Kept by the compression of gradients: errors that later steps correct, and the factors from which the next step starts.
    Compression,
}

impl Role {
    /// Every role with its name in text.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Parameter, "parameter"),
        (Self::Buffer, "buffer"),
        (Self::Optimizer, "optimizer"),
        (Self::Scaler, "scaler"),
        (Self::Rng, "rng"),
        (Self::Counter, "counter"),
        (Self::Version, "version"),
        (Self::Compression, "compression"),
    ];

    /// Returns the name in text.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The value of a state before step 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// The tensor of that data row, through the state's view.
    Data(DataId),
    /// All zeros.
    Zeros,
    /// All elements equal to the number with these bits.
    Splat(u64),
    /// The initial value of another state, cast to this state's element type.
    CopyOf(StateId),
    /// Normal with this standard deviation (as bits), drawn by Philox from (seed, name, element). If the state replaces a tensor
    /// of the file, `data` names it, so that an export can write it back.
    Normal {
        /// Bits of the standard deviation.
        std: u64,
        /// The tensor of the file that this state replaces.
        data: Option<DataId>,
    },
    /// All elements equal to the number with these bits, instead of a tensor of the file.
    Fill {
        /// Bits of the number.
        value: u64,
        /// The tensor of the file that this state replaces.
        data: DataId,
    },
    /// The tensor of that data row, through the state's view, plus normal numbers of this standard deviation (as bits), drawn by
    /// Philox from (seed, name, element).
    Noisy {
        /// Bits of the standard deviation.
        std: u64,
        /// The row.
        data: DataId,
    },
}

impl Initializer {
    /// Returns the row of the file's tensor of this state, if there is one.
    pub fn data(&self) -> Option<DataId> {
        match *self {
            Self::Data(data) | Self::Fill { data, .. } | Self::Noisy { data, .. } => Some(data),
            Self::Normal { data, .. } => data,
            Self::Zeros | Self::Splat(_) | Self::CopyOf(_) => None,
        }
    }
}

/// A memory of a rank, in which a state rests between its uses or a value lies ([`crate::Module::tier_of`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The device's own memory.
    #[default]
    Device,
    /// The host's memory; on a machine with a GPU it is pinned.
    Host,
    /// A file. No node computes on it: a `copy` brings its values to the host first.
    Disk,
}

impl Tier {
    /// Every tier with its name in text, in order of its distance from the device.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Device, "device"), (Self::Host, "host"), (Self::Disk, "disk")];

    /// Returns the name in text.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The steps, in order, that turn the file's tensor into the state.
pub type View = SmallVec<[ViewStep; 1]>;

/// One step of a view. Every step except a repetition can be undone into the file's tensor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViewStep {
    /// The same elements in row-major order with these sizes.
    Reshape(SmallVec<[u64; 4]>),
    /// Dim `i` of the result is dim `permutation[i]` of the source.
    Transpose(SmallVec<[u32; 4]>),
    /// Elements `start .. start + length` of a dim.
    Slice {
        /// The dim that is cut.
        dim: u32,
        /// The first element that is kept.
        start: u64,
        /// The number of elements that are kept.
        length: u64,
    },
    /// Zeros added at the end of a dim, so that it divides.
    Pad {
        /// The dim that grows.
        dim: u32,
        /// The number of added elements.
        after: u64,
    },
    /// Elements converted to this type (such as fp16 weights widened to fp32 masters).
    Cast(crate::DType),
    /// The whole tensor repeated so many times along dim 0 (experts that start as the same matrix).
    Repeat(u64),
}
