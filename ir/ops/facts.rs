//! The facts about an operator that do not depend on its types.

use super::{OperandRole, Operands, Precision, PrecisionClass, Reads};

/// The facts about an operator that do not depend on its types, returned by [`super::Operator::facts`]. [`Operands::anywhere`] and
/// [`Operands::by_place`] make them, so an operator that leaves one out does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The role of each operand. If the operator computes no new elements, also the movement of the operands' elements into the
    /// result.
    pub operands: Operands,
    /// Whether the numbers that a device computes from its parts of the operands depend on the places of these parts in the whole
    /// tensors. The `interp` of such an operator asks [`super::Interp`] for spans, and backends tell all kernels of the operator the
    /// place of the device's part. The conformance test compares the answers with `interp`.
    pub depends_on_position: bool,
    /// The type that the operator computes in, and the types in which it reads operands, when a step runs in half precision.
    pub precision: Precision,
}

impl Facts {
    /// Declares that the operands of these roles are read in other types than the operator computes in.
    pub fn reading(self, others: &'static [(OperandRole, Reads)]) -> Self {
        Self { precision: self.precision.reading(others), ..self }
    }
}

impl Operands {
    /// Declares an operator with these operands, whose numbers depend on the places of parts or not.
    pub fn facts(self, depends_on_position: bool, class: PrecisionClass) -> Facts {
        Facts { operands: self, depends_on_position, precision: Precision::of(class) }
    }

    /// Declares an operator with these operands, whose numbers do not depend on the places of parts.
    pub fn anywhere(self, class: PrecisionClass) -> Facts {
        self.facts(false, class)
    }

    /// Declares an operator with these operands, whose numbers depend on the places of parts.
    pub fn by_place(self, class: PrecisionClass) -> Facts {
        self.facts(true, class)
    }
}
