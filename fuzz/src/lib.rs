//! What is fuzzed: each function takes any bytes as one kind of file, and panics only where the program is at fault.
//!
//! `fuzz_targets/` hands these functions to libFuzzer; `tests/fuzz_corpus.rs` of the main package calls them with the
//! corpus, and needs no fuzzer for that. [`TARGETS`] lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use ir::{DType, Module, verify};
use onnx::{Dim, Model};
use passes::Manager;
use passes::bind::Bind;
use runtime::checkpoint::{Checkpoint, DataFiles, load_weights};
use runtime::data::{DataSource, InputSpec, LabelSpec, Loader, LoaderOptions, ModelSpec};
use runtime::lower::{LowerOptions, lower};
use runtime::program;
use trainyard::cli::report::Failure;
use trainyard::compilation::Source;
use trainyard::pipeline::Plan;
use trainyard::training::Programs;

/// What is run on every input.
pub type Target = fn(&[u8]);

/// The name of each target, which is that of its folder in the corpus, with the function that is fuzzed.
pub const TARGETS: [(&str, Target); 4] =
    [("model", model), ("text", text), ("checkpoint", checkpoint), ("data", data)];

/// Every dim with a name is bound to this.
const SIZE: u64 = 2;

/// An ONNX file without external data: loaded, imported, compiled with the flags' defaults, and lowered.
pub fn model(bytes: &[u8]) {
    let Ok(model) = Model::from_bytes(Bytes::copy_from_slice(bytes), None) else { return };
    let sizes: BTreeMap<String, u64> = symbols(&model).into_iter().map(|name| (name, SIZE)).collect();
    let Ok(source) = Source::import(Path::new("fuzzed.onnx"), model, &sizes) else { return };
    if let Err(faults) = verify::verify(&source.imported.module) {
        panic!("the import made a program that is not valid: {faults:?}");
    }
    let plan = Plan { bind: Bind { sizes }, ..Plan::default() };
    match source.compile(&plan, &Manager::default(), |_, _, _| {}) {
        Ok(compilation) => {
            for target in [program::Target::Cpu, program::Target::Cuda] {
                drop(Programs::lower(&compilation, 1, target));
            }
        }
        Err(Failure::User(_)) => {}
        Err(Failure::Fault(fault)) => panic!("{fault:?}"),
    }
}

/// The names of the dims of a model's inputs.
fn symbols(model: &Model) -> BTreeSet<String> {
    let types = model.graph.inputs.iter().filter_map(|input| input.ty.tensor()?.dims.as_ref());
    let named = types.flatten().filter_map(|dim| match dim {
        Dim::Named(name) => Some(name.clone()),
        _ => None,
    });
    named.collect()
}

/// A program as text: what the parser takes is printed as text that means the same, and what the verifier accepts can
/// be lowered, or is refused.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(module) = ir::text::parse_unchecked(text) {
        round_trip(&module, ir::text::parse_unchecked);
        let _ = verify::verify(&module);
    }
    if let Ok(module) = ir::text::parse(text) {
        round_trip(&module, ir::text::parse);
        if verify::verify(&module).is_ok() {
            let _ = lower(&module, &LowerOptions::default());
        }
    }
}

fn round_trip(module: &Module, parse: impl FnOnce(&str) -> Result<Module, ir::Diagnostic>) {
    let printed = ir::text::print(module);
    let again =
        parse(&printed).unwrap_or_else(|error| panic!("what was printed is refused: {error}\n{printed}"));
    assert_eq!(ir::text::print(&again), printed, "printing and parsing changed the program");
}

/// The program whose states a checkpoint is loaded into.
const STATES: &str = "trainyard-ir 1
module @tiny training {
  data @0 \"w\" : f32[3, 2]
  state @half : bf16[3] parameter = zeros
  state @weight : f32[2, 3] parameter = data @0 view [transpose [1, 0]]
  state @empty : f32[0, 4] buffer = zeros
  state @step : i64[] counter = zeros
  func @train(%0 = @half, %1 = @weight, %2 = @empty, %3 = @step) {
  }
}";

/// A checkpoint. The first four bytes are the length of `checkpoint.json` (little endian), which follows; the rest is
/// `state.safetensors`, which is also read as a file of weights.
pub fn checkpoint(bytes: &[u8]) {
    let Some((length, files)) = bytes.split_first_chunk::<4>() else { return };
    let (description, states) = files.split_at(files.len().min(u32::from_le_bytes(*length) as usize));
    let folder = folder();
    let path = folder.path().join("state.safetensors");
    std::fs::write(folder.path().join("checkpoint.json"), description).expect("the folder is there");
    std::fs::write(&path, states).expect("the folder is there");
    let module = ir::text::parse(STATES).expect("the program is valid");
    if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
        let _ = checkpoint.load(&module).map_err(|error| error.to_string());
        let _ = checkpoint.check_data(&DataFiles::default()).map_err(|error| error.to_string());
    }
    let aliases = BTreeMap::from([("w".to_owned(), vec!["linear.weight".to_owned()])]);
    let _ = load_weights(&path, &module, &aliases).map(|weights| weights.report.to_string());
}

/// What the first byte of an input says: the name's extension, and so the format.
const EXTENSIONS: [&str; 7] = ["npz", "safetensors", "bin", "txt", "csv", "npy", "jsonl"];

/// A file of training data. The first byte says the format, the second the model that is fed; the rest is the file.
pub fn data(bytes: &[u8]) {
    let Some((&[format, model], contents)) = bytes.split_first_chunk::<2>() else { return };
    let folder = folder();
    let path = folder.path().join("data").with_extension(EXTENSIONS[usize::from(format) % EXTENSIONS.len()]);
    std::fs::write(&path, contents).expect("the folder is there");
    let options = LoaderOptions { held_out: 0.5, ..LoaderOptions::default() };
    let Ok(loader) = Loader::new(&model_spec(model), &DataSource::Path(path), &options) else { return };
    for step in [0, loader.steps_per_epoch() - 1, loader.steps_per_epoch(), u64::from(u32::MAX)] {
        let batch = loader.global_batch(step);
        assert_eq!(batch.rows, loader.global_batch_size());
    }
    loader.eval_batches().take(4).for_each(drop);
}

/// Small models that differ in what they ask of the data.
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

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}
