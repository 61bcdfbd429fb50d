//! Partitioning: makes every node's operands and results agree, by collectives where they do not.
//!
//! Nodes are visited in program order. Each node chooses the axes that split its factors ([`choose`]), given the present shardings of its
//! operands. Operands with other shardings are changed by collectives ([`reshard`]). The rule of the node gives the splits and partial
//! sums of its results. A partial sum is reduced as soon as it is made, unless all of its readers are linear in it and have results that
//! are no larger.

use super::choose::choose;
use super::propagation::Layouts;
use super::reshard::Resharder;
use super::sums::{self, Sums};
use super::zero::Demands;
use ir::factors::{FactorAxes, FactorId, FactorKind};
use ir::ops::compression::Addends;
use ir::{
    AxisId, AxisRole, Builder, Diagnostic, Factors, Module, Node, NodeId, Op, Operator, PartialKind, Phase,
    Sharding, Type, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Inserts the collectives. The module has its mesh; level placed holds afterwards.
pub(super) fn apply(
    module: &mut Module,
    layouts: &Layouts,
    demands: &Demands,
    by: &str,
) -> Result<(), Diagnostic> {
    let sums = sums::find(module);
    let passing = passing(module);
    let pass_on = pass_on(module, &passing);
    let order = module.order().to_vec();
    let mesh = module.mesh.clone();
    let mut b = Builder::new(module, by);
    sources(&mut b, layouts, demands);
    let mut partition = Partition {
        r: Resharder::new(&mut b, mesh),
        layouts,
        demands,
        sums,
        passing: passing.nodes,
        pass_on,
        addends: BTreeMap::new(),
    };
    for id in order {
        partition.visit(id)?;
    }
    partition.roots()?;
    b.finish();
    Ok(())
}

/// Gives inputs and states their shardings.
fn sources(b: &mut Builder, layouts: &Layouts, demands: &Demands) {
    let inputs: Vec<ValueId> = b.module().inputs.iter().map(|input| input.value).collect();
    for value in inputs {
        b.shard(value, layouts.sharding(value));
    }
    for (&id, dims) in &demands.states {
        let sharding = Sharding { dims: dims.clone(), partial: None };
        let input = b.module().states[id].input;
        b.shard(input, sharding.clone());
        b.tables().states[id].ty.sharding = sharding;
    }
}

/// Returns the values whose partial sums are passed on, because every reader takes them as they are. If several readers would each make a
/// partial sum that is reduced by itself, they get the whole sum instead, unless they only lead to sums over microbatches.
fn pass_on(module: &Module, Passing { nodes: passing, added_up }: &Passing) -> BTreeSet<ValueId> {
    let roots: BTreeSet<ValueId> = module.roots().collect();
    let uses = module.uses();
    let read = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let is_added_up = |id: &NodeId| {
        let node = module.node(*id);
        matches!(node.op, Op::Accumulate(_)) || node.results.iter().all(|result| added_up.contains(result))
    };
    let all_pass = |value: &ValueId| {
        let readers = &uses[*value];
        let alone = readers.len() == 1 || readers.iter().all(is_added_up);
        alone && readers.iter().all(|id| passing.contains(id))
    };
    read.filter(|value| !roots.contains(value) && !uses[*value].is_empty() && all_pass(value)).collect()
}

/// The nodes and values that may pass a partial sum on.
struct Passing {
    nodes: BTreeSet<NodeId>,
    /// Values that lead only to a sum over microbatches.
    added_up: BTreeSet<ValueId>,
}

/// Finds the nodes that may pass a partial sum on. They are cheap, and their results are no larger than their operands. A cast may have a
/// larger result if it leads only to a sum over microbatches: then the reduction runs once a step, in the wider type of this sum.
fn passing(module: &Module) -> Passing {
    let uses = module.uses();
    let bytes =
        |values: &[ValueId]| values.iter().map(|&value| module.ty(value).bytes().unwrap_or(0)).sum::<u64>();
    let (mut passing, mut added_up) = (BTreeSet::new(), BTreeSet::new());
    // Readers come before the nodes that they read.
    for (id, node) in module.nodes().rev() {
        let largest = node.operands.iter().map(|&value| bytes(&[value])).max().unwrap_or(0);
        let is_added_up = |value: &ValueId| {
            let to_a_sum = |reader: &NodeId| match &module.node(*reader).op {
                Op::Accumulate(_) => true,
                _ => {
                    passing.contains(reader)
                        && module.node(*reader).results.iter().all(|r| added_up.contains(r))
                }
            };
            !uses[*value].is_empty() && uses[*value].iter().all(to_a_sum)
        };
        let only_added_up = node.results.iter().all(is_added_up);
        let passes = match node.op {
            Op::Accumulate(_) | Op::Addends(_) => true,
            _ if node.phase == Phase::Update || !is_linear(module, node) => false,
            Op::Cast(_) => bytes(&node.results) <= largest || only_added_up,
            _ => bytes(&node.results) <= largest,
        };
        passing.extend(passes.then_some(id));
        added_up.extend(node.results.iter().copied().filter(|_| only_added_up));
    }
    Passing { nodes: passing, added_up }
}

/// Whether a node is linear in some operands, with at most one operation for each element of its largest tensor.
fn is_linear(module: &Module, node: &Node) -> bool {
    let signature = module.signature(node);
    let sizes = signature.operands.iter().chain(&signature.results).filter_map(Type::numel);
    let cheap = node.op.cost(&signature).flops <= sizes.max().unwrap_or(0);
    cheap && !node.op.factors(&signature).linear.is_empty()
}

struct Partition<'r, 'b, 'm> {
    r: Resharder<'b, 'm>,
    layouts: &'r Layouts,
    demands: &'r Demands,
    sums: Sums,
    /// Nodes that may take partial sums as they are.
    passing: BTreeSet<NodeId>,
    /// Values whose readers all take partial sums as they are.
    pass_on: BTreeSet<ValueId>,
    /// The addends of sums over microbatches that must have a sharding of their own, by the original value. Other readers keep the original
    /// value, so that it is summed in the same order in all stages of ZeRO.
    addends: BTreeMap<ValueId, ValueId>,
}

