//! Every collective, over one axis and two.

use crate::compare::{parse, placed, same_as_on_one_device};

const MATRICES: &str = r#"%0 "x" : f64[8, 6] {dp, tp}, %1 "w" : f64[6, 4] {tp, -}"#;

#[test]
pub(crate) fn a_row_parallel_contraction_is_reduced() {
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f64[8, 4] {dp, -} partial(sum tp)
        %3 = all_reduce %2 : f64[8, 4] {dp, -}
        %4 = tanh %3 : f64[8, 4] {dp, -}";
    same_as_on_one_device(&placed("dp=2, tp=2", MATRICES, nodes, &["%3", "%4"]));
    same_as_on_one_device(&placed("dp=1, tp=3", MATRICES, nodes, &["%3", "%4"]));
    same_as_on_one_device(&placed("dp=2, tp=1", MATRICES, nodes, &["%3", "%4"]));
}

#[test]
pub(crate) fn a_column_then_a_row_parallel_layer_need_one_reduction() {
    let parameters = r#"%0 "x" : f64[8, 6] {dp, -}, %1 "w" : f64[6, 4] {-, tp}, %2 "bias" : f64[4] {tp},
        %3 "v" : f64[4, 5] {tp, -}"#;
    let nodes = "%4 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f64[8, 4] {dp, tp}
        %5 = add %4, %2 : f64[8, 4] {dp, tp}
        %6 = relu %5 : f64[8, 4] {dp, tp}
        %7 = contract %6, %3 {lhs = ab, rhs = bc, out = ac} : f64[8, 5] {dp, -} partial(sum tp)
        %8 = all_reduce %7 : f64[8, 5] {dp, -}";
    same_as_on_one_device(&placed("dp=2, tp=2", parameters, nodes, &["%5", "%8"]));
    same_as_on_one_device(&placed("dp=1, tp=4", parameters, nodes, &["%5", "%8"]));
}

#[test]
pub(crate) fn a_reduction_is_scattered_and_gathered() {
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f64[8, 4] {dp, -} partial(sum tp)
        %3 = reduce_scatter %2 : f64[8, 4] {dp, tp}
        %4 = exp %3 : f64[8, 4] {dp, tp}
        %5 = all_gather %4 : f64[8, 4] {dp, -}
        %6 = reduce_scatter %2 : f64[8, 4] {dp*tp, -}
        %7 = all_gather %6 : f64[8, 4] {dp, -}
        %8 = all_gather %6 : f64[8, 4]";
    let outputs = ["%3", "%5", "%6", "%7", "%8"];
    same_as_on_one_device(&placed("dp=2, tp=2", MATRICES, nodes, &outputs));
    same_as_on_one_device(&placed("tp=2, dp=2", MATRICES, nodes, &outputs));
}

#[test]
pub(crate) fn what_is_whole_is_sliced_and_what_is_split_changes_its_dim() {
    let parameters = r#"%0 "x" : f64[4, 8, 6], %1 "y" : f64[4, 8, 6] {tp, cp, -}"#;
    let nodes = "%2 = all_slice %0 : f64[4, 8, 6] {-, tp, -}
        %3 = all_slice %2 : f64[4, 8, 6] {cp, tp, -}
        %4 = all_to_all %3 : f64[4, 8, 6] {cp, -, tp}
        %5 = all_to_all %1 : f64[4, 8, 6] {-, cp*tp, -}
        %6 = all_to_all %5 : f64[4, 8, 6] {cp*tp, -, -}
        %7 = all_gather %6 : f64[4, 8, 6] {cp, -, -}";
    let outputs = ["%2", "%3", "%4", "%5", "%6", "%7"];
    same_as_on_one_device(&placed("tp=2, cp=2", parameters, nodes, &outputs));
    same_as_on_one_device(&placed("cp=2, dp=1, tp=2", parameters, nodes, &outputs));
}

#[test]
pub(crate) fn rows_go_to_their_experts_and_return() {
    let parameters = r#"%0 "x" : f64[4, 4, 3] {dp*ep, -, -}, %1 "w" : f64[4, 3, 5] {ep, -, -}, %2 "rows" : f64[8, 3] {dp*ep, -},
        %3 "choice" : i64[8] {dp*ep}"#;
    let nodes = "%4 = all_to_all %0 : f64[4, 4, 3] {dp, ep, -}
        %5 = contract %4, %1 {lhs = bek, rhs = ekn, out = ben} : f64[4, 4, 5] {dp, ep, -}
        %6 = all_to_all %5 : f64[4, 4, 5] {dp*ep, -, -}
        %7 = all_gather %2 : f64[8, 3] {dp, -}
        %8 = all_gather %3 : i64[8] {dp}
        %9 = experts %7, %1, %8 {transposed = false} : f64[8, 5] {dp, -} partial(sum ep)
        %10 = reduce_scatter %9 : f64[8, 5] {dp*ep, -}
        %11 = all_gather %10 : f64[8, 5] {dp, -}
        %12 = experts_grad %8, %7, %11 : f64[4, 3, 5] {ep, -, -} partial(sum dp)
        %13 = all_reduce %12 : f64[4, 3, 5] {ep, -, -}";
    let outputs = ["%4", "%5", "%6", "%10", "%13"];
    same_as_on_one_device(&placed("dp=2, ep=2", parameters, nodes, &outputs));
    same_as_on_one_device(&placed("ep=2, dp=2", parameters, nodes, &outputs));
    same_as_on_one_device(&placed("dp=1, ep=4", parameters, nodes, &outputs));
}

