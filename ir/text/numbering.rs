//! Dense numbers for the values and data rows that a text shows.

use crate::ops::Op;
use crate::{DataId, Module, Node, ValueId};
use cranelift_entity::SecondaryMap;

/// The numbers under which a module's values and data rows are printed: inputs, then states, then results in program order; data
/// rows in table order. Dead values and unused rows have no number.
#[derive(Clone, Debug)]
pub struct Numbering {
    values: SecondaryMap<ValueId, Option<u32>>,
    data: SecondaryMap<DataId, Option<u32>>,
}

impl Numbering {
    /// Numbers all live values and rows. The ids in the module's order must be in range.
    pub fn of(module: &Module) -> Self {
        let inputs = module.inputs.iter().map(|input| input.value);
        let states = module.states.values().map(|state| state.input);
        let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
        let mut values = SecondaryMap::new();
        for (number, value) in inputs.chain(states).chain(results).enumerate() {
            values[value] = Some(number as u32);
        }
        let mut live: SecondaryMap<DataId, bool> = SecondaryMap::new();
        let initial = module.states.values().filter_map(|state| state.initializer.data());
        initial.chain(module.nodes().filter_map(|(_, node)| data_of(node))).for_each(|id| live[id] = true);
        let mut data = SecondaryMap::new();
        for (number, id) in module.data.keys().filter(|&id| live[id]).enumerate() {
            data[id] = Some(number as u32);
        }
        Self { values, data }
    }

    /// Returns `%12`, or `%?40` with the internal number for a value that no live node defines.
    pub fn value(&self, id: ValueId) -> String {
        self.values[id].map_or_else(|| format!("%?{}", id.as_u32()), |number| format!("%{number}"))
    }

    /// Returns `@3`, or `@?40` for a row that is not in the table.
    pub(crate) fn data(&self, id: DataId) -> String {
        self.data[id].map_or_else(|| format!("@?{}", id.as_u32()), |number| format!("@{number}"))
    }

    /// Whether a row of the data table is printed.
    pub(crate) fn is_live(&self, id: DataId) -> bool {
        self.data[id].is_some()
    }

    /// Returns `%12, %13 = op %4, %5`, the beginning of the node's line.
    pub(crate) fn node(&self, node: &Node) -> String {
        let list = |ids: &[ValueId]| ids.iter().map(|&id| self.value(id)).collect::<Vec<_>>().join(", ");
        let mut line = list(&node.results);
        if !node.results.is_empty() {
            line.push_str(" = ");
        }
        line.push_str(node.op.name());
        if !node.operands.is_empty() {
            line.push(' ');
            line.push_str(&list(&node.operands));
        }
        line
    }
}

/// Returns the row of the data table that a node reads.
pub(crate) fn data_of(node: &Node) -> Option<DataId> {
    match &node.op {
        Op::Constant(constant) => Some(constant.data),
        _ => None,
    }
}
