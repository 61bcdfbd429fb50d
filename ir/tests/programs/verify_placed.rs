//! Tests of the verifier on shardings and partial values: planted faults, and the message for each.

use ir::{DType, Level, Module, testing, text, verify};

/// Returns the verifier's messages for a text that was parsed without type checks: one message per line, or `ok`.
fn verdict(text: &str) -> String {
    let module =
        text::parse_unchecked(&format!("trainyard-ir 1\n{text}")).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verdict_of(&module)
}

fn verdict_of(module: &Module) -> String {
    match verify::verify(module) {
        Ok(()) => "ok".into(),
        Err(faults) => faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("\n"),
    }
}

/// Makes the text of a module of level placed on a mesh dp=2, tp=2 with these parameters, nodes and roots, which define its loss.
fn placed(parameters: &str, nodes: &str, roots: &str) -> String {
    format!(
        r#"module @m placed mesh [dp=2, tp=2, cp=1] {{
          func @train({parameters}) {{
            {nodes}
            %50 = splat {{value = 0.0}} : f32[] !{{update}}
          }}
          output "loss" = %50
          {roots}
        }}"#
    )
}

#[test]
fn a_row_parallel_contraction_leaves_a_partial_sum() {
    let parameters = r#"%0 "x" : f32[8, 6] {dp, tp}, %1 "w" : f32[6, 4] {tp, -}"#;
    let contract = |ty: &str| {
        placed(parameters, &format!("%2 = contract %0, %1 {{lhs = ab, rhs = bc, out = ac}} : {ty}"), "")
    };
    assert_eq!(verdict(&contract("f32[8, 4] {dp, -} partial(sum tp)")), "ok");
    assert_eq!(
        verdict(&contract("f32[8, 4] {dp, -}")),
        "`%2 = contract %0, %1`: result 0 is declared whole, and the operands make it a partial sum over `tp`"
    );
    assert_eq!(
        verdict(&contract("f32[8, 4] {dp, -} partial(max tp)")),
        "`%2 = contract %0, %1`: result 0 is declared a partial max over `tp`, and the operands make it a partial sum over `tp`"
    );
    assert_eq!(
        verdict(&contract("f32[8, 4] partial(sum tp)")),
        "`%2 = contract %0, %1`: dim 0 of result 0 is split over nothing and dim 0 of operand 0 over `dp`: a collective must stand between them"
    );
}

#[test]
fn a_copy_is_no_reduction_over_devices() {
    let parameters = r#"%0 "x" : f32[8] partial(sum tp), %1 "y" : f32[8] {tp}"#;
    let reduced =
        |marks: &str| placed(parameters, &format!("%2 = all_reduce %0 : f32[8] !{{bwd{marks}}}"), "");
    assert_eq!(verdict(&reduced("")), "ok");
    let refused = "`%2 = all_reduce %0`: a reduction over devices must not be repeated";
    assert_eq!(verdict(&reduced(", copy 1")), refused);
    assert_eq!(verdict(&placed(parameters, "%2 = all_gather %1 : f32[8] !{bwd, copy 1}", "")), "ok");
}

#[test]
fn a_partial_sum_is_not_added_to_a_bias() {
    let parameters = r#"%0 "x" : f32[8] partial(sum tp), %1 "bias" : f32[8]"#;
    let whole = "partial sum used as a whole value: operand 0, %0: f32[8] partial(sum tp), over `tp`";
    assert_eq!(
        verdict(&placed(parameters, "%2 = add %0, %1 : f32[8] partial(sum tp)", "")),
        format!("`%2 = add %0, %1`: {whole}; `add` is linear only in operand 0 with 1")
    );
    assert_eq!(
        verdict(&placed(parameters, "%2 = relu %0 : f32[8]", "")),
        format!("`%2 = relu %0`: {whole}; `relu` is linear in no operand")
    );
    assert_eq!(
        verdict(&placed(parameters, "%2 = mul %0, %0 : f32[8] partial(sum tp)", "")),
        format!("`%2 = mul %0, %0`: {whole}; `mul` is linear only in operand 0, or 1")
    );
}

