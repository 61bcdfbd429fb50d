//! Movements: how operators that compute no new elements move the elements of operands into the result.
//!
//! Passes and lowering ask for a class of movements ([`Movement::is_layout`] and so on) instead of listing operators, and walk
//! from a value to the value behind it with [`crate::Module::viewed`].

/// How the elements of the operands become elements of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Movement {
    /// The operator computes new elements, or its operands' numbers decide which elements it takes.
    Computed,
    /// The result is the operand itself; the operator is only a mark for a pass.
    Same,
    /// The elements keep their row-major order; the dims change.
    Reshaped,
    /// The elements change their order; each occurs exactly once.
    Permuted,
    /// Some elements are left out.
    Cut,
    /// Elements are repeated.
    Repeated,
    /// The elements are rounded to another type and keep their places.
    Converted,
    /// The bits of the elements are read as another type.
    Reinterpreted,
    /// The operands are concatenated.
    Joined,
    /// A constant surrounds the elements.
    Padded,
    /// The elements of the whole tensor stay; devices hold different parts of them.
    Resharded,
}

impl Movement {
    /// Whether every element of the result comes from one operand. False for concatenations and padding, at which walks through
    /// views stop.
    pub(crate) const fn shows_one_operand(self) -> bool {
        match self {
            Self::Computed | Self::Joined | Self::Padded => false,
            Self::Same | Self::Reshaped | Self::Permuted | Self::Cut | Self::Repeated => true,
            Self::Converted | Self::Reinterpreted | Self::Resharded => true,
        }
    }

    /// Whether the result has the elements of one operand in the same row-major order, perhaps converted.
    pub const fn keeps_order(self) -> bool {
        matches!(self, Self::Reshaped | Self::Converted)
    }

    /// Whether the result has each element of one operand exactly once, unchanged.
    pub const fn is_rearrangement(self) -> bool {
        matches!(self, Self::Reshaped | Self::Permuted)
    }

    /// Whether the result has each element of one operand at most once, unchanged: a part of it, perhaps rearranged.
    pub const fn is_part(self) -> bool {
        self.is_rearrangement() || matches!(self, Self::Cut)
    }

    /// Whether the result has elements of one operand, unchanged. It then differs only in its layout in memory, mostly in its
    /// strides.
    pub const fn is_layout(self) -> bool {
        self.is_part() || matches!(self, Self::Repeated)
    }

    /// Whether a state can hold the result instead of the operand: a part of the operand, perhaps converted ([`crate::ViewStep`]).
    pub const fn is_part_of_state(self) -> bool {
        self.is_part() || matches!(self, Self::Converted)
    }

    /// Whether each element of the result is an element of one operand, perhaps converted.
    pub const fn is_view(self) -> bool {
        self.is_layout() || matches!(self, Self::Converted)
    }

    /// Whether the elements of the operands move unchanged, so that the operator can move elements of any type.
    pub const fn is_unchanged(self) -> bool {
        self.is_layout() || matches!(self, Self::Joined | Self::Padded)
    }
}
