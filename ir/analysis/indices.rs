//! Indices that are computed from constants and inputs alone, and the bounds check against the dims that they index.
//!
//! In the IR, an index outside of its dim reads zeros; split dims rely on this. In the ONNX file such an index is an error, as in
//! PyTorch and in ONNX Runtime. The indices of this module can be computed beside the program, from the inputs of a batch, so that
//! a bad batch is refused before a device sees it:
//!
//!     position = ids + 2          ids i64[4, 5], an input
//!     row = gather table, position      table f32[10, 6]: an index 11 is outside
//!
//! Indices that depend on a parameter are not covered. The importer makes no gather that reads zeros outside of a dim on purpose,
//! except for the ignored labels of a loss: the program compares them with the ignored number.

use crate::ops::Interp;
use crate::ops::elementwise::Compare;
use crate::{
    Definition, Module, Movement, NodeId, Op, OperandRole, Operator, Signature, Tensor, Type, ValueId,
};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The indices that a node reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indices {
    /// The node.
    pub reader: NodeId,
    /// The indices.
    pub value: ValueId,
    /// The nodes that compute the indices, in program order.
    pub nodes: Vec<NodeId>,
    /// The inputs from which the indices are computed, by their place in the list of inputs. Empty if the indices are constant.
    pub inputs: BTreeSet<u32>,
    /// The sizes of the indexed dims: one size for all indices, or one for each component of the last dim.
    pub sizes: Vec<u64>,
    /// Numbers that may lie outside of the dim: the label that a loss ignores, and numbers that the program compares the indices
    /// with. If this list is empty, negative indices count from the end of the dim; otherwise a negative index must be in the
    /// list.
    pub apart: Vec<i64>,
}

/// An index outside of its dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The index.
    pub index: i64,
    /// The size of the dim.
    pub size: u64,
    /// The place of the index among all elements of the indices, and the number of elements.
    pub place: [usize; 2],
}

/// The most operations that computing the indices of a node may take. More are not worth a check.
const MOST_FLOPS: u64 = 1 << 26;
/// The most elements of an intermediate value of that computation.
const MOST_ELEMENTS: u64 = 1 << 24;

/// Returns the indices of a program's forward phase that depend on no state. Leaves out an input that a gather or a loss reads
/// directly: its bounds are checked with the data.
pub fn of_inputs(module: &Module) -> Vec<Indices> {
    let mut of = Sources { module, known: SecondaryMap::new() };
    let forward = module.nodes().filter(|(_, node)| node.phase <= crate::Phase::Forward);
    forward.filter_map(|(id, _)| of.indices(id)).collect()
}

/// Finds the nodes and inputs that a value is computed from.
struct Sources<'m> {
    module: &'m Module,
    /// The nodes and inputs behind each visited value. The inner `None` means that the value depends on a state, on random numbers
    /// or on missing bytes, or takes too much work.
    known: SecondaryMap<ValueId, Option<Option<Source>>>,
}

#[derive(Clone, Debug, Default)]
struct Source {
    nodes: BTreeSet<NodeId>,
    inputs: BTreeSet<u32>,
    flops: u64,
}

