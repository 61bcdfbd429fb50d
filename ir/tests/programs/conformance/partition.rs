//! Checks partition rules: the nodes that replace an operator must give the same numbers, also when they are split in two.

use super::{Check, close, interp};
use ir::factors::{FactorId, FactorKind, Factors};
use ir::interp::{Mode, StateValues, step};
use ir::ops::collective::Collective;
use ir::ops::{Inference, NodeRef};
use ir::samples::Sample;
use ir::{
    At, Axis, AxisId, AxisRole, Builder, DType, Level, Module, NodeId, Op, Operator, Phase, Sharding, Tensor,
    Type, TypeError, ValueId, verify,
};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// A function that decomposes an operator: [`Operator::partition`], or a wrong one.
pub(crate) type Rule<'a> = &'a dyn Fn(&Op, &mut Builder, NodeRef) -> Result<Vec<ValueId>, TypeError>;

/// Checks that the nodes of a partition rule give the operator's results, whole and on two ranks that split this factor.
pub(crate) fn check(sample: &Sample, factors: &Factors, factor: FactorId, rule: Rule) -> Check {
    let types = sample.operand_types();
    narrow(sample, &types, rule)?;
    let operands = sample.fill(1);
    let expected = interp(sample, &operands, &sample.result_types().map_err(|error| error.to_string())?);
    let (module, results) = build(sample, &types, rule)?;
    compare(&module, &operands, &expected, "taken apart")?;
    let placed = Split::new(module, factors, factor).run(&results)?;
    verify::verify(&placed).map_err(|faults| faults[0].to_string())?;
    compare(&placed, &operands, &expected, "taken apart and split")
}

/// Checks that with operands of half precision the rule also gives results of the declared types.
fn narrow(sample: &Sample, types: &[Type], rule: Rule) -> Check {
    let half = |ty: &Type| if ty.dtype.is_float() { ty.with_dtype(DType::BF16) } else { ty.clone() };
    let types: Vec<Type> = types.iter().map(half).collect();
    build(sample, &types, rule).map(drop)
}

/// Builds a program of the rule's nodes. Returns it with the values that replace the operator's results.
fn build(sample: &Sample, types: &[Type], rule: Rule) -> Result<(Module, Vec<ValueId>), String> {
    let declared = sample.op.infer(&Inference { operands: types, declared: &sample.declared });
    let declared = declared.map_err(|error| error.to_string())?;
    let mut module = Module::new("partition");
    let operand = |(i, ty): (usize, &Type)| module.add_input(format!("operand.{i}"), ty.clone(), false);
    let operands: Vec<ValueId> = types.iter().enumerate().map(operand).collect();
    let mut b = Builder::new(&mut module, "test");
    let whole = b.push_typed(sample.op.clone(), &operands, &sample.declared).map_err(|e| e.to_string())?;
    let node = NodeRef { operands: &operands, results: &whole };
    let results = rule(&sample.op, &mut b, node).map_err(|error| format!("it has no rule: {error}"))?;
    // The operator itself was added first. It is removed, because the rule's nodes must not read its results.
    let ir::Definition::Node(id, _) = b.module().value(whole[0]).definition else { unreachable!() };
    b.remove(id);
    b.finish();
    for (i, (&result, ty)) in results.iter().zip(&declared).enumerate() {
        if !module.ty(result).same_shape(ty) {
            return Err(format!("taken apart, result {i} is {}, not {ty}", module.ty(result)));
        }
        module.add_output(i.to_string(), result);
    }
    Ok((module, results))
}

fn compare(module: &Module, operands: &[Tensor], expected: &[Tensor], how: &str) -> Check {
    let feed: BTreeMap<String, Tensor> =
        operands.iter().enumerate().map(|(i, x)| (format!("operand.{i}"), x.clone())).collect();
    let outputs = step(module, Mode::Exact, &mut StateValues::new(), &[feed]);
    let outputs = outputs.map_err(|error| format!("{how}: {error}"))?;
    for (i, expected) in expected.iter().enumerate() {
        let output = outputs.get(&i.to_string()).ok_or_else(|| format!("{how}, result {i} is missing"))?;
        if !close(&output[0], expected) {
            return Err(format!("{how}, result {i} differs"));
        }
    }
    Ok(())
}

/// Lays a program out over two ranks so that a factor of the operator is split.
struct Split<'a> {
    module: Module,
    axis: AxisId,
    factors: &'a Factors,
    factor: FactorId,
    /// The current replacement of each value, after reductions.
    current: BTreeMap<ValueId, ValueId>,
}

