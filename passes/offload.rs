//! Offload: keeps states, gradients and activations on the host or in a file, and copies them to the device where they are read.
//!
//! `decide` chooses the states, the sums of gradients and the activations that leave the device. `apply` moves the states to their
//! tier, lets the nodes that update them compute on the host, and adds a `copy` wherever a node would read a value of another
//! memory. Lowering plans each memory by the lifetimes that follow.
//!
//! Invariants: all values stay the same; only copies are added, and views of activations that backward reads. Nodes of a microbatch
//! compute on the device, except look-ups in embeddings and their gradients. Collectives run on the device. A state's new value ends on
//! the tier of the state.

mod activations;
mod copies;
mod embeddings;
mod states;

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use embeddings::Embeddings;
use ir::ops::copy::Copy;
use ir::{
    At, Builder, Changed, Definition, Diagnostic, Level, Module, NodeId, Op, StateId, Tier, TypeError,
    ValueId,
};
use std::collections::BTreeSet;

/// The pass `offload`. `offload(optimizer, activations, keep=1048576, stay=65536, host=4194304)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The classes of values that leave the device.
    pub classes: Classes,
    /// Bytes of states that stay on each device although their class leaves it. Weights stay together with the states of their optimizer.
    pub keep: u64,
    /// Bytes of activations that stay on each device although their class leaves it. The last activations of forward stay, because backward
    /// reads them first.
    pub stay: u64,
    /// The fewest bytes, on each device, of a value that leaves. For a smaller value, the latency of its copies is longer than the kernels
    /// that they save.
    pub least: u64,
    /// Bytes of states that rest on the host; further states rest in a file. `None`: all states fit on the host.
    pub host: Option<u64>,
}

impl Default for Offload {
    fn default() -> Self {
        Self { classes: Classes::NONE, keep: 0, stay: 0, least: 16 << 10, host: None }
    }
}

/// Classes of values that may leave the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// States of the optimizer, and weights that microbatches read only through a cast to a narrower type.
    pub optimizer: bool,
    /// Weights. Each is copied to the device for its readers, in forward and again in backward.
    pub parameters: bool,
    /// Gradients, from their completion to the update, and their sums over microbatches.
    pub gradients: bool,
    /// Results of forward that backward reads.
    pub activations: bool,
    /// Weights that microbatches read only by look-ups of rows, with these look-ups and the states of their optimizer.
    pub embeddings: bool,
}

impl Classes {
    /// Every class with its name in text.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self { optimizer: true, ..Self::NONE }, "optimizer"),
        (Self { parameters: true, ..Self::NONE }, "parameters"),
        (Self { gradients: true, ..Self::NONE }, "gradients"),
        (Self { activations: true, ..Self::NONE }, "activations"),
        (Self { embeddings: true, ..Self::NONE }, "embeddings"),
    ];

    /// No class.
    pub const NONE: Self =
        Self { optimizer: false, parameters: false, gradients: false, activations: false, embeddings: false };

    /// Returns the union of both.
    pub fn with(self, other: Self) -> Self {
        Self {
            optimizer: self.optimizer || other.optimizer,
            parameters: self.parameters || other.parameters,
            gradients: self.gradients || other.gradients,
            activations: self.activations || other.activations,
            embeddings: self.embeddings || other.embeddings,
        }
    }

    /// Returns the names of the classes.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().filter(move |(class, _)| self.with(*class) == self).map(|(_, name)| name)
    }
}

impl Transform for Offload {
    const NAME: &'static str = "offload";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        for (class, name) in Classes::ALL {
            let mut leaves = self.classes.with(class) == self.classes;
            options.flag(name, &mut leaves);
            if leaves {
                self.classes = self.classes.with(class);
            }
        }
        options.value("keep", &mut self.keep, 0);
        options.value("stay", &mut self.stay, 0);
        options.value("least", &mut self.least, Self::default().least);
        let bytes = |text: &str| text.parse().map_err(|_| "host is not a number of bytes".to_string());
        options.optional("host", &mut self.host, bytes);
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        if module.level < Level::Training {
            let error = Diagnostic::new("values can leave the device only in a program with an update");
            return Err(error.note("run `offload` after `optimizer`"));
        }
        let decision = decide(module, self);
        apply(module, self, &decision)
    }
}

