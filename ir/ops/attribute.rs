//! The text form of operators' attributes.

use smallvec::SmallVec;
use std::fmt;

/// A type that can be an attribute. Its text parses back to an equal value. The text has no space, comma, brace or bracket outside
/// of one pair of brackets.
pub trait Attribute: Sized {
    /// Returns the text.
    fn print(&self) -> String;
    /// Parses a text; `None` if it is not valid.
    fn parse(text: &str) -> Option<Self>;
}

/// A number kept as the bits of an f64, so that operators can be compared and hashed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Float(u64);

impl Float {
    /// Stores a number. All NaNs become the same NaN.
    pub fn new(value: f64) -> Self {
        Self(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for Float {
    fn from(value: f64) -> Self {
        Self::new(value)
    }
}

impl fmt::Debug for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// The labels of a tensor's dims in a contraction, one letter per dim, such as `bsh`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(pub SmallVec<[u8; 8]>);

impl Attribute for Labels {
    fn print(&self) -> String {
        if self.0.is_empty() { "_".into() } else { self.0.iter().map(|&label| label as char).collect() }
    }

    fn parse(text: &str) -> Option<Self> {
        let letters = text.strip_prefix('_').unwrap_or(text);
        letters.bytes().all(|b| b.is_ascii_alphabetic()).then(|| Self(letters.bytes().collect()))
    }
}

impl From<&str> for Labels {
    fn from(text: &str) -> Self {
        Self(text.bytes().collect())
    }
}

impl Attribute for Float {
    fn print(&self) -> String {
        format!("{:?}", self.get())
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::new)
    }
}

macro_rules! plain_attributes {
    ($($ty:ty),*) => { $(
        impl Attribute for $ty {
            fn print(&self) -> String {
                self.to_string()
            }

            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )* };
}
plain_attributes!(bool, u32, u64, i64, crate::DType);

impl<T: Attribute, const N: usize> Attribute for SmallVec<[T; N]> {
    fn print(&self) -> String {
        let items: Vec<_> = self.iter().map(T::print).collect();
        format!("[{}]", items.join(", "))
    }

    fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?.trim();
        if inner.is_empty() {
            return Some(Self::new());
        }
        inner.split(',').map(|item| T::parse(item.trim())).collect()
    }
}

impl Attribute for crate::Tier {
    fn print(&self) -> String {
        self.name().into()
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name)| *name == text).map(|(tier, _)| tier)
    }
}

impl Attribute for crate::DataId {
    fn print(&self) -> String {
        format!("@{}", self.as_u32())
    }

    fn parse(text: &str) -> Option<Self> {
        text.strip_prefix('@')?.parse().ok().map(Self::from_u32)
    }
}
