//! The checkpoint with the lowest eval loss, checkpoints that are removed, and runs that end early.

use expect_test::expect;

use super::{number_after, place, refused};
use testing::workplace::Workplace;

/// A run whose learning rate gets too large.
const TOO_FAST: &str = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 --eval-every 1 --lr 0.3 \
                        --lr-schedule cosine:warmup=6,steps=20";

/// The eval loss after each step.
fn eval_losses(place: &Workplace, run: &str) -> Vec<f64> {
    place.metrics(run).iter().map(|line| line["eval_loss"].as_f64().expect("it was evaluated")).collect()
}

#[test]
fn the_best_checkpoint_is_kept_and_exported() {
    let place = place();
    let flags = format!("{TOO_FAST} --export best --keep 1 -o run");
    let ended = place.succeed(&format!("{flags} --steps 7"));
    let losses = eval_losses(&place, "run");
    let best = (0..7).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).expect("there are steps");
    assert!(best < 6, "{losses:?}");
    let saved = u64::try_from(best + 1).expect("it is small");
    assert_eq!(place.checkpoints("run"), [saved, 7]);
    let told =
        format!("wrote run/model.onnx of step {saved}, with the lowest eval loss, {:.6}\n", losses[best]);
    assert!(ended.stderr.contains(&told), "{}", ended.stderr);
    place.succeed(&format!("{TOO_FAST} --steps {saved} -o short"));
    let models = |file: &str| ["run", "short"].map(|run| place.read(&format!("{run}/{file}")));
    for file in ["model.onnx", "model.safetensors"] {
        let [ours, expected] = models(file);
        assert!(ours == expected, "{file}");
    }

    // A resumed run still knows the best checkpoint.
    let ended = place.succeed(&format!("{flags} --steps 8 --resume"));
    assert!(ended.stderr.contains(&told), "{}", ended.stderr);
    assert_eq!(place.checkpoints("run"), [saved, 8]);
    let [ours, expected] = models("model.onnx");
    assert!(ours == expected);
    place.succeed(&format!("{TOO_FAST} --steps 8 -o run --resume"));
    let [ours, best] = models("model.onnx");
    assert!(ours != best, "by default the last is exported");
}

#[test]
fn a_run_whose_eval_loss_does_not_fall_ends_early_and_as_done() {
    let place = place();
    // With a learning rate of 0, no update changes anything.
    let flags =
        "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 --lr 0 --eval-every 2 --steps 20";
    let ended = place.succeed(&format!("{flags} --patience 2 -o run"));
    let loss = number_after(&ended, "no evaluation was below the eval loss ");
    assert_eq!(place.metrics("run").len(), 6);
    assert_eq!(place.checkpoints("run"), [6]);
    let told = format!(
        "ended early, after 6 of 20 steps: no evaluation was below the eval loss {loss:.6} of step 2\n"
    );
    assert!(ended.stderr.contains(&told), "{}", ended.stderr);
    assert!(place.path("run/model.onnx").exists());

    let ended = place.succeed(&format!("{flags} --patience 2 -o run --resume"));
    assert!(ended.stderr.contains(&told), "{}", ended.stderr);
    assert_eq!((place.metrics("run").len(), place.checkpoints("run")), (6, vec![6]));
    place.succeed(&format!("{flags} --patience 4 -o run --resume"));
    assert_eq!((place.metrics("run").len(), place.checkpoints("run")), (10, vec![6, 10]));
}

#[test]
fn flags_that_need_an_eval_loss_are_refused_without() {
    let place = place();
    let flags =
        "compile testdata/models/mlp.dynamo.onnx --train testdata/models/mlp.train.npz --steps 1 -o run";
    let before = place.contents();
    refused(
        &place.run(&format!("{flags} --export best")),
        expect![[r#"
        error: --export best needs an eval loss, and there is no evaluation data
          = give evaluation data: --eval DATA
    "#]],
    );
    refused(
        &place.run(&format!("{flags} --patience 2 --eval-every 1")),
        expect![[r#"
        error: --patience needs an eval loss, and there is no evaluation data
          = give evaluation data: --eval DATA
    "#]],
    );
    refused(
        &place.run(&format!("{flags} --patience 2")),
        expect![[r#"
        error: --patience does not apply without --eval-every: the run is evaluated only at its end
          = give the number of steps between evaluations: --eval-every 100
    "#]],
    );
    refused(
        &place.run("compile testdata/gpt2-fresh.onnx --keep 1 --export last -o run"),
        expect![[r#"
        error: --keep, --export do not apply without --train
          = give training data: --train corpus.txt, or --train synthetic to try the model
    "#]],
    );
    assert!(before == place.contents(), "a refused run leaves nothing");
}
