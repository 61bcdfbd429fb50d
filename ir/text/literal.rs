//! Literals: names and strings, floats with exact bits, elements of inline data.

use crate::DType;
use crate::visible::is_hidden;
use std::fmt::Write;

/// Whether a name can be written without quotes.
pub(super) fn is_word(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
}

/// Returns the name, quoted if necessary.
pub(super) fn word(name: &str) -> String {
    if is_word(name) { name.to_string() } else { quoted(name) }
}

/// Returns the string in quotes, on one line; hidden characters are escaped (see [`crate::visible()`]).
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_hidden(c) => write!(out, "\\u{{{:x}}}", u32::from(c)).expect("strings take all"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The conversions between the bits and the text of a float type.
struct FloatFormat {
    /// The bits of the NaN that is written `NaN`.
    nan: u64,
    /// Converts bits to the exact number.
    number: fn(u64) -> f64,
    /// Converts bits that are not a NaN to their shortest text that parses back.
    print: fn(u64) -> String,
    /// Converts a decimal text to the nearest bits.
    parse: fn(&str) -> Option<u64>,
}

fn float_format(dtype: DType) -> Option<FloatFormat> {
    // The 16-bit types go through f32, which holds them exactly.
    Some(match dtype {
        DType::F64 => FloatFormat {
            nan: 0x7ff8_0000_0000_0000,
            number: f64::from_bits,
            print: |bits| format!("{:?}", f64::from_bits(bits)),
            parse: |text| text.parse().ok().map(f64::to_bits),
        },
        DType::F32 => FloatFormat {
            nan: 0x7fc0_0000,
            number: |bits| f64::from(f32::from_bits(bits as u32)),
            print: |bits| format!("{:?}", f32::from_bits(bits as u32)),
            parse: |text| text.parse().ok().map(|x: f32| u64::from(x.to_bits())),
        },
        DType::F16 => FloatFormat {
            nan: 0x7e00,
            number: |bits| half::f16::from_bits(bits as u16).to_f64(),
            print: |bits| format!("{:?}", half::f16::from_bits(bits as u16).to_f32()),
            parse: |text| text.parse().ok().map(|x| u64::from(half::f16::from_f32(x).to_bits())),
        },
        DType::BF16 => FloatFormat {
            nan: 0x7fc0,
            number: |bits| half::bf16::from_bits(bits as u16).to_f64(),
            print: |bits| format!("{:?}", half::bf16::from_bits(bits as u16).to_f32()),
            parse: |text| text.parse().ok().map(|x| u64::from(half::bf16::from_f32(x).to_bits())),
        },
        _ => return None,
    })
}

/// Returns the text of an f64, given its bits.
pub(super) fn float(bits: u64) -> String {
    element(DType::F64, bits)
}

/// Returns the text of an element, given its bits. Bits above the type's width must be zero.
pub(super) fn element(dtype: DType, bits: u64) -> String {
    let hexadecimal = || format!("{bits:#0width$x}", width = 2 + 2 * dtype.bytes() as usize);
    if let Some(format) = float_format(dtype) {
        return match (format.number)(bits) {
            x if !x.is_nan() => (format.print)(bits),
            _ if bits == format.nan => "NaN".into(),
            _ => hexadecimal(),
        };
    }
    match dtype {
        DType::Bool => match bits {
            0 => "false".into(),
            1 => "true".into(),
            _ => hexadecimal(),
        },
        DType::I64 => (bits as i64).to_string(),
        DType::I32 => (bits as i32).to_string(),
        DType::I16 => (bits as i16).to_string(),
        DType::I8 => (bits as i8).to_string(),
        _ => bits.to_string(),
    }
}

/// Returns the bits of an element's text. Bits above the type's width are zero.
pub(super) fn element_bits(dtype: DType, text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").filter(|_| !dtype.is_integer()) {
        let bits = u64::from_str_radix(digits, 16).ok()?;
        return (dtype.bytes() == 8 || bits >> (8 * dtype.bytes()) == 0).then_some(bits);
    }
    if let Some(format) = float_format(dtype) {
        return if text == "NaN" { Some(format.nan) } else { (format.parse)(text) };
    }
    match dtype {
        DType::Bool => text.parse().ok().map(|x: bool| u64::from(x)),
        DType::I64 => text.parse().ok().map(|x: i64| x as u64),
        DType::I32 => text.parse().ok().map(|x: i32| u64::from(x as u32)),
        DType::I16 => text.parse().ok().map(|x: i16| u64::from(x as u16)),
        DType::I8 => text.parse().ok().map(|x: i8| u64::from(x as u8)),
        DType::U64 => text.parse().ok(),
        DType::U32 => text.parse().ok().map(|x: u32| u64::from(x)),
        DType::U16 => text.parse().ok().map(|x: u16| u64::from(x)),
        _ => text.parse().ok().map(|x: u8| u64::from(x)),
    }
}

/// Returns the texts of elements in little-endian bytes, whose number must be a multiple of the type's width.
pub(super) fn elements(dtype: DType, bytes: &[u8]) -> Vec<String> {
    let bits = |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    bytes.chunks(dtype.bytes() as usize).map(|chunk| element(dtype, bits(chunk))).collect()
}

/// Returns bytes in hexadecimal, two digits each.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        write!(out, "{byte:02x}").expect("strings take all");
        out
    })
}

/// Returns the bytes of a hexadecimal text.
pub(super) fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        &[high, low] => Some((digit(high)? * 16 + digit(low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}
