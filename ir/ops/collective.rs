//! Collectives: operators that change only the sharding of a value. Besides transfers, they are all communication of a program.
//!
//! They have no attributes: the shardings of operand and result define the effect ([`Change`]). The names are those of MPI and
//! NCCL; `all_slice` (Shardy's word) undoes a gather, and needs no communication.

use super::list::Kinds;
use super::*;
use crate::{AxisId, PartialKind, Sharding};

/// A change of sharding. A collective with several operands changes each of them in the same way; they travel together (a bucket),
/// over one group of axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// A partial value becomes whole over some of its axes, on every device of the group.
    AllReduce,
    /// A dim is split over fewer axes: the last axes of its list are removed.
    AllGather,
    /// A partial value becomes whole over some of its axes and is split over them: each device gets its part.
    ReduceScatter,
    /// The last axes in the list of one dim become the last axes of another dim.
    AllToAll,
    /// A dim is split over more axes, added to the end of its list: each device keeps a part of its part.
    AllSlice,
}

impl Kinds for Collective {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::AllReduce, "all_reduce"),
        (Self::AllGather, "all_gather"),
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::AllToAll, "all_to_all"),
        (Self::AllSlice, "all_slice"),
    ];
}

/// The effect of a collective on one value, derived from the shardings before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The axes of the collective, first one major: a device's group is [`Mesh::group`] of these.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The kind of reduction, if the value was partial over these axes.
    pub reduced: Option<PartialKind>,
    /// The dim that was split over these axes and is not any more.
    pub gathered: Option<usize>,
    /// The dim that is split over these axes and was not before.
    pub split: Option<usize>,
}

impl Change {
    /// Returns the change between two shardings of a value of `ndim` dims, if one collective can make it.
    pub fn between(from: &Sharding, to: &Sharding, ndim: usize) -> Result<Self, &'static str> {
        let mut change = Self { axes: SmallVec::new(), reduced: None, gathered: None, split: None };
        let mut over: Vec<SmallVec<[AxisId; 2]>> = Vec::new();
        for dim in 0..ndim {
            let (old, new) = (from.axes(dim), to.axes(dim));
            let (place, longer) = if let Some(more) = new.strip_prefix(old) {
                (&mut change.split, more)
            } else if let Some(more) = old.strip_prefix(new) {
                (&mut change.gathered, more)
            } else {
                return Err("the axes of a dim change at another place than the end of their list");
            };
            if !longer.is_empty() {
                if place.replace(dim).is_some() {
                    return Err("two dims change at once");
                }
                over.push(longer.into());
            }
        }
        let gone: SmallVec<[AxisId; 2]> =
            from.partial_axes().iter().filter(|axis| !to.partial_axes().contains(axis)).copied().collect();
        if to.partial_axes().iter().any(|axis| !from.partial_axes().contains(axis)) {
            return Err("a value cannot become partial");
        }
        if let (Some((old, _)), Some((new, _))) = (&from.partial, &to.partial)
            && old != new
        {
            return Err("the reduction of a partial value cannot change");
        }
        if !gone.is_empty() {
            change.reduced = from.partial.as_ref().map(|(kind, _)| *kind);
        }
        let sorted = |axes: &[AxisId]| {
            let mut axes = axes.to_vec();
            axes.sort_unstable();
            axes
        };
        // A reduction alone has no order of axes; a split or gathered dim gives the order.
        change.axes = over.first().cloned().unwrap_or_else(|| SmallVec::from_vec(sorted(&gone)));
        let same = |axes: &SmallVec<[AxisId; 2]>| *axes == change.axes;
        if !over.iter().all(same) || !gone.is_empty() && sorted(&gone) != sorted(&change.axes) {
            return Err("several axes change, each in its own way");
        }
        Ok(change)
    }
}

