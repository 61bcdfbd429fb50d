//! Files of training data.

use super::{folder, two_files};
use data::{DataSource, InputSpec, LabelSpec, Loader, LoaderOptions, ModelSpec, Source, Tokenizer};
use flate2::Compression;
use flate2::write::GzEncoder;
use ir::DType;
use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The file name extensions that the first byte of an input of `data` chooses from, each a format.
const EXTENSIONS: [&str; 5] = ["safetensors", "bin", "txt", "npy", "jsonl"];

/// A file of training data in a format that has no target of its own. The first byte chooses the format, the second the model that is fed.
/// The remaining bytes are the file.
pub(super) fn data(bytes: &[u8]) {
    let Some((&[format, model], contents)) = bytes.split_first_chunk::<2>() else { return };
    let name = format!("data.{}", EXTENSIONS[usize::from(format) % EXTENSIONS.len()]);
    load(&model_spec(model), &name, contents, options());
}

/// The choices of the first byte of an input of `csv`: the file name, and whether the text is gzipped here. Bytes that are changed at
/// random are seldom valid gzip, so both ways are tried.
const TABLES: [(&str, bool); 6] = [
    ("data.csv", false),
    ("data.csv.gz", true),
    ("data.tsv", false),
    ("data.tsv.gz", true),
    ("data.csv.gz", false),
    ("data.tsv.gz", false),
];

/// A table. The first byte chooses its kind, the second the model that is fed. The third is the length of the text that follows, which
/// names the columns of the input `x`; an empty text names none. The remaining bytes are the file.
pub(super) fn csv(bytes: &[u8]) {
    let Some((&[kind, model, length], rest)) = bytes.split_first_chunk::<3>() else { return };
    let (columns, contents) = rest.split_at(rest.len().min(usize::from(length)));
    let (name, packs) = TABLES[usize::from(kind) % TABLES.len()];
    let mut options = options();
    if !columns.is_empty() {
        let columns = String::from_utf8_lossy(columns).into_owned();
        options.inputs.insert("x".to_owned(), Source::Key(columns));
    }
    let packed = packs.then(|| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(contents).expect("memory can be written to");
        packed.finish().expect("memory can be written to")
    });
    load(&model_spec(model), name, packed.as_deref().unwrap_or(contents), options);
}

/// An `.npz`. The first byte chooses the model that is fed. The second says whether the remaining bytes are an archive, or arrays of which
/// an archive is made: an archive that is changed at random fails at its checksums, so its arrays are never read.
pub(super) fn npz(bytes: &[u8]) {
    let Some((&[model, made], contents)) = bytes.split_first_chunk::<2>() else { return };
    let made = (made % 2 == 1).then(|| archive(contents));
    load(&model_spec(model), "data.npz", made.as_deref().unwrap_or(contents), options());
}

/// The names of the arrays in an archive that is made here.
const ARRAYS: [&str; 8] = ["tokens", "labels", "x", "mask", "input.x", "y", "arr_0", "tokens"];

/// Makes an archive of arrays. Each array has a byte for its name and its compression, two bytes for its length, and its contents.
fn archive(mut parts: &[u8]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let mut place = 0;
    while let Some((&[kind, low, high], rest)) = parts.split_first_chunk::<3>() {
        let (contents, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([low, high]))));
        let method = if kind & 8 == 0 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        let options = SimpleFileOptions::default().compression_method(method);
        // zip refuses two files of one name, so the second array gets another name.
        let again = if kind & 16 == 0 { String::new() } else { place.to_string() };
        let name = format!("{}{again}.npy", ARRAYS[usize::from(kind) % ARRAYS.len()]);
        if archive.start_file(name, options).is_ok() {
            archive.write_all(contents).expect("memory can be written to");
        }
        (parts, place) = (rest, place + 1);
    }
    archive.finish().expect("memory can be written to").into_inner()
}

/// A `tokenizer.json`, and a text that is tokenized with it.
pub(super) fn tokenizer(bytes: &[u8]) {
    let Some((tokenizer, text)) = two_files(bytes) else { return };
    let folder = folder();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer).expect("the folder is there");
    load(
        &model_spec(WIDE),
        "text.txt",
        text,
        LoaderOptions { tokenizer: Some(Tokenizer::File(path)), ..options() },
    );
}

fn options() -> LoaderOptions {
    LoaderOptions { held_out: 0.5, inputs: BTreeMap::new(), ..LoaderOptions::default() }
}

/// Loads a file and reads batches from it.
fn load(spec: &ModelSpec, name: &str, contents: &[u8], options: LoaderOptions) {
    let folder = folder();
    let path = folder.path().join(name);
    std::fs::write(&path, contents).expect("the folder is there");
    let loader = match Loader::new(spec, &DataSource::Path(path), &options) {
        Ok(loader) => loader,
        Err(error) => return drop(error.to_string()),
    };
    for step in [0, loader.steps_per_epoch() - 1, loader.steps_per_epoch(), u64::from(u32::MAX)] {
        let batch = loader.global_batch(step);
        assert_eq!(batch.rows, loader.global_batch_size());
    }
    loader.eval_batches().take(4).for_each(|batch| drop(batch.whole()));
}

/// A model of tokens with a large vocabulary.
const WIDE: u8 = 3;

/// Small models with different inputs and labels.
fn model_spec(choice: u8) -> ModelSpec {
    let input = |name: &str, dtype, dims: &[u64], vocabulary| InputSpec {
        name: name.to_owned(),
        dtype,
        dims: dims.to_vec(),
        batched: true,
        vocabulary,
    };
    let label = |dtype, dims: &[u64], classes| LabelSpec {
        name: "labels".to_owned(),
        dtype,
        dims: dims.to_vec(),
        classes,
        ignore_index: (choice & 4 == 0).then_some(-100),
    };
    let vocabulary = if choice & 2 == 0 { 256 } else { 70_000 };
    match choice % 3 {
        0 => ModelSpec {
            inputs: vec![input("tokens", DType::I64, &[2, 4], Some(vocabulary))],
            label: Some(label(DType::I64, &[2, 4], Some(vocabulary))),
            ..ModelSpec::default()
        },
        1 => ModelSpec {
            inputs: vec![input("x", DType::F32, &[2, 3], None)],
            label: Some(label(DType::I64, &[2], Some(10))),
            ..ModelSpec::default()
        },
        _ => ModelSpec {
            inputs: vec![input("x", DType::F32, &[2, 3], None), input("mask", DType::Bool, &[2, 4], None)],
            label: Some(label(DType::F32, &[2, 3], None)),
            ..ModelSpec::default()
        },
    }
}
