//! The operators: an enum of small attribute structs, with one file for each family.
//!
//! A family's file has everything that the compiler needs to know of an operator, in six functions ([`Operator`]), none of which
//! has a default. The list at the end of this file gives each operator its variant, its name in text, and the attributes that text
//! prints and parses.

mod attribute;
pub(crate) mod list;

pub mod attention;
pub mod batch_norm;
pub mod collective;
pub mod compression;
pub mod constant;
pub mod contract;
pub mod conv;
pub mod copy;
pub mod det;
pub mod detach;
pub mod draws;
pub mod dropout;
pub mod elementwise;
pub mod experts;
pub mod facts;
pub mod indexing;
pub mod loss;
pub mod movement;
pub mod norm;
pub mod operands;
pub mod optimizer;
pub mod packing;
pub mod pool;
pub mod precision;
pub mod random;
pub mod ranking;
pub mod recurrent;
pub mod reduce;
pub mod rotary;
pub mod scatter;
pub mod shape;
pub mod softmax;
pub mod step;
pub mod transfer;

pub use attribute::{Attribute, Float, Labels};
pub use facts::Facts;
pub use list::Op;
pub use movement::Movement;
pub use operands::{OperandRole, Operands};
pub use precision::{Precision, PrecisionClass, Reads};

use crate::edit::Builder;
use crate::{Data, DataId, Factors, Mesh, Signature, Span, Tensor, Type, TypeError, ValueId, ensure};
use cranelift_entity::PrimaryMap;
use smallvec::SmallVec;

/// Everything that the compiler knows of an operator: six functions, in this order, and nothing elsewhere in `ir`.
pub trait Operator {
    /// Returns the facts that do not depend on types.
    fn facts(&self) -> Facts;

    /// Returns the types of the results. An operator whose result type does not follow from its operands (reshape, broadcast,
    /// slice, pad, iota, constant, random_uniform) reads `declared` and checks it. Shardings are ignored.
    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError>;

    /// Returns the sharding rule: the factors of each dim of each operand and result.
    fn factors(&self, signature: &Signature) -> Factors;

    /// Adds nodes for the gradients of the operands, given the gradients of the results (`None`: zero). Returns `None` for an
    /// operand that can have no gradient (integers, conditions), and `Err` with the reason if a gradient is not defined.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients;

    /// Returns the FLOPs and bytes of the whole (unsharded) operation.
    fn cost(&self, signature: &Signature) -> Cost;

    /// Computes the reference result in plain loops; floats are computed in f64. `infer` has accepted the operands.
    fn interp(&self, cx: &Interp) -> Vec<Tensor>;

    /// For an operator with factors that only its own rule can split (`k~`): adds nodes that compute the same results and whose
    /// factors can be split. This is the only function with a default, because most operators have no such factor. The conformance
    /// test calls it for every operator that declares one.
    fn partition(&self, _b: &mut Builder, _node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        Err(TypeError::new("has no factor that needs a partition rule"))
    }
}

impl Op {
    /// Returns the roles of the operands, and the movement of their elements.
    pub fn operands(&self) -> Operands {
        self.facts().operands
    }

    /// Returns how the elements of the operands become elements of the result.
    pub fn movement(&self) -> Movement {
        self.operands().movement()
    }

    /// Whether the numbers of a part depend on its place in the whole tensor ([`Facts::depends_on_position`]).
    pub fn depends_on_position(&self) -> bool {
        self.facts().depends_on_position
    }

    /// Returns the types in which the operator computes and reads in half precision.
    pub fn precision(&self) -> Precision {
        self.facts().precision
    }
}

/// The arguments of [`Operator::infer`].
pub struct Inference<'a> {
    /// Types of the operands.
    pub operands: &'a [Type],
    /// The result types that the node declares; empty when they are to be inferred.
    pub declared: &'a [Type],
}

impl<'a> Inference<'a> {
    /// Returns the types of the operands, if there are exactly `N`.
    pub fn operands<const N: usize>(&self) -> Result<[&'a Type; N], TypeError> {
        let count = self.operands.len();
        let error = || TypeError::new(format!("takes {N} operands, not {count}"));
        let types: Vec<&'a Type> = self.operands.iter().collect();
        types.try_into().map_err(|_| error())
    }

