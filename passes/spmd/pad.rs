//! Padding: a vocabulary that the tensor axes, or the axes that the user asked for, do not divide gets rows of zeros until they do.
//!
//! A vocabulary is a dim along which rows are looked up or from which a loss takes its classes. It is padded in all tensors that factors
//! tie to it: weights, logits, gradients, moments. The zeros stay zeros through every operator that is allowed here. The loss sees −∞ in
//! place of the logits of classes that do not exist. Outputs are cut back.

use super::Spmd;
use crate::pass::Transform;
use ir::factors::{DimFactors, FactorId, Factors};
use ir::ops::constant::{Iota, Splat};
use ir::ops::elementwise::{Compare, Select};
use ir::ops::{Float, Operator};
use ir::{
    At, Builder, DType, Definition, Diagnostic, Dim, Level, Module, Node, NodeId, Op, Role, StateId, Type,
    ValueId, ViewStep,
};
use std::collections::{BTreeMap, BTreeSet};

/// The inverse of the largest share that is added: a dim that would need more than an eighth more stays whole.
const LARGEST_SHARE: u64 = 8;

/// Dims of states with the numbers of equal parts that the user asks for.
pub(super) type Asked = BTreeMap<(ValueId, usize), u64>;

/// Pads every vocabulary to a multiple of `parts` and of the user's number of parts.
pub(super) fn apply(module: &mut Module, parts: u64, asked: &Asked) -> Result<(), Diagnostic> {
    if module.level != Level::Training {
        return Ok(());
    }
    let found = find(module, parts, asked);
    for vocabulary in found {
        pad(module, &vocabulary)?;
    }
    Ok(())
}

/// A dim with all dims that are tied to it.
struct Vocabulary {
    size: u64,
    padded: u64,
    places: BTreeSet<(ValueId, usize)>,
    /// The losses and their gradients among the nodes that have the dim.
    losses: Vec<NodeId>,
}

/// The facts about the module for a walk over tied dims.
struct Walk<'m> {
    module: &'m Module,
    uses: cranelift_entity::SecondaryMap<ValueId, smallvec::SmallVec<[NodeId; 2]>>,
}

fn find(module: &Module, parts: u64, asked: &Asked) -> Vec<Vocabulary> {
    let walk = Walk { module, uses: module.uses() };
    let mut found: Vec<Vocabulary> = Vec::new();
    for state in module.states.values().filter(|state| state.role == Role::Parameter) {
        for dim in 0..state.ty.ndim() {
            let place = (state.input, dim);
            let parts = asked.get(&place).map_or(parts, |&asked| common_multiple(parts, asked));
            let known = found.iter().any(|vocabulary| vocabulary.places.contains(&place));
            let Some(size) =
                state.ty.dims[dim].size().filter(|&size| !known && padded(size, parts).is_some())
            else {
                continue;
            };
            let Some(mut vocabulary) = walk.tied(state.input, dim, size) else { continue };
            let all = vocabulary.places.iter().filter_map(|place| asked.get(place));
            let parts = all.fold(parts, |parts, &asked| common_multiple(parts, asked));
            if let Some(padded) = padded(size, parts) {
                vocabulary.padded = padded;
                found.push(vocabulary);
            }
        }
    }
    found
}

/// Returns the size that `parts` divides, if it is larger, but not much larger.
fn padded(size: u64, parts: u64) -> Option<u64> {
    let padded = size.checked_next_multiple_of(parts)?;
    (padded > size && (padded - size).saturating_mul(LARGEST_SHARE) <= size).then_some(padded)
}

fn common_multiple(a: u64, b: u64) -> u64 {
    (1..=b).map(|times| a * times).find(|multiple| multiple.is_multiple_of(b)).unwrap_or(a)
}

impl Walk<'_> {
    /// Returns all dims that are tied to a dim, if it is a vocabulary and each node on the way keeps zeros zeros.
    fn tied(&self, value: ValueId, dim: usize, size: u64) -> Option<Vocabulary> {
        let mut vocabulary = Vocabulary { size, padded: size, places: BTreeSet::new(), losses: Vec::new() };
        let (mut pending, mut is_vocabulary) = (vec![(value, dim)], false);
        let mut factors: BTreeMap<NodeId, Factors> = BTreeMap::new();
        while let Some((value, dim)) = pending.pop() {
            if !vocabulary.places.insert((value, dim)) {
                continue;
            }
            let maker = match self.module.value(value).definition {
                Definition::Node(node, _) => Some(node),
                Definition::Input(_) => return None,
                Definition::State(_) => None,
            };
            for id in maker.into_iter().chain(self.uses[value].iter().copied()) {
                let node = self.module.node(id);
                let rule = factors.entry(id).or_insert_with(|| node.op.factors(&self.module.signature(node)));
                let factor = factor(node, rule, value, dim)?;
                let tied = places(node, rule, factor)?;
                match keeps_zeros(node, rule, factor)? {
                    Kind::Vocabulary => is_vocabulary = true,
                    Kind::Loss => {
                        is_vocabulary = true;
                        if !vocabulary.losses.contains(&id) {
                            vocabulary.losses.push(id);
                        }
                    }
                    Kind::Other => {}
                }
                pending.extend(tied);
            }
        }
        is_vocabulary.then_some(vocabulary)
    }
}

