//! The conversion of a `TensorProto` to a [`Tensor`]: sizes are checked, typed fields converted, external data mapped.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::external::ExternalFiles;
use super::{ElementType, Tensor, TensorBytes, TensorSource, label};
use crate::error::{Problem, quoted};
use crate::proto::{DataLocation, StringStringEntryProto, TensorProto};

/// Decodes one tensor. `name` is the value that it defines.
pub(crate) fn tensor(
    proto: &TensorProto,
    name: &str,
    source: TensorSource,
    files: &mut ExternalFiles,
) -> Result<Tensor, Problem> {
    let shown = quoted(name);
    let bare =
        |message: String| Problem::new(format!("tensor {shown} {message}")).at(format!("tensor {shown}"));
    let dtype = element_type(proto.data_type).map_err(bare)?;
    let dims = dims(&proto.dims).map_err(bare)?;
    let bytes = elements(proto, dtype, &dims, files)
        .map_err(|message| Problem::new(format!("tensor {shown} {message}")).at(label(name, dtype, &dims)))?;
    let metadata = metadata(&proto.metadata_props);
    Ok(Tensor { name: name.to_owned(), dtype, dims, bytes, source, metadata })
}

/// Returns the entries of a `metadata_props` field. The last of several entries with the same key counts.
pub(crate) fn metadata(entries: &[StringStringEntryProto]) -> BTreeMap<String, String> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    entries.iter().map(|entry| (text(&entry.key), text(&entry.value))).collect()
}

fn element_type(code: Option<i32>) -> Result<ElementType, String> {
    let code = code.unwrap_or(0);
    ElementType::from_code(code)
        .ok_or_else(|| format!("has the element type {code}; ONNX IR 14 defines 1 (f32) to 28"))
}

/// Checks dims. Their product, without empty dims, must fit the address space in every order of multiplication.
pub(crate) fn dims(dims: &[i64]) -> Result<Vec<usize>, String> {
    if dims.len() > 64 {
        return Err(format!("has {} dims; at most 64 are supported", dims.len()));
    }
    let checked: Option<Vec<usize>> = dims.iter().map(|&size| usize::try_from(size).ok()).collect();
    let checked = checked.ok_or_else(|| format!("has a negative dim: {dims:?}"))?;
    let product = checked.iter().try_fold(1usize, |product, &size| product.checked_mul(size.max(1)));
    product
        .filter(|&product| product <= isize::MAX as usize / 16)
        .ok_or_else(|| format!("has dims {dims:?}, whose product is larger than any memory"))?;
    Ok(checked)
}

/// Returns the elements, wherever the file stores them. The error text continues `tensor "x" …`.
fn elements(
    proto: &TensorProto,
    dtype: ElementType,
    dims: &[usize],
    files: &mut ExternalFiles,
) -> Result<TensorBytes, String> {
    if proto.segment.is_some() {
        return Err("is one segment of a larger tensor; join the segments into one tensor".to_owned());
    }
    let count: usize = dims.iter().product();
    if dtype == ElementType::String {
        check_count("string_data", proto.string_data.len(), count)?;
        return Ok(TensorBytes::Strings(proto.string_data.clone()));
    }
    let needed = dtype.bytes_of(count).ok_or("is larger than any memory")?;
    if proto.data_location == Some(DataLocation::External as i32) {
        return external(proto, needed, files);
    }
    let bytes = match &proto.raw_data {
        Some(raw) if !raw.is_empty() || needed == 0 => raw.clone(),
        _ => typed(proto, dtype, count)?,
    };
    if bytes.len() != needed {
        return Err(format!("has {} bytes of data, and {dtype}{dims:?} needs {needed}", bytes.len()));
    }
    Ok(TensorBytes::Present(bytes))
}

