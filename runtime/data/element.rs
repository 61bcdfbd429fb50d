//! Reading, writing and converting single elements of any type, little endian.

use ir::DType;

/// One element, wide enough for every type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    /// An integer or a bool (0 or 1).
    Integer(i128),
    /// A floating-point number.
    Float(f64),
}

/// Reads the element in `bytes`, which has exactly `dtype.bytes()` bytes.
pub(super) fn read(dtype: DType, bytes: &[u8]) -> Scalar {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        out
    }
    match dtype {
        DType::F64 => Scalar::Float(f64::from_le_bytes(array(bytes))),
        DType::F32 => Scalar::Float(f32::from_le_bytes(array(bytes)).into()),
        DType::F16 => Scalar::Float(half::f16::from_le_bytes(array(bytes)).into()),
        DType::BF16 => Scalar::Float(half::bf16::from_le_bytes(array(bytes)).into()),
        DType::I64 => Scalar::Integer(i64::from_le_bytes(array(bytes)).into()),
        DType::I32 => Scalar::Integer(i32::from_le_bytes(array(bytes)).into()),
        DType::I16 => Scalar::Integer(i16::from_le_bytes(array(bytes)).into()),
        DType::I8 => Scalar::Integer(i8::from_le_bytes(array(bytes)).into()),
        DType::U64 => Scalar::Integer(u64::from_le_bytes(array(bytes)).into()),
        DType::U32 => Scalar::Integer(u32::from_le_bytes(array(bytes)).into()),
        DType::U16 => Scalar::Integer(u16::from_le_bytes(array(bytes)).into()),
        DType::U8 => Scalar::Integer(bytes[0].into()),
        DType::Bool => Scalar::Integer((bytes[0] != 0).into()),
    }
}

/// Writes `value` as a `dtype` into `out` (of exactly `dtype.bytes()` bytes). Floats are rounded to nearest. Returns false, and writes
/// nothing, if a number does not fit or a float would become an integer. A finite number that rounds to infinity does not fit.
#[must_use]
pub(super) fn write(dtype: DType, value: Scalar, out: &mut [u8]) -> bool {
    fn put(out: &mut [u8], bytes: Option<impl AsRef<[u8]>>) -> bool {
        bytes.is_some_and(|bytes| {
            out.copy_from_slice(bytes.as_ref());
            true
        })
    }
    let float = match value {
        Scalar::Integer(integer) => integer as f64,
        Scalar::Float(float) => float,
    };
    if dtype.is_float() && overflows(dtype, float) {
        return false;
    }
    let integer = match value {
        Scalar::Integer(integer) => Some(integer),
        Scalar::Float(_) => None,
    };
    macro_rules! integer {
        ($type:ty) => {
            put(out, integer.and_then(|value| <$type>::try_from(value).ok()).map(<$type>::to_le_bytes))
        };
    }
    match dtype {
        DType::F64 => put(out, Some(float.to_le_bytes())),
        DType::F32 => put(out, Some((float as f32).to_le_bytes())),
        DType::F16 => put(out, Some(ir::rounding::to_f16(float).to_le_bytes())),
        DType::BF16 => put(out, Some(ir::rounding::to_bf16(float).to_le_bytes())),
        DType::I64 => integer!(i64),
        DType::I32 => integer!(i32),
        DType::I16 => integer!(i16),
        DType::I8 => integer!(i8),
        DType::U64 => integer!(u64),
        DType::U32 => integer!(u32),
        DType::U16 => integer!(u16),
        DType::U8 => integer!(u8),
        DType::Bool => put(out, integer.filter(|value| matches!(value, 0 | 1)).map(|value| [value as u8])),
    }
}

/// Returns whether a finite number becomes infinite when it is rounded to `dtype`.
pub(super) fn overflows(dtype: DType, value: f64) -> bool {
    let is_infinite = match dtype {
        DType::F16 => ir::rounding::to_f16(value).is_infinite(),
        DType::BF16 => ir::rounding::to_bf16(value).is_infinite(),
        DType::F32 => (value as f32).is_infinite(),
        _ => return false,
    };
    is_infinite && value.is_finite()
}

/// Returns whether elements of type `from` can feed an input of type `to`. Integers (and bools) feed integers if they fit, floats feed
/// floats (rounded), and bools feed any type. Integers never feed floats, and floats never feed integers.
pub(super) fn feeds(from: DType, to: DType) -> bool {
    from == to || from == DType::Bool || from.is_float() == to.is_float()
}

