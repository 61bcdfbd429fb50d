//! Tests of the interpreter on simulated ranks: a placed program must give the results of the same program on one device.

use ir::interp::{Missing, Mode, StateValues, StepOutputs, initial_states, step};
use ir::{Builder, Diagnostic, Mesh, Module, Sharding, Tensor, Type, ValueId, random, text, verify};
use std::collections::BTreeMap;

/// Makes a program of level placed on a mesh with these parameters and nodes; every value in `outputs` is an output.
fn placed(mesh: &str, parameters: &str, nodes: &str, outputs: &[&str]) -> Module {
    let outputs: Vec<String> = outputs.iter().map(|value| format!("output \"{value}\" = {value}")).collect();
    let text = format!(
        r#"trainyard-ir 1
        module @m placed mesh [{mesh}] {{
          func @train({parameters}) {{
            {nodes}
            %50 = splat {{value = 0.0}} : f32[] !{{update}}
          }}
          output "loss" = %50
          {}
        }}"#,
        outputs.join(" ")
    );
    parse(&text)
}

fn parse(text: &str) -> Module {
    let module = text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    if let Err(faults) = verify::verify(&module) {
        panic!("{}\n{text}", faults[0]);
    }
    module
}

/// Returns the program on one device, where collectives do nothing.
fn on_one_device(module: &Module) -> Module {
    let mut module = module.clone();
    let results = module.nodes().flat_map(|(_, node)| node.results.clone());
    let inputs = module.inputs.iter().map(|input| input.value);
    let states = module.states.values().map(|state| state.input);
    let values: Vec<ValueId> = results.chain(inputs).chain(states).collect();
    let mut b = Builder::new(&mut module, "test");
    values.into_iter().for_each(|value| b.shard(value, Sharding::default()));
    b.finish();
    module.states.values_mut().for_each(|state| state.ty.sharding = Sharding::default());
    module.mesh = Mesh::default();
    module
}

/// Makes random inputs, different in each microbatch.
fn microbatches(module: &Module, count: u64) -> Vec<BTreeMap<String, Tensor>> {
    let tensor = |ty: &Type, stream| {
        let sizes: Vec<usize> = ty.sizes().unwrap().into_iter().map(|size| size as usize).collect();
        let numbers: Vec<f64> =
            (0..sizes.iter().product()).map(|i: usize| random::normal(7, stream, i as u64)).collect();
        if ty.dtype.is_float() {
            Tensor::float(ty.dtype, sizes, numbers)
        } else {
            Tensor::int(ty.dtype, sizes, numbers.into_iter().map(|x| (4.0 * x) as i64).collect())
        }
    };
    let microbatch = |i: u64| {
        let inputs = module.inputs.iter().zip(100 * i..);
        inputs.map(|(input, stream)| (input.name.clone(), tensor(module.ty(input.value), stream))).collect()
    };
    (0..count).map(microbatch).collect()
}

fn run(module: &Module, count: u64) -> Result<(StepOutputs, StateValues), Diagnostic> {
    let mut states = initial_states(module, 3, Missing::Draw)?;
    let microbatches = microbatches(module, count);
    let mut outputs = step(module, Mode::Exact, &mut states, &microbatches)?;
    for (name, tensors) in step(module, Mode::Exact, &mut states, &microbatches)? {
        outputs.entry(name).or_default().extend(tensors);
    }
    Ok((outputs, states))
}

fn close(left: &Tensor, right: &Tensor) -> bool {
    let (x, y) = (left.numbers(), right.numbers());
    left.sizes == right.sizes && x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1e-12 * (1.0 + y.abs()))
}

/// Checks that two steps of two microbatches give the same results on the mesh and on one device.
fn same_as_on_one_device(module: &Module) {
    let (outputs, states) = run(module, 2).unwrap_or_else(|error| panic!("{error}"));
    let (expected, expected_states) = run(&on_one_device(module), 2).unwrap();
    assert!(!expected.is_empty() && outputs.keys().eq(expected.keys()));
    for (name, expected) in &expected {
        assert_eq!(outputs[name].len(), expected.len());
        for (output, expected) in outputs[name].iter().zip(expected) {
            assert!(close(output, expected), "{name}: {output:?}\n{expected:?}");
        }
    }
    for (id, expected) in &expected_states {
        assert!(close(&states[id], expected), "{}", module.states[*id].name);
    }
}

