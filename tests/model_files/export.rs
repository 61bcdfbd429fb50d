//! Trained values go back into the file, each to its tensor, in the tensor's layout.

use bytes::Bytes;
use checkpoint::{StateBytes, TensorFile};
use ir::interp::{self, Missing, Mode};
use ir::{DType, Diagnostic, Module, Op, Role, Tensor, Type};
use onnx::Model;
use passes::Manager;
use passes::reports::{ParameterReport, RowRole};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use trainyard::compilation::{self, Compilation, Source};
use trainyard::export;
use trainyard::pipeline::CompilationPlan;
use trainyard::state_dict::load_weights;

/// A compiled model, values of its states that differ from the file's, and the model that was exported with them.
struct Exported {
    source: Source,
    compilation: Compilation,
    states: StateBytes,
    model: Model,
    weights: TensorFile,
    _folder: tempfile::TempDir,
}

fn load(path: &Path) -> (Source, Compilation) {
    let model = compilation::open(path).expect("the model can be read");
    let mut sizes = BTreeMap::new();
    for dim in model.graph.inputs.iter().filter_map(|input| input.ty.tensor()?.dims.as_ref()).flatten() {
        if let onnx::Dim::Named(name) = dim {
            sizes.insert(name.clone(), 4);
        }
    }
    let source = Source::import(path, model, &sizes).expect("the model is imported");
    let compilation = source
        .compile(&CompilationPlan::default(), &Manager::default(), |_, _, _| {})
        .expect("the model compiles");
    (source, compilation)
}

/// Values in which each element differs from all others, state by state.
fn doctored(module: &Module) -> StateBytes {
    let states = module.states.values().filter(|state| state.initializer.data().is_some()).enumerate();
    let value = |index: usize, ty: &Type| {
        let sizes: Vec<usize> =
            ty.sizes().expect("dims are bound").iter().map(|&size| size as usize).collect();
        let number = |i: usize| (index * 1_000 + i % 997) as f64 * 1e-5 - 0.1;
        Tensor::float(ty.dtype, sizes.clone(), (0..sizes.iter().product()).map(number).collect())
    };
    states.map(|(index, state)| (state.name.clone(), value(index, &state.ty).to_bytes().into())).collect()
}

/// The values as an export asks for them.
fn given(states: &StateBytes) -> impl Fn(&str) -> Result<Option<Bytes>, Diagnostic> {
    |name| Ok(states.get(name).cloned())
}

fn export(model: &str) -> Exported {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(model);
    let (source, compilation) = load(&path);
    export::check(&source, &compilation).expect("everything can be written back");
    let states = doctored(&compilation.training);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written =
        export::export(&source, &compilation, &given(&states), folder.path()).expect("it is written");
    let trained = compilation.reports.parameters.iter().filter(|report| report.role != RowRole::Constant);
    assert_eq!(written.tensors, trained.count());
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("it is there").collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let model = Model::load(&written.model).expect("what was written can be read");
    let weights = TensorFile::open(&written.weights).expect("what was written can be read");
    Exported { source, compilation, states, model, weights, _folder: folder }
}

impl Exported {
    fn report(&self, name: &str) -> &ParameterReport {
        let found = self.compilation.reports.parameters.iter().find(|report| report.data == name);
        found.unwrap_or_else(|| panic!("no tensor `{name}`"))
    }

    fn bytes(&self, name: &str) -> Bytes {
        let tensor = self.model.graph.tensors.iter().find(|tensor| tensor.name == name);
        tensor.and_then(|tensor| tensor.present()).expect("the tensor is there").clone()
    }

    /// A tensor of the exported model.
    fn tensor(&self, name: &str) -> Tensor {
        Tensor::from_bytes(&self.report(name).ty, &self.bytes(name)).expect("it has the bytes of its type")
    }

    fn state(&self, name: &str) -> Tensor {
        let module = &self.compilation.training;
        let ty = &module.states[module.state(name).expect("the state is there")].ty;
        Tensor::from_bytes(ty, &self.states[name]).expect("it has the bytes of its type")
    }
}

