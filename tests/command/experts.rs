//! `--moe`: a run of a model with mixtures of experts, its metrics, and the file that it exports.

use crate::TRAINYARD;
use testing::workplace::Workplace;

const TRAIN: &str = "--train text.txt --microbatch 2";
/// Tokens of a sample.
const TOKENS: f64 = 16.0;

/// For each router, the number of choices of its experts.
fn loads(step: &serde_json::Value) -> Vec<f64> {
    let loads = step["moe.load"].as_object().into_iter().flatten();
    loads
        .map(|(_, load)| load.as_array().expect("a list").iter().filter_map(|count| count.as_f64()).sum())
        .collect()
}

#[test]
fn a_trained_mixture_is_a_model_again() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let mixtures = [
        ("experts=4,capacity=1,sigmoid,bias=0.01", " --mesh ep=2"),
        ("gshard,experts=4,capacity=none,every=2", " --mesh ep=2"),
        ("expert-choice,experts=2,shared", ""),
    ];
    for (number, (moe, mesh)) in mixtures.into_iter().enumerate() {
        let run = format!("run{number}");
        place.succeed(&format!(
            "compile testdata/gpt2-fresh.onnx {TRAIN} --moe {moe}{mesh} --steps 4 -o {run}"
        ));
        let trained = place.metrics(&run).pop().expect("it has steps");
        for metric in ["moe.entropy", "loss", "eval_loss"] {
            assert!(trained[metric].is_f64(), "{moe}: {trained}");
        }
        assert_eq!(trained["moe.dropped"].is_f64(), moe.starts_with("experts=4"), "{trained}");
        let loads: Vec<f64> = loads(&trained);
        assert_eq!(loads.is_empty(), moe.starts_with("expert-choice"), "{moe}: {trained}");
        // Two choices for each token of four samples; for GShard, only the first choices.
        let choices = if moe.starts_with("gshard") { 1.0 } else { 2.0 };
        assert!(loads.iter().all(|load| *load == 4.0 * TOKENS * choices), "{moe}: {trained}");
        // The file has the trained weights, and the passes find its experts again.
        let again = format!("{run}-again");
        place.succeed(&format!("compile {run}/model.onnx {TRAIN} --lr 1e-12 --steps 1 -o {again}"));
        let read = place.metrics(&again).pop().expect("it has a step");
        let loss = |step: &serde_json::Value| step["eval_loss"].as_f64().expect("an evaluation");
        assert!((loss(&read) - loss(&trained)).abs() < 1e-6, "{moe}: {read} {trained}");
    }
}

/// A state may be a view of the tensor that has its name: a conversion, or a transposed matrix.
#[test]
fn a_trained_mixture_keeps_the_views_of_its_states() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    // A file in f16 has rounded weights.
    let models = [("gpt2-fp16.dynamo", 1e-2), ("llama.legacy-mask", 1e-5), ("gpt2.dynamo", 1e-5)];
    for (model, tolerance) in models {
        let flags = "--moe experts=2,top=1 --lr 1e-2 --steps 3";
        place.succeed(&format!("compile testdata/models/{model}.onnx {TRAIN} {flags} -o {model}"));
        let trained = place.metrics(model).pop().expect("it has steps");
        let again = format!("{model}-again");
        place.succeed(&format!("compile {model}/model.onnx {TRAIN} --lr 1e-12 --steps 1 -o {again}"));
        let read = place.metrics(&again).pop().expect("it has a step");
        let loss = |step: &serde_json::Value| step["eval_loss"].as_f64().expect("an evaluation");
        assert!((loss(&read) - loss(&trained)).abs() < tolerance, "{model}: {read} {trained}");
    }
}

#[test]
fn a_run_of_a_mixture_goes_on_bit_for_bit() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let train = format!("compile testdata/gpt2-fresh.onnx {TRAIN} --moe switch,experts=4 --save-every 2");
    place.succeed(&format!("{train} --steps 4 -o whole"));
    place.succeed(&format!("{train} --steps 2 -o parted"));
    place.succeed(&format!("{train} --steps 4 -o parted --resume"));
    assert!(place.states("whole", 4) == place.states("parted", 4), "the checkpoints differ");
    assert!(place.read("whole/model.onnx") == place.read("parted/model.onnx"), "the models differ");
}
