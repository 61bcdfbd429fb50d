//! The operators: an enum of small attribute structs, one file a family.
//!
//! A family's file says everything the compiler needs to know of an operator, in six functions ([`Operator`]),
//! none of which has a default. The list at the end of this file gives each its variant, its name in text, and
//! the attributes that text prints and parses.

mod attribute;
mod list;
mod position;

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
pub mod indexing;
pub mod loss;
pub mod movement;
pub mod norm;
pub mod operands;
pub mod optimizer;
pub mod packing;
pub mod pool;
pub mod random;
pub mod ranking;
pub mod reduce;
pub mod rotary;
#[doc(hidden)]
pub mod samples;
pub mod scatter;
pub mod shape;
pub mod softmax;
pub mod step;
pub mod transfer;

pub use attribute::{Attribute, Float, Labels};
pub use list::Op;
pub use movement::Movement;
pub use operands::{OperandRole, Operands};

use crate::edit::Builder;
use crate::{Data, DataId, Factors, Mesh, Span, Tensor, Type, TypeError, ValueId};
use cranelift_entity::PrimaryMap;
use smallvec::SmallVec;

/// Everything the compiler knows of an operator: six functions, in this order, and nothing elsewhere in `ir`.
pub trait Operator {
    /// The role of each operand, and how the operands' elements move into the result if the operator computes no new
    /// elements.
    fn operands(&self) -> Operands;

    /// The types of the results. An operator whose result type does not follow from its operands (reshape,
    /// broadcast, slice, pad, iota, constant, random_uniform) reads `declared` and checks it. Shardings are not looked at.
    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError>;

    /// The sharding rule: which factor each dim of each operand and result belongs to.
    fn factors(&self, signature: &Signature) -> Factors;

    /// Adds nodes for the gradients of the operands, given those of the results (`None`: zero). `Ok(None)` for an
    /// operand that has no gradient by nature (integers, conditions); `Err` with the reason when one is not defined.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients;

    /// FLOPs and bytes of the whole (unsharded) operation.
    fn cost(&self, signature: &Signature) -> Cost;

    /// The reference semantics in plain loops; floats are computed in f64. Operands fit `infer`.
    fn interp(&self, cx: &Interp) -> Vec<Tensor>;

    /// For an operator with factors that only a rule of its own can split (`k~`): adds nodes that compute the same
    /// results and whose factors can be. The one function with a default, for the many without such a factor; the
    /// conformance test asks it of every operator that declares one.
    fn partition(&self, _b: &mut Builder, _node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        Err(TypeError::new("has no factor that needs a partition rule"))
    }
}

impl Op {
    /// How the elements of the operands become those of the result.
    pub fn movement(&self) -> Movement {
        self.operands().movement()
    }
}

/// What [`Operator::infer`] looks at.
pub struct Inference<'a> {
    /// Types of the operands.
    pub operands: &'a [Type],
    /// Types the node says its results have; empty when they are to be inferred.
    pub declared: &'a [Type],
}

impl<'a> Inference<'a> {
    /// The operands, if there are exactly `N`.
    pub fn operands<const N: usize>(&self) -> Result<[&'a Type; N], TypeError> {
        let count = self.operands.len();
        let error = || TypeError::new(format!("takes {N} operands, not {count}"));
        let types: Vec<&'a Type> = self.operands.iter().collect();
        types.try_into().map_err(|_| error())
    }

    /// The one declared result type.
    pub fn declared(&self) -> Result<&'a Type, TypeError> {
        match self.declared {
            [ty] => Ok(ty),
            _ => Err(TypeError::new("needs its result type to be given")),
        }
    }
}

/// Types of a node's operands and results.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// Types of the operands.
    pub operands: Vec<Type>,
    /// Types of the results.
    pub results: Vec<Type>,
}

