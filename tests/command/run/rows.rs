//! Models whose samples depend on each other or on their number, and equal tensors that an optimizer of ONNX files merged. The losses equal
//! PyTorch's.

use super::*;

/// Trains a model of `testdata/rows` for as many steps as PyTorch has losses, and compares the losses. Returns the messages.
fn trained(model: &str, flags: &str) -> String {
    let place = Workplace::new(TRAINYARD);
    let losses =
        std::fs::read(testing::testdata(&format!("rows/{model}.json"))).expect("the losses are there");
    let losses: serde_json::Value = serde_json::from_slice(&losses).expect("JSON");
    let losses: Vec<f64> =
        losses["losses"].as_array().expect("a list").iter().filter_map(|it| it.as_f64()).collect();
    let ended = place.succeed(&format!(
        "compile testdata/rows/{model}.onnx --train testdata/rows/{model}.npz --optimizer sgd --lr 0.2 --steps {} {flags} -o run",
        losses.len()
    ));
    let found: Vec<f64> = place.metrics("run").iter().filter_map(|line| line["loss"].as_f64()).collect();
    let close = found.len() == losses.len() && found.iter().zip(&losses).all(|(a, b)| (a - b).abs() < 2e-5);
    assert!(close, "{model} {flags}: {found:?}, not {losses:?}");
    ended.stderr
}

#[test]
fn rows_that_read_each_other_keep_their_places() {
    let told = trained("graph-network", "");
    assert!(told.contains("so the rows keep their order and are not shuffled"), "{told}");
}

#[test]
fn rows_that_would_not_keep_their_company_are_refused() {
    let place = Workplace::new(TRAINYARD);
    let ended = place
        .run("compile testdata/rows/graph-network.onnx --train synthetic --microbatch 6 --steps 1 -o run");
    assert!(ended.errors().contains("the batch of size 12 cannot be changed to 6"), "{}", ended.errors());
}

#[test]
fn the_number_of_samples_in_a_variance_follows_the_batch() {
    for flags in ["--microbatch 8", "--microbatch 4 --mesh dp=2"] {
        let told = trained("variance", flags);
        assert!(!told.contains("warning"), "{told}");
    }
}

#[test]
fn equal_tensors_of_a_fresh_model_are_trained_apart() {
    let told = trained("merged", "");
    assert!(
        told.contains("equal tensors of several modules were merged in the file, and are trained apart"),
        "{told}"
    );
}
