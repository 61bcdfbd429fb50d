//! Buckets: joins small collectives into larger ones.
//!
//! Every collective takes a minimum time, and the gradients of norms and biases are small and many. Collectives of one kind, over the
//! same axes, of one phase and element type become one collective of several operands. It stands where its last operand is complete,
//! so that it can run beside later computation (Li et al., PyTorch Distributed, arXiv 2006.15704).
//!
//! In `update`, where gradients are in memory already, the readers of a bucket's results wait for the bucket: the program is reordered,
//! and later collectives that depend on these results (for the norms of gradients) are bucketed too. Sums of gradients come in the
//! order in which backward completes them, so the first buckets can be reduced while backward goes on. In a microbatch a bucket ends
//! where one of its results is read, so nothing is computed later, and nothing is gathered earlier, than before.
//!
//! Invariants: operands and results stay; every node stays in its phase, after the producers of its operands.

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use cranelift_entity::SecondaryMap;
use ir::ops::collective::{Change, Collective};
use ir::{
    At, AxisId, Builder, Changed, DType, Definition, Diagnostic, Module, Node, NodeId, Op, PartialKind,
    Phase, Type, ValueId,
};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// The pass `buckets`. `buckets(bytes=26214400)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The most bytes in a bucket, on one device: the larger of operand and result. A larger collective stays alone.
    pub bytes: u64,
}

impl Default for Buckets {
    /// Returns 25 MiB, as in PyTorch's DistributedDataParallel.
    fn default() -> Self {
        Self { bytes: 25 << 20 }
    }
}

impl Transform for Buckets {
    const NAME: &'static str = "buckets";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.value("bytes", &mut self.bytes, Self::default().bytes);
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        apply(module, &decide(module, self.bytes))
    }
}

/// The new order of the phases that have buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    phases: Vec<(Phase, Vec<Slot>)>,
}

/// A place in the new order of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    Node(NodeId),
    /// Collectives that become one.
    Bucket(Vec<NodeId>),
}

/// Sorts collectives into buckets of at most `bytes` bytes.
pub fn decide(module: &Module, bytes: u64) -> Decision {
    let mut decision = Decision::default();
    for (phase, _) in Phase::ALL {
        let mut sorting = Sorting::new(module, bytes, phase == Phase::Update);
        let mut nodes: Vec<NodeId> =
            module.nodes().filter(|(_, node)| node.phase == phase).map(|(id, _)| id).collect();
        if phase == Phase::Update {
            nodes = by_completion(module, nodes);
        }
        nodes.into_iter().for_each(|id| sorting.visit([id]));
        let slots = sorting.end();
        if slots.iter().any(|slot| matches!(slot, Slot::Bucket(_))) {
            decision.phases.push((phase, slots));
        }
    }
    decision
}

/// Returns the nodes of the update in a new order: first the sums over microbatches, then the collectives of these sums, both in the
/// order in which backward makes the last addend; then all other nodes.
fn by_completion(module: &Module, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let mut place: SecondaryMap<NodeId, usize> = SecondaryMap::new();
    module.order().iter().enumerate().for_each(|(index, &id)| place[id] = index);
    let producer = |value: ValueId| match module.value(value).definition {
        Definition::Node(id, _) => Some(id),
        Definition::Input(_) | Definition::State(_) => None,
    };
    // The place of the node that makes a sum's addend; `None` for a node that is no sum.
    let completed = |id: NodeId| match module.node(id).op {
        Op::Accumulate(_) => Some(producer(module.node(id).operands[0]).map_or(0, |maker| place[maker])),
        _ => None,
    };
    let key = |id: &NodeId| {
        let node = module.node(*id);
        match (&node.op, completed(*id)) {
            (_, Some(at)) => (0, at),
            (Op::Collective(_), None) => {
                let operands = node.operands.iter().map(|&operand| completed(producer(operand)?));
                let places: Option<Vec<usize>> = operands.collect();
                places.map_or((2, 0), |places| (1, places.into_iter().max().unwrap_or(0)))
            }
            _ => (2, 0),
        }
    };
    nodes.sort_by_cached_key(key);
    nodes
}

/// Puts the phases into their new order, with a collective for each bucket.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Buckets::NAME);
    for (phase, slots) in &decision.phases {
        for slot in slots {
            match slot {
                Slot::Node(id) => b.move_to(*id, At::End(*phase)),
                Slot::Bucket(members) => bucket(&mut b, members)?,
            }
        }
    }
    Ok(b.finish())
}

/// Replaces several collectives by one, at the end of their phase.
fn bucket(b: &mut Builder, members: &[NodeId]) -> Result<(), Diagnostic> {
    let nodes: Vec<Node> = members.iter().map(|&id| b.module().node(id).clone()).collect();
    let operands: Vec<ValueId> = nodes.iter().map(|node| node.operands[0]).collect();
    let types: Vec<Type> = nodes.iter().map(|node| b.ty(node.results[0]).clone()).collect();
    let last = &nodes[nodes.len() - 1];
    b.at(At::End(last.phase)).stage(last.stage).copy(last.copy).origin(last.origin.clone());
    let results = b
        .push_typed(last.op.clone(), &operands, &types)
        .map_err(|error| Diagnostic::new(format!("buckets built an ill-typed node: {error}")))?;
    for ((node, &result), ty) in nodes.iter().zip(&results).zip(types) {
        b.shard(result, ty.sharding);
        b.replace(node.results[0], result);
    }
    members.iter().for_each(|&id| b.remove(id));
    Ok(())
}