const MODELS: [&str; 11] = [
    "models/mlp.dynamo.onnx",
    "models/mlp.legacy.onnx",
    "models/mlp-loss.dynamo.onnx",
    "models/gpt2.dynamo.onnx",
    "models/gpt2.legacy-mask.onnx",
    "models/llama.dynamo.onnx",
    "models/bert.dynamo.onnx",
    "gpt2-fresh.onnx",
    "odd/tied-legacy.onnx",
    "odd/constants-only.onnx",
    "odd/external-ok.onnx",
];

#[test]
fn every_state_is_found_again_in_the_tensor_it_came_from() {
    for name in MODELS {
        let exported = export(name);
        let mut states = 0;
        for report in
            exported.compilation.reports.parameters.iter().filter(|report| report.role != RowRole::Constant)
        {
            let tensor = exported.tensor(&report.data);
            for part in &report.states {
                let found = ir::view::apply(&part.view, &tensor).expect("the view fits");
                assert_eq!(found, exported.state(&part.state), "{name}: {}", part.state);
                states += 1;
            }
        }
        assert!(states >= exported.states.len(), "{name}");
        // The file of weights has the author's names and layouts, if they are known.
        let module = &exported.compilation.training;
        let loaded = load_weights(exported.weights.path(), module, &exported.source.imported);
        let loaded = loaded.expect("the weights belong to the model");
        assert!(
            loaded.report.without.is_empty() && loaded.report.refused.is_empty(),
            "{name}: {}",
            loaded.report
        );
        assert_eq!(loaded.values, exported.states, "{name}");
    }
}

#[test]
fn the_graph_and_all_that_is_not_trained_stay_as_they_were() {
    for name in MODELS {
        let exported = export(name);
        let (old, new) = (&exported.source.model, &exported.model);
        assert_eq!((&old.graph.nodes, &old.graph.inputs), (&new.graph.nodes, &new.graph.inputs), "{name}");
        assert_eq!((&old.graph.outputs, &old.opsets), (&new.graph.outputs, &new.opsets), "{name}");
        let reports = exported.compilation.reports.parameters.iter();
        let trained: Vec<&str> = reports
            .filter(|report| report.role != RowRole::Constant)
            .map(|report| report.data.as_str())
            .collect();
        for (before, after) in old.graph.tensors.iter().zip(&new.graph.tensors) {
            assert_eq!((&before.name, &before.dims, before.dtype), (&after.name, &after.dims, after.dtype));
            let equal = before.present() == after.present();
            assert_eq!(equal, !trained.contains(&before.name.as_str()), "{name}: {}", before.name);
        }
    }
}

#[test]
fn slices_are_put_side_by_side() {
    let exported = export("models/gpt2.dynamo.onnx");
    let name = "m.transformer.h.0.attn.c_attn.weight";
    let whole = exported.tensor(name);
    assert_eq!((whole.sizes.as_slice(), exported.report(name).states.len()), (&[128, 384][..], 3));
    for (part, start) in exported.report(name).states.iter().zip([0, 128, 256]) {
        let state = exported.state(&part.state);
        for (row, column) in [(0, 0), (0, 127), (5, 17), (127, 127)] {
            let (here, there) = (row * 384 + start + column, row * 128 + column);
            assert_eq!(whole.floats()[here], state.floats()[there], "{} {row} {column}", part.state);
        }
    }
}

#[test]
fn a_tied_head_gets_the_embedding_transposed() {
    let exported = export("odd/tied-legacy.onnx");
    let head = exported
        .compilation
        .reports
        .parameters
        .iter()
        .find(|report| report.tied.is_some())
        .expect("a tied head");
    let embedding = &head.tied.as_ref().expect("it is tied").data;
    let (head, embedding) = (exported.tensor(&head.data), exported.tensor(embedding));
    let [rows, columns] = embedding.sizes[..] else { panic!("{:?}", embedding.sizes) };
    assert_eq!(head.sizes, [columns, rows]);
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        assert_eq!(head.floats()[column * rows + row], embedding.floats()[row * columns + column]);
    }
}

