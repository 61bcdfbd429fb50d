//! The phases of a step.

/// The part of a step in which a node runs. Shapes in `Forward` and `Backward` are those of one microbatch over all data ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Once a step, before the first microbatch.
    Prepare,
    /// Once per microbatch.
    #[default]
    Forward,
    /// Once per microbatch, after its forward.
    Backward,
    /// Once per microbatch, after its backward: gradients of parameters, apart from the gradients of activations. Only pipelines
    /// whose schedule separates the two use this phase.
    Weight,
    /// Once a step, after the last microbatch.
    Update,
}

impl Phase {
    /// Every phase, in order, with its name in text.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Prepare, "prepare"),
        (Self::Forward, "fwd"),
        (Self::Backward, "bwd"),
        (Self::Weight, "weight"),
        (Self::Update, "update"),
    ];

    /// Returns the name in full.
    pub fn long_name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Weight => "weight gradients",
            Self::Update => "update",
        }
    }

    /// Whether nodes of this phase compute gradients of a microbatch.
    pub fn is_gradient(self) -> bool {
        matches!(self, Self::Backward | Self::Weight)
    }

    /// Whether nodes of this phase run once per microbatch.
    pub fn is_microbatch(self) -> bool {
        matches!(self, Self::Forward | Self::Backward | Self::Weight)
    }
}
