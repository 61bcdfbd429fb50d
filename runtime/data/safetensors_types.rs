//! The element types of safetensors files, for training data, weights and checkpoints.

use ir::DType;
use safetensors::Dtype as Stored;

/// Returns the library's element type and the format's name for it. The name is part of checksums in files, so it must not come from the
/// library, whose text may change.
fn row(dtype: DType) -> (Stored, &'static str) {
    match dtype {
        DType::F64 => (Stored::F64, "F64"),
        DType::F32 => (Stored::F32, "F32"),
        DType::F16 => (Stored::F16, "F16"),
        DType::BF16 => (Stored::BF16, "BF16"),
        DType::I64 => (Stored::I64, "I64"),
        DType::I32 => (Stored::I32, "I32"),
        DType::I16 => (Stored::I16, "I16"),
        DType::I8 => (Stored::I8, "I8"),
        DType::U64 => (Stored::U64, "U64"),
        DType::U32 => (Stored::U32, "U32"),
        DType::U16 => (Stored::U16, "U16"),
        DType::U8 => (Stored::U8, "U8"),
        DType::Bool => (Stored::BOOL, "BOOL"),
    }
}

/// Returns the element type in safetensors.
pub fn stored(dtype: DType) -> Stored {
    row(dtype).0
}

/// Returns the element type for one in a file; `None` if no program has that type.
pub fn loaded(stored: Stored) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| row(dtype).0 == stored)
}

/// Returns the format's name for an element type. Types that no program has are never written.
pub fn name(stored: Stored) -> &'static str {
    loaded(stored).map_or("OTHER", |dtype| row(dtype).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_stored_and_loaded_under_the_formats_name() {
        for dtype in DType::ALL {
            assert_eq!(loaded(stored(dtype)), Some(dtype));
            assert_eq!(name(stored(dtype)), stored(dtype).to_string());
        }
        assert_eq!(loaded(Stored::F8_E4M3), None);
    }
}
