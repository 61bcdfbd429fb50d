//! The execution of one step in the interpreter.

use super::held::ValueLifetimes;
use super::ranks::{ByRank, Disagreement, Ranks};
use super::{Mode, StateValues, StepOutputs, collective};
use crate::ops::collective::Change;
use crate::ops::elementwise::Binary;
use crate::ops::{Interp, PartSpans};
use crate::text::{Numbering, type_text};
use crate::{Diagnostic, Module, Node, Op, Operator, Phase, StateId, Tensor, Type, ValueId};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A step in progress: the part of each value on each rank, as long as a node will read it.
pub(super) struct StepInterpreter<'m> {
    module: &'m Module,
    mode: Mode,
    ranks: Ranks<'m>,
    values: SecondaryMap<ValueId, Option<ByRank>>,
    held: ValueLifetimes<'m>,
    sums: BTreeMap<ValueId, ByRank>,
    /// The values of buffers after the microbatches so far.
    carried: BTreeMap<StateId, ByRank>,
    /// The number of microbatches that have not begun.
    to_come: usize,
    outputs: StepOutputs,
}

/// A computation of a node, done once for all ranks with the same operands.
struct Call {
    /// The first of these ranks.
    rank: usize,
    parts: Option<PartSpans>,
    results: Vec<Arc<Tensor>>,
}

impl<'m> StepInterpreter<'m> {
    pub(super) fn new(module: &'m Module, mode: Mode, microbatches: usize) -> Self {
        Self {
            module,
            mode,
            ranks: Ranks::new(&module.mesh),
            values: SecondaryMap::new(),
            held: ValueLifetimes::new(module),
            sums: BTreeMap::new(),
            carried: BTreeMap::new(),
            to_come: microbatches,
            outputs: StepOutputs::new(),
        }
    }

    pub(super) fn step(
        mut self,
        states: &mut StateValues,
        microbatches: &[BTreeMap<String, Tensor>],
    ) -> Result<StepOutputs, Diagnostic> {
        let module = self.module;
        for (id, state) in module.states.iter() {
            if self.held.is_needed(state.input) {
                self.enter(state.input, &states[&id])?;
            }
        }
        self.phase(Phase::Prepare)?;
        for microbatch in microbatches {
            self.to_come -= 1;
            for input in &module.inputs {
                self.enter(input.value, &microbatch[&input.name])?;
            }
            self.phase(Phase::Forward)?;
            self.phase(Phase::Backward)?;
            self.phase(Phase::Weight)?;
            self.carry_buffers()?;
        }
        for (value, sum) in std::mem::take(&mut self.sums) {
            self.define(value, sum)?;
        }
        self.phase(Phase::Update)?;
        self.leave(states)?;
        Ok(self.outputs)
    }

    /// Joins the parts of all new values of states, then writes the states.
    fn leave(&mut self, states: &mut StateValues) -> Result<(), Diagnostic> {
        let mut new = std::mem::take(&mut self.carried);
        for (id, state) in self.module.states.iter() {
            if let Some(output) = state.output.filter(|&output| !self.is_microbatch(output)) {
                new.insert(id, self.get(output)?.clone());
            }
        }
        for (id, parts) in &new {
            let state = &self.module.states[*id];
            let agree = self.ranks.agree(&state.ty, parts);
            let value = state.output.unwrap_or(state.input);
            agree.map_err(|fault| {
                self.disagreement(&format!("the new state `{}`", state.name), value, fault)
            })?;
        }
        self.values.clear();
        for (id, parts) in new {
            states.insert(id, self.ranks.join(&self.module.states[id].ty, parts));
        }
        Ok(())
    }

    fn get(&self, value: ValueId) -> Result<&ByRank, Diagnostic> {
        let error = || Diagnostic::new(format!("{value} is read before it is defined"));
        self.values[value].as_ref().ok_or_else(error)
    }

    fn rounded(&self, tensor: Tensor) -> Tensor {
        if self.mode == Mode::Typed { tensor.rounded() } else { tensor }
    }

    /// Splits a global tensor into the parts of a value, and defines the value.
    fn enter(&mut self, value: ValueId, tensor: &Tensor) -> Result<(), Diagnostic> {
        let tensor = self.rounded(tensor.clone());
        let parts = self.ranks.split(self.module.ty(value), tensor);
        self.define(value, parts)
    }

    /// Defines a value: adds it to its sums, reports it if it is an output, and keeps it if a node will read it.
    fn define(&mut self, value: ValueId, parts: ByRank) -> Result<(), Diagnostic> {
        for sum in self.held.sums(value).to_vec() {
            let total = match self.sums.remove(&sum) {
                None => parts.clone(),
                Some(total) => self.add(&total, &parts),
            };
            self.sums.insert(sum, total);
        }
        let module = self.module;
        for output in module.outputs.iter().filter(|output| output.value == value) {
            let ty = module.ty(value);
            let agree = self.ranks.agree(ty, &parts);
            agree.map_err(|fault| self.disagreement(&format!("output `{}`", output.name), value, fault))?;
            let whole = self.ranks.join(ty, parts.clone());
            self.outputs.entry(output.name.clone()).or_default().push(whole);
        }
        self.values[value] = self.held.is_held(value).then_some(parts);
        Ok(())
    }

    fn phase(&mut self, phase: Phase) -> Result<(), Diagnostic> {
        let module = self.module;
        for (id, node) in module.nodes().filter(|(_, node)| node.phase == phase) {
            if matches!(node.op, Op::Accumulate(_)) {
                continue; // the sum was already made microbatch by microbatch
            }
            let results = self.node(node)?;
            for &operand in &node.operands {
                if self.held.is_freed(operand, id, node, self.to_come > 0) {
                    self.values[operand] = None;
                }
            }
            for (&result, parts) in node.results.iter().zip(results) {
                self.define(result, parts)?;
            }
        }
        Ok(())
    }

