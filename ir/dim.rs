//! Sizes of dims: numbers, or, until dims are bound, products of a number and symbols.

use crate::visible;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The dims of a tensor, outermost first.
pub type Dims = SmallVec<[Dim; 4]>;

/// The size of a dim: `coefficient · Π symbols`. Products are all that reshapes of real exports need; a sum of
/// symbols has no `Dim`, and the import asks for a binding instead.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dim {
    coefficient: u64,
    /// Sorted, with repetition for powers.
    symbols: SmallVec<[Arc<str>; 1]>,
}

impl Dim {
    /// A number.
    pub fn known(size: u64) -> Self {
        Self { coefficient: size, symbols: SmallVec::new() }
    }

    /// A named size, fixed later by binding.
    pub fn symbol(name: &str) -> Self {
        Self { coefficient: 1, symbols: SmallVec::from_iter([Arc::from(name)]) }
    }

    /// The number, when no symbol is left.
    pub fn size(&self) -> Option<u64> {
        (self.symbols.is_empty() || self.coefficient == 0).then_some(self.coefficient)
    }

    /// Whether the size is the number one.
    pub fn is_one(&self) -> bool {
        self.size() == Some(1)
    }

    /// The number in front of the symbols.
    pub fn coefficient(&self) -> u64 {
        self.coefficient
    }

    /// The symbols, sorted, with repetition for powers.
    pub fn symbols(&self) -> &[Arc<str>] {
        &self.symbols
    }

    /// The product, or `None` when the number overflows.
    pub fn product(&self, other: &Self) -> Option<Self> {
        let coefficient = self.coefficient.checked_mul(other.coefficient)?;
        let mut symbols = self.symbols.clone();
        symbols.extend(other.symbols.iter().cloned());
        symbols.sort();
        Some(Self { coefficient, symbols })
    }

    /// The exact quotient, or `None` when `other` is zero or does not divide.
    pub fn quotient(&self, other: &Self) -> Option<Self> {
        if other.coefficient == 0 || !self.coefficient.is_multiple_of(other.coefficient) {
            return None;
        }
        let mut symbols = self.symbols.clone();
        for symbol in &other.symbols {
            let at = symbols.iter().position(|s| s == symbol)?;
            symbols.remove(at);
        }
        Some(Self { coefficient: self.coefficient / other.coefficient, symbols })
    }

    /// This size with the given symbols replaced by numbers, or `None` on overflow.
    pub fn bind(&self, bindings: &BTreeMap<String, u64>) -> Option<Self> {
        let mut bound = Self::known(self.coefficient);
        for symbol in &self.symbols {
            let factor = match bindings.get(symbol.as_ref()) {
                Some(&size) => Self::known(size),
                None => Self::symbol(symbol),
            };
            bound = bound.product(&factor)?;
        }
        Some(bound)
    }
}

impl From<u64> for Dim {
    fn from(size: u64) -> Self {
        Self::known(size)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.symbols.is_empty() {
            return write!(f, "{}", self.coefficient);
        }
        if self.coefficient != 1 {
            write!(f, "{}*", self.coefficient)?;
        }
        f.write_str(&visible(&self.symbols.join("*")))
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