/// Converts all elements of `bytes` into `out`. Bools become bytes of 0 or 1, even if the file has other bytes. The error is the index and
/// the value of the first element that does not fit.
pub(super) fn convert(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), (usize, Scalar)> {
    if from == to && from != DType::Bool {
        out.copy_from_slice(bytes);
        return Ok(());
    }
    if from == DType::Bool && to.bytes() == 1 && !to.is_float() {
        out.iter_mut().zip(bytes).for_each(|(slot, &byte)| *slot = u8::from(byte != 0));
        return Ok(());
    }
    let elements = bytes.chunks_exact(from.bytes() as usize).zip(out.chunks_exact_mut(to.bytes() as usize));
    for (index, (element, slot)) in elements.enumerate() {
        let value = read(from, element);
        if !write(to, value, slot) {
            return Err((index, value));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_reads_back_the_one_that_it_wrote() {
        for dtype in DType::ALL {
            let mut bytes = vec![0; dtype.bytes() as usize];
            assert!(write(dtype, Scalar::Integer(1), &mut bytes), "{dtype}");
            let expected = if dtype.is_float() { Scalar::Float(1.0) } else { Scalar::Integer(1) };
            assert_eq!(read(dtype, &bytes), expected, "{dtype}");
        }
    }

    #[test]
    fn an_integer_that_does_not_fit_is_refused_with_its_index() {
        let bytes: Vec<u8> = [5i64, 300].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut out = [0; 2];
        assert_eq!(convert(DType::I64, &bytes, DType::U8, &mut out), Err((1, Scalar::Integer(300))));
        let mut out = [0; 4];
        assert_eq!(convert(DType::I64, &bytes, DType::I16, &mut out), Ok(()));
        assert_eq!(out, [5, 0, 44, 1]);
    }

    #[test]
    fn a_number_that_rounds_to_infinity_does_not_fit() {
        let largest = [
            (DType::F16, 65_504.0),
            (DType::BF16, (2.0 - 2f64.powi(-7)) * 2f64.powi(127)),
            (DType::F32, f32::MAX.into()),
        ];
        for (dtype, largest) in largest {
            let mut out = [0; 4];
            let out = &mut out[..dtype.bytes() as usize];
            for number in [largest, -largest] {
                assert!(!write(dtype, Scalar::Float(number * 1.01), out), "{dtype}");
                assert!(write(dtype, Scalar::Float(number), out), "{dtype}");
                assert_eq!(read(dtype, out), Scalar::Float(number));
            }
            assert!(write(dtype, Scalar::Float(f64::INFINITY), out));
            assert_eq!(read(dtype, out), Scalar::Float(f64::INFINITY));
        }
        assert!(write(DType::F64, Scalar::Float(f64::MAX), &mut [0; 8]));
    }

    #[test]
    fn a_bool_is_zero_or_one_whatever_byte_a_file_has() {
        let mut out = [9; 3];
        assert_eq!(convert(DType::Bool, &[0, 1, 7], DType::Bool, &mut out), Ok(()));
        assert_eq!(out, [0, 1, 1]);
    }

    #[test]
    fn bools_feed_bytes_as_they_feed_wider_integers() {
        let bytes: Vec<u8> = (0..=255).collect();
        let [mut wide, mut narrow] = [vec![0; 512], vec![9; 256]];
        convert(DType::Bool, &bytes, DType::I16, &mut wide).unwrap();
        for to in [DType::Bool, DType::U8, DType::I8] {
            convert(DType::Bool, &bytes, to, &mut narrow).unwrap();
            assert!(wide.chunks_exact(2).map(|element| element[0]).eq(narrow.iter().copied()), "{to}");
        }
    }

    /// Processors first round such a number to f32, which gives 65520, and then to infinity.
    #[test]
    fn a_number_just_below_the_bound_of_half_precision_never_becomes_infinite() {
        for number in [65_520f64.next_down(), -65_520f64.next_down(), 65_519.0, 65_520.0] {
            let mut out = [0; 2];
            match convert(DType::F64, &number.to_le_bytes(), DType::F16, &mut out) {
                Ok(()) => {
                    assert_eq!(read(DType::F16, &out), Scalar::Float(65_504f64.copysign(number)), "{number}");
                }
                Err(refused) => assert_eq!(refused, (0, Scalar::Float(number))),
            }
        }
        assert!(convert(DType::F64, &65_519f64.to_le_bytes(), DType::F16, &mut [0; 2]).is_ok());
    }

    #[test]
    fn a_float_never_becomes_an_integer() {
        assert!(!feeds(DType::F32, DType::I64));
        assert!(!feeds(DType::U8, DType::F32));
        assert!(feeds(DType::Bool, DType::F32));
        let mut out = [0; 8];
        assert!(!write(DType::I64, Scalar::Float(1.0), &mut out));
    }
}