    /// Returns each rank's part of each result.
    fn node(&self, node: &Node) -> Result<Vec<ByRank>, Diagnostic> {
        let operands = node.operands.iter().map(|&value| self.get(value)).collect::<Result<Vec<_>, _>>()?;
        if let Op::Collective(_) = node.op {
            return self.collective(node, &operands);
        }
        let mut calls: Vec<Call> = Vec::new();
        let mut call_of = Vec::new();
        let signature = self.module.signature(node);
        for rank in 0..self.ranks.count {
            let several = self.ranks.count > 1;
            let parts = several.then(|| PartSpans::new(&self.module.mesh, rank as u64, &signature)).flatten();
            let same = |call: &Call| {
                call.parts == parts
                    && operands.iter().all(|operand| Arc::ptr_eq(&operand[call.rank], &operand[rank]))
            };
            let known = calls.iter().position(same).unwrap_or(calls.len());
            if known == calls.len() {
                let results = self.call(node, rank, &operands, parts.as_ref());
                calls.push(Call { rank, parts, results });
            }
            call_of.push(known);
        }
        let result = |i: usize| call_of.iter().map(|&call: &usize| calls[call].results[i].clone()).collect();
        Ok((0..node.results.len()).map(result).collect())
    }

    /// Runs a node on one rank.
    fn call(
        &self,
        node: &Node,
        rank: usize,
        operands: &[&ByRank],
        parts: Option<&PartSpans>,
    ) -> Vec<Arc<Tensor>> {
        let operands: Vec<&Tensor> = operands.iter().map(|operand| operand[rank].as_ref()).collect();
        if let Op::Cast(cast) = &node.op
            && self.mode == Mode::Exact
            && cast.to.is_float()
            && operands[0].dtype.is_float()
        {
            return vec![Arc::new(Tensor { dtype: cast.to, ..operands[0].clone() })];
        }
        let local = |&value: &ValueId| {
            let ty = self.module.ty(value);
            let sizes: Vec<u64> = self.ranks.local(ty).into_iter().map(|size| size as u64).collect();
            Type::of(ty.dtype, &sizes)
        };
        let results: Vec<Type> = node.results.iter().map(local).collect();
        let call = Interp { operands: &operands, results: &results, data: &self.module.data, parts };
        node.op.interp(&call).into_iter().map(|tensor| Arc::new(self.rounded(tensor))).collect()
    }

    fn collective(&self, node: &Node, operands: &[&ByRank]) -> Result<Vec<ByRank>, Diagnostic> {
        let mut results = Vec::new();
        for ((&from, &to), parts) in node.operands.iter().zip(&node.results).zip(operands) {
            let (ty, name) = (self.module.ty(from), node.op.name());
            let change = Change::between(&ty.sharding, &self.module.ty(to).sharding, ty.ndim());
            let change =
                change.map_err(|why| Diagnostic::new(format!("`{name}` cannot be computed: {why}")))?;
            let agree = self.ranks.agree(ty, parts);
            agree.map_err(|fault| self.disagreement(&format!("an operand of `{name}`"), from, fault))?;
            results.push(collective::run(&self.ranks, &change, parts, |tensor| self.rounded(tensor)));
        }
        Ok(results)
    }

    /// Adds two values; ranks that share both operands share the sum.
    fn add(&self, total: &ByRank, addend: &ByRank) -> ByRank {
        let mut sums = ByRank::new();
        for (rank, (x, y)) in total.iter().zip(addend).enumerate() {
            let same = |&r: &usize| Arc::ptr_eq(&total[r], x) && Arc::ptr_eq(&addend[r], y);
            let sum = match (0..rank).find(same) {
                Some(known) => sums[known].clone(),
                None => {
                    let sum = x.floats().iter().zip(y.floats()).map(|(&x, &y)| Binary::Add.scalar(x, y));
                    Arc::new(self.rounded(Tensor::float(x.dtype, x.sizes.clone(), sum.collect())))
                }
            };
            sums.push(sum);
        }
        sums
    }

    /// Takes the buffers that a microbatch phase wrote as the values with which the next microbatch begins.
    fn carry_buffers(&mut self) -> Result<(), Diagnostic> {
        for (id, state) in self.module.states.iter() {
            if let Some(output) = state.output.filter(|&output| self.is_microbatch(output)) {
                let parts = self.get(output)?.clone();
                self.values[state.input] = Some(parts.clone());
                self.carried.insert(id, parts);
            }
        }
        Ok(())
    }

    fn is_microbatch(&self, value: ValueId) -> bool {
        self.module.phase_of(value).is_microbatch()
    }

    fn disagreement(&self, what: &str, value: ValueId, fault: Disagreement) -> Diagnostic {
        let mesh = &self.module.mesh;
        let Disagreement { first, second, difference } = fault;
        let name = Numbering::of(self.module).value(value);
        let ty = type_text(mesh, self.module.ty(value));
        let axes = self.ranks.apart(first, second).into_iter().map(|axis| mesh.axes[axis].name.as_str());
        let axes = axes.collect::<Vec<_>>().join("`, `");
        let fault = Diagnostic::new(format!(
            "ranks {first} and {second} disagree on {what}, {name}: {ty}, by up to {difference:e}"
        ))
        .note(format!(
            "the value is neither split nor partial over `{axes}`, so it must be equal on all devices along \
             this axis"
        ))
        .note(
            "a reduction is missing before this node, or the node does not compute as its sharding rule says",
        );
        match self.module.producer(value).filter(|node| !node.origin.is_empty()) {
            Some(node) => fault.at(node.origin.to_string()),
            None => fault,
        }
    }
}