#[test]
fn a_partial_sum_passes_what_is_linear_in_it() {
    let parameters = r#"%0 "x" : f32[8] partial(sum tp), %1 "y" : f32[8], %2 "z" : f32[8] partial(sum dp)"#;
    let node = |node: &str| verdict(&placed(parameters, node, ""));
    assert_eq!(node("%3 = add %0, %0 : f32[8] partial(sum tp)"), "ok");
    assert_eq!(node("%3 = mul %0, %1 : f32[8] partial(sum tp)"), "ok");
    assert_eq!(node("%3 = mul %0, %2 : f32[8] partial(sum dp, tp)"), "ok");
    assert_eq!(node("%3 = accumulate %0 : f32[8] partial(sum tp) !{update}"), "ok");
    assert_eq!(
        node("%3 = mul %0, %1 : f32[8]"),
        "`%3 = mul %0, %1`: result 0 is declared whole, and the operands make it a partial sum over `tp`"
    );
    let fault = |operand: &str, axis: &str| {
        format!(
            "`%3 = add %0, %2`: partial sum used as a whole value: operand {operand}: f32[8] partial(sum {axis}), \
             over `{axis}`; `add` is linear only in operand 0 with 1"
        )
    };
    assert_eq!(
        node("%3 = add %0, %2 : f32[8] partial(sum dp, tp)"),
        [fault("1, %2", "dp"), fault("0, %0", "tp")].join("\n")
    );
}

#[test]
fn zeros_are_a_partial_sum_as_they_stand() {
    let parameters = r#"%0 "c" : bool[8], %1 "x" : f32[8] partial(sum tp)"#;
    let select = |value: &str| {
        let nodes = format!(
            "%2 = splat {{value = {value}}} : f32[] %3 = broadcast %2 : f32[8] %4 = select %0, %1, %3 : f32[8] partial(sum tp)"
        );
        verdict(&placed(parameters, &nodes, ""))
    };
    assert_eq!(select("0.0"), "ok");
    assert_eq!(
        select("1.0"),
        "`%4 = select %0, %1, %3`: partial sum used as a whole value: operand 1, %1: f32[8] partial(sum tp), over `tp`; `select` is linear only in operand 1 with 2"
    );
    let made = |value: &str| {
        verdict(&placed("", &format!("%2 = splat {{value = {value}}} : f32[8] partial(sum tp)"), ""))
    };
    assert_eq!(made("0.0"), "ok");
    assert_eq!(
        made("2.0"),
        "`%0 = splat`: result 0 is declared a partial sum over `tp`, and the operands make it whole"
    );
}

