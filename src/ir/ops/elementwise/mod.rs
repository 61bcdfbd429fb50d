//! Elementwise operators, with broadcasting: a dim of size one stretches, dims align at the last.

mod binary;
mod cast;
mod conditions;
mod unary;

pub use binary::Binary;
pub use cast::Cast;
pub(crate) use cast::wrap;
pub use conditions::{Compare, Logical, Select};
pub use unary::Unary;

use super::*;
use crate::tensor::{Elements, broadcast_strides, offsets};

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$kind_doc:meta])* $kind:ident $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$kind_doc])* $kind),* }

        impl Kinds for $name {
            const NAMES: &'static [(Self, &'static str)] = &[$((Self::$kind, $text)),*];
        }
    };
}
use kinds;

/// The elements of a tensor broadcast to sizes.
fn gathered(tensor: &Tensor, sizes: &[usize]) -> Elements {
    if tensor.sizes == sizes {
        return tensor.elements.clone();
    }
    let offsets = offsets(sizes, &broadcast_strides(&tensor.sizes, sizes));
    match &tensor.elements {
        Elements::Float(x) => Elements::Float(offsets.into_iter().map(|i| x[i]).collect()),
        Elements::Int(x) => Elements::Int(offsets.into_iter().map(|i| x[i]).collect()),
        Elements::Bool(x) => Elements::Bool(offsets.into_iter().map(|i| x[i]).collect()),
    }
}

/// Two operands of one element type.
fn same_dtype<'a>(types: &Inference<'a>) -> Result<[&'a Type; 2], TypeError> {
    let [x, y] = types.operands()?;
    if x.dtype != y.dtype {
        return Err(TypeError::new(format!("takes two operands of one type, not {x} and {y}")));
    }
    Ok([x, y])
}
