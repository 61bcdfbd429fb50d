//! What each device of a mesh holds, against what one device alone would: what the axes save.

use super::collectives::local_bytes;
use super::units::bytes;
use ir::{
    AxisRole, Definition, Mesh, Module, Movement, NodeId, Op, Phase, Role, Sharding, State, Type, ValueId,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// The memory of a device, kind by kind, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// What the microbatches read of the weights: the parameters, or what was made of them once a step.
    pub parameters: Share,
    /// Gradients, as they are summed over the microbatches.
    pub gradients: Share,
    /// What only the update reads: the optimizer's states, and parameters of which the microbatches read a copy.
    pub optimizer: Share,
    /// What a microbatch's backward pass reads of its forward pass.
    pub activations: Share,
}

/// Bytes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// On one device alone; in a pipeline, on a device with the stages of the rank alone.
    pub one_device: u64,
    /// On each device of the mesh.
    pub device: u64,
    /// What tensor axes save of it.
    pub saved_by_tensor: u64,
    /// What expert axes save of the rest: of activations the batch that is split, of all else the experts, and what ZeRO shards
    /// over these axes.
    pub saved_by_expert: u64,
    /// What data axes save of the rest: of activations the batch that is split, of all else ZeRO.
    pub saved_by_data: u64,
}

impl Shares {
    /// The bytes that each device of a program holds.
    pub fn of(module: &Module) -> Self {
        Self::with(module, module.states.values())
    }

    /// The bytes that each device of a pipeline rank holds. `module` is the program of [`Module::of_pipeline_rank`], which lists the states of
    /// all ranks.
    pub(super) fn of_pipeline_rank(module: &Module, rank: u32) -> Self {
        let is_own = |state: &&State| module.pipeline_ranks_with(state).contains(&rank);
        Self::with(module, module.states.values().filter(is_own))
    }

    /// The bytes that each device of a program with these states holds.
    fn with<'m>(module: &'m Module, states: impl Iterator<Item = &'m State>) -> Self {
        let roots = Roots::of(module);
        let read = roots.read(|phase| phase.is_microbatch());
        let mut shares = Self {
            parameters: Share::default(),
            gradients: Share::default(),
            optimizer: Share::default(),
            activations: Share::default(),
        };
        for state in states {
            let share = match state.role {
                Role::Parameter if read.contains(&state.input) => &mut shares.parameters,
                Role::Parameter | Role::Optimizer => &mut shares.optimizer,
                _ => continue,
            };
            share.add(module, &state.ty);
        }
        for &value in &read {
            if roots.is_made_in(value, Phase::Prepare) {
                shares.parameters.add(module, module.ty(value));
            }
        }
        for (_, node) in module.nodes() {
            // Loss and weight of a step are sums over the microbatches too, and scalars.
            if let (Op::Accumulate(_), ty) = (&node.op, module.ty(node.results[0]))
                && ty.ndim() > 0
            {
                shares.gradients.add(module, ty);
            }
        }
        for value in roots.read(Phase::is_gradient) {
            if roots.is_made_in(value, Phase::Forward) {
                shares.activations.add(module, module.ty(value));
            }
        }
        shares
    }

    /// The kinds with their names.
    pub(super) fn named(&self) -> [(&'static str, Share); 4] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
        ]
    }
}

impl Share {
    fn add(&mut self, module: &Module, ty: &Type) {
        let whole = local_bytes(&Type { sharding: Sharding::default(), ..ty.clone() }, &module.mesh);
        let over = |roles: &[AxisRole]| local_bytes(&split_by(ty, &module.mesh, roles), &module.mesh);
        let over_tensor = over(&[AxisRole::Tensor]);
        let over_experts = over(&[AxisRole::Tensor, AxisRole::Expert]);
        let device = local_bytes(ty, &module.mesh);
        self.one_device += whole;
        self.device += device;
        self.saved_by_tensor += whole - over_tensor;
        self.saved_by_expert += over_tensor - over_experts;
        self.saved_by_data += over_experts - device;
    }
}

/// The type with the axes of some roles alone.
fn split_by(ty: &Type, mesh: &Mesh, roles: &[AxisRole]) -> Type {
    let mut ty = ty.clone();
    let dims = ty.sharding.dims.iter_mut();
    dims.for_each(|axes| axes.retain(|axis| roles.contains(&mesh.axes[*axis].role)));
    ty
}

/// The values that hold bytes of their own: views are what they look at.
struct Roots<'m> {
    module: &'m Module,
    /// The nodes of the program. A pipeline rank receives values from nodes that are not among its own.
    nodes: BTreeSet<NodeId>,
}

impl<'m> Roots<'m> {
    fn of(module: &'m Module) -> Self {
        Self { module, nodes: module.order().iter().copied().collect() }
    }

    fn root(&self, value: ValueId) -> ValueId {
        self.module.viewed(value, Movement::is_layout)
    }

    /// What nodes of some phases read.
    fn read(&self, of: impl Fn(Phase) -> bool) -> BTreeSet<ValueId> {
        let nodes = self.module.nodes().filter(|(_, node)| of(node.phase));
        nodes.flat_map(|(_, node)| &node.operands).map(|&value| self.root(value)).collect()
    }

    fn is_made_in(&self, value: ValueId, phase: Phase) -> bool {
        match self.module.value(value).definition {
            Definition::Node(node, _) => self.nodes.contains(&node) && self.module.node(node).phase == phase,
            Definition::Input(_) | Definition::State(_) => false,
        }
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\neach device holds")?;
        for (name, share) in self.named() {
            let Share { one_device, device, saved_by_tensor, saved_by_expert, saved_by_data } = share;
            let by_data = if name == "activations" { "dp" } else { "ZeRO" };
            let saved = [("tp", saved_by_tensor), ("ep", saved_by_expert), (by_data, saved_by_data)];
            let saved = saved.iter().filter(|(_, saved)| *saved > 0);
            let saved = saved.map(|(by, saved)| format!("{by} saves {}", bytes(*saved))).collect::<Vec<_>>();
            let saved = if saved.is_empty() { String::new() } else { format!(": {}", saved.join(", ")) };
            writeln!(f, "  {name:11}  {:>10} of {:>10}{saved}", bytes(device), bytes(one_device))?;
        }
        Ok(())
    }
}
