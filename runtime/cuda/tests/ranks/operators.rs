//! Operators whose numbers depend on where a device's part lies.

use crate::compare::{parse, placed, same_as_on_one_device};

#[test]
pub(crate) fn a_split_vocabulary_gathers_on_the_rank_that_has_the_row() {
    let parameters = r#"%0 "table" : f64[6, 3] {tp, -}, %1 "tokens" : i64[4, 2] {dp, -}, %2 "dout" : f64[4, 2, 3] {dp, -, -}"#;
    let nodes = "%3 = gather %0, %1 {dim = 0} : f64[4, 2, 3] {dp, -, -} partial(sum tp)
        %4 = all_reduce %3 : f64[4, 2, 3] {dp, -, -}
        %7 = sub %1, %9 : i64[4, 2] {dp, -}
        %8 = gather %0, %7 {dim = 0} : f64[4, 2, 3] {dp, -, -} partial(sum tp)
        %10 = reduce_scatter %8 : f64[4, 2, 3] {dp, tp, -}
        %5 = gather_grad %1, %2 {dim = 0} : f64[6, 3] {tp, -} partial(sum dp) !{bwd}
        %6 = all_reduce %5 : f64[6, 3] {tp, -} !{bwd}";
    // Indices from -6 to -1: they count from the end of the whole.
    let nodes = format!("%9 = splat {{value = 6.0}} : i64[]\n{nodes}");
    for mesh in ["dp=2, tp=2", "dp=1, tp=2"] {
        same_as_on_one_device(&placed(mesh, parameters, &nodes, &["%4", "%6", "%10"]));
    }
    let three = nodes.replace("%8 : f64[4, 2, 3] {dp, tp, -}", "%8 : f64[4, 2, 3] {dp, -, tp}");
    same_as_on_one_device(&placed("dp=1, tp=3", parameters, &three, &["%4", "%6", "%10"]));
}

#[test]
pub(crate) fn indices_into_an_inner_dim_and_single_elements_are_found_in_the_right_part() {
    let parameters = r#"%0 "x" : f64[2, 6, 3] {-, tp, -}, %1 "i" : i64[4], %2 "rows" : i64[2, 5, 3]"#;
    let nodes = "%3 = gather %0, %1 {dim = 1} : f64[2, 4, 3] partial(sum tp)
        %4 = all_reduce %3 : f64[2, 4, 3]
        %5 = gather_elements %0, %2 {dim = 1} : f64[2, 5, 3] partial(sum tp)
        %6 = all_reduce %5 : f64[2, 5, 3]";
    same_as_on_one_device(&placed("tp=2", parameters, nodes, &["%4", "%6"]));
    same_as_on_one_device(&placed("tp=3", parameters, nodes, &["%4", "%6"]));
}

#[test]
pub(crate) fn what_is_written_by_index_goes_to_the_part_that_has_the_place() {
    let parameters =
        r#"%0 "x" : f64[2, 6, 3] {-, tp, -}, %1 "rows" : i64[2, 5, 3], %2 "updates" : f64[2, 5, 3]"#;
    let nodes = "%3 = scatter_elements %0, %1, %2 {dim = 1, kind = add} : f64[2, 6, 3] {-, tp, -}
        %4 = scatter_elements %0, %1, %2 {dim = 1, kind = set} : f64[2, 6, 3] {-, tp, -}
        %5 = gather_elements_grad %1, %2 {dim = 1} : f64[2, 6, 3] {-, tp, -}";
    same_as_on_one_device(&placed("tp=2", parameters, nodes, &["%3", "%4", "%5"]));
    same_as_on_one_device(&placed("tp=3", parameters, nodes, &["%3", "%4", "%5"]));
}

#[test]
pub(crate) fn parts_of_the_updates_make_sums_and_largest_elements_together() {
    let parameters = r#"%0 "x" : f64[6, 3], %1 "rows" : i64[4, 1] {dp, -}, %2 "updates" : f64[4, 3] {dp, -}"#;
    let nodes = "%3 = gather_nd_grad %1, %2 {batch_dims = 0} : f64[6, 3] partial(sum dp)
        %4 = all_reduce %3 : f64[6, 3]
        %5 = scatter_nd %0, %1, %2 {batch_dims = 0, kind = max} : f64[6, 3] partial(max dp)
        %6 = all_reduce %5 : f64[6, 3]";
    same_as_on_one_device(&placed("dp=2", parameters, nodes, &["%4", "%6"]));
    same_as_on_one_device(&placed("dp=4", parameters, nodes, &["%4", "%6"]));
}

