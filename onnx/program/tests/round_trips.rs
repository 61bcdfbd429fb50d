//! Tests that every model of `testdata` gives the same numbers after it was imported, written and imported again.

use super::assert_equal_outputs;
use crate::program::{Absent, Form, Header, model};
use crate::{ImportOptions, Imported, Model, import};
use ir::tensor::Elements;
use ir::{Blob, DType, Module, Movement, Op, Tensor, random};
use onnx_protobuf as independent;
use prost::Message;
use protobuf::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The sizes of named dims of the models.
const SIZES: [(&str, u64); 2] = [("batch", 2), ("seq", 6)];

fn models(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(folder);
    let entries = std::fs::read_dir(folder).expect("the folder of models");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    paths.sort();
    paths
}

fn imported(model: &Model, bindings: &BTreeMap<String, u64>) -> Imported {
    import(model, &ImportOptions { bindings: bindings.clone() })
        .unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Writes a model in training form and reads it again. Tensors without bytes become inputs.
fn rewritten(file: &Model, module: &Module) -> Model {
    let proto = model(module, &Header::of(file), &BTreeMap::new(), Form::Training, Absent::AsInputs)
        .unwrap_or_else(|error| panic!("{error}"));
    Model::from_bytes(proto.encode_to_vec().into(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the sizes of the symbols of a module's inputs.
fn bindings(module: &Module) -> BTreeMap<String, u64> {
    let dims = module.inputs.iter().flat_map(|input| &module.ty(input.value).dims);
    let symbols: BTreeSet<String> =
        dims.flat_map(|dim| dim.symbols()).map(|symbol| symbol.to_string()).collect();
    symbols.into_iter().map(|symbol| (symbol.clone(), size_of(&symbol))).collect()
}

fn size_of(symbol: &str) -> u64 {
    SIZES.into_iter().find(|(name, _)| symbol.contains(name)).map_or(3, |(_, size)| size)
}

/// Makes tensors for the inputs of a module: normal numbers, and integers that are valid indices in the smallest vocabulary.
fn inputs(module: &Module) -> BTreeMap<String, Tensor> {
    let fill = |(i, input): (usize, &ir::Input)| {
        let ty = module.ty(input.value);
        let sizes: Vec<usize> = ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let normal = |element: usize| random::normal(7, i as u64, element as u64);
        let count = 0..sizes.iter().product();
        let elements = match ty.dtype {
            DType::Bool => Elements::Bool(count.map(|element| normal(element) > -1.0).collect()),
            dtype if dtype.is_float() => Elements::Float(count.map(normal).collect()),
            _ => Elements::Int(count.map(|element| i64::from(normal(element) > 0.0)).collect()),
        };
        (input.name.clone(), Tensor { dtype: ty.dtype, sizes, elements })
    };
    module.inputs.iter().enumerate().map(fill).collect()
}

/// Returns the names and types of inputs and outputs.
fn named(module: &Module) -> Vec<(String, ir::Type)> {
    let inputs = module.inputs.iter().map(|input| (input.name.clone(), module.ty(input.value).clone()));
    let outputs = module.outputs.iter().map(|output| (output.name.clone(), module.ty(output.value).clone()));
    inputs.chain(outputs).collect()
}

/// Returns the claims about the float tensors that a program reads.
fn claims(module: &Module) -> BTreeMap<String, Option<ir::Claim>> {
    let constants = module.nodes().filter_map(|(_, node)| match &node.op {
        Op::Constant(constant) => Some(&module.data[constant.data]),
        _ => None,
    });
    let of_file = constants.filter(|row| row.ty.dtype.is_float() && matches!(row.blob, Blob::File(_)));
    of_file.map(|row| (row.name.clone(), row.claim)).collect()
}

/// Returns the sizes that a model needs to be imported: none, or all.
fn needed_bindings(file: &Model) -> Option<BTreeMap<String, u64>> {
    let inputs = file.graph.inputs.iter().filter_map(|input| input.ty.tensor()?.dims.as_ref());
    let names = inputs.flatten().filter_map(|dim| match dim {
        crate::Dim::Named(name) => Some(name.clone()),
        crate::Dim::Known(_) | crate::Dim::Unknown => None,
    });
    let sized: BTreeMap<String, u64> = names.map(|name| (name.clone(), size_of(&name))).collect();
    let can = |bindings: &BTreeMap<String, u64>| {
        import(file, &ImportOptions { bindings: bindings.clone() }).is_ok()
    };
    [BTreeMap::new(), sized].into_iter().find(can)
}

/// Writes a model and reads it again. Names, symbols and types must stay, and also the numbers if the weights are present. Returns
/// whether the model can be read at all.
fn round_trip(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Ok(file) = Model::load(path) else { return false };
    let Some(needed) = needed_bindings(&file) else { return false };
    let before = imported(&file, &needed).module;
    let written = rewritten(&file, &before);
    let after = imported(&written, &BTreeMap::new()).module;
    if before.data.values().any(|row| row.bytes().is_none()) {
        let operators = |module: &Module| module.nodes().filter(|(_, node)| is_computing(&node.op)).count();
        assert_eq!(operators(&before), operators(&after), "{name}");
        return true;
    }
    assert_eq!(named(&before), named(&after), "{name}");
    assert_eq!(claims(&before), claims(&after), "{name}");
    let all: BTreeMap<String, u64> = needed.into_iter().chain(bindings(&before)).collect();
    let before = imported(&file, &all).module;
    let after = imported(&written, &bindings(&after)).module;
    assert_equal_outputs(&name, &before, &after, &inputs(&before));
    true
}

/// Whether an operator computes elements from operands. The numbers of these operators are the same before and after writing.
fn is_computing(op: &Op) -> bool {
    op.movement() == Movement::Computed && !matches!(op, Op::Splat(_) | Op::Constant(_) | Op::Iota(_))
}

#[test]
fn every_model_is_written_and_read_back() {
    let (mut read, mut unread) = (0, Vec::new());
    for folder in ["", "models", "random", "state-dict", "verify", "odd", "bench"] {
        for path in models(folder) {
            if round_trip(&path) {
                read += 1
            } else {
                unread.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
            }
        }
    }
    let broken = [
        "batch-second",
        "cyclic",
        "duplicate-name",
        "escape-external",
        "external-short",
        "huge-dims",
        "missing-dims",
        "pooled",
        "truncated",
        "undefined-input",
        "unknown-op",
        "wrong-type",
    ];
    assert_eq!(unread, broken);
    assert!(read > 60, "{read}");
}

#[test]
fn an_independent_decoder_reads_written_models() {
    for path in models("models").into_iter().filter(|path| !path.to_string_lossy().contains("gpt3")) {
        let file = Model::load(&path).unwrap();
        let needed = needed_bindings(&file).unwrap();
        let module = imported(&file, &needed).module;
        let header = Header::of(&file);
        for form in [Form::Training, Form::Inference, Form::Program] {
            let ours = model(&module, &header, &BTreeMap::new(), form, Absent::AsInputs).unwrap();
            let theirs = independent::ModelProto::parse_from_bytes(&ours.encode_to_vec()).unwrap();
            let graph = ours.graph.as_ref().unwrap();
            assert_eq!(graph.node.len(), theirs.graph.node.len());
            for (our, their) in graph.node.iter().zip(&theirs.graph.node) {
                assert_eq!(
                    (our.op_type(), &our.input, &our.output),
                    (&their.op_type[..], &their.input, &their.output)
                );
            }
            assert_eq!(ours.producer_name(), theirs.producer_name);
            assert_eq!(ours.metadata_props.len(), theirs.metadata_props.len());
            assert!(theirs.opset_import.iter().any(|opset| opset.domain.is_empty() && opset.version == 23));
        }
    }
}