impl Sources<'_> {
    fn indices(&mut self, reader: NodeId) -> Option<Indices> {
        let module = self.module;
        let node = module.node(reader);
        let role =
            if matches!(node.op, Op::CrossEntropy(_)) { OperandRole::Labels } else { OperandRole::Indices };
        let size = |dim: u32| module.ty(node[OperandRole::Data]).dims.get(dim as usize)?.size();
        let components = |first: u32| {
            let depth = module.ty(node[OperandRole::Indices]).dims.last()?.size()? as u32;
            (first..first + depth).map(size).collect::<Option<Vec<u64>>>()
        };
        let sizes = match &node.op {
            Op::Gather(gather) => vec![size(gather.dim)?],
            Op::GatherElements(gather) => vec![size(gather.dim)?],
            Op::ScatterElements(scatter) => vec![size(scatter.dim)?],
            Op::GatherNd(gather) => components(gather.batch_dims)?,
            Op::ScatterNd(scatter) => components(scatter.batch_dims)?,
            Op::CrossEntropy(_) => vec![module.ty(node[OperandRole::Data]).dims.last()?.size()?],
            _ => return None,
        };
        let value = node[role];
        let mut apart = self.compared_with(value);
        if let Op::CrossEntropy(loss) = &node.op {
            apart.push(loss.ignore_index);
        }
        let is_input =
            matches!(module.value(module.viewed(value, Movement::is_view)).definition, Definition::Input(_));
        if is_input && matches!(node.op, Op::Gather(_) | Op::CrossEntropy(_)) {
            return None;
        }
        let source = self.of(value)?;
        let order = module.order().iter().copied();
        let nodes = order.filter(|node| source.nodes.contains(node)).collect();
        Some(Indices { reader, value, nodes, inputs: source.inputs, sizes, apart })
    }

    /// Returns the numbers that a program compares a value with; views of the value count as the value.
    fn compared_with(&self, value: ValueId) -> Vec<i64> {
        let module = self.module;
        let source = |value: ValueId| module.viewed(value, Movement::is_view);
        let equal = module.nodes().filter(|(_, node)| matches!(node.op, Op::Compare(Compare::Equal)));
        let reads =
            equal.filter(|(_, node)| node.operands.iter().any(|&operand| source(operand) == source(value)));
        let numbers = reads
            .flat_map(|(_, node)| node.operands.iter().filter_map(|&operand| module.splat_number(operand)));
        numbers.map(|number| number as i64).collect()
    }

    /// Returns the nodes and inputs behind a value, or `None` if it cannot be computed beside the program.
    fn of(&mut self, value: ValueId) -> Option<Source> {
        let mut left = vec![value];
        while let Some(&at) = left.last() {
            if self.known[at].is_some() {
                left.pop();
                continue;
            }
            let unknown: Vec<ValueId> = match self.module.value(at).definition {
                Definition::Node(id, _) => {
                    let operands = self.module.node(id).operands.iter().copied();
                    operands.filter(|&operand| self.known[operand].is_none()).collect()
                }
                Definition::Input(_) | Definition::State(_) => vec![],
            };
            if unknown.is_empty() {
                let source = self.joined(at);
                self.known[at] = Some(source);
                left.pop();
            }
            left.extend(unknown);
        }
        self.known[value].clone().flatten()
    }

    /// Returns the nodes and inputs behind a value whose operands' sources are known.
    fn joined(&self, value: ValueId) -> Option<Source> {
        let module = self.module;
        let is_small = |value: ValueId| module.ty(value).numel().is_some_and(|numel| numel <= MOST_ELEMENTS);
        let id = match module.value(value).definition {
            Definition::Input(input) => {
                return is_small(value).then(|| Source { inputs: [input].into(), ..Source::default() });
            }
            Definition::State(_) => return None,
            Definition::Node(id, _) => id,
        };
        let node = module.node(id);
        let is_missing = match &node.op {
            Op::Constant(constant) => module.data[constant.data].bytes().is_none(),
            op => matches!(op, Op::Dropout(_) | Op::RandomUniform(_)),
        };
        if is_missing || !node.results.iter().copied().all(is_small) {
            return None;
        }
        let types =
            |values: &[ValueId]| values.iter().map(|&value| module.ty(value).clone()).collect::<Vec<Type>>();
        let signature = Signature { operands: types(&node.operands), results: types(&node.results) };
        let mut source =
            Source { nodes: [id].into(), flops: node.op.cost(&signature).flops, ..Source::default() };
        for &operand in &node.operands {
            let Source { nodes, inputs, flops } = self.known[operand].as_ref()?.as_ref()?;
            source.nodes.extend(nodes);
            source.inputs.extend(inputs);
            source.flops = source.flops.saturating_add(*flops);
        }
        (source.flops <= MOST_FLOPS).then_some(source)
    }
}

