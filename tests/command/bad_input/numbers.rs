//! Runs whose numbers become infinite or NaN.

use expect_test::expect;

use super::{FRESH, failed, half_written, place};

#[test]
fn a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint() {
    let place = place();
    let flags = format!("{FRESH} --steps 5 --save-every 1 --lr 1e30 -o run");
    let ended = place.run(&flags);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    // The first node with a NaN depends on the machine's rounding. It belongs to the first layer.
    let told = ended.errors();
    assert!(told.starts_with("error: the loss of step 2 is NaN: `"), "{told}");
    assert!(told.contains(" of node \"node_") && told.contains(" made "), "{told}");
    assert!(told.contains("= `run/checkpoints/step-1` was saved before that; a smaller --lr"), "{told}");
    assert_eq!((half_written(&place), place.checkpoints("run")), (vec![], vec![1]));
    assert_eq!(place.metrics("run").len(), 1);
    assert!(!place.path("run/model.onnx").exists());

    // After the last step, the eval loss shows the NaN.
    failed(
        &place.run(&format!("{FRESH} --steps 1 --lr 1e30 -o short")),
        expect![[r#"
        error: the eval loss after the update of step 1 is NaN
          = no checkpoint was saved before that; a smaller --lr, a longer warm-up or --clip may help
    "#]],
    );
    assert_eq!(place.checkpoints("short"), Vec::<u64>::new());
    assert!(!place.path("short/model.onnx").exists());
}

#[test]
fn a_weight_that_is_not_a_number_is_named() {
    let place = place();
    place.succeed(&format!("{FRESH} --steps 0 -o good"));
    let mut weights = place.read("good/model.safetensors");
    let header =
        usize::try_from(u64::from_le_bytes(weights[..8].try_into().expect("8 bytes"))).expect("it is small");
    let tensors: serde_json::Value = serde_json::from_slice(&weights[8..8 + header]).expect("it is JSON");
    let start = tensors["transformer.h.1.mlp.c_fc.weight"]["data_offsets"][0].as_u64().expect("it is there");
    let at = 8 + header + usize::try_from(start).expect("it is small");
    weights[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    // The file now looks like one that another program wrote, without checksums.
    let key = weights.windows(14).position(|word| word == b"trainyard.xxh3").expect("it is there");
    weights[key..key + 14].copy_from_slice(b"somebody's.sum");
    place.write("poisoned.safetensors", &weights);
    failed(
        &place.run(&format!("{FRESH} --steps 1 --weights poisoned.safetensors -o run")),
        expect![[r#"
            error: the loss of step 1 is NaN: `transformer.h.1.mlp.c_fc.weight` was not finite when the run began
              = give other weights, with --weights, or start from scratch with --init
        "#]],
    );
    assert_eq!((place.checkpoints("run"), place.metrics("run").len()), (vec![], 0));
}

#[test]
fn weights_that_the_last_update_made_infinite_are_neither_saved_nor_exported() {
    let place = place();
    for data in ["text.txt", "synthetic"] {
        let flags = "--optimizer sgd --lr 1e10 --weight-decay 1e30 --steps 1 -o run";
        let fresh = FRESH.replace("text.txt", data);
        let ended = place.run(&format!("{fresh} {flags}"));
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        let told = ended.errors();
        assert!(told.starts_with("error: the update of step 1 made the parameter `"), "{told}");
        assert!(
            told.contains("= no checkpoint was saved before that; a smaller --lr or --weight-decay"),
            "{told}"
        );
        assert_eq!((half_written(&place), place.checkpoints("run")), (vec![], vec![]));
        assert!(!place.path("run/model.onnx").exists());
        std::fs::remove_dir_all(place.path("run")).expect("it is there");
    }
}
