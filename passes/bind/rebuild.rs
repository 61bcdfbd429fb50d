//! Rebuilds a program with other types.

use super::Bind;
use super::trace::{Carry, Decision, OneSample};
use crate::analysis::constants::{Literals, all_equal, is_candidate};
use crate::pass::Transform;
use ir::ops::constant::Constant;
use ir::{
    At, Builder, Changed, DType, Data, Diagnostic, Dim, Module, Node, NodeId, Op, Type, ValueId, ViewStep,
};
use std::collections::BTreeMap;

/// Rebuilds the program with every type replaced.
pub(super) fn retype(
    module: &mut Module,
    types: impl Fn(&Type) -> Result<Type, Diagnostic>,
) -> Result<(), Diagnostic> {
    let plan = Rebuild { ty: &|old, value| types(old.ty(value)), decision: None };
    *module = plan.build(module)?;
    Ok(())
}

/// Rebuilds the program with another batch.
pub(super) fn rescale(module: &mut Module, decision: &Decision) -> Result<(), Diagnostic> {
    let ty = |old: &Module, value: ValueId| {
        let ty = old.ty(value);
        Ok(decision.carries.get(&value).map_or_else(|| ty.clone(), |&carry| decision.rescaled(ty, carry)))
    };
    *module = Rebuild { ty: &ty, decision: Some(decision) }.build(module)?;
    Ok(())
}

/// Rebuilds the program in f32, if tensors of the file are in half. These tensors are cast where they are read.
pub(super) fn widen(module: &mut Module) -> Result<Changed, Diagnostic> {
    let in_half = |data: &Data| is_half(data.ty.dtype) && is_candidate(data);
    if !module.data.values().any(in_half) {
        return Ok(Changed::No);
    }
    let ty = |old: &Module, value: ValueId| Ok(wide(old.ty(value)));
    *module = Rebuild { ty: &ty, decision: None }.build(module)?;
    Ok(Changed::Yes)
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn wide(ty: &Type) -> Type {
    if is_half(ty.dtype) { ty.with_dtype(DType::F32) } else { ty.clone() }
}

/// Returns the new type of a value of the old program.
type NewType<'a> = dyn Fn(&Module, ValueId) -> Result<Type, Diagnostic> + 'a;

/// The types and the decision for the new program.
struct Rebuild<'a> {
    ty: &'a NewType<'a>,
    decision: Option<&'a Decision>,
}

impl Rebuild<'_> {
    fn build(&self, old: &Module) -> Result<Module, Diagnostic> {
        let mut new = Module::new(&old.name);
        (new.level, new.mesh, new.data) = (old.level, old.mesh.clone(), old.data.clone());
        let mut values: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for input in &old.inputs {
            let value = new.add_input(&input.name, (self.ty)(old, input.value)?, input.batched);
            values.insert(input.value, value);
        }
        for state in old.states.values() {
            let ty = (self.ty)(old, state.input)?;
            let id = new.add_state(&state.name, ty, state.role, state.initializer.clone());
            (new.states[id].tier, new.states[id].view) = (state.tier, state.view.clone());
            if new.states[id].ty.dtype != state.ty.dtype {
                let step = ViewStep::Cast(new.states[id].ty.dtype);
                new.states[id].view.push(step);
            }
            values.insert(state.input, new.states[id].input);
        }
        let mut b = Builder::new(&mut new, Bind::NAME);
        let mut literals = Literals::default();
        for (id, node) in old.nodes() {
            b.at(At::End(node.phase)).origin(node.origin.clone()).stage(node.stage).copy(node.copy);
            let results = self.node(&mut b, &mut literals, old, id, &values)?;
            values.extend(node.results.iter().copied().zip(results));
        }
        b.finish();
        for output in &old.outputs {
            new.add_output(&output.name, values[&output.value]);
        }
        for (id, state) in old.states.iter() {
            new.states[id].output = state.output.map(|value| values[&value]);
        }
        Ok(new)
    }

    /// Adds a node of the old program. Returns the new values of its results.
    fn node(
        &self,
        b: &mut Builder,
        literals: &mut Literals,
        old: &Module,
        id: NodeId,
        values: &BTreeMap<ValueId, ValueId>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let node = old.node(id);
        let types = node.results.iter().map(|&value| (self.ty)(old, value)).collect::<Result<Vec<_>, _>>()?;
        if let (Op::Constant(_), Some(decision)) = (&node.op, self.decision)
            && let Some(&carry) = decision.carries.get(&node.results[0])
        {
            let whole = b.one_typed(node.op.clone(), &[], old.ty(node.results[0]).clone())?;
            return Ok(vec![weight_of_one_sample(b, whole, carry, decision)?]);
        }
        let widened = node.results.first().is_some_and(|&result| old.ty(result).dtype != types[0].dtype);
        if let (Op::Constant(_), true) = (&node.op, widened) {
            let stored = b.one_typed(node.op.clone(), &[], old.ty(node.results[0]).clone())?;
            return Ok(vec![b.cast(stored, types[0].dtype)?]);
        }
        let mut operands = Vec::new();
        for (i, value) in node.operands.iter().enumerate() {
            let constant =
                self.decision.and_then(|decision| Some((decision, decision.constants.get(&(id, i))?)));
            operands.push(match constant {
                Some((decision, one)) => stretched_constant(b, literals, old.ty(*value), one, decision)?,
                None => values[value],
            });
        }
        if let (Op::Cast(_), [operand], true) = (&node.op, &operands[..], widened) {
            return Ok(vec![b.cast(*operand, types[0].dtype)?]);
        }
        let explain = |error: &dyn std::fmt::Display| explain(node, self.decision, error);
        let results = b.push_typed(node.op.clone(), &operands, &types).map_err(|error| explain(&error))?;
        for (&result, ty) in results.iter().zip(&types) {
            if !b.ty(result).same_shape(ty) {
                return Err(explain(&format!("gives {}, not {ty}", b.ty(result))));
            }
        }
        Ok(results.to_vec())
    }
}

