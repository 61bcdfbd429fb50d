//! The data table: bytes of constants and of initial states, by reference.

use crate::Type;
use bytes::Bytes;

/// A row of the data table.
#[derive(Clone, Debug)]
pub struct Data {
    /// Name, unique in the module. For a tensor of the file, its name in the file.
    pub name: String,
    /// Element type and dims, all bound; never sharded.
    pub ty: Type,
    /// The bytes.
    pub blob: Blob,
    /// The claim about a file's tensor, apart from its uses in the program.
    pub claim: Option<Claim>,
}

/// A claim about the role of a file's tensor. The pass `parameters` weighs the claim against the tensor's uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// The user asked that the tensor be trained.
    Asked,
    /// The exporter lists the tensor as a parameter.
    Parameter,
    /// The exporter lists the tensor as a buffer.
    Buffer,
    /// The exporter's list is complete, and the tensor is not on it.
    Unlisted,
    /// The exporter computed the tensor, perhaps from parameters.
    Computed,
    /// The author of the model named the tensor. Both parameters and buffers have such names.
    Named,
    /// The tensor has the form in which the exporter writes constants of the code, and not parameters.
    Literal,
}

impl Claim {
    /// Every claim with its word in text.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Asked, "asked"),
        (Self::Parameter, "parameter"),
        (Self::Buffer, "buffer"),
        (Self::Unlisted, "unlisted"),
        (Self::Computed, "computed"),
        (Self::Named, "named"),
        (Self::Literal, "literal"),
    ];

    /// Returns whether a tensor of one element with this claim may be a parameter.
    pub fn may_be_trained(self) -> bool {
        matches!(self, Self::Asked | Self::Parameter | Self::Named)
    }
}

/// The place of a tensor's bytes. They are little endian and row-major, as in ONNX's `raw_data` and in safetensors.
#[derive(Clone, Debug)]
pub enum Blob {
    /// Small bytes that the compiler made. They are written out in text.
    Inline(Bytes),
    /// Bytes in the model's file: a slice of the mapped file, or `None` when the file came without its weights. Text has only the
    /// name, and equality of modules ignores the bytes.
    File(Option<Bytes>),
}

impl Data {
    /// The largest number of bytes of compiler-made data that are written out in text.
    pub const INLINE_BYTES: usize = 1 << 20;

    /// Returns the bytes, if they were loaded.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.blob {
            Blob::Inline(bytes) => Some(bytes),
            Blob::File(bytes) => bytes.as_ref(),
        }
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.ty == other.ty
            && self.claim == other.claim
            && match (&self.blob, &other.blob) {
                (Blob::Inline(a), Blob::Inline(b)) => a == b,
                (Blob::File(_), Blob::File(_)) => true,
                _ => false,
            }
    }
}

/// Whether elements of `width` bytes look like initial values of a module: all equal, or zeros and one other number, as in an
/// identity matrix. Two tensors with such elements may be equal without being the same parameter.
pub fn is_initial(bytes: &[u8], width: usize) -> bool {
    let is_zero = |element: &[u8]| element.iter().all(|&byte| byte == 0);
    let mut elements = bytes.chunks(width.max(1));
    let Some(first) = elements.next() else { return false };
    let mut second = None;
    let few = elements.all(|element| element == first || *second.get_or_insert(element) == element);
    few && second.is_none_or(|second| is_zero(first) || is_zero(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_elements_and_identities_are_initial_and_others_are_not() {
        let bytes =
            |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        for (numbers, initial) in [
            (&[1.0, 1.0, 1.0][..], true),
            (&[1.0, 0.0, 0.0, 1.0], true),
            (&[0.0, 3.0, 3.0], true),
            (&[1.0, 2.0, 1.0], false),
            (&[0.0, 1.0, 2.0], false),
            (&[], false),
        ] {
            assert_eq!(is_initial(&bytes(numbers), 4), initial, "{numbers:?}");
        }
    }
}
