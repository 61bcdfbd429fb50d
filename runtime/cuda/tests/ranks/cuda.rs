//! The programs of these tests on stand-ins of GPUs, a rank each. They need a C++ compiler.

use crate::compare::{first_non_finite, on_stand_ins, parse, same_as_on_one_device};
use crate::{collectives, operators, training};
use cuda::host::Order;
use cuda::ranks::stand_in;
use program::device::DeviceError;
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

#[test]
#[ignore = "needs a C++ compiler"]
fn every_collective_does_between_gpus_what_it_says() {
    on_stand_ins(&[
        collectives::a_row_parallel_contraction_is_reduced,
        collectives::a_column_then_a_row_parallel_layer_need_one_reduction,
        collectives::a_reduction_is_scattered_and_gathered,
        collectives::what_is_whole_is_sliced_and_what_is_split_changes_its_dim,
        collectives::rows_go_to_their_experts_and_return,
        collectives::two_axes_split_one_dim_in_either_order,
        collectives::a_partial_maximum_is_the_maximum,
        collectives::a_bucket_is_reduced_value_by_value,
        collectives::states_and_views_go_through_collectives,
    ]);
}

#[test]
#[ignore = "night: orders"]
fn kernels_know_which_part_a_gpu_has() {
    on_stand_ins(&[
        operators::a_split_vocabulary_gathers_on_the_rank_that_has_the_row,
        operators::indices_into_an_inner_dim_and_single_elements_are_found_in_the_right_part,
        operators::what_is_written_by_index_goes_to_the_part_that_has_the_place,
        operators::parts_of_the_updates_make_sums_and_largest_elements_together,
        operators::labels_count_all_classes_of_split_logits,
        operators::split_queries_see_the_keys_before_them,
        operators::constants_and_positions_are_cut_where_they_are_split,
        operators::merged_dims_are_split_and_taken_apart,
        operators::a_part_drops_what_the_whole_does,
    ]);
}

/// A block of keys that no query sees waits for its copies before results take their place.
#[test]
#[ignore = "needs a C++ compiler"]
fn tensor_cores_know_which_queries_a_gpu_has() {
    on_stand_ins(&[operators::split_queries_of_halves_see_the_keys_before_them]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn steps_on_gpus_are_those_of_one_device() {
    on_stand_ins(&[
        training::states_and_sums_over_microbatches_are_kept_by_rank,
        training::optimizer_states_and_gradients_are_split_as_zero_does,
    ]);
}

/// Samples that lie whole on several ranks, and one that two ranks share: the same numbers are dropped.
#[test]
#[ignore = "needs a C++ compiler"]
fn ranks_that_share_a_sample_drop_what_the_whole_does() {
    on_stand_ins(&[|| {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=2, tp=2] {
              func @train(%0 "x" : f64[8, 6] {dp*tp, -}, %1 "numbers" : i64[2] {dp}) {
                %2 = dropout %0, %1 {ratio = 0.5, id = 0, seed = 1, dim = 0} : f64[8, 6] {dp*tp, -}
              }
              output "y" = %2
            }"#;
        same_as_on_one_device(&parse(text));
    }]);
}

fn two() -> Arc<program::Program> {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          func @train(%0 "x" batched : f32[4, 3] {dp, -}) {
            %1 = log %0 : f32[4, 3] {dp, -} !{fwd, origin "/log"}
            %2 = reduce %1 {kind = sum, dims = [0, 1], keep = false} : f32[] partial(sum dp) !{fwd, origin "/sum"}
            %3 = all_reduce %2 : f32[] !{fwd, origin "/sum"}
          }
          output "total" = %3
        }"#;
    let options = LowerOptions::of(cuda::TARGET);
    Arc::new(lower(&parse(text), &options).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_gpu_that_made_a_nan_is_named() {
    let mut ranks = stand_in(vec![two()], Order::default()).unwrap();
    let mut x = [1.0f32; 12];
    for (place, value, expected) in [
        (0, 1.0, None),
        (7, 0.0, Some("`log` of /log made -inf on rank 1")),
        (8, -1.0, Some("`log` of /log made NaN on rank 1")),
        (2, -1.0, Some("`log` of /log made NaN on rank 0")),
    ] {
        x[place] = value;
        assert_eq!(first_non_finite(&mut ranks, &x).as_deref(), expected);
    }
}

/// Unlike the ranks of a mesh, a GPU by itself has nobody to exchange with.
#[test]
fn a_program_for_several_gpus_is_not_run_on_one() {
    let host = cuda::host::Host::new(Order::default());
    let error = cuda::device::Cuda::new(host, vec![two()]).map(drop).unwrap_err();
    assert!(matches!(error, DeviceError::Devices { devices: 2, given: 1, .. }), "{error}");
}

#[test]
fn a_reduction_that_nccl_does_not_know_is_refused_with_its_node() {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          func @train(%0 "x" : i16[4] {dp}) {
            %1 = reduce %0 {kind = sum, dims = [0], keep = false} : i16[] partial(sum dp) !{fwd, origin "/sum"}
            %2 = all_reduce %1 : i16[] !{fwd, origin "/sum"}
          }
          output "total" = %2
        }"#;
    let options = LowerOptions::of(cuda::TARGET);
    let program = lower(&parse(text), &options).unwrap_or_else(|error| panic!("{error}"));
    let error = cuda::lower::lower(Arc::new(program)).map(drop).unwrap_err().to_string();
    assert!(error.contains("a reduction of i16 over GPUs") && error.contains("/sum"), "{error}");
}
