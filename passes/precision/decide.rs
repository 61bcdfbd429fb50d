//! Decides which values are kept in half precision, and which nodes compute in it.

use crate::reports::PrecisionReport;
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::interp::file_tensor;
use ir::ops::{PrecisionClass, Reads};
use ir::{
    DType, Definition, Inference, Module, Node, NodeId, Op, OperandRole, Operator, Phase, Role, Tensor, Type,
    TypeError, ValueId,
};
use std::collections::BTreeMap;

/// The type in which an f32 value is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptType {
    /// f32. Values that are computed from it are f32 too.
    #[default]
    Full,
    /// f32, with a half value beside it wherever a half value meets it: parameters, constants that half can hold, and values computed from
    /// these alone.
    Free,
    /// Half.
    Half,
}

/// The types of a step's values.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The half type; f32 for none.
    pub half: DType,
    kept: SecondaryMap<ValueId, KeptType>,
    in_half: EntitySet<NodeId>,
    /// The number of nodes of each operator that compute in half.
    ops_in_half: BTreeMap<&'static str, usize>,
    /// The number of nodes of each operator that compute in f32.
    ops_in_f32: BTreeMap<&'static str, usize>,
}

impl Decision {
    /// Returns the type in which a value is kept, if it was f32.
    pub fn kept(&self, value: ValueId) -> KeptType {
        self.kept[value]
    }

    /// Whether a node computes in half.
    pub fn in_half(&self, node: NodeId) -> bool {
        self.in_half.contains(node)
    }

    /// Returns the description for the user.
    pub(super) fn report(&self) -> PrecisionReport {
        let (in_half, in_f32) = (self.ops_in_half.clone(), self.ops_in_f32.clone());
        PrecisionReport { half: self.half.to_string(), in_half, in_f32 }
    }
}

/// Decides in one pass over the microbatch phases, in program order.
pub fn decide(module: &Module, half: DType) -> Result<Decision, TypeError> {
    let mut walk = Walk {
        module,
        decision: Decision {
            half,
            kept: SecondaryMap::new(),
            in_half: EntitySet::new(),
            ops_in_half: BTreeMap::new(),
            ops_in_f32: BTreeMap::new(),
        },
        stateful: EntitySet::new(),
        scores: EntitySet::new(),
    };
    if half == DType::F32 {
        return Ok(walk.decision);
    }
    for state in module.states.values() {
        walk.stateful.insert(state.input);
        // The loss scale may exceed the largest half number.
        if state.role != Role::Scaler {
            walk.decision.kept[state.input] = KeptType::Free;
        }
    }
    walk.scores = scores(module);
    for (id, node) in module.nodes().filter(|(_, node)| node.phase != Phase::Update) {
        walk.node(id, node)?;
    }
    Ok(walk.decision)
}

struct Walk<'m> {
    module: &'m Module,
    decision: Decision,
    /// Values that depend on a state. Other values (masks, positions, tables) are no activations, and stay as they are.
    stateful: EntitySet<ValueId>,
    /// Contractions whose largest results are chosen, such as those of routers. In half, others would be chosen (Fedus et al., arXiv
    /// 2101.03961, section 2.4), so they compute in f32.
    scores: EntitySet<NodeId>,
}

/// Returns the contractions whose results reach the operand of a `top_k` through elementwise functions, softmaxes and views.
fn scores(module: &Module) -> EntitySet<NodeId> {
    let mut found = EntitySet::new();
    let top_k = module.nodes().filter(|(_, node)| matches!(node.op, Op::TopK(_)));
    let mut pending: Vec<ValueId> = top_k.map(|(_, node)| node.operands[0]).collect();
    let mut seen: EntitySet<ValueId> = EntitySet::new();
    while let Some(value) = pending.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Definition::Node(id, _) = module.value(value).definition else { continue };
        let node = module.node(id);
        match &node.op {
            Op::Contract(_) => {
                found.insert(id);
            }
            Op::Unary(_) | Op::Binary(_) | Op::Softmax(_) | Op::LogSoftmax(_) => {
                pending.extend(&node.operands);
            }
            op if op.movement().is_view() => pending.extend(&node.operands),
            _ => {}
        }
    }
    found
}