impl Collective {
    /// Returns the collective that makes a change, if there is one.
    pub fn of(change: &Change) -> Option<Self> {
        Some(match (change.reduced.is_some(), change.gathered.is_some(), change.split.is_some()) {
            (true, false, false) => Self::AllReduce,
            (true, false, true) => Self::ReduceScatter,
            (false, true, false) => Self::AllGather,
            (false, true, true) => Self::AllToAll,
            (false, false, true) => Self::AllSlice,
            _ => return None,
        })
    }

    /// Whether devices send data to each other.
    pub fn communicates(self) -> bool {
        self != Self::AllSlice
    }

    /// Whether devices add their addends, or take the maximum or minimum of them.
    pub fn reduces(self) -> bool {
        match self {
            Self::AllReduce | Self::ReduceScatter => true,
            Self::AllGather | Self::AllToAll | Self::AllSlice => false,
        }
    }

    /// Returns the bytes of the value that a group of `n` devices has together, along the axes of the collective. Each device
    /// reads `read` bytes and writes `written` bytes.
    pub fn group_bytes(self, read: u64, written: u64, n: u64) -> u64 {
        match self {
            Self::AllToAll => read.saturating_mul(n),
            Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllSlice => read.max(written),
        }
    }

    /// Returns the steps of the ring of a group of `n` devices: the number of messages that each device sends in sequence.
    pub fn steps(self, n: u64) -> u64 {
        let hops = n.saturating_sub(1);
        match self {
            Self::AllReduce => hops.saturating_mul(2),
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => hops,
            Self::AllSlice => 0,
        }
    }

    /// Returns the bytes that one device sends in a group of `n`, for a group's value of `bytes` bytes. They are those of a ring
    /// (Patarasuk and Yuan 2009), and no algorithm sends fewer.
    pub fn bytes_sent(self, bytes: u64, n: u64) -> u64 {
        let share =
            |bytes: u64| (u128::from(bytes) * u128::from(n.saturating_sub(1)) / u128::from(n.max(1))) as u64;
        match self {
            Self::AllReduce => share(bytes).saturating_mul(2),
            Self::AllGather | Self::ReduceScatter => share(bytes),
            Self::AllToAll => share(bytes) / n.max(1),
            Self::AllSlice => 0,
        }
    }
}

impl Operator for Collective {
    fn facts(&self) -> Facts {
        Operands::any(&[OperandRole::Data]).moving(Movement::Resharded).anywhere(PrecisionClass::Follow)
    }

    /// Returns the operands' types with the declared shardings, which the verifier checks at level `placed`.
    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        if types.operands.is_empty() || types.operands.len() != types.declared.len() {
            let (operands, results) = (types.operands.len(), types.declared.len());
            return Err(TypeError::new(format!(
                "has {operands} operands and {results} results; it needs one result for each operand"
            )));
        }
        let pairs = types.operands.iter().zip(types.declared);
        match pairs.clone().enumerate().find(|(_, (operand, result))| !operand.same_shape(result)) {
            Some((i, (operand, result))) => Err(TypeError::new(format!(
                "operand {i} is {operand} and its result {result}; only the sharding may change"
            ))),
            None => Ok(types.declared.to_vec()),
        }
    }

    /// Every dim of an operand has the same factor as that dim of its result. The collective changes only how the factors are
    /// split.
    fn factors(&self, signature: &Signature) -> Factors {
        let words = |ty: (usize, &Type)| {
            (0..ty.1.ndim()).map(|dim| format!("x{}_{dim}", ty.0)).collect::<Vec<_>>().join(" ")
        };
        let side = |types: &[Type]| types.iter().enumerate().map(words).collect::<Vec<_>>().join(", ");
        Factors::rule(&format!("{} -> {}", side(&signature.operands), side(&signature.results)), signature)
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("collectives have no gradient: they are inserted after differentiation"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    /// Returns the operands unchanged, as on one device. Between ranks, [`crate::interp`] runs the collective.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        cx.operands.iter().map(|&operand| operand.clone()).collect()
    }
}
