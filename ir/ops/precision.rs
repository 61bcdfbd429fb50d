//! The element type that an operator computes in when a step runs in half precision ([`Op::precision`](super::Op::precision)).
//!
//! | class | operators | computes in |
//! | --- | --- | --- |
//! | half | contractions, also with chosen experts, convolutions, attention, rotary embedding | half, if it depends on a state; contractions whose largest results are chosen (routers) in f32 |
//! | lookup | gathers | half from a parameter's table, else the table's own type |
//! | follow | elementwise functions, dropout, pooling, moves of elements, orders of elements, largest and smallest (also scattered), cross-entropy (whose sums are f32 in any case) | the type of its operands; f32 if one of them is f32 |
//! | full | softmax, batch statistics, sums and means, dot products, running sums, scattered sums and products, determinants, functions that leave the range of half | f32 |
//! | norm | layer norm, RMS norm, batch norm | f32, as the statistics need; the normalised values go on in half |
//!
//! After NVIDIA's *Training with Mixed Precision* (section "Tensor Core shapes and arithmetic": reductions and
//! statistics in f32) and the lists of PyTorch's autocast.

use super::OperandRole;

/// The rule for the type that an operator computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionClass {
    /// In half, if it depends on a state. These operators take most of the time of a step.
    Half,
    /// In half, if the table is a parameter; else in the type of the table.
    Lookup,
    /// In the type of its operands; in f32 if one of them must be f32.
    Follow,
    /// In f32.
    Full,
    /// In f32. The first result goes on in half.
    Norm,
    /// In f32. The first result goes on in the type of the first operand.
    NormGrad,
    /// No float operand: the result has its declared type.
    Source,
    /// A conversion: the operand may have any type, and the result has its declared type.
    Convert,
    /// An operator of the update, which stays as it is.
    Update,
}

/// The type in which a node reads a float operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// In the type that the node computes in.
    Own,
    /// In f32, whatever type the node computes in.
    Full,
    /// In any type.
    Any,
}

/// The types of an operator in half precision, a part of its [`super::Facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The rule for the type that the operator computes in.
    pub class: PrecisionClass,
    /// The roles of the float operands that are not read in this type.
    others: &'static [(OperandRole, Reads)],
}

impl Precision {
    /// Declares an operator of this class, which reads all float operands in the type that it computes in.
    pub const fn of(class: PrecisionClass) -> Self {
        Self { class, others: &[] }
    }

    /// Declares that the operands of these roles are read in other types.
    pub const fn reading(self, others: &'static [(OperandRole, Reads)]) -> Self {
        Self { others, ..self }
    }

    /// Returns the type in which the operator reads a float operand of this role.
    pub fn reads(&self, role: OperandRole) -> Reads {
        let other = self.others.iter().find(|(other, _)| *other == role);
        other.map_or(Reads::Own, |(_, reads)| *reads)
    }
}
