//! Gives stages to the nodes that passes add to a program with stages, and adds transfers between stages.
//!
//! Forward and backward nodes keep the stage that their pass gave them. Constants, and small values that depend only on inputs and
//! counters, are on every stage. Other scalars are computed on the last stage that makes one of their operands. So a norm is summed up
//! stage by stage, in the order of the parameters. Where a node reads a value of another stage, a transfer is added, one for each value
//! and stage. The reports of a step are sent to all pipeline ranks.
//!
//! In an asynchronous schedule, an update must not wait for the update of an earlier stage, which comes later in time. There, scalars of
//! the update are computed on the first stage that makes one of their operands, and reports are sent to the first stage alone.

use ir::ops::transfer::Transfer;
use ir::{
    At, Builder, Changed, Definition, EVERY_STAGE, Module, Node, NodeId, Op, Operator, Phase, Role,
    ScalarPart, StateId, StepOutput, TypeError, ValueId,
};
use std::collections::BTreeMap;

/// Gives every node of a program with stages its stage, and adds the transfers.
pub(crate) fn settle(module: &mut Module, by: &str) -> Result<Changed, TypeError> {
    if module.pipeline.is_none() {
        return Ok(Changed::No);
    }
    let stages = without_idle_transfers(module, by);
    let mut b = Builder::new(module, by);
    stages.nodes.iter().for_each(|(&id, &stage)| b.set_stage(id, stage));
    stages.states.iter().for_each(|(&id, &stage)| b.tables().states[id].stage = stage);
    let mut transfers = Transfers::of(b);
    for id in transfers.b.module().order().to_vec() {
        transfers.node(id)?;
    }
    transfers.states()?;
    transfers.reports()?;
    Ok(transfers.b.finish())
}

/// Finds the stages of a program after removing transfers of values that every stage has. For example, the gradient of a mean of one
/// number is a constant.
fn without_idle_transfers(module: &mut Module, by: &str) -> Stages {
    loop {
        let stages = Stages::of(module);
        if !remove_idle(module, by, |module, value| stages.of_value(module, value)) {
            return stages;
        }
    }
}

/// Removes the transfers of values that every stage has. They are left over when a pass replaces a computed value by an input. The nodes
/// must have their stages.
pub(crate) fn remove_idle_transfers(module: &mut Module, by: &str) {
    while remove_idle(module, by, Module::stage_of) {}
}

/// Removes the transfers of values that every stage has. Returns whether there were any.
fn remove_idle(module: &mut Module, by: &str, stage_of: impl Fn(&Module, ValueId) -> u32) -> bool {
    let is_idle =
        |node: &Node| matches!(node.op, Op::Transfer(_)) && stage_of(module, node.operands[0]) == EVERY_STAGE;
    let idle: Vec<NodeId> = module.nodes().filter(|(_, node)| is_idle(node)).map(|(id, _)| id).collect();
    let mut b = Builder::new(module, by);
    for &id in &idle {
        let node = b.module().node(id);
        let (sent, received) = (node.operands[0], node.results[0]);
        b.replace(received, sent);
        b.remove(id);
    }
    b.finish();
    !idle.is_empty()
}

/// The most operations for an element of the result in a node that every stage computes itself.
const FEW: u64 = 8;

/// Whether every stage can compute a node itself: it is cheap, or no microbatch computes it.
pub(crate) fn is_cheap(module: &Module, node: &Node) -> bool {
    let signature = module.signature(node);
    let elements = signature.results.iter().map(|ty| ty.numel().unwrap_or(1)).max().unwrap_or(0);
    let reduces = signature.operands.iter().any(|ty| ty.numel().unwrap_or(1) > FEW * elements.max(1));
    node.op.cost(&signature).flops <= FEW * elements && !reduces || !node.phase.is_microbatch()
}

/// The stages of nodes and states.
struct Stages {
    nodes: BTreeMap<NodeId, u32>,
    states: BTreeMap<StateId, u32>,
}

impl Stages {
    /// Finds the stages, starting from the states. A counter is on every stage if every stage can compute its new value.
    fn of(module: &Module) -> Self {
        let counts = |role: Role| matches!(role, Role::Counter | Role::Rng);
        let first = |state: &ir::State| if counts(state.role) { EVERY_STAGE } else { state.stage };
        let mut states: BTreeMap<StateId, u32> =
            module.states.iter().map(|(id, state)| (id, first(state))).collect();
        let sum = |class| module.step_output(StepOutput::loss(class, ScalarPart::Sum));
        let sums: Vec<ValueId> = (0..).map_while(sum).map(|output| output.value).collect();
        loop {
            let nodes = nodes(module, &states);
            let mut changed = false;
            // Backward multiplies by the loss scale on the last stage that computes a class of the loss. This stage may have no gradients.
            let of_sums = sums.iter().map(|&value| of(module, &nodes, &states, value));
            let of_loss = of_sums.filter(|&stage| stage != EVERY_STAGE).max();
            for (id, state) in module.states.iter().filter(|(_, state)| is_small(module, state.input)) {
                let Some(Definition::Node(maker, _)) =
                    state.output.map(|value| module.value(value).definition)
                else {
                    continue;
                };
                let follows = counts(state.role) || state.role == Role::Scaler;
                let mut stage = nodes[&maker];
                if state.role == Role::Scaler && stage != EVERY_STAGE {
                    stage = stage.max(of_loss.unwrap_or(0));
                }
                if follows && states[&id] != stage && stage != EVERY_STAGE {
                    changed |= states.insert(id, stage) != Some(stage);
                }
            }
            if !changed {
                return Self { nodes, states };
            }
        }
    }

