//! Constants of a program: the values that depend on nothing that changes, their numbers, and the content of stored bytes.

use cranelift_entity::SecondaryMap;
use ir::ops::Interp;
use ir::{Blob, Claim, Data, DataId, Module, Node, NodeId, Op, Operator, Tensor, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The part of a value that is known before the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Constness {
    /// The whole value.
    Constant,
    /// The whole value, but it holds floats that may be a parameter. A parameter is never folded away.
    Weight,
    /// Nothing: the value depends on an input, a state, a random number or a sum over microbatches, is too large, or its bytes are not
    /// here.
    Nothing,
}

/// The most elements of a computed constant. The program computes larger tensors itself, so that it need not carry them.
const MAX_ELEMENTS: u64 = 1 << 23;

/// Whether a data row may hold a parameter: floats of the file, and more than one element unless its claim says that it may be trained.
pub(crate) fn is_candidate(data: &Data) -> bool {
    let single = data.ty.ndim() == 0 || data.ty.numel().is_none_or(|count| count <= 1);
    let may_be = !single || data.claim.is_some_and(Claim::may_be_trained);
    data.ty.dtype.is_float() && may_be && matches!(data.blob, Blob::File(_))
}

/// The constants of a module: [`Constness`] of every value, and values on demand.
///
/// Floats are computed in f64. Integers and booleans that are made of floats are computed from the floats rounded to their types: a
/// position that is 2 in f32 and 1.9999999 in f64 is 2.
pub(crate) struct Constants<'m> {
    module: &'m Module,
    known: Vec<Constness>,
    /// The place of each node in program order.
    position: SecondaryMap<NodeId, u32>,
    values: BTreeMap<ValueId, Arc<Tensor>>,
    /// Floats computed in their types, where they differ from the f64 values.
    typed: BTreeMap<ValueId, Tensor>,
    /// The node of each computation that has run. Layers often repeat the computation of a mask.
    run: BTreeMap<Computation, &'m Node>,
    /// For each value that an earlier node has computed, the result of that node.
    first: BTreeMap<ValueId, ValueId>,
}

/// An operator, its operands and the types of its results.
type Computation = (Op, Vec<ValueId>, Vec<Type>);

impl<'m> Constants<'m> {
    /// Classifies the results of all nodes, in one pass.
    pub(crate) fn new(module: &'m Module) -> Self {
        let known = vec![Constness::Nothing; module.value_count()];
        let (values, typed, run, first) = Default::default();
        let mut constants = Self { module, known, position: SecondaryMap::new(), values, typed, run, first };
        for (position, (id, node)) in module.nodes().enumerate() {
            constants.position[id] = position as u32;
            for &result in &node.results {
                constants.known[result.as_u32() as usize] = constants.known_result(node, module.ty(result));
            }
        }
        constants
    }

    /// Returns the known part of a value.
    pub(crate) fn known(&self, value: ValueId) -> Constness {
        self.known[value.as_u32() as usize]
    }

    fn known_result(&self, node: &Node, ty: &Type) -> Constness {
        if ty.numel().is_none_or(|count| count > MAX_ELEMENTS) && !matches!(node.op, Op::Constant(_)) {
            return Constness::Nothing;
        }
        let own = match &node.op {
            Op::Constant(constant) => match &self.module.data[constant.data] {
                data if data.bytes().is_none() && !is_candidate(data) => Constness::Nothing,
                data if is_candidate(data) => Constness::Weight,
                _ => Constness::Constant,
            },
            // A dropout depends on the numbers of its samples, which are not known here.
            Op::Accumulate(_) | Op::Dropout(_) | Op::RandomUniform(_) => Constness::Nothing,
            _ => Constness::Constant,
        };
        let known = node.operands.iter().map(|&value| self.known(value)).fold(own, Constness::max);
        if known == Constness::Weight && !ty.dtype.is_float() { Constness::Constant } else { known }
    }

    /// Returns the value, if all of it is known and all bytes are here.
    pub(crate) fn value(&mut self, value: ValueId) -> Option<&Tensor> {
        Some(self.shared(value)?)
    }

    /// Returns [`Self::value`] in shared ownership, so that the caller can keep it.
    pub(crate) fn shared(&mut self, value: ValueId) -> Option<&Arc<Tensor>> {
        if self.known(value) == Constness::Nothing {
            return None;
        }
        for node in self.missing(value) {
            self.run(node)?;
        }
        self.values.get(&self.first(value))
    }

    /// Returns the first value that the same computation gave.
    fn first(&self, value: ValueId) -> ValueId {
        self.first.get(&value).copied().unwrap_or(value)
    }

