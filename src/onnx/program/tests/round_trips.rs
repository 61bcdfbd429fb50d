//! Every model of `testdata` is imported, written, imported again, and gives the same numbers.

use crate::program::{Absent, Form, Header, model};
use crate::{ImportOptions, Imported, Model, import};
use ir::interp::{self, Missing, Mode};
use ir::tensor::Elements;
use ir::{DType, Module, Tensor, random};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Sizes for named dims of the models.
const SIZES: [(&str, u64); 2] = [("batch", 2), ("seq", 6)];

fn models(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder);
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

/// A model, written in training form and read again. Tensors without bytes become inputs.
fn rewritten(file: &Model, module: &Module) -> Model {
    let proto = model(module, &Header::of(file), &BTreeMap::new(), Form::Training, Absent::AsInputs)
        .unwrap_or_else(|error| panic!("{error}"));
    Model::from_bytes(proto.encode_to_vec().into(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// The symbols of a module's inputs, and their sizes.
fn bindings(module: &Module) -> BTreeMap<String, u64> {
    let dims = module.inputs.iter().flat_map(|input| &module.ty(input.value).dims);
    let symbols: BTreeSet<String> =
        dims.flat_map(|dim| dim.symbols()).map(|symbol| symbol.to_string()).collect();
    let size =
        |symbol: &str| SIZES.into_iter().find(|(name, _)| symbol.contains(name)).map_or(3, |(_, size)| size);
    symbols.into_iter().map(|symbol| (symbol.clone(), size(&symbol))).collect()
}

/// Tensors for the inputs of a module: normal numbers, and integers that are indices of the smallest vocabulary.
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

/// The outputs of a forward pass in exact mode.
fn outputs(module: &Module, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, Vec<Tensor>> {
    let mut states =
        interp::initial_states(module, 1, Missing::Refuse).unwrap_or_else(|error| panic!("{error}"));
    interp::step(module, Mode::Exact, &mut states, std::slice::from_ref(inputs))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Compares two programs by their outputs, to 1e-12 of the largest element of each.
fn assert_equal_outputs(name: &str, before: &Module, after: &Module) {
    let inputs = inputs(before);
    let (expected, found) = (outputs(before, &inputs), outputs(after, &inputs));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{name}");
    for (output, expected) in &expected {
        let (expected, found) = (&expected[0], &found[output][0]);
        assert_eq!(expected.ty(), found.ty(), "{name}: {output}");
        let (expected, found) = (expected.numbers(), found.numbers());
        let finite = expected.iter().filter(|number| number.is_finite());
        let scale = finite.fold(1e-3, |largest: f64, number| largest.max(number.abs()));
        for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let is_equal = expected == found || expected.is_nan() && found.is_nan();
            assert!(
                is_equal || (expected - found).abs() <= 1e-12 * scale,
                "{name}: {output}[{i}]: {expected}, {found}"
            );
        }
    }
}

/// Writes a model and reads it again: names and types stay, and so do the numbers if the weights are there.
fn round_trip(path: &Path) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = Model::load(path).map_err(|error| error.to_string())?;
    let before = import(&file, &ImportOptions::default()).map_err(|problems| format!("{problems:?}"))?.module;
    let written = rewritten(&file, &before);
    let after = imported(&written, &BTreeMap::new()).module;
    let named = |module: &Module| -> Vec<(String, ir::Type)> {
        let types = module.inputs.iter().map(|input| (input.name.clone(), module.ty(input.value).clone()));
        types
            .chain(module.outputs.iter().map(|out| (out.name.clone(), module.ty(out.value).clone())))
            .collect()
    };
    let is_whole = before.data.values().all(|row| row.bytes().is_some());
    if is_whole {
        assert_eq!(named(&before), named(&after), "{name}");
        let bindings = bindings(&before);
        let [before, after] = [&file, &written].map(|model| imported(model, &bindings).module);
        assert_equal_outputs(&name, &before, &after);
    }
    Ok(())
}

#[test]
fn gpt2_is_written_and_read_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/gpt2.dynamo.onnx");
    round_trip(&path).unwrap();
}

#[test]
fn all() {
    for folder in ["", "models", "random", "state-dict", "verify", "odd", "bench"] {
        for path in models(folder) {
            let start = std::time::Instant::now();
            let result = std::panic::catch_unwind(|| round_trip(&path));
            println!(
                "{} {:?} {:?}",
                path.file_name().unwrap().to_string_lossy(),
                start.elapsed(),
                result.map_err(|e| e.downcast_ref::<String>().cloned())
            );
        }
    }
}