    fn of_value(&self, module: &Module, value: ValueId) -> u32 {
        of(module, &self.nodes, &self.states, value)
    }
}

/// Returns the stage of a value, given the stages of nodes and states.
fn of(
    module: &Module,
    nodes: &BTreeMap<NodeId, u32>,
    states: &BTreeMap<StateId, u32>,
    value: ValueId,
) -> u32 {
    match module.value(value).definition {
        Definition::Input(_) => EVERY_STAGE,
        Definition::State(state) => states[&state],
        Definition::Node(maker, _) => nodes[&maker],
    }
}

fn is_small(module: &Module, value: ValueId) -> bool {
    module.ty(value).ndim() == 0
}

/// Returns the stage of each node, given the stages of the states.
fn nodes(module: &Module, states: &BTreeMap<StateId, u32>) -> BTreeMap<NodeId, u32> {
    let mut nodes = BTreeMap::new();
    let is_asynchronous = module.pipeline.as_ref().is_some_and(ir::StageTable::is_asynchronous);
    for (id, node) in module.nodes() {
        let stages = node.operands.iter().map(|&value| of(module, &nodes, states, value));
        let stages = stages.filter(|&stage| stage != EVERY_STAGE);
        let last = if is_asynchronous && node.phase == Phase::Update { stages.min() } else { stages.max() };
        let is_scalar = node.results.iter().all(|&value| is_small(module, value));
        let stage = match (&node.op, last) {
            (Op::Transfer(_), _) => node.stage,
            (_, None) if is_cheap(module, node) => EVERY_STAGE,
            (Op::Adam(_) | Op::Adam8bit(_) | Op::Sgd(_) | Op::Adagrad(_) | Op::Lion(_), _) => node.stage,
            (_, Some(last)) if is_scalar || node.stage == EVERY_STAGE => last,
            _ => node.stage,
        };
        nodes.insert(id, stage);
    }
    nodes
}

/// The transfers of a program, each made once.
struct Transfers<'m> {
    b: Builder<'m>,
    /// The copy of a value on another stage, by value and stage.
    made: BTreeMap<(ValueId, u32), ValueId>,
}

impl<'m> Transfers<'m> {
    fn of(b: Builder<'m>) -> Self {
        let module = b.module();
        let known = module.nodes().filter(|(_, node)| matches!(node.op, Op::Transfer(_)));
        let made = known.map(|(_, node)| ((node.operands[0], node.stage), node.results[0])).collect();
        Self { b, made }
    }

    fn node(&mut self, id: NodeId) -> Result<(), TypeError> {
        let node = self.b.module().node(id).clone();
        if matches!(node.op, Op::Transfer(_)) {
            return Ok(());
        }
        for (index, &operand) in node.operands.iter().enumerate() {
            let value = self.on(operand, node.stage)?;
            if value != operand {
                self.b.set_operand(id, index, value);
            }
        }
        Ok(())
    }

    /// Returns the value on a stage.
    fn on(&mut self, value: ValueId, stage: u32) -> Result<ValueId, TypeError> {
        let from = self.b.module().stage_of(value);
        if from == EVERY_STAGE || from == stage {
            return Ok(value);
        }
        if let Some(&known) = self.made.get(&(value, stage)) {
            return Ok(known);
        }
        let b = &mut self.b;
        match b.module().value(value).definition {
            Definition::Node(maker, _) => b.at(At::After(maker)),
            Definition::State(state) => {
                let phase = if is_of_microbatch(b.module(), state) { Phase::Forward } else { Phase::Prepare };
                b.at(At::Start(phase)).origin("")
            }
            Definition::Input(_) => b.at(At::Start(Phase::Forward)).origin(""),
        };
        let there = b.stage(stage).copy(0).one(Transfer, &[value])?;
        self.made.insert((value, stage), there);
        Ok(there)
    }

    /// Sends the new values of states to the stages of the states.
    fn states(&mut self) -> Result<(), TypeError> {
        let states: Vec<StateId> = self.b.module().states.keys().collect();
        for id in states {
            let (output, stage) = (self.b.module().states[id].output, self.b.module().states[id].stage);
            let Some(output) = output.filter(|_| stage != EVERY_STAGE) else { continue };
            let there = self.on(output, stage)?;
            self.b.tables().states[id].output = Some(there);
        }
        Ok(())
    }

    /// Sends the numbers that a step reports to the first stage of each pipeline rank, unless one of its stages has them already.
    fn reports(&mut self) -> Result<(), TypeError> {
        let module = self.b.module();
        let Some(pipeline) = module.pipeline.clone() else { return Ok(()) };
        let is_report = |output: &&ir::Output| {
            module.phase_of(output.value) == Phase::Update && StepOutput::gradient_of(&output.name).is_none()
        };
        let reports: Vec<ValueId> =
            module.outputs.iter().filter(is_report).map(|output| output.value).collect();
        for value in reports {
            let from = self.b.module().stage_of(value);
            let ranks = if pipeline.is_asynchronous() { 1 } else { pipeline.ranks() };
            for rank in (0..ranks).filter(|_| from != EVERY_STAGE) {
                let has = |stage: u32| stage == from || self.made.contains_key(&(value, stage));
                if !pipeline.stages_of(rank).any(has)
                    && let Some(first) = pipeline.stages_of(rank).next()
                {
                    self.on(value, first)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether every microbatch gives a state a new value.
fn is_of_microbatch(module: &Module, state: StateId) -> bool {
    module.states[state].output.is_some_and(|output| module.phase_of(output).is_microbatch())
}
