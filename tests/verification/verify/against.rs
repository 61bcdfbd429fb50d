//! `verify --against` with numbers that `scripts/reference.py` wrote: the same tensors are trained, or the user is told which differ.

use crate::TRAINYARD;
use data::Table;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};
use testing::testdata;
use testing::{models, verification};
use trainyard::verification::report::Report;

const MODEL: &str = "verify/classifier.onnx";
/// The module's author froze this layer, but the ONNX file does not say so.
const FREEZE: &str = "--freeze frozen.*";

/// The report of `verify` for the classifier against a file.
fn against(numbers: &Path, flags: &str) -> Report {
    let flags = format!("--against {} {flags}", numbers.display());
    models::done(verification::verify(&testdata(MODEL), &flags))
}

/// PyTorch's numbers, which tests write again with some of them replaced or added.
struct Numbers {
    folder: tempfile::TempDir,
    table: Table,
}

impl Numbers {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let table = Table::open(&testdata("verify/classifier.npz")).expect("the file can be read");
        Self { folder, table }
    }

    /// Writes the file, with these f64 tensors in place of its own tensors of the same names.
    fn with(&self, others: &[(&str, &[usize], &[f64])]) -> PathBuf {
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for key in self.table.keys().filter(|key| others.iter().all(|(other, ..)| other != key)) {
            let array = self.table.array(key).expect("the array is whole").expect("it has the key");
            let dtype = match array.dtype {
                ir::DType::F32 => Dtype::F32,
                ir::DType::F64 => Dtype::F64,
                ir::DType::I64 => Dtype::I64,
                other => panic!("{key} is {other}"),
            };
            let sizes = array.dims.iter().map(|&size| size as usize).collect();
            tensors.push((key.to_owned(), dtype, sizes, array.bytes));
        }
        for (name, sizes, values) in others {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.push(((*name).to_owned(), Dtype::F64, sizes.to_vec(), bytes));
        }
        let views = tensors.iter().map(|(name, dtype, sizes, bytes)| {
            let view = TensorView::new(*dtype, sizes.clone(), bytes).expect("the sizes fit");
            (name.as_str(), view)
        });
        let path = self.folder.path().join("numbers.safetensors");
        let bytes = safetensors::serialize(views, None).expect("tensors");
        std::fs::write(&path, bytes).expect("a temporary file is written");
        path
    }

    /// The f64 numbers of a tensor of the file.
    fn floats(&self, key: &str) -> Vec<f64> {
        let array = self.table.array(key).expect("the array is whole").expect("it has the key");
        let float = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().expect("4 bytes")));
        assert_eq!(array.dtype, ir::DType::F32, "{key}");
        array.bytes.chunks(4).map(float).collect()
    }
}

#[test]
fn the_numbers_of_the_script_are_those_of_the_compiled_program() {
    let numbers = testdata("verify/classifier.npz");
    for mode in ["exact", "typed", "cpu"] {
        let report = against(&numbers, &format!("{FREEZE} --mode {mode}"));
        assert!(report.passed, "{report}");
        assert!(report.assumptions.iter().all(|assumption| assumption.checked), "{report}");
        assert!(
            report.tensors.untrained.is_empty() && report.tensors.trained_here_alone.is_empty(),
            "{report}"
        );
        // 6 parameters with their gradients, the loss, and an output that is matched by its position.
        assert_eq!(report.differences.len(), 14, "{report}");
        assert!(report.differences.iter().any(|difference| difference.name == "logits"), "{report}");
    }
    let report = against(&numbers, FREEZE);
    assert!(report.differences[0].error < 1e-14, "the script computes in f64: {report}");
}

#[test]
fn a_tensor_that_the_module_does_not_train_and_trainyard_does_is_named() {
    let report = against(&testdata("verify/classifier.npz"), "");
    assert!(!report.passed, "{report}");
    assert_eq!(report.tensors.trained_here_alone, ["frozen.bias", "frozen.weight"]);
    let text = report.to_string();
    assert!(
        text.contains(
            "trained here, without a gradient in the file: `frozen.bias`, `frozen.weight`; --freeze"
        ),
        "{text}"
    );
}