/// The mean loss of the evaluation program on made-up tokens.
fn loss(compilation: &Compilation, states: Option<&StateBytes>) -> f64 {
    let module = &compilation.evaluation;
    let mut values = interp::initial_states(module, 0, Missing::Refuse).expect("the weights are there");
    for (id, state) in module.states.iter() {
        if let Some(bytes) = states.and_then(|states| states.get(&state.name)) {
            values.insert(id, Tensor::from_bytes(&state.ty, bytes).expect("it has the bytes of its type"));
        }
    }
    let inputs = module.inputs.iter().map(|input| {
        let ty = module.ty(input.value);
        let sizes: Vec<usize> =
            ty.sizes().expect("dims are bound").iter().map(|&size| size as usize).collect();
        let count: usize = sizes.iter().product();
        let tensor = match ty.dtype {
            DType::F32 => Tensor::float(DType::F32, sizes, (0..count).map(|i| (i as f64).sin()).collect()),
            dtype => Tensor::int(dtype, sizes, (0..count as i64).map(|i| i * i % 7).collect()),
        };
        (input.name.clone(), tensor)
    });
    let outputs =
        interp::step(module, Mode::Exact, &mut values, &[inputs.collect()]).expect("the program runs");
    outputs["loss.sum"][0].item() / outputs["loss.weight"][0].item()
}

#[test]
fn a_second_compilation_computes_what_the_first_one_ended_with() {
    for name in [
        "models/mlp.legacy.onnx",
        "models/gpt2.dynamo.onnx",
        "models/llama.dynamo.onnx",
        "odd/tied-legacy.onnx",
    ] {
        let exported = export(name);
        let (_, second) = load(exported.model.path.as_deref().expect("it was loaded from a file"));
        let (ended, starts) = (loss(&exported.compilation, Some(&exported.states)), loss(&second, None));
        assert!(ended.is_finite() && (ended - starts).abs() < 1e-12, "{name}: {ended} {starts}");
        assert!(
            (loss(&exported.compilation, None) - ended).abs() > 1e-4,
            "{name}: the values change nothing"
        );
    }
}

