//! Changes the shardings of values by collectives, each of which is made once.

use ir::factors::FactorAxes;
use ir::ops::collective::{Change, Collective};
use ir::{
    At, AxisId, Builder, Definition, Diagnostic, Mesh, NodeId, Op, PartialKind, Phase, Sharding, Type,
    ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Makes collectives and remembers them.
pub(super) struct Resharder<'b, 'm> {
    pub(super) b: &'b mut Builder<'m>,
    pub(super) mesh: Mesh,
    /// The present replacement of a value of the original program.
    current: BTreeMap<ValueId, ValueId>,
    /// A value in another sharding, by the phase and the stage in which it was made. A value of every stage is changed on each.
    made: BTreeMap<(ValueId, Sharding, Phase, u32), ValueId>,
}

impl<'b, 'm> Resharder<'b, 'm> {
    pub(super) fn new(b: &'b mut Builder<'m>, mesh: Mesh) -> Self {
        Self { b, mesh, current: BTreeMap::new(), made: BTreeMap::new() }
    }

    /// Returns the type of a value.
    pub(super) fn ty(&self, value: ValueId) -> &Type {
        self.b.ty(value)
    }

    /// Returns the value that is read in place of a value.
    pub(super) fn current(&self, value: ValueId) -> ValueId {
        self.current.get(&value).copied().unwrap_or(value)
    }

    /// Makes later readers of `old` read `new`.
    pub(super) fn replace(&mut self, old: ValueId, new: ValueId) {
        if old != new {
            self.current.insert(old, new);
        }
    }

    /// Whether any dim of a value is split over the axis.
    pub(super) fn splits(&self, value: ValueId, axis: AxisId) -> bool {
        self.ty(value).sharding.dims.iter().any(|axes| axes.contains(&axis))
    }

    /// Whether the values are not all partial over the same axes.
    pub(super) fn is_mixed(&self, values: &[ValueId]) -> bool {
        let axes = |&value: &ValueId| -> BTreeSet<AxisId> {
            self.ty(value).sharding.partial_axes().iter().copied().collect()
        };
        values.windows(2).any(|pair| axes(&pair[0]) != axes(&pair[1]))
    }

    /// Whether `to` has every split of `from`, and its further splits are only over axes that `from` is partial over.
    pub(super) fn extends(&self, from: &Sharding, to: &Sharding) -> bool {
        let ndim = from.dims.len().max(to.dims.len());
        (0..ndim).all(|dim| {
            let more = to.axes(dim).strip_prefix(from.axes(dim));
            more.is_some_and(|more| more.iter().all(|axis| from.partial_axes().contains(axis)))
        })
    }

    /// Returns the value in another sharding, for a node that reads it. It is gathered and sliced just before the reader, and reduced as
    /// soon as it is made.
    pub(super) fn reshard(
        &mut self,
        value: ValueId,
        to: &Sharding,
        reader: NodeId,
    ) -> Result<ValueId, Diagnostic> {
        self.change(value, to, Some(reader))
    }

    /// Returns the value in another sharding, changed as soon as it is made.
    pub(super) fn reshard_after(&mut self, value: ValueId, to: &Sharding) -> Result<ValueId, Diagnostic> {
        self.change(value, to, None)
    }

    /// Changes a sharding in steps, each of them one collective. First the partial sums are reduced; if `to` splits a dim over reduced axes,
    /// the sum is scattered in the same step. Then axes move from dim to dim, surplus axes are gathered, and missing axes are sliced.
    fn change(
        &mut self,
        mut value: ValueId,
        to: &Sharding,
        reader: Option<NodeId>,
    ) -> Result<ValueId, Diagnostic> {
        let ndim = self.ty(value).ndim();
        let dims = |sharding: &Sharding| -> Vec<FactorAxes> {
            (0..ndim).map(|dim| sharding.axes(dim).into()).collect()
        };
        // A dim that is to be split over reduced axes is reduced and split at once.
        let mut now = self.ty(value).sharding.clone();
        let mut reduced: Vec<AxisId> =
            now.partial_axes().iter().filter(|axis| !to.partial_axes().contains(axis)).copied().collect();
        for dim in 0..ndim {
            let more = to.axes(dim).strip_prefix(now.axes(dim)).unwrap_or_default();
            let count = more.iter().take_while(|axis| reduced.contains(axis)).count();
            if count > 0 && is_sum(&now) {
                let mut next = with_dims(dims(&now), without(&now, &more[..count]));
                next.dims[dim].extend_from_slice(&more[..count]);
                reduced.retain(|axis| !more[..count].contains(axis));
                value = self.step(value, next.clone(), None)?;
                now = next;
            }
        }
        if !reduced.is_empty() {
            let next = with_dims(dims(&now), without(&now, &reduced));
            value = self.step(value, next.clone(), None)?;
            now = next;
        }
        // Then axes move from one dim to another.
        for dim in 0..ndim {
            let (from, wanted) = (now.axes(dim).to_vec(), to.axes(dim).to_vec());
            let Some(leaving) = from.strip_prefix(&wanted[..]).filter(|axes| !axes.is_empty()) else {
                continue;
            };
            let target = (0..ndim).find(|&other| {
                let with: Vec<AxisId> = now.axes(other).iter().chain(leaving).copied().collect();
                other != dim && to.axes(other).starts_with(&with)
            });
            if let Some(target) = target {
                let mut next = with_dims(dims(&now), now.partial.clone());
                next.dims[dim] = wanted.into();
                next.dims[target].extend_from_slice(leaving);
                value = self.step(value, next.clone(), reader)?;
                now = next;
            }
        }
        for dim in 0..ndim {
            let common = now.axes(dim).iter().zip(to.axes(dim)).take_while(|(a, b)| a == b).count();
            if common < now.axes(dim).len() {
                let mut next = with_dims(dims(&now), now.partial.clone());
                next.dims[dim].truncate(common);
                value = self.step(value, next.clone(), reader)?;
                now = next;
            }
        }
        for dim in 0..ndim {
            if now.axes(dim) != to.axes(dim) {
                let mut next = with_dims(dims(&now), now.partial.clone());
                next.dims[dim] = to.axes(dim).into();
                value = self.step(value, next.clone(), reader)?;
                now = next;
            }
        }
        Ok(value)
    }

    /// Adds one collective, before a reader or just after the value.
    fn step(&mut self, value: ValueId, to: Sharding, reader: Option<NodeId>) -> Result<ValueId, Diagnostic> {
        let phase = |id: NodeId| self.b.module().node(id).phase;
        let at = match (reader, self.b.module().value(value).definition) {
            (Some(reader), _) => At::Before(reader),
            (None, Definition::Node(node, _)) => At::After(node),
            (None, Definition::Input(_)) => At::Start(Phase::Forward),
            (None, Definition::State(_)) => At::Start(Phase::Prepare),
        };
        // A transfer reads the value on the stage of its operand.
        let is_transfer = |id: &NodeId| matches!(self.b.module().node(*id).op, Op::Transfer(_));
        let stage = match reader.filter(|reader| !is_transfer(reader)) {
            Some(reader) => self.b.module().node(reader).stage,
            None => self.b.module().stage_of(value),
        };
        let phase = match at {
            At::Before(node) | At::After(node) => phase(node),
            At::Start(phase) | At::End(phase) => phase,
        };
        let key = (value, to.clone(), phase, stage);
        if let Some(&made) = self.made.get(&key) {
            return Ok(made);
        }
        let from = self.ty(value).clone();
        let change = Change::between(&from.sharding, &to, from.ndim());
        let collective = change.ok().and_then(|change| Collective::of(&change)).ok_or_else(|| {
            Diagnostic::new(format!("no collective changes {:?} into {to:?}: a bug of spmd", from.sharding))
        })?;
        // The result of an all_to_all is as large as its operand, so backward keeps the result of forward instead of the operand.
        if collective == Collective::AllToAll
            && let Some(&made) = self.made.get(&(value, to.clone(), Phase::Forward, stage))
            && phase.is_gradient()
        {
            return Ok(made);
        }
        let origin = self.b.module().producer(value).map(|node| node.origin.clone());
        self.b.at(at).stage(stage);
        if let Some(origin) = origin {
            self.b.origin(origin);
        }
        let made = self.b.one_typed(collective, &[value], Type { sharding: to.clone(), ..from })?;
        self.made.insert(key, made);
        Ok(made)
    }
}

fn is_sum(sharding: &Sharding) -> bool {
    matches!(sharding.partial, Some((PartialKind::Sum, _)))
}

type Partial = Option<(PartialKind, smallvec::SmallVec<[AxisId; 2]>)>;

/// Returns the partial axes that are left after some of them are reduced.
fn without(sharding: &Sharding, gone: &[AxisId]) -> Partial {
    let (kind, axes) = sharding.partial.as_ref()?;
    let left: smallvec::SmallVec<[AxisId; 2]> =
        axes.iter().filter(|axis| !gone.contains(axis)).copied().collect();
    (!left.is_empty()).then_some((*kind, left))
}

fn with_dims(dims: Vec<FactorAxes>, partial: Partial) -> Sharding {
    Sharding { dims: dims.into(), partial }
}