impl Signature {
    /// The types of the parts that one device holds, each a whole tensor of its own. `None` when a dim is unbound or does not divide.
    pub fn local(&self, mesh: &Mesh) -> Option<Self> {
        let part = |ty: &Type| ty.local(mesh).map(|sizes| Type::of(ty.dtype, &sizes));
        let parts = |types: &[Type]| types.iter().map(part).collect::<Option<_>>();
        Some(Self { operands: parts(&self.operands)?, results: parts(&self.results)? })
    }
}

/// The operands and results of the node whose gradient is being built.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'a> {
    /// Its operands.
    pub operands: &'a [ValueId],
    /// Its results.
    pub results: &'a [ValueId],
}

/// What [`Operator::interp`] looks at.
pub struct Interp<'a> {
    /// Values of the operands.
    pub operands: &'a [&'a Tensor],
    /// Types of the results, all dims bound.
    pub results: &'a [Type],
    /// The module's data table.
    pub data: &'a PrimaryMap<DataId, Data>,
    /// Where the tensors lie in the global ones, when a rank computes its part; `None`: they are whole.
    pub parts: Option<&'a Parts>,
}

/// Where the operands and results of a call lie in the global tensors: for each tensor, for each dim.
///
/// Most operators compute a part as they compute the whole. Those whose numbers depend on where an element stands
/// (indices into a dim that is split, positions) ask here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Of the operands.
    pub operands: Vec<SmallVec<[Span; 4]>>,
    /// Of the results.
    pub results: Vec<SmallVec<[Span; 4]>>,
}

impl Parts {
    /// The parts that a rank holds. `None` when a dim is unbound or does not divide.
    pub fn new(mesh: &Mesh, rank: u64, signature: &Signature) -> Option<Self> {
        let spans = |types: &[Type]| types.iter().map(|ty| ty.spans(mesh, rank)).collect::<Option<_>>();
        Some(Self { operands: spans(&signature.operands)?, results: spans(&signature.results)? })
    }
}

impl Interp<'_> {
    /// Sizes of a result.
    pub fn sizes(&self, result: usize) -> Vec<usize> {
        let sizes = self.results[result].sizes().expect("interp runs on bound dims");
        sizes.into_iter().map(|size| size as usize).collect()
    }

    /// Where a dim of an operand lies in the global tensor.
    pub fn operand_span(&self, operand: usize, dim: usize) -> Span {
        let whole = || Span { start: 0, size: self.operands[operand].sizes[dim] as u64 };
        self.parts.map_or_else(whole, |parts| parts.operands[operand][dim])
    }

    /// Where a dim of a result lies in the global tensor.
    pub fn result_span(&self, result: usize, dim: usize) -> Span {
        let whole = || Span { start: 0, size: self.sizes(result)[dim] as u64 };
        self.parts.map_or_else(whole, |parts| parts.results[result][dim])
    }
}

/// For each operand its gradient, if it has one.
pub type Gradients = Result<Vec<Option<ValueId>>, GradientError>;

/// Why a gradient could not be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GradientError {
    /// The operator has none here, for this reason.
    #[error("{0}")]
    Undefined(&'static str),
    /// A gradient rule built an ill-typed node: a bug.
    #[error("the gradient rule is wrong: {0}")]
    Type(#[from] TypeError),
}

impl GradientError {
    /// Of an operator that is a gradient itself.
    pub const SECOND: Self = Self::Undefined("second derivatives are not supported");
}

/// What an operation takes.
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
    /// Every operand read once, every result written once, and these FLOPs.
    pub fn streaming(signature: &Signature, flops: u64) -> Self {
        let sum =
            |types: &[Type]| types.iter().map(|ty| ty.bytes().unwrap_or(0)).fold(0, u64::saturating_add);
        Self { flops, read: sum(&signature.operands), written: sum(&signature.results) }
    }

    /// As [`Cost::streaming`], with so many FLOPs for each element of a type (its dims are untrusted: saturating).
    pub fn per_element(signature: &Signature, ty: &Type, flops: u64) -> Self {
        Self::streaming(signature, ty.numel().unwrap_or(0).saturating_mul(flops))
    }
}
