//! The part of a model that a collective belongs to, found from the program. A partial sum belongs to the layer whose weights its
//! contractions read. A layer is a numbered module in the names of the states.

use ir::ops::collective::{Change, Collective};
use ir::{AxisId, Definition, Module, Movement, Node, NodeId, Op, Phase, StateId, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The number of reductions of activations over one axis in a microbatch, by the part of the model that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reductions {
    /// Reductions of each layer, forward and backward.
    pub layers: BTreeMap<String, [usize; 2]>,
    /// Reductions of rows that were looked up in split tables, forward.
    pub embedding: usize,
    /// Reductions of the gradient of the head's operand, backward.
    pub head: usize,
    /// Reductions of the loss: the maximum, the sum of exponentials, the logit of the label.
    pub loss: usize,
    /// Reductions of the gradients of states.
    pub gradients: usize,
    /// Gathers of outputs.
    pub outputs: usize,
}

/// Other names of states, by module path.
pub type Aliases = BTreeMap<String, Vec<String>>;

/// Counts the collectives of the microbatch phases over the axis of this name. Panics at a collective that belongs to no part.
pub fn reductions(module: &Module, aliases: &Aliases, axis: &str) -> Reductions {
    let axis = module.mesh.find(axis).expect("the mesh has the axis");
    let mut found = Reductions::default();
    for (id, node) in module.nodes().filter(|(_, node)| node.phase.is_microbatch()) {
        let Op::Collective(kind) = node.op else { continue };
        let change = change(module, node);
        if kind.communicates() && change.axes.contains(&axis) {
            found.add(module, aliases, (id, node), kind, &change.axes);
        }
    }
    found
}

/// The change of sharding that a collective with one operand makes.
pub fn change(module: &Module, node: &Node) -> Change {
    let [from, to] = [node.operands[0], node.results[0]].map(|value| module.ty(value));
    Change::between(&from.sharding, &to.sharding, from.ndim()).expect("the verifier lets it pass")
}

impl Reductions {
    fn add(
        &mut self,
        module: &Module,
        aliases: &Aliases,
        (id, node): (NodeId, &Node),
        kind: Collective,
        axes: &[AxisId],
    ) {
        let result = node.results[0];
        if kind == Collective::AllGather && module.outputs.iter().any(|output| output.value == result) {
            self.outputs += 1;
            return;
        }
        assert_eq!(kind, Collective::AllReduce, "{id} at {}", node.origin);
        if is_gradient(module, result) {
            self.gradients += 1;
            return;
        }
        let makers = makers(module, node.operands[0], axes);
        let weights: Vec<BTreeSet<StateId>> = makers.iter().map(|&maker| weights(module, maker)).collect();
        if weights.iter().all(BTreeSet::is_empty) {
            assert!(ends_in_loss(module, result), "{id} at {} sums nothing that is known", node.origin);
            self.loss += 1;
            return;
        }
        assert!(!weights.iter().any(BTreeSet::is_empty), "{id} at {} sums other things too", node.origin);
        let layers: BTreeSet<Option<String>> =
            weights.iter().flatten().map(|&state| layer(&module.states[state].name, aliases)).collect();
        assert_eq!(layers.len(), 1, "{id} at {} sums over {layers:?}", node.origin);
        let looked_up = makers.iter().all(|&maker| matches!(module.node(maker).op, Op::Gather(_)));
        match (layers.into_iter().next().flatten(), node.phase) {
            (Some(layer), phase) => {
                self.layers.entry(layer).or_default()[usize::from(phase == Phase::Backward)] += 1;
            }
            (None, Phase::Forward) if looked_up => self.embedding += 1,
            (None, Phase::Backward) => self.head += 1,
            (None, _) => panic!("{id} at {} is of no layer", node.origin),
        }
    }
}

/// Whether a value is read only by sums over microbatches.
fn is_gradient(module: &Module, value: ValueId) -> bool {
    let uses = module.uses();
    !uses[value].is_empty()
        && uses[value].iter().all(|&reader| matches!(module.node(reader).op, Op::Accumulate(_)))
}

/// Whether no contraction of forward depends on a value. Then the value belongs to the loss.
fn ends_in_loss(module: &Module, value: ValueId) -> bool {
    let mut after = BTreeSet::from([value]);
    for (_, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        if node.operands.iter().any(|operand| after.contains(operand)) {
            if matches!(node.op, Op::Contract(_)) {
                return false;
            }
            after.extend(&node.results);
        }
    }
    module.phase_of(value) == Phase::Forward
}

/// The nodes that made the addends of a partial value: the nodes before it whose results are partial over these axes, but whose operands
/// are not.
pub fn makers(module: &Module, value: ValueId, axes: &[AxisId]) -> BTreeSet<NodeId> {
    let partial =
        |value: ValueId| module.ty(value).sharding.partial_axes().iter().any(|axis| axes.contains(axis));
    let (mut pending, mut found) = (vec![value], BTreeSet::new());
    while let Some(value) = pending.pop() {
        let Definition::Node(id, _) = module.value(value).definition else { continue };
        let node = module.node(id);
        let before = pending.len();
        pending.extend(node.operands.iter().copied().filter(|&operand| partial(operand)));
        if pending.len() == before {
            found.insert(id);
        }
    }
    found
}

/// The parameters that a node reads, in any layout and type.
fn weights(module: &Module, node: NodeId) -> BTreeSet<StateId> {
    let state = |&value: &ValueId| stored(module, value);
    module.node(node).operands.iter().filter_map(state).collect()
}

/// The state that a value is a copy of, apart from its layout, its type and its memory.
pub fn stored(module: &Module, value: ValueId) -> Option<StateId> {
    let passed = |movement: Movement| movement.is_part_of_state() || movement == Movement::Resharded;
    match module.value(module.viewed(value, passed)).definition {
        Definition::State(state) => Some(state),
        Definition::Node(..) | Definition::Input(_) => None,
    }
}

/// `m.transformer.h.0` of `m.transformer.h.0.attn.c_attn.weight`. For a name that the exporter made, the layer of its alias.
fn layer(state: &str, aliases: &Aliases) -> Option<String> {
    let own = state.split('[').next().unwrap_or(state);
    let others = aliases.get(own).into_iter().flatten().map(String::as_str);
    std::iter::once(own).chain(others).find_map(|name| {
        let parts: Vec<&str> = name.split('.').collect();
        let number =
            parts.iter().position(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))?;
        Some(parts[..=number].join("."))
    })
}
