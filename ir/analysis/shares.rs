//! The bytes on each device of a mesh, the bytes on a single device without a mesh, and the bytes that each axis of the mesh saves.

use crate::{
    AxisId, AxisRole, Definition, Mesh, Module, Movement, NodeId, Op, Phase, Role, State, Type, ValueId,
};
use serde::Serialize;
use std::collections::BTreeSet;

/// The memory of a device, kind by kind, in bytes. The names of the fields are keys of `plan.json` and of `inspect --format json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// The weights that microbatches read: parameters, or values that are computed from parameters once in each step.
    pub parameters: Share,
    /// The gradients, summed over the microbatches.
    pub gradients: Share,
    /// The states that only the update reads: those of the optimizer, and parameters of which microbatches read a copy.
    pub optimizer: Share,
    /// The results of a microbatch's forward pass that its backward pass reads.
    pub activations: Share,
}

/// Bytes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The bytes on one device alone. In a pipeline, this device has the stages of the rank alone.
    pub one_device: u64,
    /// The bytes on each device of the mesh.
    pub device: u64,
    /// The bytes that tensor axes save.
    pub saved_by_tensor: u64,
    /// The further bytes that expert axes save. They split the batch of activations. Of all other tensors they split the experts, and the
    /// tensors that ZeRO shards over these axes.
    pub saved_by_expert: u64,
    /// The further bytes that data axes save. They split the batch of activations, and the other tensors by ZeRO.
    pub saved_by_data: u64,
}

impl Shares {
    /// Returns the bytes that each device of a program holds.
    pub fn of(module: &Module) -> Self {
        Self::with(module, module.states.values())
    }

    /// Returns the bytes that each device of a pipeline rank holds. `module` is the program of [`Module::of_pipeline_rank`], which lists
    /// the states of all ranks.
    pub fn of_pipeline_rank(module: &Module, rank: u32) -> Self {
        let is_own = |state: &&State| module.pipeline_ranks_with(state).contains(&rank);
        Self::with(module, module.states.values().filter(is_own))
    }

    /// Returns the bytes that each device of a program with these states holds.
    fn with<'m>(module: &'m Module, states: impl Iterator<Item = &'m State>) -> Self {
        let roots = Roots::of(module);
        let read = roots.read(|phase| phase.is_microbatch());
        let mut shares = Self::default();
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
            // The loss and the weight of a step are sums over the microbatches too, but they are scalars.
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

    /// Returns the kinds with their names.
    pub fn named(&self) -> [(&'static str, Share); 4] {
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
        // The bytes of a device if only the axes of these roles split the tensor.
        let over = |roles: &[AxisRole]| {
            let mut ty = ty.clone();
            let is_of_role = |axis: &AxisId| roles.contains(&module.mesh.axes[*axis].role);
            ty.sharding.dims.iter_mut().for_each(|axes| axes.retain(|axis| is_of_role(axis)));
            local_bytes(&ty, &module.mesh)
        };
        let (whole, device) = (over(&[]), local_bytes(ty, &module.mesh));
        let over_tensor = over(&[AxisRole::Tensor]);
        let over_experts = over(&[AxisRole::Tensor, AxisRole::Expert]);
        for (sum, bytes) in [
            (&mut self.one_device, whole),
            (&mut self.device, device),
            (&mut self.saved_by_tensor, whole.saturating_sub(over_tensor)),
            (&mut self.saved_by_expert, over_tensor.saturating_sub(over_experts)),
            (&mut self.saved_by_data, over_experts.saturating_sub(device)),
        ] {
            *sum = sum.saturating_add(bytes);
        }
    }
}

/// Returns the bytes of the part of a tensor that one device holds.
fn local_bytes(ty: &Type, mesh: &Mesh) -> u64 {
    ty.local_bytes(mesh).unwrap_or(u64::MAX)
}

/// The values of a program that hold bytes of their own. A view stands for the value behind it.
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

    /// The values that nodes of some phases read.
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