const MATRICES: &str = r#"%0 "x" : f32[8, 6] {dp, tp}, %1 "w" : f32[6, 4] {tp, -}"#;

#[test]
fn a_row_parallel_contraction_is_reduced() {
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[8, 4] {dp, -} partial(sum tp)
        %3 = all_reduce %2 : f32[8, 4] {dp, -}
        %4 = tanh %3 : f32[8, 4] {dp, -}";
    same_as_on_one_device(&placed("dp=2, tp=2", MATRICES, nodes, &["%3", "%4"]));
}

#[test]
fn a_column_parallel_contraction_needs_no_collective() {
    let parameters = r#"%0 "x" : f32[8, 6] {dp, -}, %1 "w" : f32[6, 4] {-, tp}, %2 "bias" : f32[4] {tp}"#;
    let nodes = "%3 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[8, 4] {dp, tp}
        %4 = add %3, %2 : f32[8, 4] {dp, tp}";
    same_as_on_one_device(&placed("dp=4, tp=2", parameters, nodes, &["%3", "%4"]));
}

#[test]
fn a_reduction_is_scattered_and_gathered() {
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[8, 4] {dp, -} partial(sum tp)
        %3 = reduce_scatter %2 : f32[8, 4] {dp, tp}
        %4 = exp %3 : f32[8, 4] {dp, tp}
        %5 = all_gather %4 : f32[8, 4] {dp, -}
        %6 = reduce_scatter %2 : f32[8, 4] {dp*tp, -}
        %7 = all_gather %6 : f32[8, 4] {dp, -}
        %8 = all_gather %6 : f32[8, 4]";
    let outputs = ["%3", "%5", "%6", "%7", "%8"];
    same_as_on_one_device(&placed("dp=2, tp=2", MATRICES, nodes, &outputs));
    same_as_on_one_device(&placed("tp=2, dp=2", MATRICES, nodes, &outputs));
}

#[test]
fn what_is_whole_is_sliced_and_what_is_split_changes_its_dim() {
    let parameters = r#"%0 "x" : f32[4, 8, 6], %1 "y" : f32[4, 8, 6] {tp, cp, -}"#;
    let nodes = "%2 = all_slice %0 : f32[4, 8, 6] {-, tp, -}
        %3 = all_slice %2 : f32[4, 8, 6] {cp, tp, -}
        %4 = all_to_all %3 : f32[4, 8, 6] {cp, -, tp}
        %5 = all_to_all %1 : f32[4, 8, 6] {-, cp*tp, -}
        %6 = all_to_all %5 : f32[4, 8, 6] {cp*tp, -, -}
        %7 = all_gather %6 : f32[4, 8, 6] {cp, -, -}";
    let outputs = ["%2", "%3", "%4", "%5", "%6", "%7"];
    same_as_on_one_device(&placed("tp=2, cp=2", parameters, nodes, &outputs));
    same_as_on_one_device(&placed("cp=2, dp=3, tp=2", parameters, nodes, &outputs));
}

#[test]
fn two_axes_split_one_dim_in_either_order() {
    let parameters = r#"%0 "x" : f32[12, 2] {dp*tp, -}, %1 "y" : f32[12, 2] {tp*dp, -}, %2 "z" : i64[12]"#;
    let nodes = "%3 = exp %0 : f32[12, 2] {dp*tp, -}
        %4 = exp %1 : f32[12, 2] {tp*dp, -}
        %5 = all_gather %3 : f32[12, 2]
        %6 = all_gather %4 : f32[12, 2] {tp, -}
        %7 = all_slice %2 : i64[12] {tp*dp}
        %8 = all_gather %7 : i64[12] {tp}
        %9 = reduce %4 {kind = sum, dims = [0], keep = false} : f32[2] partial(sum tp, dp)
        %10 = reduce_scatter %9 : f32[2] {dp} partial(sum tp)
        %11 = all_reduce %10 : f32[2] {dp}
        %12 = all_reduce %9 : f32[2]";
    let outputs = ["%3", "%4", "%5", "%6", "%7", "%8", "%11", "%12"];
    same_as_on_one_device(&placed("dp=2, tp=3", parameters, nodes, &outputs[..6]));
    same_as_on_one_device(&placed("dp=2, tp=3", parameters, nodes, &outputs));
}