impl Walk<'_> {
    fn is_full_float(&self, value: ValueId) -> bool {
        self.module.ty(value).dtype == DType::F32
    }

    fn node(&mut self, id: NodeId, node: &Node) -> Result<(), TypeError> {
        let stateful = node.operands.iter().any(|&value| self.stateful.contains(value));
        if stateful {
            node.results.iter().for_each(|&value| {
                self.stateful.insert(value);
            });
        }
        let values = || node.operands.iter().chain(&node.results);
        if !values().any(|&value| self.is_full_float(value)) {
            return Ok(());
        }
        let in_half = !self.scores.contains(id) && self.computes_in_half(node, stateful);
        let kept = if in_half { self.kept_of_half(node)? } else { self.kept_of_full(node, stateful) };
        for (&result, kept) in node.results.iter().zip(kept) {
            if self.is_full_float(result) {
                self.decision.kept[result] = kept;
            }
        }
        if in_half {
            self.decision.in_half.insert(id);
        }
        if stateful {
            let Decision { ops_in_half, ops_in_f32, .. } = &mut self.decision;
            let counts = if in_half { ops_in_half } else { ops_in_f32 };
            *counts.entry(node.op.name()).or_default() += 1;
        }
        Ok(())
    }

    /// Returns the kinds of the operands that the node reads in the type that it computes in.
    fn own(&self, node: &Node) -> impl Iterator<Item = KeptType> {
        let own = node.operands.iter().zip(node.roles()).filter(move |&(&value, role)| {
            self.is_full_float(value) && node.op.precision().reads(role) == Reads::Own
        });
        own.map(|(&value, _)| self.decision.kept[value])
    }

    fn computes_in_half(&self, node: &Node, stateful: bool) -> bool {
        match node.op.precision().class {
            PrecisionClass::Half => stateful && self.own(node).next().is_some(),
            PrecisionClass::Lookup => {
                let table = node[OperandRole::Data];
                match self.decision.kept[table] {
                    KeptType::Half => true,
                    KeptType::Free => self.stateful.contains(table),
                    KeptType::Full => false,
                }
            }
            PrecisionClass::Follow => {
                let follows = |kept: KeptType| kept != KeptType::Full;
                self.own(node).all(follows) && self.own(node).any(|kept| kept == KeptType::Half)
            }
            PrecisionClass::Full | PrecisionClass::Norm | PrecisionClass::NormGrad => false,
            PrecisionClass::Source | PrecisionClass::Convert | PrecisionClass::Update => false,
        }
    }

    /// Returns the kinds of the results of a node that computes in half: half if its operator infers half.
    fn kept_of_half(&self, node: &Node) -> Result<Vec<KeptType>, TypeError> {
        let half = self.decision.half;
        let lowered = |ty: &Type| if ty.dtype == DType::F32 { ty.with_dtype(half) } else { ty.clone() };
        let operand = |(role, &value): (OperandRole, &ValueId)| {
            let ty = self.module.ty(value);
            match node.op.precision().reads(role) {
                Reads::Own => lowered(ty),
                Reads::Any if self.decision.kept[value] == KeptType::Half => lowered(ty),
                Reads::Any | Reads::Full => ty.clone(),
            }
        };
        let operands: Vec<Type> = node.roles().into_iter().zip(&node.operands).map(operand).collect();
        let declared: Vec<Type> = node.results.iter().map(|&value| lowered(self.module.ty(value))).collect();
        let results = node.op.infer(&Inference { operands: &operands, declared: &declared })?;
        let kept = |ty: &Type| if ty.dtype == half { KeptType::Half } else { KeptType::Full };
        Ok(results.iter().map(kept).collect())
    }

    /// Returns the kinds of the results of a node that computes in f32.
    fn kept_of_full(&self, node: &Node, stateful: bool) -> Vec<KeptType> {
        let class = node.op.precision().class;
        let rest = match class {
            PrecisionClass::Half if stateful => KeptType::Full,
            PrecisionClass::Source if self.holds(node) => KeptType::Free,
            // Bools become 0 and 1.
            PrecisionClass::Convert if self.module.ty(node[OperandRole::Data]).dtype == DType::Bool => {
                KeptType::Free
            }
            PrecisionClass::Source | PrecisionClass::Convert | PrecisionClass::Update => KeptType::Full,
            _ if self.own(node).all(|kept| kept == KeptType::Free) => KeptType::Free,
            _ => KeptType::Full,
        };
        let mut kept = vec![rest; node.results.len()];
        match class {
            PrecisionClass::Norm if stateful && rest == KeptType::Full => kept[0] = KeptType::Half,
            PrecisionClass::NormGrad if self.decision.kept[node[OperandRole::Data]] == KeptType::Half => {
                kept[0] = KeptType::Half;
            }
            _ => {}
        }
        kept
    }

    /// Whether half can hold the numbers of a constant: none overflows, and not all nonzero ones become zero. A mask's −1e9 or an epsilon
    /// of 1e-12 needs its order of magnitude.
    fn holds(&self, node: &Node) -> bool {
        let numbers = match &node.op {
            Op::Splat(splat) => Some(Tensor::splat(DType::F32, vec![], splat.value.get())),
            Op::Constant(constant) => file_tensor(&self.module.data[constant.data]),
            _ => None,
        };
        let Some(numbers) = numbers.filter(|tensor| tensor.dtype == DType::F32) else { return false };
        let rounded = Tensor { dtype: self.decision.half, ..numbers.clone() }.rounded();
        let pairs = || numbers.floats().iter().zip(rounded.floats());
        let overflows = pairs().any(|(number, rounded)| number.is_finite() && !rounded.is_finite());
        let is_zero = |numbers: &Tensor| numbers.floats().iter().all(|&number| number == 0.0);
        !overflows && (is_zero(&numbers) || !is_zero(&rounded))
    }
}
