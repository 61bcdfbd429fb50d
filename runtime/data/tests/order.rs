//! Tests of the samples in each batch.

use proptest::prelude::*;

use super::*;

/// Text of `samples` sequences of one token each: token `i` is `i`.
fn counting(files: &Files, samples: u64) -> DataSource {
    files.write("counting.txt", (0..=samples).map(|token| token as u8).collect::<Vec<_>>())
}

/// Returns the samples of one epoch, step by step, without those that fill the last batch up.
fn epoch(loader: &Loader, epoch: u64) -> Vec<i64> {
    let steps = loader.steps_per_epoch();
    let batches = (epoch * steps..(epoch + 1) * steps).map(|step| loader.global_batch(step));
    batches.flat_map(|batch| integers(&batch, "input_ids")[..batch.samples as usize].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_sample_comes_exactly_once_an_epoch(samples in 1u64..200, microbatch in 1u64..9, seed: u64, number in 0u64..3) {
        let files = Files::new();
        let options = LoaderOptions { seed, microbatches: 2, ..options() };
        let loader = Loader::new(&language_model(microbatch, 1, Some(-100)), &counting(&files, samples), &options).unwrap();
        let mut seen = epoch(&loader, number);
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..samples as i64).collect::<Vec<_>>());
    }

    #[test]
    fn a_global_batch_does_not_depend_on_the_number_of_microbatches(samples in 8u64..200, seed: u64, step in 0u64..100) {
        let files = Files::new();
        let data = counting(&files, samples);
        let global = |microbatches: u64| {
            let options = LoaderOptions { seed, microbatches, ..options() };
            Loader::new(&language_model(8 / microbatches, 1, Some(-100)), &data, &options).unwrap()
        };
        let whole = global(1).global_batch(step);
        for microbatches in [2, 4, 8] {
            let loader = global(microbatches);
            prop_assert_eq!(&loader.global_batch(step), &whole);
            for index in 0..microbatches {
                let rows = 8 / microbatches;
                prop_assert_eq!(loader.rows(step, index * rows..(index + 1) * rows), whole.microbatch(index, microbatches));
            }
        }
    }
}

#[test]
fn labels_are_the_next_tokens_also_across_samples() {
    let files = Files::new();
    let data = files.write("corpus.txt", "abcdefgh");
    let loader = Loader::new(&language_model(1, 3, None), &data, &options()).unwrap();
    assert_eq!((loader.samples(), loader.steps_per_epoch(), loader.tokens_per_step()), (2, 2, Some(3)));
    for step in 0..2 {
        let batch = loader.global_batch(step);
        let tokens = integers(&batch, "input_ids");
        let start = tokens[0];
        assert!([97, 100].contains(&start));
        assert_eq!(tokens, [start, start + 1, start + 2]);
        assert_eq!(integers(&batch, "labels"), [start + 1, start + 2, start + 3]);
    }
}

#[test]
fn a_short_last_batch_keeps_its_shape_and_ignores_what_fills_it_up() {
    let files = Files::new();
    let data = counting(&files, 5);
    let loader =
        Loader::new(&language_model(4, 1, Some(-100)), &data, &LoaderOptions { shuffle: false, ..options() })
            .unwrap();
    assert_eq!(loader.steps_per_epoch(), 2);
    let last = loader.global_batch(1);
    assert_eq!((last.rows, last.samples), (4, 1));
    assert_eq!(integers(&last, "input_ids"), [4, 0, 1, 2]);
    assert_eq!(integers(&last, "labels"), [5, -100, -100, -100]);
    assert_eq!(integers(&loader.global_batch(2), "labels"), [1, 2, 3, 4]);
    assert_eq!(last.microbatch(1, 2).samples, 0);
}

#[test]
fn a_short_last_batch_without_an_ignored_label_is_left_out_with_a_note() {
    let files = Files::new();
    let loader = Loader::new(&language_model(4, 1, None), &counting(&files, 10), &options()).unwrap();
    assert_eq!(loader.steps_per_epoch(), 2);
    assert!(loader.notes()[0].starts_with("the last 2 of 10 samples"), "{:?}", loader.notes());
    assert_eq!(loader.global_batch(5).samples, 4);
}

#[test]
fn a_short_batch_whose_samples_meet_others_is_left_out_with_the_reason() {
    let files = Files::new();
    let reason = Some("`norm` reads every sample".to_owned());
    let unfillable = Unfillable { training: reason, evaluation: None };
    let spec = ModelSpec { unfillable, ..language_model(4, 1, Some(-100)) };
    let data = counting(&files, 10);
    let options = LoaderOptions { eval: Some(data.clone()), ..options() };
    let loader = Loader::new(&spec, &data, &options).unwrap();
    assert_eq!((loader.steps_per_epoch(), loader.short_evaluation()), (2, 0));
    let note = "the last 2 of 10 samples of each epoch's order are left out: they do not fill a global batch of 4, and \
                `norm` reads every sample";
    assert_eq!(loader.notes(), [note]);
    assert_eq!(
        loader.eval_batches().map(|batch| batch.whole()).map(|batch| (batch.rows, batch.samples)).last(),
        Some((4, 2))
    );
}

