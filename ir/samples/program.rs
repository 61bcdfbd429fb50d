//! Samples as programs, for the interpreter and the devices, which run modules.

use super::*;
use crate::interp::file_tensor;
use crate::ops::elementwise::Unary;
use crate::ops::shape::Transpose;
use crate::{At, Module, Phase};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The way in which the operands of a sample reach its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The operands are inputs.
    Inputs,
    /// The operands are inputs with all dims in reverse order, transposed back, so that they are strided.
    Transposes,
    /// The operands pass through two negations. They die at the operator, so the result may take their place in memory.
    Negations,
}

impl Through {
    /// Whether an input with so many dims is passed with its dims in reverse order.
    fn reverses(self, dims: usize) -> bool {
        self == Self::Transposes && dims > 1
    }

    /// Returns the input from which an operand is made.
    pub fn input(self, operand: Tensor) -> Tensor {
        if !self.reverses(operand.sizes.len()) {
            return operand;
        }
        let permutation = reversal(operand.sizes.len());
        forward(&Transpose { permutation }.into(), &[operand], &[0], 0)
    }

    /// Adds nodes that make the operand from the value of its input.
    pub fn operand(self, b: &mut Builder, input: ValueId) -> ValueId {
        let ty = b.ty(input).clone();
        if self.reverses(ty.ndim()) {
            let permutation = reversal(ty.ndim());
            return b.one(Transpose { permutation }, &[input]).expect("a permutation");
        }
        if self != Self::Negations {
            return input;
        }
        let negation = if ty.dtype == DType::Bool { Unary::Not } else { Unary::Neg };
        let once = b.one(negation, &[input]).expect("negation takes all types");
        b.one(negation, &[once]).expect("negation takes all types")
    }
}

fn reversal(dims: usize) -> SmallVec<[u32; 4]> {
    (0..dims as u32).rev().collect()
}

impl Sample {
    /// Whether an operand or a declared result is f32.
    pub fn is_single(&self) -> bool {
        self.operands.iter().map(|operand| &operand.ty).chain(&self.declared).any(is_single)
    }

    /// Returns the sample with f32 types replaced by `dtype`: for all operands, or for all but one if the operator needs that one
    /// to stay f32 (the gradient of a sum). Constants are rounded. `None` if nothing is f32, or if the operator does not accept
    /// the type.
    pub fn in_type(&self, dtype: DType) -> Option<Self> {
        let kept = std::iter::once(None).chain((0..self.operands.len()).map(Some));
        let fits = |sample: &Self| {
            let operands: Vec<Type> = sample.fill(5).iter().map(Tensor::ty).collect();
            sample.op.infer(&Inference { operands: &operands, declared: &sample.declared }).is_ok()
        };
        self.is_single().then(|| kept.map(|kept| self.retyped(dtype, kept)).find(fits)).flatten()
    }

    fn retyped(&self, dtype: DType, kept: Option<usize>) -> Self {
        let mut sample = self.clone();
        let operands = sample.operands.iter_mut().enumerate().filter(|(index, _)| Some(*index) != kept);
        let types = sample.declared.iter_mut().chain(operands.map(|(_, operand)| &mut operand.ty));
        types.filter(|ty| is_single(ty)).for_each(|ty| ty.dtype = dtype);
        for data in sample.data.values_mut().filter(|data| is_single(&data.ty)) {
            let tensor = file_tensor(data).expect("samples have their bytes");
            data.ty.dtype = dtype;
            data.blob = Blob::Inline(Tensor { dtype, ..tensor }.to_bytes().into());
        }
        sample
    }

    /// Returns a module that runs the operator, and its inputs.
    pub fn program(&self, through: Through) -> (Module, BTreeMap<String, Tensor>) {
        let (mut module, mut inputs) = (Module::new("sample"), BTreeMap::new());
        module.data = self.data.clone();
        self.add_to(&mut module, &mut inputs, "", through);
        (module, inputs)
    }

    /// Adds the operator to a module. The module must have the sample's data table, unless the operator does not read it. The
    /// names of the inputs and outputs begin with `prefix`.
    pub fn add_to(
        &self,
        module: &mut Module,
        inputs: &mut BTreeMap<String, Tensor>,
        prefix: &str,
        through: Through,
    ) {
        let mut values = Vec::new();
        for (i, tensor) in self.fill(5).into_iter().enumerate() {
            let (name, tensor) = (format!("{prefix}operand.{i}"), through.input(tensor));
            values.push(module.add_input(&name, tensor.ty(), false));
            inputs.insert(name, tensor);
        }
        let mut b = Builder::new(module, "sample");
        let operands: Vec<ValueId> = values.into_iter().map(|value| through.operand(&mut b, value)).collect();
        if matches!(self.op, Op::Accumulate(_)) {
            b.at(At::End(Phase::Update));
        }
        let results =
            b.push_typed(self.op.clone(), &operands, &self.declared).expect("samples are well-typed");
        b.finish();
        for (i, result) in results.into_iter().enumerate() {
            module.add_output(format!("{prefix}result.{i}"), result);
        }
    }
}

fn is_single(ty: &Type) -> bool {
    ty.dtype == DType::F32
}