#[test]
fn a_gradient_of_a_constant_is_a_difference() {
    let numbers = Numbers::new();
    let report = against(&numbers.with(&[("grad.gain", &[12], &[0.5; 12])]), FREEZE);
    assert!(!report.passed && report.failed() == 0, "{report}");
    let [gain] = &report.tensors.untrained[..] else { panic!("{report}") };
    assert!(gain.there == "gain" && gain.fails, "{report}");
    assert!(gain.why.starts_with("is `gain`, which is treated as a constant: "), "{report}");
    let text = report.to_string();
    assert!(
        text.contains("DIFFERENT: 1 tensors have a gradient in the file and are not trained here"),
        "{text}"
    );
}

#[test]
fn a_gradient_of_a_tensor_that_the_file_of_the_model_lacks_is_a_difference_and_exits_with_3() {
    let numbers = Numbers::new();
    let file = numbers.with(&[("param.scale", &[2], &[1.0, 2.0]), ("grad.scale", &[2], &[0.5, 0.25])]);
    let command = std::process::Command::new(TRAINYARD)
        .args(["verify".as_ref(), testdata(MODEL).as_os_str(), "--against".as_ref(), file.as_os_str()])
        .args(FREEZE.split(' '))
        .output()
        .expect("the command starts");
    let text = String::from_utf8_lossy(&command.stdout);
    assert_eq!(command.status.code(), Some(3), "{text}");
    assert!(text.contains("`scale` is not in the model's file"), "{text}");
    assert!(text.contains("no error of the other tensors is above 1e-5"), "{text}");
}

#[test]
fn a_tensor_that_the_exporter_merged_with_a_trained_one_is_told_so() {
    let numbers = Numbers::new();
    let norm = numbers.floats("param.norm.weight");
    let file =
        numbers.with(&[("param.other.weight", &[16], &norm), ("grad.other.weight", &[16], &[0.1; 16])]);
    let report = against(&file, FREEZE);
    assert!(!report.passed, "{report}");
    assert!(report.tensors.untrained[0].why.starts_with("has the values of `norm.weight`"), "{report}");
}

#[test]
fn a_gradient_of_zeros_and_one_of_a_tensor_that_the_user_froze_are_no_differences() {
    let numbers = Numbers::new();
    // The module has a layer that nothing uses, whose gradient is zero but for rounding.
    let file = numbers.with(&[("param.scale", &[2], &[1.0, 2.0]), ("grad.scale", &[2], &[1e-18, 0.0])]);
    let report = against(&file, FREEZE);
    assert!(report.passed && report.tensors.untrained.is_empty(), "{report}");

    let report = against(&testdata("verify/classifier.npz"), &format!("{FREEZE} --freeze norm.bias"));
    assert!(report.passed, "{report}");
    let [frozen] = &report.tensors.untrained[..] else { panic!("{report}") };
    assert!(frozen.there == "norm.bias" && !frozen.fails, "{report}");
    assert!(frozen.why.contains("--freeze or --train-only"), "{report}");
}

#[test]
fn a_trained_tensor_without_a_gradient_in_the_file_is_not_said_to_be_compared() {
    let numbers = Numbers::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("few.safetensors");
    let bytes = std::fs::read(numbers.with(&[])).expect("it was written");
    let all = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    let few = all.tensors().into_iter().filter(|(name, _)| name != "grad.head.bias");
    std::fs::write(&path, safetensors::serialize(few, None).expect("tensors")).expect("it is written");
    let report = against(&path, FREEZE);
    assert!(report.passed, "{report}");
    let trained = &report.assumptions[0];
    assert!(
        !trained.checked && trained.says.contains("no gradient for 1 of the trained tensors"),
        "{report}"
    );
}
