//! Elementwise operators, with broadcasting: dims are aligned at the last one, and a dim of size one stretches.

mod binary;
mod bits;
mod cast;
mod conditions;
mod unary;

pub use binary::Binary;
pub use bits::{Bitcast, Bitwise};
pub use cast::Cast;
pub(crate) use cast::wrap;
pub use conditions::{Compare, Logical, Select};
pub use unary::Unary;

use super::*;
use crate::tensor::{Elements, broadcast_strides};
use std::borrow::Cow;

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

/// Broadcasts the elements of a tensor to `sizes`. A single element is not repeated, because [`zip`] pairs it with all others.
fn gathered<'a>(tensor: &'a Tensor, sizes: &[usize]) -> Cow<'a, Elements> {
    if tensor.sizes == sizes || tensor.len() == 1 {
        return Cow::Borrowed(&tensor.elements);
    }
    Cow::Owned(tensor.elements.strided(sizes, &broadcast_strides(&tensor.sizes, sizes)))
}

/// Applies a function to each pair of elements. A single element is paired with every element of the other side.
fn zip<T: Copy, U: Copy, V>(x: &[T], y: &[U], function: impl Fn(T, U) -> V) -> Vec<V> {
    match (x, y) {
        (&[x], y) => y.iter().map(|&y| function(x, y)).collect(),
        (x, &[y]) => x.iter().map(|&x| function(x, y)).collect(),
        (x, y) => x.iter().zip(y).map(|(&x, &y)| function(x, y)).collect(),
    }
}

/// Returns the two operands, which must have the same element type.
fn same_dtype<'a>(types: &Inference<'a>) -> Result<[&'a Type; 2], TypeError> {
    let [x, y] = types.operands()?;
    ensure!(x.dtype == y.dtype, "takes two operands of one type, not {x} and {y}");
    Ok([x, y])
}