#[test]
fn a_partial_maximum_passes_nothing() {
    assert_eq!(
        verdict(&placed(r#"%0 "x" : f32[8] partial(max tp)"#, "%1 = neg %0 : f32[8] partial(max tp)", "")),
        "`%1 = neg %0`: partial max used as a whole value: operand 0, %0: f32[8] partial(max tp), over `tp`; `neg` is linear only in operand 0"
    );
}

#[test]
fn a_partial_value_is_caught_below_level_placed_and_at_the_roots() {
    let text = r#"module @m imported mesh [tp=2, cp=1] {
        func @forward(%0 "x" : f32[8] partial(sum tp), %1 "y" : f32[8] partial(sum cp)) {
          %2 = exp %0 : f32[8]
          %3 = exp %1 : f32[8]
        }
        output "x" = %0 output "y" = %1
      }"#;
    assert_eq!(
        verdict(text),
        "`%2 = exp %0`: partial sum used as a whole value: operand 0, %0: f32[8] partial(sum tp), over `tp`; `exp` is linear in no operand\n\
         partial sum used as a whole value: output `x` is %0: f32[8] partial(sum tp), over `tp`"
    );
}

#[test]
fn a_split_dim_divides() {
    assert_eq!(
        verdict(&placed(r#"%0 "x" : f32[6] {dp*tp}"#, "", "")),
        "%0: f32[6] {dp*tp} cannot be divided equally over the mesh [dp=2, tp=2, cp=1]"
    );
    assert_eq!(verdict(&placed(r#"%0 "x" : f32[6] {dp*cp}"#, "", "")), "ok");
}

#[test]
fn operands_and_results_are_split_alike() {
    let parameters =
        r#"%0 "x" : f32[8, 4] {dp, -}, %1 "y" : f32[8, 4], %2 "bias" : f32[4] {tp}, %3 "row" : f32[1, 4]"#;
    let node = |node: &str| verdict(&placed(parameters, node, ""));
    assert_eq!(node("%4 = add %0, %3 : f32[8, 4] {dp, -}"), "ok");
    let between = "a collective must stand between them";
    assert_eq!(
        node("%4 = add %0, %1 : f32[8, 4] {dp, -}"),
        format!(
            "`%4 = add %0, %1`: dim 0 of operand 1 is split over nothing and dim 0 of operand 0 over `dp`: {between}"
        )
    );
    assert_eq!(
        node("%4 = add %0, %2 : f32[8, 4] {dp, tp}"),
        format!(
            "`%4 = add %0, %2`: dim 0 of operand 1 is split over `tp` and dim 1 of operand 0 over nothing: {between}"
        )
    );
    assert_eq!(
        node("%4 = neg %1 : f32[8, 4] {dp, -}"),
        format!(
            "`%4 = neg %1`: dim 0 of result 0 is split over `dp` and dim 0 of operand 0 over nothing: {between}"
        )
    );
    assert_eq!(node("%4 = splat {value = 1.0} : f32[8, 4] {tp, dp}"), "ok");
}

#[test]
fn a_merged_dim_is_split_major_first() {
    let reshape = |from: &str, to: &str| {
        let parameters = format!("%0 \"x\" : f32[2, 6, 4] {from}");
        verdict(&placed(&parameters, &format!("%1 = reshape %0 : f32[12, 4] {to}"), ""))
    };
    assert_eq!(reshape("{dp, tp, -}", "{dp*tp, -}"), "ok");
    assert_eq!(reshape("{dp, -, -}", "{dp, -}"), "ok");
    let between = "a collective must stand between them";
    assert_eq!(
        reshape("{-, tp, -}", "{tp, -}"),
        format!(
            "`%1 = reshape %0`: dim 0 of result 0 is split over `tp` and dim 0 of operand 0 over nothing: {between}"
        )
    );
    let parameters = r#"%0 "x" : f32[6, 2, 4]"#;
    assert_eq!(
        verdict(&placed(parameters, "%1 = reshape %0 : f32[12, 4] {dp*tp, -}", "")),
        "`%1 = reshape %0`: dim 0 of result 0 cannot be split over `tp`"
    );
    let parameters = r#"%0 "x" : f32[6, 2, 4] {dp, -, -}"#;
    assert_eq!(
        verdict(&placed(parameters, "%1 = reshape %0 : f32[12, 4] {dp*tp, -}", "")),
        "`%1 = reshape %0`: dim 0 of result 0 cannot be split over `tp`"
    );
}

#[test]
fn what_cannot_be_split_is_whole() {
    let nodes = "%1 = slice %0 {dim = 0, start = 0, step = 1} : f32[4] {tp}";
    assert_eq!(
        verdict(&placed(r#"%0 "x" : f32[8] {tp}"#, nodes, "")),
        "`%1 = slice %0`: dim 0 of operand 0 is split over `tp`, but `slice` needs it whole"
    );
}

#[test]
fn an_axis_does_one_thing_in_a_node() {
    let parameters = r#"%0 "x" : f32[4, 2] {tp, -}, %1 "y" : f32[6, 2] {tp, -}"#;
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = cb, out = ac} : f32[4, 6] {tp, -}";
    assert_eq!(
        verdict(&placed(parameters, nodes, "")),
        "`%2 = contract %0, %1`: dim 1 of result 0 is split over nothing and dim 0 of operand 1 over `tp`: a collective must stand between them"
    );
    let parameters = r#"%0 "x" : f32[4, 2] partial(sum tp), %1 "y" : f32[6, 2] {tp, -}"#;
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = cb, out = ac} : f32[4, 6] {-, tp}";
    assert_eq!(
        verdict(&placed(parameters, nodes, "")),
        "`%2 = contract %0, %1`: an operand is partial over `tp`, which also splits dim 0 of operand 1: each part would lack the other addends"
    );
}

#[test]
fn addends_lie_where_they_were_computed() {
    let parameters = r#"%0 "x" : f32[4, 6] {tp, -} partial(sum dp), %1 "y" : f32[4, 6], %2 "z" : f32[4, 6] partial(max dp)"#;
    let addends = |operand: &str, ty: &str| {
        placed(parameters, &format!("%3 = addends {operand} {{count = 2}} : f32[2, 4, 6] {ty}"), "")
    };
    assert_eq!(verdict(&addends("%0", "{dp, tp, -}")), "ok");
    assert_eq!(verdict(&addends("%1", "")), "ok");
    let over = |summed: &str, split: &str| {
        format!(
            "operand 0 is partial over {summed} and dim 0 of result 0 is split over {split}: each device has the addends that it computed"
        )
    };
    assert_eq!(verdict(&addends("%0", "{-, tp, -}")), format!("`%3 = addends %0`: {}", over("`dp`", "")));
    assert_eq!(verdict(&addends("%1", "{dp, -, -}")), format!("`%3 = addends %1`: {}", over("", "`dp`")));
    assert_eq!(
        verdict(&addends("%0", "{dp, -, -}")),
        "`%3 = addends %0`: dim 0 of operand 0 and dim 1 of result 0 are split in different ways"
    );
    assert_eq!(
        verdict(&addends("%2", "{dp, -, -}")),
        "`%3 = addends %2`: operand 0 is a partial max, which has no addends"
    );
    assert_eq!(
        verdict(&addends("%0", "{dp, -, -} partial(sum tp)")),
        "`%3 = addends %0`: dim 0 of operand 0 and dim 1 of result 0 are split in different ways"
    );
    assert_eq!(
        verdict(&addends("%1", "partial(sum dp)")),
        "`%3 = addends %1`: result 0 is declared partial, and addends are whole"
    );
}

#[test]
fn a_state_keeps_its_sharding() {
    let text = r#"module @m placed mesh [tp=2] {
        state @w : f32[4] {tp} parameter = zeros
        func @train(%0 = @w) {
          %1 = splat {value = 0.0} : f32[4] !{update}
          %2 = splat {value = 0.0} : f32[] !{update}
        }
        output "loss" = %2
        update @w = %1
      }"#;
    assert_eq!(verdict(text), "state `w` is f32[4] {tp}, and its new value has another sharding: %1: f32[4]");
    assert_eq!(
        verdict(&text.replace("%1 = splat {value = 0.0} : f32[4]", "%1 = splat {value = 0.0} : f32[4] {tp}")),
        "ok"
    );
}

#[test]
fn random_programs_hold_at_level_placed_when_nothing_is_split() {
    for seed in 0..20 {
        let mut module = testing::program(seed, DType::F32, 30);
        let sum = module.output("loss.sum").unwrap().value;
        module.add_output("loss", sum);
        module.level = Level::Placed;
        assert_eq!(verdict_of(&module), "ok", "seed {seed}");
    }
}