/// Returns the factor of a dim in a node, if the dim is only this factor, and is so wherever the node reads the value.
fn factor(node: &Node, rule: &Factors, value: ValueId, dim: usize) -> Option<FactorId> {
    let operands = node.operands.iter().zip(&rule.operands);
    let all = operands.chain(node.results.iter().zip(&rule.results));
    let mut found = all.filter(|(other, _)| **other == value).map(|(_, dims)| match dims[dim][..] {
        [factor] => Some(factor),
        _ => None,
    });
    let first = found.next()??;
    found.all(|other| other == Some(first)).then_some(first)
}

/// Returns the dims of a node's tensors that are the factor; `None` if a dim merges it with other factors.
fn places(node: &Node, rule: &Factors, factor: FactorId) -> Option<Vec<(ValueId, usize)>> {
    let operands = node.operands.iter().zip(&rule.operands);
    let mut places = Vec::new();
    for (&value, dims) in operands.chain(node.results.iter().zip(&rule.results)) {
        for (i, dim) in dims.iter().enumerate().filter(|(_, dim)| dim.contains(&factor)) {
            (dim.len() == 1).then_some(())?;
            places.push((value, i));
        }
    }
    Some(places)
}

/// The evidence of a node for the role of one of its dims.
enum Kind {
    /// The node looks rows up along the dim.
    Vocabulary,
    /// The node takes classes from the dim.
    Loss,
    /// The node tells nothing.
    Other,
}

/// Returns the evidence of a node, if zeros along a dim stay zeros and add nothing to anything else; otherwise `None`.
fn keeps_zeros(node: &Node, rule: &Factors, factor: FactorId) -> Option<Kind> {
    let has = |dims: &[DimFactors]| dims.iter().any(|dim| dim.contains(&factor));
    let smooth = |smoothing: Float| (smoothing.get() == 0.0).then_some(Kind::Loss);
    match &node.op {
        Op::Gather(_) if !has(&rule.results[0]) => Some(Kind::Vocabulary),
        Op::GatherGrad(_) if !has(&rule.operands[1]) => Some(Kind::Vocabulary),
        Op::CrossEntropy(loss) => smooth(loss.label_smoothing),
        Op::CrossEntropyGrad(loss) => smooth(loss.label_smoothing),
        _ => rule.keeps_zeros_along(factor).then_some(Kind::Other),
    }
}

fn pad(module: &mut Module, vocabulary: &Vocabulary) -> Result<(), Diagnostic> {
    let Vocabulary { size, padded, places, losses } = vocabulary;
    let logits: BTreeSet<ValueId> = losses.iter().map(|&id| module.node(id).operands[0]).collect();
    let outputs: Vec<ValueId> = module.outputs.iter().map(|output| output.value).collect();
    let states: Vec<StateId> = module.states.keys().collect();
    let mut b = Builder::new(module, Spmd::NAME);
    for &(value, dim) in places {
        b.resize(value, dim, Dim::known(*padded));
    }
    for id in states {
        let input = b.module().states[id].input;
        for &(_, dim) in places.range((input, 0)..=(input, usize::MAX)) {
            let state = &mut b.tables().states[id];
            state.ty.dims[dim] = Dim::known(*padded);
            state.view.push(ViewStep::Pad { dim: dim as u32, after: padded - size });
        }
    }
    for value in logits {
        let masked = mask(&mut b, value, *size)?;
        for &id in losses {
            if b.module().node(id).operands[0] == value {
                b.set_operand(id, 0, masked);
            }
        }
    }
    for (i, value) in outputs.into_iter().enumerate() {
        for &(_, dim) in places.range((value, 0)..=(value, usize::MAX)) {
            let Definition::Node(node, _) = b.module().value(value).definition else { continue };
            b.at(At::After(node));
            let cut = b.slice(value, dim as u32, 0, Dim::known(*size))?;
            b.tables().outputs[i].value = cut;
        }
    }
    b.finish();
    Ok(())
}

/// Replaces the logits of the classes from `size` on by −∞.
fn mask(b: &mut Builder, logits: ValueId, size: u64) -> Result<ValueId, Diagnostic> {
    if let Definition::Node(node, _) = b.module().value(logits).definition {
        b.at(At::After(node));
    }
    let ty = b.ty(logits).clone();
    let classes = ty.dims[ty.ndim() - 1].clone();
    let class = b.one_typed(Iota { dim: 0 }, &[], Type::new(DType::I64, [classes]))?;
    let exists = b.build(Compare::Less.of(class, size as f64))?;
    let hidden = b.one_typed(Splat { value: Float::new(f64::NEG_INFINITY) }, &[], Type::scalar(ty.dtype))?;
    Ok(b.build(Select.of(exists, logits, hidden))?)
}
