//! Buckets: small collectives travel together.
//!
//! A collective takes a while however small it is, and the gradients of norms and biases are small and many. Those of
//! one kind, over the same axes, of one phase and element type become one collective of several operands, as long as
//! none of their results is needed before the last operand is there. The bucket stands where its last operand has
//! become whole, so that it can run beside what comes after (Li et al., PyTorch Distributed, arXiv 2006.15704).
//!
//! Invariants: operands and results stay; a bucket is never later than the first use of one of its results; a gather
//! stays where it stands, so nothing is gathered earlier than it was.

use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use ir::ops::collective::{Change, Collective};
use ir::{
    At, AxisId, Builder, Changed, DType, Definition, Diagnostic, Module, Node, NodeId, Op, PartialKind,
    Phase, Type, ValueId,
};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;

/// The pass `buckets`. `buckets(bytes=26214400)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The most bytes in a bucket, of what a device holds of the whole values. A larger collective travels alone.
    pub bytes: u64,
}

impl Default for Buckets {
    /// 25 MiB, as PyTorch's DistributedDataParallel.
    fn default() -> Self {
        Self { bytes: 25 << 20 }
    }
}

impl Transform for Buckets {
    const NAME: &'static str = "buckets";

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        Ok(Self { bytes: arguments.value("bytes", Self::default().bytes)? })
    }

    fn print(&self, arguments: &mut Arguments) {
        arguments.push_unless(&Self::default().bytes, "bytes", &self.bytes);
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        apply(module, &decide(module, self.bytes))
    }
}

/// The buckets of a program, in program order; none of a single collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    buckets: Vec<Bucket>,
}

/// Collectives that become one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bucket {
    members: Vec<NodeId>,
    bytes: u64,
    /// Where the last operand is whole.
    at: At,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Bucket { members, bytes, .. } in &self.buckets {
            writeln!(f, "{} collectives, {bytes} bytes", members.len())?;
        }
        Ok(())
    }
}

/// What collectives of one bucket share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    collective: Collective,
    axes: SmallVec<[AxisId; 2]>,
    reduced: Option<PartialKind>,
    dtype: DType,
    place: (Phase, u32, u32),
}

/// A collective that may join a bucket.
struct Candidate {
    kind: Kind,
    bytes: u64,
    /// Just after this node of its own place its operand is whole; `None`: it is where the collective stands.
    after: Option<NodeId>,
}

/// Sorts collectives into buckets of at most so many bytes.
pub fn decide(module: &Module, bytes: u64) -> Decision {
    let candidates: BTreeMap<NodeId, Candidate> =
        module.nodes().filter_map(|(id, node)| Some((id, candidate(module, node)?))).collect();
    let mut ready: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for (id, _) in module.nodes() {
        if let Some(after) = candidates.get(&id).and_then(|candidate| candidate.after) {
            ready.entry(after).or_default().push(id);
        }
    }
    let mut sorting = Sorting { limit: bytes, ..Sorting::default() };
    for (id, node) in module.nodes() {
        sorting.enter(node.phase);
        node.operands.iter().for_each(|&operand| sorting.needed(operand));
        if let Some(candidate) = candidates.get(&id).filter(|candidate| candidate.after.is_none()) {
            sorting.join(module, id, candidate, At::Before(id));
        }
        for &reduction in ready.get(&id).into_iter().flatten() {
            sorting.join(module, reduction, &candidates[&reduction], At::After(id));
        }
    }
    sorting.close_all();
    Decision { buckets: sorting.closed }
}

/// A collective of one operand that sends something, as a candidate.
fn candidate(module: &Module, node: &Node) -> Option<Candidate> {
    let (Op::Collective(collective), &[operand], &[result]) =
        (&node.op, &node.operands[..], &node.results[..])
    else {
        return None;
    };
    let (from, to) = (module.ty(operand), module.ty(result));
    let change = Change::between(&from.sharding, &to.sharding, from.ndim()).ok()?;
    let of = |ty: &Type| {
        let sizes = ty.local(&module.mesh)?;
        sizes.iter().try_fold(ty.dtype.bytes(), |bytes, &size| bytes.checked_mul(size))
    };
    let bytes = of(from)?.max(of(to)?);
    let place = |node: &Node| (node.phase, node.stage, node.copy);
    // A gather waits for its use: what it gathers is there long before, and is larger afterwards.
    let after = match module.value(operand).definition {
        Definition::Node(producer, _) if change.reduced.is_some() => {
            let producer_node = module.node(producer);
            let alone = place(producer_node) == place(node) && !matches!(producer_node.op, Op::Collective(_));
            alone.then_some(producer)
        }
        _ => None,
    };
    let kind = Kind {
        collective: *collective,
        axes: change.axes,
        reduced: change.reduced,
        dtype: from.dtype,
        place: place(node),
    };
    collective.communicates().then_some(Candidate { kind, bytes, after })
}

/// Buckets while the program is walked.
#[derive(Default)]
struct Sorting {
    limit: u64,
    phase: Phase,
    open: BTreeMap<Kind, Bucket>,
    /// The open bucket that a value comes from.
    made_by: BTreeMap<ValueId, Kind>,
    closed: Vec<Bucket>,
}

impl Sorting {
    /// Buckets do not last longer than a phase.
    fn enter(&mut self, phase: Phase) {
        if std::mem::replace(&mut self.phase, phase) != phase {
            self.close_all();
        }
    }

    /// A value is read: its bucket takes no more.
    fn needed(&mut self, value: ValueId) {
        if let Some(kind) = self.made_by.get(&value).cloned() {
            self.close(&kind);
        }
    }

    fn join(&mut self, module: &Module, id: NodeId, candidate: &Candidate, at: At) {
        let kind = &candidate.kind;
        let full = |bucket: &Bucket| bucket.bytes.saturating_add(candidate.bytes) > self.limit;
        if self.open.get(kind).is_some_and(full) {
            self.close(kind);
        }
        let bucket =
            self.open.entry(kind.clone()).or_insert_with(|| Bucket { members: Vec::new(), bytes: 0, at });
        bucket.members.push(id);
        bucket.bytes = bucket.bytes.saturating_add(candidate.bytes);
        bucket.at = at;
        self.made_by.insert(module.node(id).results[0], kind.clone());
    }

    fn close(&mut self, kind: &Kind) {
        if let Some(bucket) = self.open.remove(kind) {
            self.made_by.retain(|_, of| of != kind);
            self.closed.extend((bucket.members.len() > 1).then_some(bucket));
        }
    }

    fn close_all(&mut self) {
        while let Some((kind, _)) = self.open.first_key_value() {
            self.close(&kind.clone());
        }
    }
}

/// Puts each bucket in place of its collectives.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Buckets::NAME);
    for Bucket { members, at, .. } in &decision.buckets {
        let nodes: Vec<Node> = members.iter().map(|&id| b.module().node(id).clone()).collect();
        let operands: Vec<ValueId> = nodes.iter().map(|node| node.operands[0]).collect();
        let types: Vec<Type> = nodes.iter().map(|node| b.ty(node.results[0]).clone()).collect();
        b.at(*at).origin(nodes[nodes.len() - 1].origin.clone());
        let results = b
            .push_typed(nodes[0].op.clone(), &operands, &types)
            .map_err(|error| Diagnostic::new(format!("buckets built an ill-typed node: {error}")))?;
        for ((node, &result), ty) in nodes.iter().zip(&results).zip(types) {
            b.shard(result, ty.sharding);
            b.replace(node.results[0], result);
        }
        members.iter().for_each(|&id| b.remove(id));
    }
    Ok(b.finish())
}