/// The properties that the collectives of one bucket share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    collective: Collective,
    axes: SmallVec<[AxisId; 2]>,
    reduced: Option<PartialKind>,
    dtype: DType,
    place: (u32, u32),
}

impl Kind {
    /// Returns the kind and the bytes of a collective that has one operand and communicates.
    fn of(module: &Module, node: &Node) -> Option<(Self, u64)> {
        let (Op::Collective(collective), &[operand], &[result]) =
            (&node.op, &node.operands[..], &node.results[..])
        else {
            return None;
        };
        let (from, to) = (module.ty(operand), module.ty(result));
        let change = Change::between(&from.sharding, &to.sharding, from.ndim()).ok()?;
        let bytes = from.local_bytes(&module.mesh)?.max(to.local_bytes(&module.mesh)?);
        let kind = Self {
            collective: *collective,
            axes: change.axes,
            reduced: change.reduced,
            dtype: from.dtype,
            place: (node.stage, node.copy),
        };
        collective.communicates().then_some((kind, bytes))
    }
}

/// A bucket that can take more collectives.
#[derive(Default)]
struct Open {
    members: Vec<NodeId>,
    bytes: u64,
    /// The slot of the last member.
    slot: usize,
    /// Nodes that need the bucket's results.
    waiting: Vec<NodeId>,
}

/// The state of a walk over a phase.
struct Sorting<'m> {
    module: &'m Module,
    limit: u64,
    /// Whether readers wait for a bucket. If not, they close it.
    waits: bool,
    /// Places in the new order. A bucket takes the place of its last member; the places of its other members stay empty.
    slots: Vec<Option<Slot>>,
    /// Open buckets, the oldest first.
    open: Vec<(Kind, Open)>,
    /// The open bucket that a value comes from or waits for; `None` if the value's node is about to be visited again.
    held_by: BTreeMap<ValueId, Option<Kind>>,
}

impl<'m> Sorting<'m> {
    fn new(module: &'m Module, limit: u64, waits: bool) -> Self {
        let (slots, open, held_by) = Default::default();
        Self { module, limit, waits, slots, open, held_by }
    }

    /// Visits nodes, and after them all nodes that they release.
    fn visit(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        let mut pending: VecDeque<NodeId> = nodes.into_iter().collect();
        while let Some(id) = pending.pop_front() {
            let node = self.module.node(id);
            let holding = node.operands.iter().find_map(|operand| self.held_by.get(operand).cloned());
            match holding {
                Some(None) => pending.push_back(id),
                Some(Some(kind)) if self.waits => {
                    self.hold(id, Some(&kind));
                    self.open_bucket(&kind).waiting.push(id);
                }
                Some(Some(kind)) => {
                    self.close(&kind);
                    pending.push_front(id);
                }
                None => match Kind::of(self.module, node) {
                    Some((kind, bytes)) => pending.extend(self.join(id, kind, bytes)),
                    None => {
                        self.release(id);
                        self.slots.push(Some(Slot::Node(id)));
                    }
                },
            }
        }
    }

    /// Records the bucket that the results of a node wait for.
    fn hold(&mut self, id: NodeId, by: Option<&Kind>) {
        let results = self.module.node(id).results.iter();
        self.held_by.extend(results.map(|&result| (result, by.cloned())));
    }

    /// Records that the results of a node can be read.
    fn release(&mut self, id: NodeId) {
        self.module.node(id).results.iter().for_each(|result| drop(self.held_by.remove(result)));
    }

    fn open_bucket(&mut self, kind: &Kind) -> &mut Open {
        let at = self.open.iter().position(|(other, _)| other == kind).unwrap_or_else(|| {
            self.open.push((kind.clone(), Open::default()));
            self.open.len() - 1
        });
        &mut self.open[at].1
    }

    /// Puts a collective into the bucket of its kind. Returns the nodes that waited for a bucket that is full now.
    fn join(&mut self, id: NodeId, kind: Kind, bytes: u64) -> Vec<NodeId> {
        let mut freed = Vec::new();
        if self.open_bucket(&kind).bytes.saturating_add(bytes) > self.limit {
            freed = self.close(&kind);
        }
        let slot = self.slots.len();
        self.slots.push(None);
        self.hold(id, Some(&kind));
        let bucket = self.open_bucket(&kind);
        bucket.members.push(id);
        bucket.bytes = bucket.bytes.saturating_add(bytes);
        bucket.slot = slot;
        if bucket.bytes >= self.limit {
            freed.extend(self.close(&kind));
        }
        freed
    }

    /// Closes a bucket. Returns the nodes that waited for it.
    fn close(&mut self, kind: &Kind) -> Vec<NodeId> {
        let Some(at) = self.open.iter().position(|(other, _)| other == kind) else { return Vec::new() };
        let (_, Open { members, slot, waiting, .. }) = self.open.remove(at);
        members.iter().for_each(|&id| self.release(id));
        waiting.iter().for_each(|&id| self.hold(id, None));
        match members[..] {
            [] => {}
            [alone] => self.slots[slot] = Some(Slot::Node(alone)),
            _ => self.slots[slot] = Some(Slot::Bucket(members)),
        }
        waiting
    }

    /// Closes all buckets. Released nodes may open further buckets, which are closed too. Returns the new order.
    fn end(mut self) -> Vec<Slot> {
        while let Some((kind, _)) = self.open.first() {
            let kind = kind.clone();
            let freed = self.close(&kind);
            self.visit(freed);
        }
        self.slots.into_iter().flatten().collect()
    }
}