/// The values that leave the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The states, each with its tier.
    pub states: Vec<(StateId, Tier)>,
    /// The nodes `accumulate` of the gradients.
    pub gradients: Vec<NodeId>,
    /// The activations that rest on the host.
    pub activations: Vec<ValueId>,
    /// The look-ups in embeddings and their gradients, which compute on the host.
    pub embeddings: Vec<NodeId>,
}

impl Decision {
    /// Whether no value leaves the device.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Chooses the values that leave the device.
pub fn decide(module: &Module, options: &Offload) -> Decision {
    let Classes { gradients, activations, .. } = options.classes;
    let embeddings = Embeddings::of(module, options.classes, options.least);
    Decision {
        states: states::choose(module, options, &embeddings),
        gradients: if gradients { sums_of_gradients(module, options.least) } else { vec![] },
        activations: if activations { activations::choose(module, options) } else { vec![] },
        embeddings: embeddings.nodes,
    }
}

/// Returns the sums of gradients over microbatches.
fn sums_of_gradients(module: &Module, least: u64) -> Vec<NodeId> {
    let is_sum = |(id, node): (NodeId, &ir::Node)| {
        let bytes = module.ty(node.results[0]).local_bytes(&module.mesh);
        let sums = matches!(node.op, Op::Accumulate(_)) && bytes.is_none_or(|bytes| bytes >= least);
        (sums && module.phase_of(node.operands[0]).is_gradient()).then_some(id)
    };
    module.nodes().filter_map(is_sum).collect()
}

/// Moves the values, and adds the copies.
pub fn apply(module: &mut Module, options: &Offload, decision: &Decision) -> Result<Changed, Diagnostic> {
    let ill_typed = |error: TypeError| Diagnostic::new(format!("offload built an ill-typed copy: {error}"));
    let mut b = Builder::new(module, Offload::NAME);
    for &(state, tier) in &decision.states {
        b.tables().states[state].tier = tier;
    }
    decision.embeddings.iter().for_each(|&node| b.set_place(node, Tier::Host));
    for &sum in &decision.gradients {
        move_gradient(&mut b, sum).map_err(ill_typed)?;
    }
    activations::offload(&mut b, &decision.activations).map_err(ill_typed)?;
    let changed = b.finish();
    let fetched: BTreeSet<ValueId> = if options.classes.parameters {
        decision.states.iter().map(|(state, _)| module.states[*state].input).collect()
    } else {
        BTreeSet::new()
    };
    let copied = copies::add(module, &fetched).map_err(ill_typed)?;
    Ok(changed.or(copied).or(remove_dead(module, Offload::NAME)))
}

/// Copies a gradient to the host when it is complete, and sums it up there.
fn move_gradient(b: &mut Builder, sum: NodeId) -> Result<(), TypeError> {
    let gradient = b.module().node(sum).operands[0];
    let Definition::Node(maker, _) = b.module().value(gradient).definition else { return Ok(()) };
    if b.module().tier_of(gradient) == Tier::Host {
        b.set_place(sum, Tier::Host);
        return Ok(());
    }
    b.at(At::After(maker)).copy(0);
    let moved = copy_to(b, gradient, Tier::Host)?;
    b.set_operand(sum, 0, moved);
    b.set_place(sum, Tier::Host);
    Ok(())
}

/// Adds a copy of a value in another memory, with the same sharding.
fn copy_to(b: &mut Builder, value: ValueId, to: Tier) -> Result<ValueId, TypeError> {
    let sharding = b.ty(value).sharding.clone();
    b.place(Tier::Device);
    let copy = b.one(Copy { to }, &[value])?;
    b.shard(copy, sharding);
    Ok(copy)
}
