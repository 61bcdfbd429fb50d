//! A program: the tables of a module and the order of its nodes.
//!
//! Any code may read a module, but its nodes are changed only by [`crate::edit::Builder`], so that no derived table can go stale.
//! Use lists and the like are computed from the module when they are needed ([`Module::uses`]).

use crate::state::State;
use crate::{
    Data, DataId, Mesh, NodeId, Op, OperandRole, Phase, StageTable, StateId, StepOutput, Tier, Type, ValueId,
};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use smallvec::SmallVec;
use std::ops::Index;
use std::sync::Arc;

/// A program with everything it refers to.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name, usually the file's stem.
    pub name: String,
    /// The level of the program, which decides the invariants that the verifier checks.
    pub level: Level,
    /// The devices. In a pipeline, the devices of one stage.
    pub mesh: Mesh,
    /// The table of stages, if the program has several.
    pub pipeline: Option<StageTable>,
    /// Bytes of constants and initial states.
    pub data: PrimaryMap<DataId, Data>,
    /// The state table: everything that outlives a step.
    pub states: PrimaryMap<StateId, State>,
    /// The inputs of a step.
    pub inputs: Vec<Input>,
    /// The outputs of a step.
    pub outputs: Vec<Output>,
    pub(crate) values: PrimaryMap<ValueId, Value>,
    pub(crate) nodes: PrimaryMap<NodeId, Node>,
    /// Program order: definitions before uses, phases in order.
    pub(crate) order: Vec<NodeId>,
}

/// The levels of a program. Each level demands everything that the level before demands, and more. The exception is `Lowered`,
/// which demands less of float types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The forward graph.
    Imported,
    /// Forward, backward and update in one graph.
    Training,
    /// Every value sharded, every node on a stage, all communication explicit.
    Placed,
    /// Adapted to the kernels of a target, which cast floats as they read and write. Result types no longer follow from operators.
    Lowered,
}

impl Level {
    /// Every level with its name in text.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Imported, "imported"),
        (Self::Training, "training"),
        (Self::Placed, "placed"),
        (Self::Lowered, "lowered"),
    ];
}

/// A value and its definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The type of the value.
    pub ty: Type,
    /// The definition of the value.
    pub definition: Definition,
}

/// The definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Definition {
    /// The program's input with this index.
    Input(u32),
    /// The value of a state when the step begins.
    State(StateId),
    /// The result of a node with this index.
    Node(NodeId, u32),
}

/// One operation of the program. Attributes are in `op`, operands here.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operator.
    pub op: Op,
    /// The values that the node reads.
    pub operands: SmallVec<[ValueId; 4]>,
    /// The values that the node defines.
    pub results: SmallVec<[ValueId; 2]>,
    /// The phase in which the node runs.
    pub phase: Phase,
    /// The pipeline stage, or [`crate::EVERY_STAGE`].
    pub stage: u32,
    /// 0 for an original node; recomputed nodes count up. Nodes of different copies are never merged.
    pub copy: u32,
    /// The memory in which the node computes, [`Tier::Device`] or [`Tier::Host`]. Its operands and results lie there. An operator
    /// that copies between tiers has its destination as an attribute.
    pub place: Tier,
    /// The ONNX node (or `loss`, `optimizer`…) from which the node was made; empty if there is none.
    pub origin: Arc<str>,
    /// The last pass that changed the node.
    pub by: Arc<str>,
}

impl Node {
    /// Returns the memory in which the results lie.
    pub fn result_tier(&self) -> Tier {
        match &self.op {
            Op::Copy(copy) => copy.to,
            _ => self.place,
        }
    }

    /// Returns the roles of the operands, in their order. Panics if the operator does not take as many operands as the node has,
    /// which no verified program contains.
    pub fn roles(&self) -> SmallVec<[OperandRole; 8]> {
        let roles = self.op.operands().roles(self.operands.len());
        roles.unwrap_or_else(|| panic!("`{}` has {} operands", self.op.name(), self.operands.len()))
    }

    /// Returns the role of an operand.
    pub fn role(&self, index: usize) -> OperandRole {
        self.roles()[index]
    }

    /// Returns the first operand of a role, if the node has one. Use `node[role]` for a role that the operator always has.
    pub fn operand(&self, role: OperandRole) -> Option<ValueId> {
        let roles = self.op.operands().roles(self.operands.len())?;
        roles.iter().position(|&other| other == role).map(|index| self.operands[index])
    }
}

impl Index<OperandRole> for Node {
    type Output = ValueId;

    /// Returns the first operand of a role. Panics if the node has none.
    fn index(&self, role: OperandRole) -> &ValueId {
        let index = self.roles().iter().position(|&other| other == role);
        &self.operands[index.unwrap_or_else(|| panic!("`{}` has no operand `{role:?}`", self.op.name()))]
    }
}

