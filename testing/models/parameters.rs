//! PyTorch's numbers of a model, put together. `testdata/models/NAME.train.npz` leaves out the parameters that an export of the model has,
//! and `NAME.parameters.json` has their places in the export and their checksums (`testdata/scripts/share_parameters.py` writes both).

use crate::testdata;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// The files that this process has put together.
static WHOLE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// The file with all numbers of `NAME.train.npz`: a file of `testdata/models`, or one that is written beside the folder of
/// the test binary.
pub(super) fn whole(name: &str) -> PathBuf {
    let stored = testdata(&format!("models/{name}"));
    let model = name.strip_suffix(".train.npz");
    let list = model.map(|model| testdata(&format!("models/{model}.parameters.json")));
    let Some(list) = list.filter(|list| list.exists()) else { return stored };
    let mut whole = WHOLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    whole.entry(name.to_owned()).or_insert_with(|| write(name, &put_together(&stored, &list))).clone()
}

/// Writes the file for this process and for all others that run the same tests. Each of them finds a whole file at any time.
fn write(name: &str, contents: &[u8]) -> PathBuf {
    let binary = std::env::current_exe().expect("a test knows its file");
    let folder =
        binary.ancestors().nth(2).expect("a test binary lies in target/PROFILE/deps").join("testdata");
    fs::create_dir_all(&folder).expect("a folder can be made in target");
    let mut file = tempfile::NamedTempFile::new_in(&folder).expect("a file can be made in target");
    file.write_all(contents).expect("there is room in target");
    let path = folder.join(name);
    file.persist(&path).expect("a file can be replaced in target");
    path
}

/// The stored arrays as they are, followed by the parameters of the export.
fn put_together(stored: &Path, list: &Path) -> Vec<u8> {
    let list: Value =
        serde_json::from_slice(&fs::read(list).expect("the list can be read")).expect("it is JSON");
    let holder = list["holder"].as_str().expect("the list names the export");
    let holder = fs::read(testdata(&format!("models/{holder}"))).expect("the export can be read");
    let mut stored =
        ZipArchive::new(File::open(stored).expect("the numbers are there")).expect("an .npz is a zip");
    let mut whole = ZipWriter::new(Cursor::new(Vec::new()));
    for i in 0..stored.len() {
        let member = stored.by_index_raw(i).expect("the zip is whole");
        whole.raw_copy_file(member).expect("a member can be copied");
    }
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (key, place) in list["parameters"].as_object().expect("the list has parameters") {
        let bytes = parameter(&holder, place).unwrap_or_else(|problem| panic!("{key}: {problem}"));
        whole.start_file(format!("{key}.npy"), options).expect("a member can be begun");
        whole.write_all(&npy(&shape(place), &bytes)).expect("a member can be written");
    }
    whole.finish().expect("the zip can be finished").into_inner()
}

fn shape(place: &Value) -> Vec<usize> {
    serde_json::from_value(place["shape"].clone()).expect("a shape is a list of numbers")
}

/// Returns the bytes of an f32 array at a place of an export.
///
/// # Errors
/// They are not the bytes that PyTorch had: the model was exported anew, or the list belongs to another export.
pub fn parameter(holder: &[u8], place: &Value) -> Result<Vec<u8>, String> {
    let shape = shape(place);
    let offset = place["offset"].as_u64().expect("a place has an offset") as usize;
    let length = 4 * shape.iter().product::<usize>();
    let there = holder.get(offset..offset + length).ok_or("the export ends before it")?;
    let bytes = match (place["transposed"].as_bool(), shape.as_slice()) {
        (Some(true), &[rows, columns]) => {
            let at = |row: usize, column: usize| &there[4 * (column * rows + row)..][..4];
            (0..rows).flat_map(|row| (0..columns).flat_map(move |column| at(row, column)).copied()).collect()
        }
        _ => there.to_vec(),
    };
    if Some(u64::from(crc32fast::hash(&bytes))) == place["crc32"].as_u64() {
        Ok(bytes)
    } else {
        Err("the export has other bytes there than PyTorch had: share_parameters.py was not run".into())
    }
}

/// A file `.npy` of f32 values.
fn npy(shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes}), }}");
    // Magic, version and length take 10 bytes; the values begin at a multiple of 64.
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), bytes].concat()
}
