//! Operators without operands: constants, equal elements, indices.

use super::*;
use crate::{DType, block};

/// The tensor of a row of the data table; its type is the result type. It is never trained: trained tensors are states.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constant {
    /// The row.
    pub data: DataId,
}

/// A tensor whose elements all equal a number, in the result type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Splat {
    /// The number; converted to the element type.
    pub value: Float,
}

/// The index along a dim: `out[.., i, ..] = i`, in the result type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iota {
    /// The dim whose indices are the elements.
    pub dim: u32,
}

/// Returns the declared type of an operator without operands.
fn declared(types: &Inference) -> Result<Vec<Type>, TypeError> {
    types.operands::<0>()?;
    let ty = types.declared()?;
    Ok(vec![Type::new(ty.dtype, ty.dims.clone())])
}

macro_rules! source {
    (
        $name:ident,
        depends_on_position: $depends:expr,
        |$op:ident, $types:ident| $check:expr,
        |$self:ident, $cx:ident| $interp:expr
    ) => {
        impl Operator for $name {
            fn facts(&self) -> Facts {
                Operands::new(&[]).facts($depends, PrecisionClass::Source)
            }

            fn infer(&self, $types: &Inference) -> Result<Vec<Type>, TypeError> {
                let $op = self;
                $check?;
                declared($types)
            }

            fn factors(&self, signature: &Signature) -> Factors {
                Factors::source(signature)
            }

            /// There are no operands.
            fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
                Ok(vec![])
            }

            fn cost(&self, signature: &Signature) -> Cost {
                Cost::streaming(signature, 0)
            }

            fn interp(&$self, $cx: &Interp) -> Vec<Tensor> {
                vec![$interp]
            }
        }
    };
}

// Each part has different elements.
source!(Constant, depends_on_position: true, |_op, _types| Ok::<_, TypeError>(()), |self, cx| {
    let data = &cx.data[self.data];
    let bytes = data.bytes().expect("interp runs on data that is here");
    let stored = Tensor::from_bytes(&data.ty, bytes).expect("the data table has whole tensors");
    let sizes = cx.sizes(0);
    let spans: Vec<Span> = (0..sizes.len()).map(|dim| cx.result_span(0, dim)).collect();
    let stored = stored.reshaped(spans.iter().map(|span| span.size as usize).collect());
    let start: Vec<usize> = spans.iter().map(|span| span.start as usize).collect();
    if stored.sizes == sizes { stored } else { block::read(&stored, &start, &sizes) }
});

source!(Splat, depends_on_position: false, |_op, _types| Ok::<_, TypeError>(()), |self, cx| {
    Tensor::splat(cx.results[0].dtype, cx.sizes(0), self.value.get())
});

source!(
    Iota,
    depends_on_position: true,
    |op, types| match types.declared()? {
        ty if ty.ndim() <= op.dim as usize || ty.dtype == DType::Bool => {
            Err(TypeError::new(format!("{ty} cannot be counted along dim {}", op.dim)))
        }
        _ => Ok(()),
    },
    |self, cx| {
        let sizes = cx.sizes(0);
        let inner: usize = sizes[self.dim as usize + 1..].iter().product();
        let size = sizes[self.dim as usize];
        let start = cx.result_span(0, self.dim as usize).start as usize;
        let index = |i: usize| (start + i / inner.max(1) % size.max(1)) as i64;
        let indices = (0..sizes.iter().product()).map(index);
        if cx.results[0].dtype.is_float() {
            Tensor::float(cx.results[0].dtype, sizes, indices.map(|i| i as f64).collect())
        } else {
            Tensor::int(cx.results[0].dtype, sizes, indices.collect())
        }
    }
);