#[test]
fn a_partial_maximum_is_the_maximum() {
    let parameters = r#"%0 "x" : f32[4, 6] {dp, tp}, %1 "n" : i32[4, 6] {dp, tp}"#;
    let nodes = "%2 = reduce %0 {kind = max, dims = [1], keep = true} : f32[4, 1] {dp, -} partial(max tp)
        %3 = all_reduce %2 : f32[4, 1] {dp, -}
        %4 = reduce %1 {kind = min, dims = [0, 1], keep = false} : i32[] partial(min dp, tp)
        %5 = all_reduce %4 : i32[]
        %6 = sub %0, %3 : f32[4, 6] {dp, tp}";
    same_as_on_one_device(&placed("dp=2, tp=3", parameters, nodes, &["%3", "%5", "%6"]));
}

#[test]
fn a_bucket_is_reduced_value_by_value() {
    let parameters = r#"%0 "x" : f32[8] {dp}, %1 "y" : f32[8, 2] {dp, tp}"#;
    let nodes = "%2 = reduce %0 {kind = sum, dims = [0], keep = false} : f32[] partial(sum dp)
        %3 = reduce %1 {kind = sum, dims = [0], keep = false} : f32[2] {tp} partial(sum dp)
        %4, %5 = all_reduce %2, %3 : f32[], f32[2] {tp}";
    same_as_on_one_device(&placed("dp=4, tp=2", parameters, nodes, &["%4", "%5"]));
}

/// Makes a step with a split parameter, a gradient that stays partial over microbatches, and a buffer that is carried.
fn training(nodes: &str) -> Module {
    parse(&format!(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2, tp=2] {{
          state @w : f32[6, 4] {{tp, -}} parameter = normal 0.5
          state @v : f32[6, 4] {{tp, dp}} optimizer = zeros
          state @seen : f32[4] buffer = zeros
          func @train(%0 = @w, %1 = @v, %2 = @seen, %3 "x" : f32[8, 6] {{dp, tp}}) {{
            %4 = contract %3, %0 {{lhs = ab, rhs = bc, out = ac}} : f32[8, 4] {{dp, -}} partial(sum tp)
            %5 = all_reduce %4 : f32[8, 4] {{dp, -}}
            %6 = reduce %5 {{kind = sum, dims = [0], keep = false}} : f32[4] partial(sum dp)
            {nodes}
          }}
          output "loss" = %20
          output "seen" = %2
          update @w = %19
          update @v = %16
          update @seen = %8
        }}"#
    ))
}

const TRAINED: &str = "%7 = all_reduce %6 : f32[4]
    %8 = add %2, %7 : f32[4]
    %9 = tanh %8 : f32[4]
    %10 = mul %5, %9 : f32[8, 4] {dp, -}
    %11 = contract %3, %10 {lhs = ab, rhs = ac, out = bc} : f32[6, 4] {tp, -} partial(sum dp) !{bwd}
    %12 = accumulate %11 : f32[6, 4] {tp, -} partial(sum dp) !{update}
    %13 = reduce_scatter %12 : f32[6, 4] {tp, dp} !{update}
    %14 = splat {value = 0.5} : f32[] !{update}
    %15 = mul %1, %14 : f32[6, 4] {tp, dp} !{update}
    %16 = add %13, %15 : f32[6, 4] {tp, dp} !{update}
    %17 = all_gather %16 : f32[6, 4] {tp, -} !{update}
    %18 = mul %17, %14 : f32[6, 4] {tp, -} !{update}
    %19 = sub %0, %18 : f32[6, 4] {tp, -} !{update}
    %20 = splat {value = 0.0} : f32[] !{update}";