#[test]
fn values_that_are_missing_or_do_not_fit_are_told_and_nothing_is_written() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/models/mlp.dynamo.onnx");
    let (source, compilation) = load(&path);
    let mut states = doctored(&compilation.training);
    let mut names = compilation.training.states.values().filter(|state| state.role == Role::Parameter);
    let (first, second) = (names.next().expect("a parameter"), names.next().expect("another"));
    states.remove(&first.name);
    states.insert(second.name.clone(), Bytes::from(vec![0; 4]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let errors = export::export(&source, &compilation, &given(&states), folder.path())
        .expect_err("two values are wrong");
    let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
    expect_test::expect![[r#"
        state `m.net.0.weight` of the tensor `m.net.0.weight` has no value
        the 4 bytes of state `m.net.0.bias` do not fit into the tensor `m.net.0.bias` f32[128]"#]]
    .assert_eq(&messages.join("\n"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0);
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/models/mlp.dynamo.onnx");
    let (source, compilation) = load(&path);
    let states = doctored(&compilation.training);
    let errors = export::export(&source, &compilation, &given(&states), Path::new("/nowhere/at/all"))
        .expect_err("no folder");
    assert!(errors[0].message.starts_with("cannot write /nowhere/at/all/model.onnx: "), "{errors:?}");
}

#[test]
fn the_reference_has_no_loss_of_ours_in_the_export() {
    let exported = export("models/mlp.dynamo.onnx");
    assert!(exported.compilation.evaluation.nodes().any(|(_, node)| matches!(node.op, Op::CrossEntropy(_))));
    assert!(exported.model.graph.nodes.iter().all(|node| !node.op_type.contains("Loss")));
    assert!(exported.model.graph.inputs.iter().all(|input| input.name != "labels"));
}

#[test]
fn noise_that_stays_in_the_inference_form_is_told() {
    for (model, note) in
        [("noise.legacy", "draws random numbers in a node"), ("depth.legacy", "is in inference form")]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/random/{model}.onnx"));
        let (source, compilation) = load(&path);
        let states = doctored(&compilation.training);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written =
            export::export(&source, &compilation, &given(&states), folder.path()).expect("it is written");
        let notes = written.notes();
        assert!(notes.len() == 1 && notes[0].contains(note), "{model}: {notes:?}");
    }
}

/// The model of a file with a further output, which is this value, before the others.
fn with_output(name: &str, output: &str, folder: &Path) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/models/{name}.onnx"));
    let mut proto = Model::load(&path).expect("the model can be read").proto().clone();
    let graph = proto.graph.as_mut().expect("a model has a graph");
    let value = graph.value_info.iter().find(|value| value.name.as_deref() == Some(output));
    graph.output.insert(0, value.expect("the value has a type").clone());
    let changed = folder.join(format!("{name}.onnx"));
    std::fs::write(&changed, proto.encode_to_vec()).expect("it is written");
    changed
}

#[test]
fn a_model_that_computes_its_loss_needs_no_labels_in_inference_form() {
    let names = |model: &Model| -> [Vec<String>; 2] {
        [&model.graph.inputs, &model.graph.outputs]
            .map(|values| values.iter().map(|value| value.name.clone()).collect())
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let exported = |path: &Path, to: &str| {
        let (source, compilation) = load(path);
        let states = doctored(&compilation.training);
        let to = folder.path().join(to);
        std::fs::create_dir(&to).expect("a folder");
        let written = export::export(&source, &compilation, &given(&states), &to).expect("it is written");
        let model = Model::load(&written.model).expect("it can be read");
        (source.model, model, written.training_form)
    };
    for (name, logits, input) in
        [("mlp-loss.dynamo", "linear_2", "x"), ("gpt2-loss.dynamo", "linear", "input_ids")]
    {
        let path = with_output(name, logits, folder.path());
        let (given, model, training) = exported(&path, name);
        assert_eq!(names(&model), [vec![input.to_owned()], vec![logits.to_owned()]]);
        let losses = |model: &Model| {
            model.graph.nodes.iter().filter(|node| node.op_type == "SoftmaxCrossEntropyLoss").count()
        };
        assert_eq!([losses(&given), losses(&model)], [1, 0], "{name}");
        let training = Model::load(&training.expect("it was written")).expect("it can be read");
        assert_eq!((names(&training), losses(&training)), (names(&given), 1), "{name}");
    }
    // This model has only its loss as an output.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/models/joined-loss.dynamo.onnx");
    let (given, model, training) = exported(&path, "alone");
    assert_eq!((names(&model), training), (names(&given), None));
}

#[test]
fn a_model_in_training_mode_is_written_in_both_forms() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/models/resnet.legacy-trainmode.onnx");
    let (source, compilation) = load(&path);
    let states = doctored(&compilation.training);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written =
        export::export(&source, &compilation, &given(&states), folder.path()).expect("it is written");
    let training = written.training_form.expect("the model has batch norms that train");
    assert_eq!(training, folder.path().join("model-training.onnx"));
    let [inference, training] =
        [&written.model, &training].map(|path| Model::load(path).expect("it can be read"));
    assert!(
        training.inference_form(&BTreeSet::new()).changes > 0
            && inference.inference_form(&BTreeSet::new()).changes == 0
    );
    assert_eq!(training.graph.nodes, source.model.graph.nodes);
    // Both files have the trained values, those of the running statistics too.
    assert_eq!(inference.graph.tensors, training.graph.tensors);
    let changed = |name: &str| inference.graph.tensor(name) != source.model.graph.tensor(name);
    assert!(changed("m.resnet.embedder.embedder.normalization.running_mean"));
    assert!(changed("m.resnet.embedder.embedder.convolution.weight"));
}

#[test]
fn keys_without_a_value_are_named() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/models/resnet.legacy-trainmode.onnx");
    let (mut source, compilation) = load(&path);
    let keys = ["unused.weight", "bn1.num_batches_tracked", "unused.bias", "bn2.num_batches_tracked"];
    source.imported.state_dict.absent = keys.map(String::from).into();
    // A tensor that only the description has is named too.
    let lost = onnx::StateDictEntry::whole("lost", "not.there", ir::View::new());
    source.imported.state_dict.entries.push(lost);
    let states = doctored(&compilation.training);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written =
        export::export(&source, &compilation, &given(&states), folder.path()).expect("it is written");
    let notes = written.notes().join("\n").replace(&format!("{}/", folder.path().display()), "");
    expect_test::expect![[r#"
        model.onnx is in inference form, for use; model-training.onnx is in training form, for more training
        model.safetensors lacks 5 keys of the module's state_dict, because the model's file holds no value for them: `unused.weight`, `unused.bias`, `lost`, 2 `num_batches_tracked`"#]]
    .assert_eq(&notes);
}
