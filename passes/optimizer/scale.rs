//! The factors of a gradient: numbers by which the update multiplies all its elements.
//!
//! The divisor of the loss and the loss scale are such factors. An optimizer multiplies the gradient by them while it reads
//! it, and a norm is multiplied once, so no scaled gradient is written to memory.

use ir::ops::elementwise::Binary;
use ir::{Builder, DType, Definition, Module, Op, Phase, TypeError, ValueId};
use std::collections::BTreeMap;

/// A gradient as a tensor times factors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Factored {
    /// The tensor, of the gradient's type.
    pub(crate) tensor: ValueId,
    /// Scalars of the gradient's element type, in the order in which they are multiplied.
    pub(crate) factors: Vec<ValueId>,
}

impl Factored {
    /// A gradient without factors.
    pub(crate) fn whole(gradient: ValueId) -> Self {
        Self { tensor: gradient, factors: vec![] }
    }

    /// Takes a gradient apart, as far as nodes of the update multiply a tensor of its type by a scalar.
    pub(crate) fn of(module: &Module, gradient: ValueId) -> Self {
        let Some((tensor, factor)) = product(module, gradient) else { return Self::whole(gradient) };
        let mut inner = Self::of(module, tensor);
        inner.factors.push(factor);
        inner
    }
}

/// The operands of the node that multiplies a tensor by a scalar, if the update makes the value so.
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
    /// The product of scalars of one type, in their order; `None` of no scalars.
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
            Some(product) => b.mul(product, last)?,
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

    /// The scalar in a type.
    pub(crate) fn cast(&mut self, b: &mut Builder, dtype: DType) -> Result<ValueId, TypeError> {
        if let Some(&cast) = self.casts.get(&dtype) {
            return Ok(cast);
        }
        let cast = b.cast(self.scalar, dtype)?;
        self.casts.insert(dtype, cast);
        Ok(cast)
    }
}