    /// Returns the nodes that must still run to compute a value, in program order.
    fn missing(&self, value: ValueId) -> Vec<&'m Node> {
        let module = self.module;
        let (mut wanted, mut stack) = (BTreeSet::new(), vec![value]);
        while let Some(value) = stack.pop() {
            if !self.values.contains_key(&self.first(value))
                && let ir::Definition::Node(id, _) = module.value(value).definition
                && wanted.insert(id)
            {
                stack.extend(&module.node(id).operands);
            }
        }
        let mut in_order: Vec<NodeId> = wanted.into_iter().collect();
        in_order.sort_unstable_by_key(|&id| self.position[id]);
        in_order.into_iter().map(|id| module.node(id)).collect()
    }

    fn run(&mut self, node: &'m Node) -> Option<()> {
        if let Op::Constant(constant) = &node.op {
            let data = &self.module.data[constant.data];
            Tensor::from_bytes(&data.ty, data.bytes()?)?;
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|&value| self.first(value)).collect();
        let results: Vec<Type> = node.results.iter().map(|&value| self.module.ty(value).clone()).collect();
        let computation = (node.op.clone(), operands.clone(), results.clone());
        if let Some(earlier) = self.run.get(&computation) {
            self.first.extend(node.results.iter().copied().zip(earlier.results.iter().copied()));
            return Some(());
        }
        let exact: Vec<&Tensor> =
            operands.iter().map(|value| Some(&**self.values.get(value)?)).collect::<Option<_>>()?;
        let typed: Vec<&Tensor> = operands
            .iter()
            .zip(&exact)
            .map(|(value, exact)| self.typed.get(value).unwrap_or(exact))
            .collect();
        let run = |operands: &[&Tensor]| {
            node.op.interp(&Interp { operands, results: &results, data: &self.module.data, parts: None })
        };
        let differ = operands.iter().any(|value| self.typed.contains_key(value));
        let mut typed = differ.then(|| run(&typed).into_iter());
        for (&value, exact) in node.results.iter().zip(run(&exact)) {
            let typed = typed.as_mut().and_then(Iterator::next);
            if !exact.dtype.is_float() {
                self.values.insert(value, typed.unwrap_or(exact).into());
                continue;
            }
            let typed = typed.unwrap_or_else(|| exact.clone()).rounded();
            if typed != exact {
                self.typed.insert(value, typed);
            }
            self.values.insert(value, exact.into());
        }
        self.run.insert(computation, node);
        Some(())
    }
}

/// Returns the number that all elements equal bit by bit, if a splat can hold it.
pub(crate) fn all_equal(tensor: &Tensor) -> Option<f64> {
    let numbers = tensor.numbers();
    let (&first, rest) = numbers.split_first()?;
    let exact = tensor.dtype.is_float() || first.abs() < 2f64.powi(53);
    (exact && rest.iter().all(|x| x.to_bits() == first.to_bits())).then_some(first)
}

/// Whether any element of a row satisfies the predicate; `None` if its bytes are not here. Reads in small pieces, so
/// that a large row costs no memory.
pub(crate) fn any_element(data: &Data, predicate: impl Fn(f64) -> bool) -> Option<bool> {
    let width = data.ty.dtype.bytes() as usize;
    let mut chunks = data.bytes()?.chunks(4096 * width);
    Some(chunks.any(|chunk| {
        let ty = Type::of(data.ty.dtype, &[(chunk.len() / width) as u64]);
        Tensor::from_bytes(&ty, chunk).is_some_and(|piece| piece.numbers().into_iter().any(&predicate))
    }))
}

/// Returns the elements at index 0 of the first `dims` dims; `None` if the bytes are not here.
pub(crate) fn first_elements(data: &Data, dims: usize) -> Option<Tensor> {
    let ty = Type::of(data.ty.dtype, data.ty.sizes()?.get(dims..)?);
    Tensor::from_bytes(&ty, data.bytes()?.get(..ty.bytes()? as usize)?)
}

/// Whether the elements of a row are the same for every index of a dim; `None` if its bytes are not here.
pub(crate) fn equal_along(data: &Data, dim: usize) -> Option<bool> {
    let sizes = data.ty.sizes()?;
    let inner = sizes[dim + 1..].iter().product::<u64>() * data.ty.dtype.bytes();
    let slices = (inner * sizes[dim]) as usize;
    if slices == 0 {
        return Some(true);
    }
    let same = |block: &[u8]| block.chunks(inner as usize).all(|slice| *slice == block[..inner as usize]);
    Some(data.bytes()?.chunks(slices).all(same))
}

/// Data rows that the compiler made. Equal tensors share a row.
#[derive(Default)]
pub(crate) struct Literals {
    rows: BTreeMap<(Type, Vec<u8>), DataId>,
    /// The names of the first `named` rows of the module's table.
    names: BTreeSet<String>,
    named: usize,
    /// The next number to try, by prefix.
    next: BTreeMap<String, usize>,
}

impl Literals {
    /// Returns the row that holds the tensor. A new row is named `prefix.N`.
    pub(crate) fn row(&mut self, module: &mut Module, prefix: &str, tensor: &Tensor) -> DataId {
        let key = (tensor.ty(), tensor.to_bytes());
        if let Some(&row) = self.rows.get(&key) {
            return row;
        }
        let name = self.free_name(module, prefix);
        let blob = Blob::Inline(key.1.clone().into());
        let row = module.add_data(Data { name, ty: key.0.clone(), blob, claim: None });
        self.rows.insert(key, row);
        row
    }

    /// Returns the first name `prefix.N` that no row has.
    fn free_name(&mut self, module: &Module, prefix: &str) -> String {
        self.names.extend(module.data.values().skip(self.named).map(|data| data.name.clone()));
        self.named = module.data.len();
        let next = self.next.entry(prefix.to_owned()).or_default();
        loop {
            let name = format!("{prefix}.{next}");
            *next += 1;
            if !self.names.contains(&name) {
                return name;
            }
        }
    }
}
