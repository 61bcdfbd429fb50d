//! Arrays as NumPy writes them (`numpy.lib.format`, version 1.0), right or wrong.

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// An `.npy` file, whatever the number of bytes.
pub(crate) fn array(dtype: &str, dims: &[usize], bytes: &[u8]) -> Vec<u8> {
    let dims: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({dims}), }}");
    // The data begins at a multiple of 64 bytes.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(u16::try_from(length).expect("a short header").to_le_bytes());
    file.extend(format!("{header:<width$}\n", width = length - 1).as_bytes());
    file.extend(bytes);
    file
}

/// An `.npz` file of arrays by name.
pub(crate) fn file(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    // As NumPy's `savez` does.
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in arrays {
        zip.start_file(format!("{name}.npy"), stored).expect("a new file");
        zip.write_all(bytes).expect("memory does not fail");
    }
    zip.finish().expect("memory does not fail").into_inner()
}
