//! The operands of an operator: their roles, and the movement of their elements into the result.

use super::Movement;
use smallvec::SmallVec;

/// The role of an operand in its operator. [`crate::Role`] is the role of a state in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperandRole {
    /// The tensor that the operator transforms: activations, logits, or the table of a gather.
    Data,
    /// The left side of a contraction or of a function of two operands.
    Lhs,
    /// The right side of a contraction or of a function of two operands.
    Rhs,
    /// The trained weights of a convolution or of experts, or the parameter that an optimizer updates.
    Weight,
    /// The scale of a norm, which multiplies the normalised elements.
    Scale,
    /// The bias of a norm, which is added to the normalised and scaled elements.
    Bias,
    /// The mean that a norm subtracts.
    Mean,
    /// The variance by whose root a norm divides.
    Variance,
    /// The reciprocal of a norm's standard deviation, kept from the forward phase.
    InverseDeviation,
    /// The queries of attention.
    Query,
    /// The keys of attention.
    Key,
    /// The values of attention.
    Value,
    /// The mask of attention: booleans that keep scores, or floats that are added to scores.
    Mask,
    /// The cosines of a rotary embedding.
    Cosines,
    /// The sines of a rotary embedding.
    Sines,
    /// The booleans that select one of two operands.
    Condition,
    /// Integers that choose elements of a dim: rows of a table, or an expert for each row.
    Indices,
    /// The elements that a scatter writes.
    Updates,
    /// The class of each position of a loss.
    Labels,
    /// The result of the forward operator, kept for its gradient.
    Output,
    /// The logarithm of the forward operator's sums of exponentials, kept for its gradient.
    LogSumExp,
    /// The gradient of the forward operator's result, or, for an optimizer, of the weight.
    Gradient,
    /// A state: an optimizer's moment, or a running statistic that an evaluation reads.
    State,
    /// A state in codes of 8 bits.
    Codes,
    /// The learning rate.
    LearningRate,
    /// The weight decay.
    WeightDecay,
    /// The number of the step.
    Step,
    /// The number by which an optimizer multiplies the gradient.
    GradientScale,
    /// The boolean with which an optimizer changes nothing.
    Skip,
    /// The numbers of the samples for which random numbers are drawn.
    Samples,
    /// The hidden state of a recurrent layer before its first step.
    Hidden,
    /// The cell state of an LSTM before its first step.
    CellState,
    /// The gates of a recurrent layer in every step, kept for its gradient.
    Gates,
    /// The cell states of an LSTM after every step, kept for its gradient.
    Cells,
    /// The gradient of the last hidden state.
    LastGradient,
    /// The gradient of the last cell state.
    LastCellGradient,
    /// The number of steps of each entry of a batch.
    Lengths,
}

/// The declaration of an operator's operands, a part of its [`super::Facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// The roles in the order of the operands.
    roles: &'static [OperandRole],
    count: Count,
    movement: Movement,
}

/// The number of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// One operand for each role.
    Fixed,
    /// One operand for each role; the operand of this role may be missing.
    Optional(OperandRole),
    /// One operand for each role; up to so many of the last operands may be missing, the very last one first.
    OptionalLast(usize),
    /// One or more operands, all with the only role.
    Any,
}

impl Operands {
    /// Declares one operand for each role, from which the operator computes new elements.
    pub const fn new(roles: &'static [OperandRole]) -> Self {
        Self { roles, count: Count::Fixed, movement: Movement::Computed }
    }

    /// Declares one or more operands of the same role.
    pub const fn any(role: &'static [OperandRole; 1]) -> Self {
        Self { roles: role, count: Count::Any, movement: Movement::Computed }
    }

    /// Declares one operand of data whose elements move into the result in this way.
    pub const fn view(movement: Movement) -> Self {
        Self { roles: &[OperandRole::Data], count: Count::Fixed, movement }
    }

    /// Declares that the operand of this role may be missing.
    pub const fn optional(self, role: OperandRole) -> Self {
        Self { count: Count::Optional(role), ..self }
    }

    /// Declares that up to so many operands at the end may be missing, the very last one first.
    pub const fn optional_last(self, count: usize) -> Self {
        Self { count: Count::OptionalLast(count), ..self }
    }

    /// Sets the movement of the elements into the result.
    pub const fn moving(self, movement: Movement) -> Self {
        Self { movement, ..self }
    }

    /// Returns the movement of the elements into the result.
    pub const fn movement(&self) -> Movement {
        self.movement
    }

    /// Returns the roles of `count` operands in their order; `None` if the operator cannot have so many operands.
    pub fn roles(&self, count: usize) -> Option<SmallVec<[OperandRole; 8]>> {
        let missing = match self.count {
            Count::Any => return (count > 0).then(|| SmallVec::from_elem(self.roles[0], count)),
            Count::OptionalLast(optional) => {
                let fits = count <= self.roles.len() && count + optional >= self.roles.len();
                return fits.then(|| SmallVec::from_slice(&self.roles[..count]));
            }
            Count::Optional(role) if count + 1 == self.roles.len() => Some(role),
            Count::Fixed | Count::Optional(_) => None,
        };
        let roles: SmallVec<_> = self.roles.iter().copied().filter(|role| Some(*role) != missing).collect();
        (roles.len() == count).then_some(roles)
    }
}