#[test]
pub(crate) fn labels_count_all_classes_of_split_logits() {
    for (smoothing, ignored) in [("0.0", -100), ("0.1", 2)] {
        let parameters = r#"%0 "logits" : f64[4, 6] {dp, tp}, %1 "labels" : i64[4] {dp}, %2 "dsum" : f64[]"#;
        let attributes = format!("{{ignore_index = {ignored}, label_smoothing = {smoothing}}}");
        let nodes = format!(
            "%3 = all_gather %0 : f64[4, 6] {{dp, -}}
            %4, %5, %6 = cross_entropy %3, %1 {attributes} : f64[] partial(sum dp), f64[] partial(sum dp), f64[4] {{dp}}
            %7 = cross_entropy_grad %0, %1, %6, %2 {attributes} : f64[4, 6] {{dp, tp}} !{{bwd}}
            %8, %9 = all_reduce %4, %5 : f64[], f64[]"
        );
        same_as_on_one_device(&placed("dp=2, tp=2", parameters, &nodes, &["%7", "%8", "%9"]));
        same_as_on_one_device(&placed("dp=1, tp=3", parameters, &nodes, &["%7", "%8", "%9"]));
    }
}

#[test]
pub(crate) fn split_queries_see_the_keys_before_them() {
    let parameters = r#"%0 "q" : f64[1, 4, 130, 8] {-, tp, cp, -}, %1 "k" : f64[1, 2, 130, 8] {-, tp, -, -},
        %2 "v" : f64[1, 2, 130, 4] {-, tp, -, -}, %3 "dout" : f64[1, 4, 130, 4] {-, tp, cp, -},
        %4 "mask" : f64[1, 1, 130, 130] {-, -, cp, -}"#;
    for causal in [true, false] {
        let attributes = format!("{{scale = 0.5, causal = {causal}}}");
        let nodes = format!(
            "%5, %6 = attention %0, %1, %2, %4 {attributes} : f64[1, 4, 130, 4] {{-, tp, cp, -}}, f64[1, 4, 130] {{-, tp, cp}}
            %7, %8, %9 = attention_grad %0, %1, %2, %4, %5, %6, %3 {attributes} : f64[1, 4, 130, 8] {{-, tp, cp, -}}, \
             f64[1, 2, 130, 8] {{-, tp, -, -}} partial(sum cp), f64[1, 2, 130, 4] {{-, tp, -, -}} partial(sum cp) !{{bwd}}
            %10, %11 = all_reduce %8, %9 : f64[1, 2, 130, 8] {{-, tp, -, -}}, f64[1, 2, 130, 4] {{-, tp, -, -}} !{{bwd}}"
        );
        let outputs = ["%5", "%6", "%7", "%10", "%11"];
        same_as_on_one_device(&placed("cp=2, tp=2", parameters, &nodes, &outputs));
        same_as_on_one_device(&placed("cp=2, tp=1", parameters, &nodes, &outputs));
    }
}

/// On tensor cores. The first rank has a block of 64 keys that none of its 96 queries sees. Values are so wide that they are
/// copied to shared memory, part of which the results go through.
#[test]
pub(crate) fn split_queries_of_halves_see_the_keys_before_them() {
    let parameters = r#"%0 "q" : bf16[1, 1, 192, 8] {-, -, cp, -}, %1 "k" : bf16[1, 1, 192, 8], %2 "v" : bf16[1, 1, 192, 128],
        %3 "dout" : bf16[1, 1, 192, 128] {-, -, cp, -}, %4 "mask" : bf16[1, 1, 1, 192]"#;
    let nodes = "%5, %6 = attention %0, %1, %2, %4 {scale = 0.5, causal = true} : bf16[1, 1, 192, 128] {-, -, cp, -}, f32[1, 1, 192] {-, -, cp}
        %7, %8, %9 = attention_grad %0, %1, %2, %4, %5, %6, %3 {scale = 0.5, causal = true} : bf16[1, 1, 192, 8] {-, -, cp, -}, \
         bf16[1, 1, 192, 8] partial(sum cp), bf16[1, 1, 192, 128] partial(sum cp) !{bwd}
        %10, %11 = all_reduce %8, %9 : bf16[1, 1, 192, 8], bf16[1, 1, 192, 128] !{bwd}";
    same_as_on_one_device(&placed("cp=2", parameters, nodes, &["%5", "%6", "%7", "%10", "%11"]));
}