/// Returns a slice of a file beside the model.
fn external(proto: &TensorProto, needed: usize, files: &mut ExternalFiles) -> Result<TensorBytes, String> {
    let entries = metadata(&proto.external_data);
    let location = entries.get("location").ok_or("has external data without a `location`")?;
    let number = |key: &str| match entries.get(key) {
        None => Ok(None),
        Some(text) => text.trim().parse::<u64>().map(Some).map_err(|_| {
            format!("has external data with {key} {}, which is not a number of bytes", quoted(text))
        }),
    };
    let offset = number("offset")?.unwrap_or(0);
    let length = number("length")?.unwrap_or(needed as u64);
    if length != needed as u64 {
        return Err(format!("has {length} bytes of external data, and its dims and type need {needed}"));
    }
    let end = offset
        .checked_add(length)
        .ok_or_else(|| format!("has external data at byte {offset}, which is out of range"))?;
    let Some(file) = files.get(location)? else {
        return Ok(TensorBytes::Absent { location: location.clone(), offset, length });
    };
    if end > file.len() as u64 {
        return Err(format!(
            "has external data in bytes {offset} to {end} of {}, and this file has {} bytes",
            quoted(location),
            file.len()
        ));
    }
    Ok(TensorBytes::Present(file.slice(offset as usize..end as usize)))
}

/// Returns the elements of the typed field for `dtype`, as little-endian bytes.
fn typed(proto: &TensorProto, dtype: ElementType, count: usize) -> Result<Bytes, String> {
    use ElementType::*;
    refuse_other_fields(proto, dtype)?;
    let bytes = match dtype {
        F32 => little_endian(&proto.float_data, count, |value| value.to_le_bytes())?,
        C64 => little_endian(&proto.float_data, count * 2, |value| value.to_le_bytes())?,
        F64 => little_endian(&proto.double_data, count, |value| value.to_le_bytes())?,
        C128 => little_endian(&proto.double_data, count * 2, |value| value.to_le_bytes())?,
        I64 => little_endian(&proto.int64_data, count, |value| value.to_le_bytes())?,
        U64 => little_endian(&proto.uint64_data, count, |value| value.to_le_bytes())?,
        U32 => {
            let narrow = narrowed(&proto.uint64_data, 0, u32::MAX.into(), dtype)?;
            little_endian(&narrow, count, |value| (value as u32).to_le_bytes())?
        }
        I32 => little_endian(&proto.int32_data, count, |value| value.to_le_bytes())?,
        Bool => little_endian(&proto.int32_data, count, |value| [u8::from(value != 0)])?,
        F6E2M3 | F6E3M2 => six_bits(&narrowed(&proto.int32_data, 0, 63, dtype)?, count)?,
        _ if dtype.bits() == 16 => {
            let narrow = narrowed(&proto.int32_data, i16::MIN.into(), u16::MAX.into(), dtype)?;
            little_endian(&narrow, count, |value| (value as u16).to_le_bytes())?
        }
        // Elements of 8 bits, or several smaller elements in each entry.
        _ => {
            let narrow = narrowed(&proto.int32_data, i8::MIN.into(), u8::MAX.into(), dtype)?;
            little_endian(&narrow, count.div_ceil(8 / dtype.bits()), |value| [value as u8])?
        }
    };
    Ok(bytes)
}

/// Refuses elements in a field that this type does not use.
fn refuse_other_fields(proto: &TensorProto, dtype: ElementType) -> Result<(), String> {
    use ElementType::*;
    let right = match dtype {
        F32 | C64 => "float_data",
        F64 | C128 => "double_data",
        I64 => "int64_data",
        U32 | U64 => "uint64_data",
        _ => "int32_data",
    };
    let fields = [
        ("float_data", proto.float_data.len()),
        ("double_data", proto.double_data.len()),
        ("int64_data", proto.int64_data.len()),
        ("uint64_data", proto.uint64_data.len()),
        ("int32_data", proto.int32_data.len()),
        ("string_data", proto.string_data.len()),
    ];
    match fields.iter().find(|(field, count)| *count > 0 && *field != right) {
        Some((wrong, _)) => Err(format!(
            "has its elements in {wrong}; elements of type {dtype} belong in {right} or raw_data"
        )),
        None => Ok(()),
    }
}

fn check_count(field: &str, found: usize, needed: usize) -> Result<(), String> {
    match found {
        _ if found == needed => Ok(()),
        0 => Err(format!("has no data, and its dims need {needed} elements")),
        _ => Err(format!("has {found} entries in {field}, and its dims need {needed}")),
    }
}

fn little_endian<T: Copy, const N: usize>(
    values: &[T],
    needed: usize,
    convert: impl Fn(T) -> [u8; N],
) -> Result<Bytes, String> {
    check_count("its typed data", values.len(), needed)?;
    let mut bytes = Vec::with_capacity(values.len() * N);
    values.iter().for_each(|&value| bytes.extend_from_slice(&convert(value)));
    Ok(bytes.into())
}

