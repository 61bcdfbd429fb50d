//! The data table: bytes of constants and of initial states, by reference.

use crate::Type;
use bytes::Bytes;

/// A row of the data table.
#[derive(Clone, Debug)]
pub struct Data {
    /// Name, unique in the module; for data of a file the file's name of the tensor.
    pub name: String,
    /// Element type and dims, all bound; never sharded.
    pub ty: Type,
    /// The bytes.
    pub blob: Blob,
    /// The claim about a file's tensor, apart from its uses in the program.
    pub claim: Option<Claim>,
}

/// A claim about the role of a file's tensor. The pass `parameters` weighs it against the tensor's uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// The user wants it trained.
    Asked,
    /// The exporter lists it as a parameter.
    Parameter,
    /// The exporter lists it as a buffer.
    Buffer,
    /// The exporter's list is complete, and the tensor is not on it.
    Unlisted,
    /// The exporter computed it, perhaps from parameters.
    Computed,
    /// The author of the model named it. Parameters have such names; buffers have them too.
    Named,
    /// The exporter writes constants of the code in this way, and parameters in another.
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

    /// Whether a single number of which this is said may be a parameter.
    pub fn may_be_trained(self) -> bool {
        matches!(self, Self::Asked | Self::Parameter | Self::Named)
    }
}

/// Where the bytes of a tensor are. Little endian, row-major, as in ONNX's `raw_data` and in safetensors.
#[derive(Clone, Debug)]
pub enum Blob {
    /// Small, made by the compiler, and written out in text.
    Inline(Bytes),
    /// In the model's file: a slice of the mapped file, or nothing when the file came without its weights. Text has
    /// the name alone, and equality of modules ignores the bytes.
    File(Option<Bytes>),
}

impl Data {
    /// Bytes up to which data made by the compiler is written out in text.
    pub const INLINE_BYTES: usize = 1 << 20;

    /// The bytes, if they are here.
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

/// Whether elements of `width` bytes are those that modules begin with: all equal, or zeros and one other number, as in an
/// identity. Tensors with such elements may be equal without being one parameter.
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