    /// Returns the only declared result type.
    pub fn declared(&self) -> Result<&'a Type, TypeError> {
        match self.declared {
            [ty] => Ok(ty),
            _ => Err(TypeError::new("needs its result type to be given")),
        }
    }
}

/// The operands and results of the node whose gradient is being built.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'a> {
    /// The operands.
    pub operands: &'a [ValueId],
    /// The results.
    pub results: &'a [ValueId],
}

/// The arguments of [`Operator::interp`].
pub struct Interp<'a> {
    /// Values of the operands.
    pub operands: &'a [&'a Tensor],
    /// Types of the results, all dims bound.
    pub results: &'a [Type],
    /// The module's data table.
    pub data: &'a PrimaryMap<DataId, Data>,
    /// The places of the tensors in the global tensors, when a rank computes its part. `None` if the tensors are whole.
    pub parts: Option<&'a PartSpans>,
}

/// The places of a call's operands and results in the global tensors: a span for each dim of each tensor.
///
/// Most operators compute a part in the same way as the whole. Operators whose numbers depend on the place of an element (indices
/// into a split dim, positions) use these spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSpans {
    /// The spans of the operands.
    pub operands: Vec<SmallVec<[Span; 4]>>,
    /// The spans of the results.
    pub results: Vec<SmallVec<[Span; 4]>>,
}

impl PartSpans {
    /// Returns the places of the parts that a rank holds. `None` when a dim is unbound or does not divide.
    pub fn new(mesh: &Mesh, rank: u64, signature: &Signature) -> Option<Self> {
        let spans = |types: &[Type]| types.iter().map(|ty| ty.spans(mesh, rank)).collect::<Option<_>>();
        Some(Self { operands: spans(&signature.operands)?, results: spans(&signature.results)? })
    }
}

impl Interp<'_> {
    /// Returns the sizes of a result.
    pub fn sizes(&self, result: usize) -> Vec<usize> {
        let sizes = self.results[result].sizes().expect("interp runs on bound dims");
        sizes.into_iter().map(|size| size as usize).collect()
    }

    /// Returns the range that a dim of an operand covers in the global tensor.
    pub fn operand_span(&self, operand: usize, dim: usize) -> Span {
        let whole = || Span { start: 0, size: self.operands[operand].sizes[dim] as u64 };
        self.parts.map_or_else(whole, |parts| parts.operands[operand][dim])
    }

    /// Returns the range that a dim of a result covers in the global tensor.
    pub fn result_span(&self, result: usize, dim: usize) -> Span {
        let whole = || Span { start: 0, size: self.sizes(result)[dim] as u64 };
        self.parts.map_or_else(whole, |parts| parts.results[result][dim])
    }
}

/// The gradient of each operand, if it has one.
pub type Gradients = Result<Vec<Option<ValueId>>, GradientError>;

/// The reason why a gradient could not be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GradientError {
    /// The operator has no gradient here, for this reason.
    #[error("{0}")]
    Undefined(&'static str),
    /// A gradient rule built an ill-typed node: a bug.
    #[error("the gradient rule is wrong: {0}")]
    Type(#[from] TypeError),
}

impl GradientError {
    /// The error of an operator that is a gradient itself.
    pub const SECOND: Self = Self::Undefined("second derivatives are not supported");
}

/// The cost of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a multiply-add is two.
    pub flops: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Cost {
    /// Returns the cost of reading every operand once and writing every result once, with so many FLOPs.
    pub fn streaming(signature: &Signature, flops: u64) -> Self {
        let sum =
            |types: &[Type]| types.iter().map(|ty| ty.bytes().unwrap_or(0)).fold(0, u64::saturating_add);
        Self { flops, read: sum(&signature.operands), written: sum(&signature.results) }
    }

    /// Returns the cost of [`Cost::streaming`] with so many FLOPs for each element of a type. Saturates, because dims are
    /// untrusted.
    pub fn per_element(signature: &Signature, ty: &Type, flops: u64) -> Self {
        Self::streaming(signature, ty.numel().unwrap_or(0).saturating_mul(flops))
    }
}
