//! Tests of the verifier: planted faults, and the message for each.

use ir::ops::elementwise::Unary;
use ir::{At, Blob, Builder, DType, Data, Initializer, Module, Phase, Role, Type, testing, text, verify};

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

/// Makes the text of a module of level imported with these tables, parameters, nodes and roots.
fn imported(tables: &str, parameters: &str, nodes: &str, roots: &str) -> String {
    format!("module @m imported {{ {tables} func @forward({parameters}) {{ {nodes} }} {roots} }}")
}

#[test]
fn an_error_names_the_node_its_origin_its_types_and_its_pass() {
    let text = r#"trainyard-ir 1
        module @m imported mesh [tp=2] {
          func @forward(%0 "x" : f32[2, 3] {tp, -}, %1 "y" : f32[3, 4]) {
            %2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[2, 5] !{fwd, origin "/h.0/mlp", by fold}
          }
        }"#;
    let faults = verify::verify(&text::parse_unchecked(text).unwrap()).unwrap_err();
    let expected = "`%2 = contract %0, %1`: result 0 is f32[2, 5], and the operator gives f32[2, 4]
  --> /h.0/mlp
  = from f32[2, 3] {tp, -}, f32[3, 4] to f32[2, 5]
  = a node of fwd, last touched by pass `fold`";
    assert_eq!(faults.into_iter().map(|fault| fault.to_string()).collect::<Vec<_>>(), [expected]);
}