impl Indices {
    /// Computes all nodes behind the indices whose operands are among the values, and adds their results.
    pub fn compute(&self, module: &Module, values: &mut BTreeMap<ValueId, Arc<Tensor>>) {
        for &id in &self.nodes {
            let node = module.node(id);
            let is_known = |value: &ValueId| values.contains_key(value);
            if node.results.iter().all(is_known) || !node.operands.iter().all(is_known) {
                continue;
            }
            let results: Vec<Type> = node.results.iter().map(|&result| module.ty(result).clone()).collect();
            let operands: Vec<&Tensor> = node.operands.iter().map(|operand| &*values[operand]).collect();
            let cx = Interp { operands: &operands, results: &results, data: &module.data, parts: None };
            let made = node.op.interp(&cx).into_iter().map(Arc::new);
            values.extend(node.results.iter().copied().zip(made));
        }
    }

    /// Returns the first index of a batch that is outside of its dim. `values` has the inputs of the batch; computed values are
    /// added to it. `None` if no index is outside, or if the values do not suffice.
    pub fn outside(&self, module: &Module, values: &mut BTreeMap<ValueId, Arc<Tensor>>) -> Option<Outside> {
        self.compute(module, values);
        let indices = values.get(&self.value)?.ints();
        let is_outside = |(place, &index): (usize, &i64)| {
            let size = self.sizes[place % self.sizes.len()];
            let bounds = i128::from(size);
            let lowest = if self.apart.is_empty() { -bounds } else { 0 };
            let is_inside = (lowest..bounds).contains(&i128::from(index)) || self.apart.contains(&index);
            (!is_inside).then_some(Outside { index, size, place: [place, indices.len()] })
        };
        indices.iter().enumerate().find_map(is_outside)
    }

    /// Returns the tensor that is indexed as text: its state's name, if it has one, and its type.
    pub fn described(&self, module: &Module) -> String {
        let node = module.node(self.reader);
        let data = node[OperandRole::Data];
        let ty = module.ty(data);
        match module.value(module.viewed(data, Movement::is_view)).definition {
            Definition::State(state) => format!("`{}` {ty}", module.states[state].name),
            Definition::Input(_) | Definition::Node(..) => ty.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn module() -> Module {
        crate::text::parse(
            "trainyard-ir 1
module @m imported {
  state @table : f32[10, 6] parameter = zeros
  func @forward(%0 \"x\" batched : i64[2, 2], %1 = @table) {
    %2 = splat {value = 2} : i64[] !{fwd}
    %3 = add %0, %2 : i64[2, 2] !{fwd}
    %4 = gather %1, %3 {dim = 0} : f32[2, 2, 6] !{fwd, origin \"emb (Gather, opset 17)\"}
    %5 = gather %1, %0 {dim = 0} : f32[2, 2, 6] !{fwd, origin \"emb (Gather, opset 17)\"}
  }
  output \"y\" = %4
  output \"z\" = %5
}",
        )
        .expect("the program is valid")
    }

    #[test]
    fn an_index_that_is_computed_from_an_input_is_found_outside_of_the_table() {
        let module = module();
        let [indices] = &of_inputs(&module)[..] else { panic!("one gather reads computed indices") };
        assert_eq!((&indices.sizes[..], indices.nodes.len(), indices.inputs.len()), (&[10][..], 2, 1));
        let outside = |ids: &[i64]| {
            let x = Tensor::int(DType::I64, vec![2, 2], ids.to_vec());
            indices.outside(&module, &mut [(module.inputs[0].value, Arc::new(x))].into())
        };
        assert_eq!(outside(&[0, 7, -12, 1]), None);
        assert_eq!(outside(&[0, 7, 8, 9]), Some(Outside { index: 10, size: 10, place: [2, 4] }));
        assert_eq!(outside(&[0, -13, 0, 0]).map(|outside| outside.index), Some(-11));
        assert_eq!(indices.described(&module), "`table` f32[10, 6]");
    }
}