/// Returns the values as `i64`. All must be between `low` and `high`.
fn narrowed<T: Copy + TryInto<i64>>(
    values: &[T],
    low: i64,
    high: i64,
    dtype: ElementType,
) -> Result<Vec<i64>, String> {
    let narrow =
        values.iter().map(|&value| value.try_into().ok().filter(|value| (low..=high).contains(value)));
    let narrow: Option<Vec<i64>> = narrow.collect();
    narrow.ok_or_else(|| format!("has an entry outside {low} to {high}, the range of {dtype}"))
}

/// Packs elements of 6 bits, one per entry, into a bit stream, lowest bit first.
fn six_bits(values: &[i64], needed: usize) -> Result<Bytes, String> {
    check_count("int32_data", values.len(), needed)?;
    let groups = values.chunks(4).flat_map(|group| {
        let bits = group.iter().rev().fold(0u32, |bits, &value| bits << 6 | value as u32);
        bits.to_le_bytes().into_iter().take((group.len() * 6).div_ceil(8))
    });
    Ok(groups.collect::<Vec<u8>>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proto(dtype: ElementType, dims: &[i64]) -> TensorProto {
        TensorProto { dims: dims.to_vec(), data_type: Some(dtype.code()), ..Default::default() }
    }

    fn load(proto: &TensorProto) -> Result<Bytes, String> {
        let tensor = tensor(proto, "x", TensorSource::Initializer, &mut ExternalFiles::default());
        tensor.map(|tensor| tensor.present().unwrap().clone()).map_err(|problem| problem.message)
    }

    #[test]
    fn typed_fields_become_little_endian_bytes() {
        let half = TensorProto { int32_data: vec![0x3c00, 0xc000], ..proto(ElementType::F16, &[2]) };
        assert_eq!(load(&half).unwrap()[..], [0x00, 0x3c, 0x00, 0xc0]);
        let flags = TensorProto { int32_data: vec![1, 0, 7], ..proto(ElementType::Bool, &[3]) };
        assert_eq!(load(&flags).unwrap()[..], [1, 0, 1]);
        let bytes = TensorProto { int32_data: vec![-1, 127], ..proto(ElementType::I8, &[2]) };
        assert_eq!(load(&bytes).unwrap()[..], [0xff, 0x7f]);
        let wide = TensorProto { uint64_data: vec![u32::MAX.into()], ..proto(ElementType::U32, &[]) };
        assert_eq!(load(&wide).unwrap()[..], [0xff; 4]);
        let nibbles = TensorProto { int32_data: vec![0x21, 0x3], ..proto(ElementType::U4, &[3]) };
        assert_eq!(load(&nibbles).unwrap()[..], [0x21, 0x03]);
        let six = TensorProto { int32_data: vec![1, 2, 3, 4, 63], ..proto(ElementType::F6E2M3, &[5]) };
        assert_eq!(load(&six).unwrap()[..], [0x81, 0x30, 0x10, 0x3f]);
    }

    #[test]
    fn wrong_sizes_and_fields_are_named() {
        let short =
            TensorProto { raw_data: Some(Bytes::from_static(&[0; 7])), ..proto(ElementType::F32, &[2]) };
        assert_eq!(load(&short).unwrap_err(), "tensor \"x\" has 7 bytes of data, and f32[2] needs 8");
        let field = TensorProto { int64_data: vec![1], ..proto(ElementType::F32, &[1]) };
        assert!(load(&field).unwrap_err().contains("int64_data; elements of type f32 belong in float_data"));
        let range = TensorProto { int32_data: vec![256], ..proto(ElementType::U8, &[1]) };
        assert!(load(&range).unwrap_err().contains("outside -128 to 255"));
        assert!(load(&proto(ElementType::F32, &[3])).unwrap_err().contains("no data, and its dims need 3"));
        assert!(load(&proto(ElementType::F32, &[-1])).unwrap_err().contains("negative dim: [-1]"));
        assert!(
            load(&proto(ElementType::F32, &[1 << 40, 1 << 40, 0])).unwrap_err().contains("larger than any")
        );
        assert!(load(&TensorProto::default()).unwrap_err().contains("element type 0"));
    }

    #[test]
    fn an_empty_tensor_needs_no_data() {
        assert_eq!(load(&proto(ElementType::F32, &[0, 1 << 40])).unwrap().len(), 0);
    }
}
