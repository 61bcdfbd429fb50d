//! The factors of a gradient: scalars by which the update multiplies all its elements.
//!
//! The divisor of the loss and the loss scale are such factors. An optimizer multiplies the gradient by them as it reads the gradient,
//! and a norm is multiplied after it is computed, so no scaled gradient is written to memory.

use ir::ops::elementwise::Binary;
use ir::{Builder, DType, Definition, Module, Op, Phase, TypeError, ValueId};
use std::collections::BTreeMap;

/// A gradient as a product of a tensor and factors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Factored {
    /// The tensor, of the gradient's type.
    pub(crate) tensor: ValueId,
    /// The factors, scalars of the gradient's element type, in the order of multiplication.
    pub(crate) factors: Vec<ValueId>,
}

impl Factored {
    /// Returns a gradient without factors.
    pub(crate) fn whole(gradient: ValueId) -> Self {
        Self { tensor: gradient, factors: vec![] }
    }

    /// Takes a gradient apart: finds the scalars by which nodes of the update multiply a tensor of the same type.
    pub(crate) fn of(module: &Module, gradient: ValueId) -> Self {
        let Some((tensor, factor)) = product(module, gradient) else { return Self::whole(gradient) };
        let mut inner = Self::of(module, tensor);
        inner.factors.push(factor);
        inner
    }
}

/// Returns the tensor and the scalar of a product, if a node of the update computes the value as one.
fn product(module: &Module, value: ValueId) -> Option<(ValueId, ValueId)> {
    let Definition::Node(id, _) = module.value(value).definition else { return None };
    let node = module.node(id);
    let (Op::Binary(Binary::Mul), [tensor, factor]) = (&node.op, &node.operands[..]) else { return None };
    let fits = module.ty(*factor).ndim() == 0 && module.ty(*tensor).same_shape(module.ty(value));
    (node.phase == Phase::Update && fits).then_some((*tensor, *factor))
}

/// Products of factors, each built once.
#[derive(Default)]
pub(crate) struct Products(BTreeMap<Vec<ValueId>, ValueId>);

impl Products {
    /// Returns the product of scalars of one type, in their order; `None` for no scalars.
    pub(crate) fn product(
        &mut self,
        b: &mut Builder,
        factors: &[ValueId],
    ) -> Result<Option<ValueId>, TypeError> {
        let Some((&last, others)) = factors.split_last() else { return Ok(None) };
        if let Some(&known) = self.0.get(factors) {
            return Ok(Some(known));
        }
        let product = match self.product(b, others)? {
            Some(product) => b.build(product * last)?,
            None => last,
        };
        self.0.insert(factors.to_vec(), product);
        Ok(Some(product))
    }
}

/// Casts of one scalar, each built once.
pub(crate) struct Casts {
    scalar: ValueId,
    casts: BTreeMap<DType, ValueId>,
}

impl Casts {
    pub(crate) fn of(scalar: ValueId) -> Self {
        Self { scalar, casts: BTreeMap::new() }
    }

    /// Returns the scalar in a type.
    pub(crate) fn cast(&mut self, b: &mut Builder, dtype: DType) -> Result<ValueId, TypeError> {
        if let Some(&cast) = self.casts.get(&dtype) {
            return Ok(cast);
        }
        let cast = b.cast(self.scalar, dtype)?;
        self.casts.insert(dtype, cast);
        Ok(cast)
    }
}