impl<'a> Split<'a> {
    fn new(mut module: Module, factors: &'a Factors, factor: FactorId) -> Self {
        let axis = module.mesh.axes.push(Axis { name: "tp".into(), role: AxisRole::Tensor, size: 2 });
        module.level = Level::Placed;
        Self { module, axis, factors, factor, current: BTreeMap::new() }
    }

    fn run(mut self, results: &[ValueId]) -> Result<Module, String> {
        let inputs: Vec<ValueId> = self.module.inputs.iter().map(|input| input.value).collect();
        let order = self.module.order().to_vec();
        let mut module = std::mem::replace(&mut self.module, Module::new("empty"));
        let mut b = Builder::new(&mut module, "test");
        for (input, dims) in inputs.into_iter().zip(&self.factors.operands) {
            let sharding = self.along(dims.iter().map(|dim| dim.contains(&self.factor)));
            b.shard(input, sharding);
        }
        order.into_iter().try_for_each(|id| self.node(&mut b, id).map_err(|error| error.to_string()))?;
        for (i, (&result, dims)) in results.iter().zip(&self.factors.results).enumerate() {
            let split = self.along(dims.iter().map(|dim| dim.contains(&self.factor)));
            if !split.is_whole() && b.ty(result).sharding != split {
                return Err(format!("taken apart, result {i} is not split as the operator's is"));
            }
        }
        let loss = b.at(At::End(Phase::Update)).scalar(DType::F32, 0.0).map_err(|error| error.to_string())?;
        b.finish();
        module.add_output("loss", loss);
        for output in &mut module.outputs {
            output.value = self.current.get(&output.value).copied().unwrap_or(output.value);
        }
        Ok(module)
    }

    /// Returns the sharding that splits these dims.
    fn along(&self, split: impl Iterator<Item = bool>) -> Sharding {
        let axes = |split: bool| if split { smallvec![self.axis] } else { smallvec![] };
        Sharding { dims: split.map(axes).collect(), partial: None }
    }

    /// Splits a node along the factor that splits its operands. Operands that are whole along this factor are sliced.
    fn node(&mut self, b: &mut Builder, id: NodeId) -> Result<(), TypeError> {
        let node = b.module().node(id).clone();
        let operands: SmallVec<[ValueId; 4]> =
            node.operands.iter().map(|value| self.current.get(value).copied().unwrap_or(*value)).collect();
        let factors = node.op.factors(&b.module().signature(&node));
        let is_split = |b: &Builder, i: usize, dim: usize| !b.ty(operands[i]).sharding.axes(dim).is_empty();
        let dims = factors.operands.iter().enumerate();
        let mut split = dims.flat_map(|(i, dims)| dims.iter().enumerate().map(move |(dim, of)| (i, dim, of)));
        let split = split.find(|&(i, dim, _)| is_split(b, i, dim)).map(|(_, _, of)| of[0]);
        let has = |of: &ir::factors::DimFactors| of.first().is_some_and(|first| Some(*first) == split);
        for (i, dims) in factors.operands.iter().enumerate() {
            let (wanted, mut ty) = (self.along(dims.iter().map(has)), b.ty(operands[i]).clone());
            let mut value = operands[i];
            if ty.sharding.is_whole() && !wanted.is_whole() {
                ty.sharding = wanted;
                value = b.at(At::Before(id)).one_typed(Collective::AllSlice, &[value], ty)?;
            }
            b.set_operand(id, i, value);
        }
        let Some(split) = split else { return Ok(()) };
        let reduced = match factors.factors[split as usize].kind {
            FactorKind::Free => None,
            FactorKind::Reduced(kind) => Some(kind),
            kind => {
                return Err(TypeError::new(format!(
                    "`{}` has the factor as one that is {kind:?}",
                    node.op.name()
                )));
            }
        };
        for (&result, dims) in node.results.iter().zip(&factors.results) {
            let mut sharding = self.along(dims.iter().map(has));
            let (lacks, mut whole) = (sharding.is_whole(), b.ty(result).clone());
            whole.sharding = sharding.clone();
            sharding.partial = reduced.filter(|_| lacks).map(|kind| (kind, smallvec![self.axis]));
            let partial = sharding.partial.is_some();
            b.shard(result, sharding);
            if partial {
                let all = b.at(At::After(id)).one_typed(Collective::AllReduce, &[result], whole)?;
                self.current.insert(result, all);
            }
        }
        Ok(())
    }
}
