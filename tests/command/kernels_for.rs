//! `compile --kernels-for`: kernels for a GPU that this machine does not have.

use crate::TRAINYARD;
use std::fs;
use testing::workplace::Workplace;

#[test]
fn kernels_are_compiled_for_known_gpus_alone() {
    let place = Workplace::new(TRAINYARD);
    for gpu in ["v100", "cpu", "h99"] {
        let told = place.run(&format!("compile testdata/models/mlp.dynamo.onnx --kernels-for {gpu}"));
        let expected =
            format!("`{gpu}` is not a GPU that kernels are compiled for; write h200, h100, a100 or a100-40");
        assert!(told.status.code() == Some(2) && told.stderr.contains(&expected), "{}", told.stderr);
    }
}

#[test]
fn kernels_for_a_gpu_are_not_compiled_for_the_processor() {
    let place = Workplace::new(TRAINYARD);
    let told = place.run("compile testdata/models/mlp.dynamo.onnx --kernels-for h100 --device cpu");
    assert!(told.status.code() == Some(2) && told.stderr.contains("leave --device out"), "{}", told.stderr);
}

#[test]
fn without_nvrtc_kernels_are_not_compiled_and_the_error_names_its_package() {
    let place = Workplace::new(TRAINYARD);
    let mut command = place.command("compile testdata/models/mlp.dynamo.onnx --kernels-for h100");
    command.env_remove("VIRTUAL_ENV").env("TRAINYARD_CUDA_LIBS", place.path("nowhere"));
    let output = command.output().expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr);
    // A machine with CUDA has NVRTC in a system folder.
    let is_refused = told.contains("--kernels-for: ") && told.contains("NVRTC compiles the kernels");
    let is_compiled = output.status.success() && told.contains("kernels for sm_90a");
    assert!(is_compiled || is_refused, "{told}");
    assert!(!place.path("mlp.dynamo.trainyard").exists(), "nothing is trained");
}

#[test]
#[ignore = "needs NVRTC"]
fn kernels_are_kept_once_and_belong_to_the_run_and_the_gpu() {
    let place = Workplace::new(TRAINYARD);
    let kept = |flags: &str| -> usize {
        let words = format!("compile testdata/models/mlp.dynamo.onnx --train synthetic --steps 3 {flags}");
        let output = place
            .command(&words)
            .env("TRAINYARD_CACHE", place.path("warm"))
            .output()
            .expect("the binary starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && told.contains("kernels for sm_"), "{told}");
        fs::read_dir(place.path("warm/cubins")).expect("kernels are kept").count()
    };
    let first = kept("--kernels-for h100");
    assert!(first > 5, "{first} kernels");
    assert_eq!(kept("--kernels-for h200"), first, "an H200 has the architecture and the size of an H100");
    assert!(kept("--kernels-for a100") > first);
}
