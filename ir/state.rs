//! The state table: everything that outlives a step.

use crate::{DataId, StateId, Type, ValueId};
use smallvec::SmallVec;

/// Something that outlives a step. A checkpoint is the table of these plus the data position.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Name, unique in the module: the module path of a parameter, `adam.m(NAME)` and the like for the rest.
    pub name: String,
    /// Global type and sharding.
    pub ty: Type,
    /// What it is for.
    pub role: Role,
    /// Its value before step 0.
    pub initializer: Initializer,
    /// Where it lives between uses.
    pub tier: Tier,
    /// How it is cut out of the file's tensor that `initializer` names.
    pub view: View,
    /// The pipeline stage that has it, or [`crate::EVERY_STAGE`].
    pub stage: u32,
    /// Its value when the step begins.
    pub input: ValueId,
    /// Its value when the step ends; `None` leaves it as it was.
    pub output: Option<ValueId>,
}

/// What a state is for.
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
    /// An earlier version of a trained state, which a stage of an asynchronous pipeline reads. It begins as a copy of that state.
    Version,
    /// Kept by the compression of gradients: errors that later steps make up for, and the factors that the next step starts from.
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

    /// Its name in text.
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
    /// The initial value of another state, cast to this one's element type.
    CopyOf(StateId),
    /// Normal with this standard deviation (as bits), drawn by Philox from (seed, name, element); the file's tensor
    /// that it replaces, if any, is still named so that an export can write it back.
    Normal {
        /// Bits of the standard deviation.
        std: u64,
        /// The tensor of the file that this state replaces.
        data: Option<DataId>,
    },
    /// All elements equal to the number with these bits, in place of a tensor of the file.
    Fill {
        /// Bits of the number.
        value: u64,
        /// The tensor of the file that this state replaces.
        data: DataId,
    },
    /// The tensor of that data row, through the state's view, with normal numbers of this standard deviation (as bits) added, drawn
    /// by Philox from (seed, name, element).
    Noisy {
        /// Bits of the standard deviation.
        std: u64,
        /// The row.
        data: DataId,
    },
}

impl Initializer {
    /// The row of the file's tensor behind this state, if there is one.
    pub fn data(&self) -> Option<DataId> {
        match *self {
            Self::Data(data) | Self::Fill { data, .. } | Self::Noisy { data, .. } => Some(data),
            Self::Normal { data, .. } => data,
            Self::Zeros | Self::Splat(_) | Self::CopyOf(_) => None,
        }
    }
}

/// A memory of a rank: where a state rests between its uses, and where a value lies ([`crate::Module::tier_of`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The device's own memory.
    #[default]
    Device,
    /// Memory of the host; beside a GPU it is pinned.
    Host,
    /// A file. No node computes on it: a `copy` brings its values to the host first.
    Disk,
}

impl Tier {
    /// Every tier with its name in text, from the nearest to the device to the farthest.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Device, "device"), (Self::Host, "host"), (Self::Disk, "disk")];

    /// Its name in text.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The steps, first to last, that lead from the file's tensor to the state.
pub type View = SmallVec<[ViewStep; 1]>;

/// One step of a view. Every step but a repetition can be undone into the file's tensor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViewStep {
    /// The same elements in row-major order with these sizes.
    Reshape(SmallVec<[u64; 4]>),
    /// Dim `i` of the result is dim `permutation[i]` of the source.
    Transpose(SmallVec<[u32; 4]>),
    /// Elements `start .. start + length` of a dim.
    Slice {
        /// The dim cut.
        dim: u32,
        /// First element kept.
        start: u64,
        /// Number of elements kept.
        length: u64,
    },
    /// Zeros added at the end of a dim, so that it divides.
    Pad {
        /// The dim that grows.
        dim: u32,
        /// Elements added.
        after: u64,
    },
    /// Elements converted to this type (fp16 weights raised to fp32 masters).
    Cast(crate::DType),
    /// The whole so many times, one after the other along dim 0 (experts that begin as one matrix).
    Repeat(u64),
}