impl Partition<'_, '_, '_> {
    fn visit(&mut self, id: NodeId) -> Result<(), Diagnostic> {
        if self.sums.is_inner(id) {
            return Ok(()); // visited with the last addition of its sum
        }
        let Some(sum) = self.sums.take(id) else { return self.node(id) };
        let leaves: Vec<ValueId> = sum.leaves.iter().map(|&leaf| self.r.current(leaf)).collect();
        if !self.r.is_mixed(&leaves) {
            return sum.nodes.iter().try_for_each(|&node| self.node(node));
        }
        self.regroup(id, &sum.nodes, &leaves)
    }

    /// Adds up the addends that are partial over the same axes first, so that each such group is reduced once.
    fn regroup(&mut self, root: NodeId, nodes: &[NodeId], leaves: &[ValueId]) -> Result<(), Diagnostic> {
        let mut groups: BTreeMap<Vec<AxisId>, Vec<ValueId>> = BTreeMap::new();
        for &leaf in leaves {
            let mut axes = self.r.ty(leaf).sharding.partial_axes().to_vec();
            axes.sort_unstable();
            groups.entry(axes).or_default().push(leaf);
        }
        let old = self.r.b.module().node(root).results[0];
        let wanted = self.layouts.sharding(old);
        let mut total: Option<ValueId> = None;
        for (_, group) in groups {
            let mut sum = group[0];
            for &leaf in &group[1..] {
                sum = self.addition(root, sum, leaf)?;
            }
            let sum = self.r.reshard(sum, &wanted, root)?;
            total = Some(match total {
                Some(total) => self.addition(root, total, sum)?,
                None => sum,
            });
        }
        self.r.replace(old, total.expect("a sum has addends"));
        nodes.iter().for_each(|&node| self.r.b.remove(node));
        Ok(())
    }

    fn addition(&mut self, root: NodeId, x: ValueId, y: ValueId) -> Result<ValueId, Diagnostic> {
        let sharding = self.r.ty(x).sharding.clone();
        let y = self.r.reshard(y, &sharding, root)?;
        self.r.b.at(ir::At::Before(root));
        let sum = self.r.b.build(x + y)?;
        self.r.b.shard(sum, sharding);
        Ok(sum)
    }

    /// Makes the operands and results of one node agree.
    fn node(&mut self, id: NodeId) -> Result<(), Diagnostic> {
        let node = self.r.b.module().node(id).clone();
        let sums = matches!(node.op, Op::Accumulate(_));
        let read = |&operand: &ValueId| match self.addends.get(&operand).filter(|_| sums) {
            Some(&addend) => addend,
            None => self.r.current(operand),
        };
        let operands: Vec<ValueId> = node.operands.iter().map(read).collect();
        let factors = node.op.factors(&self.r.b.module().signature(&node));
        let kept = self.kept(id, &node, &operands, &factors);
        let pinned = self.layouts.pinned(id);
        let splits = choose(&self.r, self.layouts, &node, &operands, &factors, pinned, &kept);
        let split = |factor: FactorId| splits.get(&factor).cloned().unwrap_or_default();
        for (i, &operand) in operands.iter().enumerate() {
            let dims =
                factors.operands[i].iter().map(|dim| factors.merge(&self.r.mesh, dim, split)).collect();
            let partial = self.r.ty(operand).sharding.partial_axes().iter().copied();
            let partial: FactorAxes = partial.filter(|axis| kept.contains(axis)).collect();
            let partial = (!partial.is_empty()).then(|| (PartialKind::Sum, partial.into_iter().collect()));
            let value = self.r.reshard(operand, &Sharding { dims, partial }, id)?;
            if value != node.operands[i] {
                self.r.b.set_operand(id, i, value);
            }
        }
        for (i, &result) in node.results.iter().enumerate() {
            let dims = factors.results[i].iter().map(|dim| factors.merge(&self.r.mesh, dim, split)).collect();
            let mut sharding = Sharding { dims, partial: made_partial(&factors, &splits, i, &kept) };
            if let Op::Addends(Addends { count }) = node.op {
                let axes: Vec<AxisId> = kept.iter().copied().collect();
                let ranks = self.r.mesh.size(&axes);
                if !count.is_multiple_of(ranks) {
                    let error =
                        Diagnostic::new(format!("{count} addends cannot be divided over {ranks} data ranks"));
                    return Err(
                        error.note(format!("run `compress_gradients(…, ranks={ranks})` before `spmd`"))
                    );
                }
                sharding.partial = None;
                sharding.dims[0] = axes.into();
            }
            self.r.b.shard(result, sharding);
            self.settle(&node, result)?;
        }
        Ok(())
    }

    /// Returns the axes over which the node takes its operands as partial sums.
    fn kept(&self, id: NodeId, node: &Node, operands: &[ValueId], factors: &Factors) -> BTreeSet<AxisId> {
        let partial = |i: u32| self.r.ty(operands[i as usize]).sharding.partial.as_ref();
        let over = |i: u32, axis: AxisId| partial(i).is_some_and(|(_, axes)| axes.contains(&axis));
        let all = 0..operands.len() as u32;
        let axes: BTreeSet<AxisId> =
            all.clone().filter_map(partial).flat_map(|(_, axes)| axes.iter().copied()).collect();
        if !self.passing.contains(&id) {
            return BTreeSet::new();
        }
        if let Op::Addends(_) = node.op {
            return axes.into_iter().filter(|&axis| self.r.mesh.axes[axis].role == AxisRole::Data).collect();
        }
        let keeps = |&axis: &AxisId| {
            let of: Vec<u32> = all.clone().filter(|&i| over(i, axis)).collect();
            let sums = of.iter().all(|&i| partial(i).is_some_and(|(kind, _)| *kind == PartialKind::Sum));
            let linear =
                factors.linear.iter().any(|set| set.len() == of.len() && of.iter().all(|i| set.contains(i)));
            let elsewhere = of.iter().all(|&i| self.pass_on.contains(&node.operands[i as usize]));
            // An axis that splits another operand belongs to a factor.
            let free = operands.iter().all(|&operand| !self.r.splits(operand, axis));
            sums && linear && elsewhere && free
        };
        axes.into_iter().filter(keeps).collect()
    }

    /// Changes the sharding of a result at once if a demand says so, or if it is partial and a reader needs it whole.
    fn settle(&mut self, node: &Node, result: ValueId) -> Result<(), Diagnostic> {
        let actual = self.r.ty(result).sharding.clone();
        let demanded = self.demands.values.get(&result);
        let demanded = demanded.map(|dims| Sharding { dims: dims.clone(), partial: None });
        let is_sum = matches!(node.op, Op::Accumulate(_));
        if let Some(wanted) = demanded.as_ref().filter(|_| !is_sum) {
            let addend = self.r.reshard_after(result, wanted)?;
            self.addends.insert(result, addend);
        }
        let wanted = match demanded.filter(|_| is_sum) {
            Some(wanted) => wanted,
            None if node.phase == Phase::Prepare && !self.demands.gathers_at_use => {
                self.layouts.sharding(result)
            }
            None if actual.partial.is_some() && !self.pass_on.contains(&result) => {
                // If the plan splits the result over the reduced axes too, it is reduced and split at once.
                let planned = self.layouts.sharding(result);
                if self.r.extends(&actual, &planned) { planned } else { Sharding { partial: None, ..actual } }
            }
            None => return Ok(()),
        };
        let settled = self.r.reshard_after(result, &wanted)?;
        self.r.replace(result, settled);
        Ok(())
    }

    /// Makes outputs whole, and gives the new values of states the shardings of the states.
    fn roots(&mut self) -> Result<(), Diagnostic> {
        let outputs: Vec<ValueId> = self.r.b.module().outputs.iter().map(|output| output.value).collect();
        for (i, value) in outputs.into_iter().enumerate() {
            let current = self.r.current(value);
            let whole = self.r.reshard_after(current, &Sharding::default())?;
            self.r.b.tables().outputs[i].value = whole;
        }
        let states: Vec<_> = self.r.b.module().states.keys().collect();
        for id in states {
            let state = &self.r.b.module().states[id];
            let (sharding, Some(output)) = (state.ty.sharding.clone(), state.output) else { continue };
            let current = self.r.current(output);
            let stored = self.r.reshard_after(current, &sharding)?;
            self.r.b.tables().states[id].output = Some(stored);
        }
        Ok(())
    }
}

/// Returns the axes over which a result is partial: those of split and reduced factors that it lacks, and those in `kept`.
fn made_partial(
    factors: &Factors,
    splits: &BTreeMap<FactorId, FactorAxes>,
    result: usize,
    kept: &BTreeSet<AxisId>,
) -> Option<(PartialKind, smallvec::SmallVec<[AxisId; 2]>)> {
    let mut axes: BTreeSet<AxisId> = kept.clone();
    let mut made = PartialKind::Sum;
    for (&factor, split) in splits {
        if let FactorKind::Reduced(kind) = factors.factors[factor as usize].kind
            && !factors.results[result].iter().any(|dim| dim.contains(&factor))
            && !split.is_empty()
        {
            made = kind;
            axes.extend(split);
        }
    }
    (!axes.is_empty()).then(|| (made, axes.into_iter().collect()))
}