#[test]
pub(crate) fn constants_and_positions_are_cut_where_they_are_split() {
    let data: Vec<String> = (0..24).map(|i| format!("{i}.5")).collect();
    let text = format!(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2, tp=2] {{
          data @0 "table" : f64[4, 6] = [{}]
          func @train(%0 "x" : f64[4, 6] {{dp, tp}}) {{
            %1 = constant {{data = @0}} : f64[4, 6] {{dp, tp}}
            %2 = add %0, %1 : f64[4, 6] {{dp, tp}}
            %3 = iota {{dim = 1}} : f64[4, 6] {{dp, tp}}
            %4 = mul %2, %3 : f64[4, 6] {{dp, tp}}
            %5 = iota {{dim = 0}} : i64[4, 6] {{tp*dp, -}}
            %6 = constant {{data = @0}} : f64[4, 6] {{-, dp}} !{{update}}
            %7 = constant {{data = @0}} : f64[4, 6] !{{update}}
          }}
          output "sum" = %2
          output "product" = %4
          output "rows" = %5
          output "columns" = %6
          output "whole" = %7
        }}"#,
        data.join(", ")
    );
    same_as_on_one_device(&parse(&text));
}

#[test]
pub(crate) fn merged_dims_are_split_and_taken_apart() {
    let parameters = r#"%0 "x" : f64[4, 12] {dp, tp}"#;
    let nodes = "%1 = reshape %0 : f64[4, 6, 2] {dp, tp, -}
        %2 = transpose %1 {permutation = [1, 0, 2]} : f64[6, 4, 2] {tp, dp, -}
        %3 = reshape %2 : f64[6, 8] {tp, dp}
        %4 = reshape %0 : f64[2, 2, 12] {dp, -, tp}
        %5 = slice %4 {dim = 1, start = 1, step = 1} : f64[2, 1, 12] {dp, -, tp}
        %6 = broadcast %5 : f64[2, 3, 12] {dp, -, tp}";
    same_as_on_one_device(&placed("dp=2, tp=2", parameters, nodes, &["%3", "%5", "%6"]));
}

#[test]
pub(crate) fn a_part_drops_what_the_whole_does() {
    let parameters = r#"%0 "x" : f64[4, 6, 10] {dp, tp, -}, %1 "numbers" : i64[4] {dp}, %2 "flat" : f64[24, 6] {dp*tp, -},
        %3 "second" : f64[6, 4, 10] {tp, dp, -}, %4 "table" : f64[6, 10] {tp, dp}, %5 "one" : i64[1], %6 "all" : i64[4]"#;
    let nodes = "%7 = dropout %0, %1 {ratio = 0.5, id = 0, seed = 1, dim = 0} : f64[4, 6, 10] {dp, tp, -}
        %8 = dropout %3, %1 {ratio = 0.25, id = 1, seed = 1, dim = 1} : f64[6, 4, 10] {tp, dp, -}
        %9 = dropout %4, %5 {ratio = 0.5, id = 2, seed = 1, dim = 0} : f64[6, 10] {tp, dp}
        %10 = all_slice %6 : i64[4] {dp*tp}
        %11 = dropout %2, %10 {ratio = 0.5, id = 3, seed = 1, dim = 0} : f64[24, 6] {dp*tp, -}";
    for mesh in ["dp=2, tp=2", "dp=2, tp=1", "dp=1, tp=2"] {
        same_as_on_one_device(&placed(mesh, parameters, nodes, &["%7", "%8", "%9", "%11"]));
    }
}
