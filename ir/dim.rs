//! Sizes of dims: numbers, or products of a number and symbols until the symbols are bound.

use crate::visible;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The dims of a tensor, outermost first.
pub type Dims = SmallVec<[Dim; 4]>;

/// The size of a dim: `coefficient · Π symbols`. Reshapes of real exports need products only. A sum of symbols has no `Dim`; the
/// import then asks for a binding of the symbols.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dim {
    coefficient: u64,
    /// The symbols, sorted; a power is a repeated symbol.
    symbols: SmallVec<[Arc<str>; 1]>,
}

impl Dim {
    /// Makes a size that is a number.
    pub fn known(size: u64) -> Self {
        Self { coefficient: size, symbols: SmallVec::new() }
    }

    /// Makes a named size, whose number a later binding gives.
    pub fn symbol(name: &str) -> Self {
        Self { coefficient: 1, symbols: SmallVec::from_iter([Arc::from(name)]) }
    }

    /// Returns the number, if the size has no symbols or is 0.
    pub fn size(&self) -> Option<u64> {
        (self.symbols.is_empty() || self.coefficient == 0).then_some(self.coefficient)
    }

    /// Whether the size is the number one.
    pub fn is_one(&self) -> bool {
        self.size() == Some(1)
    }

    /// Returns the number in front of the symbols.
    pub fn coefficient(&self) -> u64 {
        self.coefficient
    }

    /// Returns the symbols, sorted; a power is a repeated symbol.
    pub fn symbols(&self) -> &[Arc<str>] {
        &self.symbols
    }

    /// Returns the product, or `None` when the number overflows.
    pub fn product(&self, other: &Self) -> Option<Self> {
        let coefficient = self.coefficient.checked_mul(other.coefficient)?;
        let mut symbols = self.symbols.clone();
        symbols.extend(other.symbols.iter().cloned());
        symbols.sort();
        Some(Self { coefficient, symbols })
    }

    /// Returns the exact quotient, or `None` when `other` is zero or does not divide.
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

    /// Returns this size with the given symbols replaced by numbers, or `None` on overflow.
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