#[test]
pub(crate) fn two_axes_split_one_dim_in_either_order() {
    let parameters = r#"%0 "x" : f64[12, 2] {dp*tp, -}, %1 "y" : f64[12, 2] {tp*dp, -}, %2 "z" : i64[12]"#;
    let nodes = "%3 = exp %0 : f64[12, 2] {dp*tp, -}
        %4 = exp %1 : f64[12, 2] {tp*dp, -}
        %5 = all_gather %3 : f64[12, 2]
        %6 = all_gather %4 : f64[12, 2] {tp, -}
        %7 = all_slice %2 : i64[12] {tp*dp}
        %8 = all_gather %7 : i64[12] {tp}
        %9 = reduce %4 {kind = sum, dims = [0], keep = false} : f64[2] partial(sum tp, dp)
        %10 = reduce_scatter %9 : f64[2] {dp} partial(sum tp)
        %11 = all_reduce %10 : f64[2] {dp}
        %12 = all_reduce %9 : f64[2]";
    let outputs = ["%3", "%4", "%5", "%6", "%7", "%8", "%11", "%12"];
    same_as_on_one_device(&placed("dp=2, tp=3", parameters, nodes, &outputs));
    same_as_on_one_device(&placed("dp=2, tp=2", parameters, nodes, &outputs));
}

#[test]
pub(crate) fn a_partial_maximum_is_the_maximum() {
    let parameters = r#"%0 "x" : f64[4, 6] {dp, tp}, %1 "n" : i32[4, 6] {dp, tp}"#;
    let nodes = "%2 = reduce %0 {kind = max, dims = [1], keep = true} : f64[4, 1] {dp, -} partial(max tp)
        %3 = all_reduce %2 : f64[4, 1] {dp, -}
        %4 = reduce %1 {kind = min, dims = [0, 1], keep = false} : i32[] partial(min dp, tp)
        %5 = all_reduce %4 : i32[]
        %6 = sub %0, %3 : f64[4, 6] {dp, tp}";
    same_as_on_one_device(&placed("dp=2, tp=2", parameters, nodes, &["%3", "%5", "%6"]));
}

#[test]
pub(crate) fn a_bucket_is_reduced_value_by_value() {
    let parameters = r#"%0 "x" : f64[8] {dp}, %1 "y" : f64[8, 2] {dp, tp}"#;
    let nodes = "%2 = reduce %0 {kind = sum, dims = [0], keep = false} : f64[] partial(sum dp)
        %3 = reduce %1 {kind = sum, dims = [0], keep = false} : f64[2] {tp} partial(sum dp)
        %4, %5 = all_reduce %2, %3 : f64[], f64[2] {tp}";
    same_as_on_one_device(&placed("dp=2, tp=2", parameters, nodes, &["%4", "%5"]));
    same_as_on_one_device(&placed("dp=4, tp=1", parameters, nodes, &["%4", "%5"]));
}

/// The new value of a state may come straight from a collective, whose operand others read while it is written; and
/// what a collective reads may be strided.
#[test]
pub(crate) fn states_and_views_go_through_collectives() {
    same_as_on_one_device(&parse(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2, tp=2] {
          state @w : f64[4, 6] parameter = normal 0.5
          state @v : f64[6, 4] {-, dp} optimizer = normal 0.5
          func @train(%0 = @w, %1 = @v, %2 "x" : f64[4, 6] {dp, tp}) {
            %3 = transpose %2 {permutation = [1, 0]} : f64[6, 4] {tp, dp}
            %4 = all_gather %3 : f64[6, 4] {tp, -}
            %5 = transpose %1 {permutation = [1, 0]} : f64[4, 6] {dp, -} !{update}
            %6 = all_gather %5 : f64[4, 6] !{update}
            %7 = transpose %0 {permutation = [1, 0]} : f64[6, 4] !{update}
            %8 = all_slice %7 : f64[6, 4] {-, dp} !{update}
          }
          output "x" = %4
          update @w = %6
          update @v = %8
        }"#,
    ));
}