/// An input of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Name, as in the file.
    pub name: String,
    /// The value of the input.
    pub value: ValueId,
    /// Whether dim 0 counts the samples of a microbatch. If not, every microbatch gets the same tensor.
    pub batched: bool,
    /// The stage that reads the input. It is [`crate::EVERY_STAGE`], except in the program of a pipeline rank.
    pub stage: u32,
}

/// An output of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Name, as in the file, or the name of a [`StepOutput`].
    pub name: String,
    /// The reported value. A value of a microbatch phase is reported once per microbatch, any other once a step.
    pub value: ValueId,
}

impl Module {
    /// Creates an empty program at level [`Level::Imported`] on one device.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            level: Level::Imported,
            mesh: Mesh::default(),
            pipeline: None,
            data: PrimaryMap::new(),
            states: PrimaryMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            values: PrimaryMap::new(),
            nodes: PrimaryMap::new(),
            order: Vec::new(),
        }
    }

    /// Adds an input.
    pub fn add_input(&mut self, name: impl Into<String>, ty: Type, batched: bool) -> ValueId {
        let definition = Definition::Input(self.inputs.len() as u32);
        let value = self.values.push(Value { ty, definition });
        self.inputs.push(Input { name: name.into(), value, batched, stage: crate::EVERY_STAGE });
        value
    }

    /// Adds an output.
    pub fn add_output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: name.into(), value });
    }

    /// Adds a state on the device tier, without a view and without a new value. Its value is `states[id].input`.
    pub fn add_state(
        &mut self,
        name: impl Into<String>,
        ty: Type,
        role: crate::Role,
        initializer: crate::Initializer,
    ) -> StateId {
        let id = self.states.next_key();
        let input = self.values.push(Value { ty: ty.clone(), definition: Definition::State(id) });
        self.states.push(State {
            name: name.into(),
            ty,
            role,
            initializer,
            tier: Tier::Device,
            view: crate::View::new(),
            stage: 0,
            input,
            output: None,
        })
    }

    /// Adds a row to the data table.
    pub fn add_data(&mut self, data: Data) -> DataId {
        self.data.push(data)
    }

    /// Returns the nodes in program order.
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// Returns a node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// Returns the nodes in program order, with their ids.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.order.iter().map(|&id| (id, &self.nodes[id]))
    }

    /// Returns a value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id]
    }

    /// Returns the type of a value.
    pub fn ty(&self, id: ValueId) -> &Type {
        &self.values[id].ty
    }

    /// Returns the node that defines a value, or `None` for inputs and states.
    pub fn producer(&self, id: ValueId) -> Option<&Node> {
        match self.values[id].definition {
            Definition::Node(node, _) => Some(&self.nodes[node]),
            _ => None,
        }
    }

    /// Returns the phase in which a value becomes known: `Forward` for inputs, `Prepare` for states, the node's phase for results.
    pub fn phase_of(&self, id: ValueId) -> Phase {
        match self.values[id].definition {
            Definition::Input(_) => Phase::Forward,
            Definition::State(_) => Phase::Prepare,
            Definition::Node(node, _) => self.nodes[node].phase,
        }
    }

    /// Returns the memory in which a value lies. Inputs lie on the device, and a state lies in its own tier.
    pub fn tier_of(&self, id: ValueId) -> Tier {
        match self.values[id].definition {
            Definition::Input(_) => Tier::Device,
            Definition::State(state) => self.states[state].tier,
            Definition::Node(node, _) => self.nodes[node].result_tier(),
        }
    }

    /// Returns the number of ids ever given to values, which is the length of a table indexed by [`ValueId`].
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of ids ever given to nodes, which is the length of a table indexed by [`NodeId`].
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Computes the nodes that read each value, in program order.
    pub fn uses(&self) -> SecondaryMap<ValueId, SmallVec<[NodeId; 2]>> {
        let mut uses: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>> = SecondaryMap::new();
        for (id, node) in self.nodes() {
            for &operand in &node.operands {
                if uses[operand].last() != Some(&id) {
                    uses[operand].push(id);
                }
            }
        }
        uses
    }

    /// Returns the types of a node's operands and results.
    pub fn signature(&self, node: &Node) -> crate::Signature {
        let types = |ids: &[ValueId]| ids.iter().map(|&id| self.ty(id).clone()).collect();
        crate::Signature { operands: types(&node.operands), results: types(&node.results) }
    }

    /// Returns the input of that name.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Returns the output of that name.
    pub fn output(&self, name: &str) -> Option<&Output> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// Returns an output that the compiler adds.
    pub fn step_output(&self, output: StepOutput) -> Option<&Output> {
        self.output(&output.to_string())
    }

    /// Returns the state of that name.
    pub fn state(&self, name: &str) -> Option<StateId> {
        self.states.iter().find(|(_, state)| state.name == name).map(|(id, _)| id)
    }

    /// Returns the values of all outputs and the new values of all states.
    pub fn roots(&self) -> impl Iterator<Item = ValueId> {
        let outputs = self.outputs.iter().map(|output| output.value);
        outputs.chain(self.states.values().filter_map(|state| state.output))
    }
}