#[test]
fn an_evaluation_that_cannot_be_filled_up_ends_with_a_short_batch() {
    let files = Files::new();
    let data = counting(&files, 10);
    let options = LoaderOptions { eval: Some(data.clone()), ..options() };
    let mut loader = Loader::new(&language_model(4, 1, None), &data, &options).unwrap();
    let sizes = |loader: &Loader| -> Vec<(u64, u64)> {
        loader.eval_batches().map(|batch| batch.whole()).map(|batch| (batch.rows, batch.samples)).collect()
    };
    assert_eq!((loader.short_evaluation(), sizes(&loader)), (2, vec![(4, 4), (4, 4), (2, 2)]));
    loader.leave_out_of_evaluation(2, "it is a test");
    assert_eq!((loader.short_evaluation(), sizes(&loader)), (0, vec![(4, 4), (4, 4)]));
    let note = loader.notes().last().unwrap();
    let beginning = "the evaluation leaves out the last 2 of the 10 samples of ";
    assert!(note.starts_with(beginning) && note.ends_with(": it is a test"), "{note}");
}

#[test]
fn data_smaller_than_a_batch_are_repeated_with_a_note() {
    let files = Files::new();
    let loader = Loader::new(&language_model(4, 1, Some(-100)), &counting(&files, 3), &options()).unwrap();
    let note = &loader.notes()[0];
    assert!(note.contains("has 3 samples, fewer than a global batch of 4"), "{note}");
    assert_eq!((loader.steps_per_epoch(), loader.global_batch(0).samples), (1, 3));
}

#[test]
fn epochs_differ_and_a_seed_repeats_them() {
    let files = Files::new();
    let data = counting(&files, 50);
    let order = |seed, number| {
        let options = LoaderOptions { seed, ..options() };
        epoch(&Loader::new(&language_model(5, 1, None), &data, &options).unwrap(), number)
    };
    assert_eq!(order(1, 2), order(1, 2));
    assert_ne!(order(1, 0), order(1, 1));
    assert_ne!(order(1, 0), order(2, 0));
}

#[test]
fn a_saved_position_goes_on_exactly_and_refuses_another_order() {
    let files = Files::new();
    let data = counting(&files, 50);
    let loader = |seed, microbatch, microbatches| {
        let options = LoaderOptions { seed, microbatches, ..options() };
        Loader::new(&language_model(microbatch, 1, None), &data, &options).unwrap()
    };
    let position = loader(1, 4, 2).position(7);
    assert_eq!((position.epoch, position.batch_in_epoch), (1, 1));
    let saved: DataPosition = serde_json::from_str(&serde_json::to_string(&position).unwrap()).unwrap();
    assert_eq!(saved, position);
    assert_eq!(loader(1, 2, 4).resume(&saved).unwrap(), 7);
    let error = loader(2, 4, 2).resume(&saved).unwrap_err().to_string();
    assert!(error.contains("the seed was 1 when the checkpoint was saved and is 2 now"), "{error}");
    let error = loader(1, 4, 1).resume(&saved).unwrap_err().to_string();
    assert!(error.contains("the global batch was 8 when the checkpoint was saved and is 4 now"), "{error}");
}

#[test]
fn the_end_of_a_text_is_held_out_and_evaluated_once_in_order() {
    let files = Files::new();
    let data = counting(&files, 100);
    let loader = Loader::new(&language_model(2, 1, Some(-1)), &data, &LoaderOptions::default()).unwrap();
    assert_eq!((loader.samples(), loader.eval_samples()), (95, 5));
    let batches: Vec<Batch> = loader.eval_batches().map(|batch| batch.whole()).collect();
    let tokens: Vec<i64> = batches.iter().flat_map(|batch| integers(batch, "input_ids")).collect();
    assert_eq!(tokens, [95, 96, 97, 98, 99, 95]);
    let labels: Vec<i64> = batches.iter().flat_map(|batch| integers(batch, "labels")).collect();
    assert_eq!(labels, [96, 97, 98, 99, 100, -1]);
    assert_eq!(batches.iter().map(|batch| batch.samples).sum::<u64>(), 5);
    assert!(epoch(&loader, 0).iter().all(|&token| token < 95));
}

#[test]
fn a_text_too_short_to_hold_any_of_it_out_is_trained_on_whole() {
    let files = Files::new();
    let loader =
        Loader::new(&language_model(2, 1, Some(-1)), &counting(&files, 19), &LoaderOptions::default())
            .unwrap();
    assert_eq!((loader.samples(), loader.eval_samples(), loader.eval_batches().count()), (19, 0, 0));
    assert!(
        loader.notes()[0].starts_with("there is no evaluation: 5.0 % of the 19 samples"),
        "{:?}",
        loader.notes()
    );
}

#[test]
fn evaluation_data_of_its_own_leaves_the_training_data_whole() {
    let files = Files::new();
    let eval = files.write("eval.txt", [9, 8, 7]);
    let options = LoaderOptions { eval: Some(eval), ..LoaderOptions::default() };
    let loader = Loader::new(&language_model(2, 1, None), &counting(&files, 100), &options).unwrap();
    assert_eq!(loader.samples(), 100);
    let batches: Vec<Batch> = loader.eval_batches().map(|batch| batch.whole()).collect();
    assert_eq!(batches.len(), 1);
    assert_eq!(integers(&batches[0], "labels"), [8, 7]);
}
