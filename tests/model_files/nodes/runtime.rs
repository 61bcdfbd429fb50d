//! Operators of ONNX Runtime's own domain, and cases of recurrent layers and control flow that ONNX's tests leave out, compared with the
//! f32 results of ONNX Runtime's CPU kernels.

use super::case::Case;
use super::root;
use crate::archive;

/// The number of cases in the archive.
const CASES: usize = 85;

/// The rounding error of f32 sums whose addends are near 1.
const ABSOLUTE: f64 = 2e-6;

#[test]
fn what_onnx_runtime_leaves_in_a_file_gives_its_numbers() {
    let packed =
        std::fs::read(root().join("testdata/onnxruntime-cases.tar.gz")).expect("the cases can be read");
    let cases = archive::unpack(&packed).expect("the archive of the cases is whole");
    assert_eq!(cases.len(), CASES);
    let failure = |(name, files): (String, _)| {
        let case = Case::new(name, &files).expect("every case has a model and its data");
        let case = Case { absolute: ABSOLUTE, ..case };
        case.check().err().map(|reason| format!("{}: {reason}", case.name))
    };
    let failures: Vec<String> = cases.into_iter().filter_map(failure).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}