fn explain(node: &Node, decision: Option<&Decision>, error: &dyn std::fmt::Display) -> Diagnostic {
    let what = match decision {
        Some(Decision { from, to, .. }) => format!("the batch cannot be changed from {from} to {to}"),
        None => "the given sizes do not fit the program".into(),
    };
    let diagnostic = Diagnostic::new(format!("{what}: {error}"));
    if node.origin.is_empty() { diagnostic } else { diagnostic.at(node.origin.to_string()) }
}

/// Cuts a tensor of the file to one sample, and stretches it to the new batch.
fn weight_of_one_sample(
    b: &mut Builder,
    whole: ValueId,
    carry: Carry,
    decision: &Decision,
) -> Result<ValueId, Diagnostic> {
    let ty = decision.rescaled(b.ty(whole), carry);
    let mut dims = b.ty(whole).dims.to_vec();
    let at = split(&mut dims, carry, decision.from);
    let apart = b.reshape(whole, dims.clone())?;
    let one = b.slice(apart, at as u32, 0, Dim::known(1))?;
    Ok(stretch(b, one, dims, at, decision.to, ty)?)
}

/// Adds a constant of one sample, and stretches it to the new batch.
fn stretched_constant(
    b: &mut Builder,
    literals: &mut Literals,
    old: &Type,
    one: &OneSample,
    decision: &Decision,
) -> Result<ValueId, Diagnostic> {
    let ty = decision.rescaled(old, one.carry);
    if let Some(number) = all_equal(&one.tensor) {
        return Ok(b.splat(ty, number)?);
    }
    let row = literals.row(b.tables(), "sample", &one.tensor);
    let constant = b.one_typed(Constant { data: row }, &[], one.tensor.ty())?;
    let mut dims = old.dims.to_vec();
    let at = split(&mut dims, one.carry, decision.from);
    Ok(stretch(b, constant, dims, at, decision.to, ty)?)
}

/// Splits the batch off as a dim of its own. Returns the index of that dim.
fn split(dims: &mut Vec<Dim>, carry: Carry, batch: u64) -> usize {
    let size = dims[carry.dim].size().unwrap_or(0);
    let major = size / (batch * carry.minor).max(1);
    if major == 1 && carry.minor == 1 {
        return carry.dim;
    }
    let apart = [major, batch, carry.minor].map(Dim::known);
    dims.splice(carry.dim..=carry.dim, apart);
    carry.dim + 1
}

fn stretch(
    b: &mut Builder,
    one: ValueId,
    mut dims: Vec<Dim>,
    at: usize,
    to: u64,
    ty: Type,
) -> Result<ValueId, ir::TypeError> {
    dims[at] = Dim::known(to);
    let wide = b.broadcast(one, dims)?;
    b.reshape(wide, ty.dims)
}
