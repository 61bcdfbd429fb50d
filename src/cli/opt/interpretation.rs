//! `opt --run`: one step of a program on numbers drawn from a seed.

use crate::memory;
use ir::interp::{self, Missing, Mode, bytes_of};
use ir::tensor::Elements;
use ir::{Blob, DType, Diagnostic, Module, Op, OperandRole, Tensor, Type, ValueId, random};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Elements of an output that are written out.
const SHOWN: usize = 32;
/// The standard deviation of the numbers that replace missing data, as of states that are drawn.
const DEVIATION: f64 = 0.02;

/// `opt` gets only the program, whose dims are in its text.
const REMEDY: &str = "smaller dims in the program's text need less memory; without --run nothing is computed";

/// The outputs of one step of one microbatch, a comment line each. Inputs, and data whose bytes are not here, are drawn
/// by (seed, name, element).
pub(super) fn outputs(mut module: Module, seed: u64) -> Result<String, Diagnostic> {
    check_size(&module)?;
    for data in module.data.values_mut().filter(|data| data.bytes().is_none()) {
        let (ty, name) = (&data.ty, &data.name);
        let drawn = numbers(ty, seed, name, |normal| DEVIATION * normal, 2);
        data.blob = Blob::File(Some(drawn.to_bytes().into()));
    }
    let mut states = interp::initial_states(&module, seed, Missing::Draw)?;
    let inputs = module.inputs.iter().map(|input| {
        let limit = limit(&module, input.value).unwrap_or(2);
        (input.name.clone(), numbers(module.ty(input.value), seed, &input.name, |normal| normal, limit))
    });
    let microbatch: BTreeMap<String, Tensor> = inputs.collect();
    let outputs = interp::step(&module, Mode::Exact, &mut states, &[microbatch])?;
    let mut text = String::new();
    for output in &module.outputs {
        for tensor in outputs.get(&output.name).into_iter().flatten() {
            // Writing into a string does not fail.
            let _ = writeln!(text, "// {:?} : {} = {}", output.name, tensor.ty(), elements(tensor));
        }
    }
    Ok(text)
}

/// Refuses dims without a size, and a program that does not fit this machine's memory, before anything is allocated.
fn check_size(module: &Module) -> Result<(), Diagnostic> {
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let values = module.inputs.iter().map(|input| input.value).chain(results);
    let states = module.states.values().map(|state| &state.ty);
    let data = module.data.values().map(|data| &data.ty);
    let mut types = values.map(|value| module.ty(value)).chain(states).chain(data.clone());
    if let Some(ty) = types.find(|ty| ty.dims.iter().any(|dim| dim.size().is_none())) {
        let error = Diagnostic::new(format!(
            "the program has a value of type {ty}: only programs whose dims are all bound can be run"
        ));
        return Err(error.note("bind the dims first: --pipeline 'bind(batch=2) …'"));
    }
    memory::check_step(module, 1, REMEDY)?;
    let data = data.map(bytes_of).fold(0, u64::saturating_add);
    memory::check_tensors("the tensors of the program's file need", data, REMEDY)
}

/// Random numbers: floats are made of normal numbers, integers are from 0 to below `limit`, booleans are both values.
fn numbers(ty: &Type, seed: u64, name: &str, float: impl Fn(f64) -> f64, limit: u64) -> Tensor {
    let sizes: Vec<usize> = ty.sizes().unwrap_or_default().iter().map(|&size| size as usize).collect();
    let stream = random::stream(name);
    let count: usize = sizes.iter().product();
    let word =
        |i: usize| u64::from(random::philox(seed, [i as u32, 0, stream as u32, (stream >> 32) as u32])[0]);
    let draw = |i: usize| match ty.dtype {
        DType::Bool => (word(i) % 2) as f64,
        dtype if dtype.is_float() => float(random::normal(seed, stream, i as u64)),
        _ => (word(i) % limit.max(1)) as f64,
    };
    Tensor::of_numbers(ty.dtype, sizes, (0..count).map(draw)).rounded()
}

/// The smallest size that an input of integers indexes: a table's rows, the classes of a loss.
fn limit(module: &Module, input: ValueId) -> Option<u64> {
    let (mut same, mut limit) = (BTreeSet::from([input]), None::<u64>);
    for (_, node) in module.nodes() {
        let reads = |role: OperandRole| node.operand(role).is_some_and(|operand| same.contains(&operand));
        let dim = |dims: &[ir::Dim], index: usize| dims.get(index).and_then(ir::Dim::size);
        let indexed =
            node.operand(OperandRole::Data).map(|table| &module.ty(table).dims[..]).unwrap_or_default();
        let rows = match &node.op {
            op if op.movement().is_view() && reads(OperandRole::Data) => {
                same.extend(&node.results);
                None
            }
            Op::Gather(gather) if reads(OperandRole::Indices) => dim(indexed, gather.dim as usize),
            Op::GatherElements(gather) if reads(OperandRole::Indices) => dim(indexed, gather.dim as usize),
            Op::GatherNd(_) if reads(OperandRole::Indices) => indexed.iter().filter_map(ir::Dim::size).min(),
            Op::ScatterElements(scatter) if reads(OperandRole::Indices) => dim(indexed, scatter.dim as usize),
            Op::ScatterNd(_) if reads(OperandRole::Indices) => indexed.iter().filter_map(ir::Dim::size).min(),
            Op::CrossEntropy(_) if reads(OperandRole::Labels) => indexed.last().and_then(ir::Dim::size),
            _ => None,
        };
        limit = [limit, rows].into_iter().flatten().min();
    }
    limit
}

/// `[1.5, -2.0]`, or the first of many.
fn elements(tensor: &Tensor) -> String {
    let shown: Vec<String> = match &tensor.elements {
        Elements::Float(elements) => elements.iter().take(SHOWN).map(|&x| float(tensor.dtype, x)).collect(),
        Elements::Int(elements) => elements.iter().take(SHOWN).map(i64::to_string).collect(),
        Elements::Bool(elements) => elements.iter().take(SHOWN).map(bool::to_string).collect(),
    };
    let rest = tensor.len() - shown.len();
    let more = if rest > 0 { format!(", and {rest} more") } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}

/// The shortest text of the number as its type has it.
fn float(dtype: DType, x: f64) -> String {
    if dtype == DType::F64 { format!("{x:?}") } else { format!("{:?}", x as f32) }
}