#[test]
fn states_and_sums_over_microbatches_are_kept_by_rank() {
    same_as_on_one_device(&training(TRAINED));
}

/// Runs a faulty program without the verifier, which would refuse it.
fn fault(module: &Module, wrong: &str, right: &str) -> String {
    let text = text::print(module);
    assert!(text.contains(right), "{text}");
    let module = text::parse_unchecked(&text.replace(right, wrong)).unwrap_or_else(|error| panic!("{error}"));
    let error = run(&module, 1).expect_err("the ranks disagree");
    error.to_string().lines().next().unwrap().to_string()
}

#[test]
fn a_reduction_that_is_missing_is_found_where_the_value_leaves() {
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[8, 4] {dp, -} partial(sum tp)
        %3 = all_reduce %2 : f32[8, 4] {dp, -}
        %4 = tanh %3 : f32[8, 4] {dp, -}";
    let module = placed("dp=2, tp=2", MATRICES, nodes, &["%4"]);
    // A partial sum that is declared as whole.
    let message = fault(&module, "tanh %2", "tanh %3");
    assert!(
        message.starts_with("ranks 0 and 1 disagree on output `%4`, %4: f32[8, 4] {dp, -}, by up to"),
        "{message}"
    );
}

#[test]
fn a_reduction_that_is_missing_is_found_where_a_collective_reads() {
    let nodes = "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[8, 4] {dp, -} partial(sum tp)
        %3 = all_reduce %2 : f32[8, 4] {dp, -}
        %4 = all_gather %3 : f32[8, 4]
        %5 = splat {value = 0.0} : f32[8, 4] {dp, -}";
    let module = placed("dp=2, tp=2", MATRICES, nodes, &["%5"]);
    let message = fault(&module, "add %2, %2", "all_reduce %2");
    assert!(message.starts_with("ranks 0 and 1 disagree on an operand of `all_gather`, %3"), "{message}");
}

#[test]
fn a_reduction_that_is_missing_is_found_in_a_state() {
    let message = fault(
        &training(TRAINED),
        "%12 = accumulate %11 : f32[6, 4] {tp, -} !{update}\n    %13 = all_slice",
        "%12 = accumulate %11 : f32[6, 4] {tp, -} partial(sum dp) !{update}\n    %13 = reduce_scatter",
    );
    assert!(
        message.starts_with("ranks 0 and 2 disagree on an operand of `all_slice`, %12: f32[6, 4] {tp, -}"),
        "{message}"
    );
    let message = fault(&training(TRAINED), "%7 = add %6, %6", "%7 = all_reduce %6");
    assert!(
        message.starts_with("ranks 0 and 2 disagree on the new state `seen`, %8: f32[4], by up to"),
        "{message}"
    );
}

#[test]
fn a_mesh_that_does_not_fit_is_refused() {
    let module = placed("dp=2, tp=2", r#"%0 "x" : f32[4] {dp}"#, "%1 = exp %0 : f32[4] {dp}", &["%1"]);
    let mut large = module.clone();
    large.mesh.axes.values_mut().for_each(|axis| axis.size = 1 << 40);
    let error = run(&large, 1).expect_err("too large").to_string();
    assert!(error.contains("at most 1024 ranks can be simulated"), "{error}");
    let mut odd = module;
    odd.mesh.axes.values_mut().for_each(|axis| axis.size = 3);
    let error = run(&odd, 1).expect_err("4 elements over 3 devices").to_string();
    assert!(error.contains("cannot be divided equally over the mesh"), "{error}");
}

#[test]
fn random_programs_give_the_same_bits_on_ranks_that_all_hold_everything() {
    for seed in 0..30 {
        let one = ir::testing::program(seed, ir::DType::F32, 30);
        let mut many = one.clone();
        let role = Mesh::role("dp").unwrap();
        many.mesh.axes.push(ir::Axis { name: "dp".into(), role, size: 4 });
        assert_eq!(run(&many, 2).unwrap(), run(&one, 2).unwrap(), "seed {seed}");
    }
}
