//! The tensors of the author's module: an export writes them as PyTorch's `state_dict` has them, and `--weights` accepts them.

use checkpoint::{StateBytes, TensorFile, initial_states};
use ir::interp::Missing;
use passes::Manager;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use trainyard::compilation::{Compilation, Source};
use trainyard::export;
use trainyard::pipeline::CompilationPlan;
use trainyard::state_dict::load_weights;

/// The module of `testdata/scripts/make_state_dict_models.py`, as each of PyTorch's exporters wrote it.
const EXPORTS: [&str; 2] = ["module.legacy.onnx", "module.dynamo.onnx"];

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/state-dict").join(name)
}

fn compiled(name: &str) -> (Source, Compilation) {
    let source = Source::load(&testdata(name), &BTreeMap::new());
    let source = source.unwrap_or_else(|failure| panic!("{name}: {:?}", failure.diagnostics()));
    let compilation = source.compile(&CompilationPlan::default(), &Manager::default(), |_, _, _| {});
    let compilation = compilation.unwrap_or_else(|failure| panic!("{name}: {:?}", failure.diagnostics()));
    (source, compilation)
}

/// The values of all states before the first step.
fn states(compilation: &Compilation, given: StateBytes) -> StateBytes {
    initial_states(&compilation.training, 0, Missing::Refuse, given).expect("the weights are in the file")
}

/// Every tensor of a file of safetensors: its type and its bytes.
fn tensors(path: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let file = TensorFile::open(path).expect("it is a file of safetensors");
    let tensor = |name: &str| {
        let ty = file.ty(name).expect("a type of the IR").to_string();
        (name.to_owned(), (ty, file.read(name).expect("it can be read").expect("it is there").to_vec()))
    };
    file.names().map(tensor).collect()
}

#[test]
fn an_export_without_a_step_is_the_state_dict_of_the_module() {
    let expected = tensors(&testdata("module.safetensors"));
    for name in EXPORTS {
        let (source, compilation) = compiled(name);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let values = states(&compilation, StateBytes::new());
        let written =
            export::export(&source, &compilation, &|state| Ok(values.get(state).cloned()), folder.path())
                .expect("it is written");
        let found = tensors(&written.weights);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        for (key, tensor) in &expected {
            assert!(&found[key] == tensor, "{name}: {key} is {}, PyTorch's is {}", found[key].0, tensor.0);
        }
        assert_eq!((written.training_form, written.absent), (None, vec![]), "{name}");
    }
}

#[test]
fn weights_of_the_module_are_taken_apart_into_the_tensors_of_the_file() {
    for name in EXPORTS {
        let (source, compilation) = compiled(name);
        let module = &compilation.training;
        let loaded = load_weights(&testdata("module.safetensors"), module, &source.imported);
        let loaded = loaded.expect("the weights belong to the model");
        let report = &loaded.report;
        assert!(report.without.is_empty() && report.refused.is_empty(), "{name}: {report}");
        // Tensors that the program treats as constants are not loaded.
        let constant = |key: &String| !compilation.training.states.values().any(|state| state.name == *key);
        let mut unused = report.unused.iter();
        assert!(unused.all(|key| key == "slope.weight" && constant(key)), "{name}: {report}");
        // The file has the same values.
        let own = states(&compilation, StateBytes::new());
        for (state, value) in &loaded.values {
            assert!(own[state] == *value, "{name}: {state} differs");
        }
    }
}

#[test]
fn a_layer_of_which_a_weight_is_missing_is_left_as_it_was() {
    let (source, compilation) = compiled("module.legacy.onnx");
    let all = tensors(&testdata("module.safetensors"));
    let bytes = std::fs::read(testdata("module.safetensors")).expect("it can be read");
    // A tensor under another name counts as missing.
    let name = b"gru.bias_hh_l0";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the GRU has a bias");
    let renamed = [&bytes[..at], b"gru.bias_xx_l0", &bytes[at + name.len()..]].concat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("weights.safetensors");
    std::fs::write(&path, renamed).expect("it can be written");
    let loaded =
        load_weights(&path, &compilation.training, &source.imported).expect("the rest belongs to it");
    assert_eq!(tensors(&path).len(), all.len());
    let told = loaded.report.to_string();
    assert!(told.contains("`gru.bias_xx_l0`") && told.contains("gru.bias_ih_l0"), "{told}");
    assert!(!loaded.values.keys().any(|state| state.starts_with("gru.bias")), "{told}");
}
