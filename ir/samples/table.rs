//! The list of samples: at least one for every operator. Dims that an operator can split have even sizes.

use super::*;

/// Returns the samples of every operator.
pub fn samples() -> Vec<Sample> {
    let families = [
        elementwise::elementwise(),
        elementwise::bits(),
        shapes::sources(),
        shapes::shapes(),
        products::contractions(),
        products::convolutions(),
        elementwise::packing(),
        reductions::reductions(),
        reductions::rankings(),
        reductions::softmaxes(),
        reductions::norms(),
        reductions::batch_norms(),
        reductions::pools(),
        shapes::indexing(),
        shapes::scatters(),
        products::determinants(),
        products::compressions(),
        products::experts(),
        training::losses(),
        training::dropout(),
        training::random(),
        training::optimizers(),
        products::attention(),
        products::rotary(),
        recurrent::recurrent(),
        shapes::collectives(),
    ];
    families.into_iter().flatten().collect()
}

/// Makes an operand.
pub fn of(dtype: DType, dims: &[u64], fill: Fill) -> Operand {
    Operand { ty: Type::of(dtype, dims), fill }
}

/// Makes a normal f32 operand.
pub fn float(dims: &[u64]) -> Operand {
    of(DType::F32, dims, Fill::Normal)
}

pub(super) fn f32_type(dims: &[u64]) -> Type {
    Type::of(DType::F32, dims)
}

impl Sample {
    /// Makes a smooth, differentiable sample.
    pub fn new(op: impl Into<Op>, operands: impl Into<Vec<Operand>>) -> Self {
        let (op, operands) = (op.into(), operands.into());
        let (declared, statistics, data) = (vec![], vec![], PrimaryMap::new());
        Self { op, operands, declared, data, differentiable: true, statistics, smooth: true }
    }

    /// Adds the type of a result that the operator does not infer.
    pub fn declared(mut self, ty: Type) -> Self {
        self.declared.push(ty);
        self
    }

    /// Marks the sample as without a gradient.
    pub(super) fn undifferentiable(mut self) -> Self {
        self.differentiable = false;
        self
    }

    pub(super) fn statistics(mut self, results: &[usize]) -> Self {
        self.statistics = results.to_vec();
        self
    }
}
