//! Operators of ONNX Runtime's own domain, and what ONNX's tests leave out of recurrent layers and of control flow, against
//! the numbers that ONNX Runtime's CPU kernels give in f32.

use super::case::Case;
use super::root;
use crate::archive;

/// So many cases the archive has.
const CASES: usize = 85;

/// What f32 makes of sums whose addends are near 1.
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