#[test]
fn names_are_unique() {
    let data = r#"data @0 "d" : f32[1] = [1.0] data @1 "d" : f32[1] = [2.0]"#;
    assert_eq!(verdict(&imported(data, "", "", "")), "two data rows are called `d`");
    let inputs = r#"%0 "x" : f32[1], %1 "x" : f32[2]"#;
    assert_eq!(verdict(&imported("", inputs, "", "")), "two inputs are called `x`");
    let outputs = r#"output "y" = %0 output "y" = %0"#;
    assert_eq!(verdict(&imported("", r#"%0 "x" : f32[1]"#, "", outputs)), "two outputs are called `y`");
    let mut module = Module::new("m");
    for _ in 0..2 {
        module.add_state("s", Type::scalar(DType::F32), Role::Buffer, Initializer::Zeros);
    }
    assert_eq!(verdict_of(&module), "two states are called `s`");
}

#[test]
fn ids_are_in_range() {
    let donor = testing::program(3, DType::F32, 12);
    let mut module = Module::new("m");
    module.add_output("y", donor.outputs[0].value);
    let value = donor.outputs[0].value;
    assert_eq!(verdict_of(&module), format!("`y` names {value}, but there are 0 values"));
    let mut module = Module::new("m");
    let data = donor.data.keys().next_back().unwrap();
    module.add_state("s", Type::scalar(DType::F32), Role::Parameter, Initializer::Data(data));
    assert_eq!(verdict_of(&module), format!("state `s` names {data}, but there are 0 rows of data"));
    let sharded =
        text::parse("trainyard-ir 1 module @m placed mesh [dp=2] { func @train(%0 \"x\" : f32[2] {dp}) {} }");
    let mut module = Module::new("m");
    let input = sharded.unwrap().inputs[0].value;
    let sharded =
        text::parse("trainyard-ir 1 module @m placed mesh [dp=2] { func @train(%0 \"x\" : f32[2] {dp}) {} }");
    module.add_input("x", sharded.unwrap().ty(input).clone(), true);
    assert_eq!(verdict_of(&module), "a value of type f32[2] names axis0, but the mesh is []");
}

#[test]
fn data_rows_are_whole() {
    let row = |ty: &str| verdict(&imported(&format!("data @0 \"d\" : {ty} = hex \"0011\""), "", "", ""));
    assert_eq!(row("f16[1]"), "ok");
    assert_eq!(row("f16[2]"), "data `d` has 2 bytes, and f16[2] needs 4");
    assert_eq!(row("f16[n]"), "data `d` is f16[n], whose size does not fit in 64 bits");
    let huge = "f16[4294967296, 4294967296]";
    assert_eq!(row(huge), format!("data `d` is {huge}, whose size does not fit in 64 bits"));
    let sharded =
        "module @m imported mesh [tp=2] { data @0 \"d\" : u8[2] {tp} = hex \"0011\" func @forward() {} }";
    assert_eq!(verdict(sharded), "data `d` is u8[2] {tp}: a row of the data table must not be sharded");
    let mut module = Module::new("m");
    let blob = Blob::File(Some(vec![0; 3].into()));
    module.add_data(Data { name: "file".into(), ty: Type::of(DType::F32, &[1]), blob, claim: None });
    assert_eq!(verdict_of(&module), "data `file` has 3 bytes, and f32[1] needs 4");
}

#[test]
fn what_a_state_starts_from_fits_it() {
    let state = |state: &str| {
        let tables = format!("data @0 \"d\" : f32[4, 6] state @s : {state}");
        verdict(&imported(&tables, "%0 = @s", "", ""))
    };
    assert_eq!(state("f32[4, 6] parameter = data @0"), "ok");
    assert_eq!(state("f32[6, 4] parameter = data @0 view [transpose [1, 0]]"), "ok");
    assert_eq!(state("f32[9, 2] parameter = data @0 view [pad 0 2, reshape [18, 2], slice 0 9 9]"), "ok");
    assert_eq!(
        state("f32[6, 4] parameter = data @0"),
        "state `s` is f32[6, 4], and its view of `d` gives f32[4, 6]"
    );
    assert_eq!(
        state("f64[4, 6] parameter = data @0 view [cast f16]"),
        "state `s` is f64[4, 6], and its view of `d` gives f16[4, 6]"
    );
    assert_eq!(
        state("f32[1, 6] parameter = normal 0.02 data @0 view [slice 0 4 1]"),
        "the view of state `s` does not fit `d`: f32[4, 6]"
    );
    assert_eq!(state("f32[n] parameter = data @0"), "state `s` is f32[n], a view of `d`: dims must be bound");
    let copy = |first: &str, second: &str| {
        let tables = format!("state @a : f32[2] parameter = {first} state @b : f16[3] parameter = {second}");
        verdict(&imported(&tables, "%0 = @a, %1 = @b", "", ""))
    };
    assert_eq!(copy("zeros", "zeros"), "ok");
    assert_eq!(copy("zeros", "copy @a"), "state `b` is f16[3], and it copies `a`: f32[2]");
    assert_eq!(copy("copy @b", "zeros"), "state `a` copies `b`, which does not stand before it");
}

#[test]
fn a_state_is_read_and_written_in_its_own_shape() {
    let mut module = Module::new("m");
    let id = module.add_state("s", Type::of(DType::F32, &[2]), Role::Buffer, Initializer::Zeros);
    module.states[id].ty = Type::of(DType::F32, &[3]);
    module.states[id].output = Some(module.states[id].input);
    assert_eq!(
        verdict_of(&module),
        "state `s` is f32[3], and its value is %0: f32[2]\nstate `s` is f32[3], and its new value is %0: f32[2]"
    );
}

#[test]
fn a_batched_input_has_a_dim_for_the_samples() {
    let text = imported("", r#"%0 "x" batched : f32[]"#, "", "");
    assert_eq!(verdict(&text), "input `x` is batched, but f32[] has no dim 0 to count samples");
}

#[test]
fn a_value_is_defined_before_it_is_read() {
    let mut module = Module::new("m");
    let x = module.add_input("x", Type::of(DType::F32, &[2]), true);
    let mut b = Builder::new(&mut module, "test");
    let late = b.one(Unary::Exp, &[x]).unwrap();
    b.at(At::Start(Phase::Forward));
    b.one(Unary::Neg, &[late]).unwrap();
    b.finish();
    assert_eq!(verdict_of(&module), "`%1 = neg %2`: reads %2 before it is defined");
}

#[test]
fn a_removed_node_has_no_reader_left() {
    let mut module = Module::new("m");
    let x = module.add_input("x", Type::of(DType::F32, &[2]), true);
    let mut b = Builder::new(&mut module, "test");
    let y = b.one(Unary::Exp, &[x]).unwrap();
    let z = b.one(Unary::Neg, &[y]).unwrap();
    b.finish();
    module.add_output("y", y);
    module.add_output("z", z);
    assert_eq!(verdict_of(&module), "ok");
    let exp = module.order()[0];
    let mut b = Builder::new(&mut module, "test");
    b.remove(exp);
    b.finish();
    let unknown = "which no node in the order defines";
    assert_eq!(
        verdict_of(&module),
        format!("`%1 = neg %?1`: reads %?1 {unknown}\noutput `y` is %?1, {unknown}")
    );
}

#[test]
fn inputs_say_what_defines_their_values() {
    let mut module = Module::new("m");
    module.add_input("x", Type::scalar(DType::F32), false);
    module.add_input("y", Type::scalar(DType::F32), false);
    module.inputs.swap(0, 1);
    assert_eq!(
        verdict_of(&module),
        "%0 is defined by input 0, but it names input 1\n%1 is defined by input 1, but it names input 0"
    );
    module.inputs.swap(0, 1);
    module.inputs[1].value = module.inputs[0].value;
    assert_eq!(
        verdict_of(&module),
        "%1 is defined twice, the second time by input 1\n%1 is defined by input 1, but it names input 0"
    );
}

#[test]
fn phases_stand_in_order() {
    let nodes = "%1 = neg %0 : f32[2] !{update} %2 = neg %0 : f32[2] !{bwd}";
    assert_eq!(
        verdict(&imported("", r#"%0 "x" : f32[2]"#, nodes, "")),
        "`%1 = neg %0`: level imported has no phase update\n\
         `%2 = neg %0`: a node of bwd stands after one of update\n\
         `%2 = neg %0`: level imported has no phase bwd"
    );
}

#[test]
fn operators_take_their_operands_and_give_their_results() {
    let node = |node: &str| verdict(&imported("", r#"%0 "x" : f32[2, 3], %1 "i" : i64[3]"#, node, ""));
    assert_eq!(
        node("%2 = add %0, %1 : f32[2, 3]"),
        "`%2 = add %0, %1`: add: takes two operands of one type, not f32[2, 3] and i64[3]"
    );
    assert_eq!(node("%2 = add %0 : f32[2, 3]"), "`%2 = add %0`: add: takes 2 operands, not 1");
    assert_eq!(
        node("%2 = add %0, %0 : f16[2, 3]"),
        "`%2 = add %0, %0`: result 0 is f16[2, 3], and the operator gives f32[2, 3]"
    );
    assert_eq!(
        node("%2, %3 = add %0, %0 : f32[2, 3], f32[2, 3]"),
        "`%2, %3 = add %0, %0`: the operator gives 1 results, and the node has 2"
    );
    let text = imported(r#"data @0 "d" : f32[2] = [1, 2]"#, "", "%0 = constant {data = @0} : f32[3]", "");
    assert_eq!(verdict(&text), "`%0 = constant`: reads data `d`, which is f32[2], as f32[3]");
}

#[test]
fn a_sharding_is_well_formed() {
    let input = |ty: &str| {
        verdict(&format!("module @m imported mesh [dp=2, tp=2] {{ func @forward(%0 \"x\" : {ty}) {{}} }}"))
    };
    assert_eq!(input("f32[8, 8] {dp*tp, -}"), "ok");
    assert_eq!(input("f32[8, 8] {dp}"), "%0: f32[8, 8] {dp}: the sharding has 1 entries for 2 dims");
    assert_eq!(input("f32[8, 8] {dp, dp}"), "%0: f32[8, 8] {dp, dp}: an axis occurs twice in the sharding");
    assert_eq!(
        input("f32[8, 8] {dp, -} partial(sum dp)"),
        "%0: f32[8, 8] {dp, -} partial(sum dp): an axis occurs twice in the sharding"
    );
    assert_eq!(input("f32[8] partial(sum)"), "%0: f32[8] partial(sum ): a partial value names its axes");
}

/// Makes the text of a module of level training with an input, a parameter and these nodes and roots, which define its loss.
fn training(nodes: &str, roots: &str) -> String {
    format!(
        r#"module @m training {{
          state @w : f32[2] parameter = zeros
          state @n : f32[2] buffer = zeros
          func @train(%0 "x" batched : f32[2], %1 = @w, %2 = @n) {{
            {nodes}
            %50 = splat {{value = 0.0}} : f32[] !{{update}}
          }}
          output "loss" = %50
          {roots}
        }}"#
    )
}

#[test]
fn microbatches_enter_the_update_through_accumulate_alone() {
    let through = "%3 = mul %0, %1 : f32[2] !{bwd} %4 = accumulate %3 : f32[2] !{update}
        %5 = add %4, %1 : f32[2] !{update}";
    assert_eq!(verdict(&training(through, "update @w = %5")), "ok");
    let around = "%3 = mul %0, %1 : f32[2] !{bwd} %4 = add %3, %1 : f32[2] !{update}";
    assert_eq!(
        verdict(&training(around, "update @w = %4")),
        "`%4 = add %3, %1`: a value of a microbatch may enter the update phase only through `accumulate`, and %3: f32[2] is of bwd"
    );
    assert_eq!(
        verdict(&training("%3 = neg %0 : f32[2] !{update}", "")),
        "`%3 = neg %0`: a value of a microbatch may enter the update phase only through `accumulate`, and %0: f32[2] is input `x`"
    );
}

#[test]
fn accumulate_sums_a_microbatch_phase_in_update() {
    assert_eq!(
        verdict(&training("%3 = accumulate %0 : f32[2] !{bwd}", "")),
        "`%3 = accumulate %0`: `accumulate` must be in the update phase"
    );
    assert_eq!(
        verdict(&training("%3 = accumulate %1 : f32[2] !{update}", "")),
        "`%3 = accumulate %1`: `accumulate` must read a value of a microbatch, and %1: f32[2] is of prepare"
    );
}

#[test]
fn prepare_reads_no_microbatch() {
    assert_eq!(
        verdict(&training("%3 = neg %1 : f32[2] !{prepare} %4 = add %0, %3 : f32[2] !{bwd}", "")),
        "ok"
    );
    assert_eq!(
        verdict(&training("%3 = neg %0 : f32[2] !{prepare}", "")),
        "`%3 = neg %0`: the prepare phase must not read a value of a microbatch, and %0: f32[2] is input `x`"
    );
}

#[test]
fn states_are_written_in_update_but_buffers_in_forward() {
    let nodes = "%3 = neg %0 : f32[2] !{fwd}";
    assert_eq!(verdict(&training(nodes, "update @n = %3")), "ok");
    assert_eq!(
        verdict(&training(nodes, "update @w = %3")),
        "the new value of state `w`, %3: f32[2], is computed in a node of fwd and must be computed in update"
    );
    assert_eq!(
        verdict(&training("%3 = neg %0 : f32[2] !{bwd}", "update @n = %3 update @w = %0")),
        "the new value of state `w`, %0: f32[2], is computed in no node and must be computed in update\n\
         the new value of state `n`, %3: f32[2], is computed in a node of bwd and must be computed in update"
    );
}

#[test]
fn a_copy_stands_in_backward_and_writes_no_state() {
    let copy = |phase: &str, roots: &str| {
        let copy = format!("%3 = neg %0 : f32[2] !{{fwd}} %4 = neg %0 : f32[2] !{{{phase}, copy 1}}");
        verdict(&training(&copy, roots))
    };
    assert_eq!(copy("bwd", "update @n = %3"), "ok");
    assert_eq!(copy("fwd", ""), "`%4 = neg %0`: a copy must be in bwd or weight");
    assert_eq!(
        copy("bwd", "update @n = %4"),
        "`%4 = neg %0`: a copy must not write a state, and its result is the new value of `n`\n\
         the new value of state `n`, %4: f32[2], is computed in a node of bwd and must be computed in update"
    );
}

#[test]
fn a_training_program_has_bound_dims_and_a_loss() {
    let text = r#"module @m training {
        func @train(%0 "x" : f32[n], %1 "y" : f32[4294967296, 4294967296], %2 "z" : f32[]) {
            %3 = neg %2 : f32[] !{bwd}
        }
    }"#;
    assert_eq!(
        verdict(text),
        "%0: f32[n]: its dims must be bound\n\
         %1: f32[4294967296, 4294967296]: its size does not fit in 64 bits\n\
         a training program must have an output `loss`"
    );
    assert_eq!(verdict(&text.replace("bwd", "fwd").replace("[n]", "[2]").replace("4294967296", "2")), "ok");
    let text = r#"module @m training { func @train(%0 "x" : i64[]) {} output "loss" = %0 }"#;
    assert_eq!(verdict(text), "the output `loss` must be a float scalar, not %0: i64[]");
}
