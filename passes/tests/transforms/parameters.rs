//! Parameters that are decided by the content of tensors, and not only by their readers: masks, ties, repeated batches, names.

use ir::interp::{self, Missing, Mode};
use ir::{Blob, DType, Module, Tensor, random, view};
use passes::bind::Bind;
use passes::canonicalize::Canonicalize;
use passes::parameters::{Parameters, Set, specs};
use passes::reports::{ParameterReport, RowRole};
use passes::{Pass, PassContext};
use std::collections::BTreeMap;

/// Parses a program and fills the tensors of its file: `numbers` gives each element by the tensor's name and the index.
fn module(text: &str, numbers: impl Fn(&str, usize) -> f64) -> Module {
    let mut module = ir::text::parse(text).expect("the text is a program");
    for data in module.data.values_mut() {
        let sizes: Vec<usize> =
            data.ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let elements = (0..sizes.iter().product()).map(|i| numbers(&data.name, i)).collect();
        data.blob = Blob::File(Some(Tensor::float(data.ty.dtype, sizes, elements).to_bytes().into()));
    }
    module
}

fn normal(name: &str, i: usize) -> f64 {
    random::normal(1, random::stream(name), i as u64)
}

fn run(module: &mut Module, cx: &mut PassContext, pass: Parameters) -> BTreeMap<String, ParameterReport> {
    Pass::from(pass).run(module, cx).expect("the pass succeeds");
    ir::verify::verify(module).expect("the program is valid");
    cx.reports.parameters.iter().map(|report| (report.data.clone(), report.clone())).collect()
}

const SCORES: &str = "trainyard-ir 1
module @scores imported {
  data @0 \"mask\" : f32[1, 1, 3, 3]
  func @forward(%0 \"q\" batched : f32[2, 4, 3, 5], %1 \"k\" batched : f32[2, 4, 3, 5]) {
    %2 = constant {data = @0} : f32[1, 1, 3, 3] !{fwd}
    %3 = contract %0, %1 {lhs = bhsd, rhs = bhtd, out = bhst} : f32[2, 4, 3, 3] !{fwd}
    %4 = add %3, %2 : f32[2, 4, 3, 3] !{fwd}
    %5 = softmax %4 {dim = 3} : f32[2, 4, 3, 3] !{fwd}
  }
  output \"weights\" = %5
}";

#[test]
fn what_hides_positions_from_a_softmax_is_a_mask() {
    for hidden in [f64::NEG_INFINITY, f64::from(f32::MIN), -10000.0, 0.0] {
        let mut cx = PassContext::default();
        let mut module = module(SCORES, |_, i| if i % 3 > i / 3 { hidden } else { 0.0 });
        let reports = run(&mut module, &mut cx, Parameters::default());
        assert_eq!(reports["mask"].role, RowRole::Constant, "{hidden}: {}", reports["mask"].reason);
        assert!(module.states.is_empty());
    }
}

#[test]
fn what_a_softmax_reads_is_trained_with_a_warning_if_it_hides_nothing() {
    let mut cx = PassContext::default();
    let reports = run(&mut module(SCORES, normal), &mut cx, Parameters::default());
    assert_eq!(reports["mask"].role, RowRole::Parameter);
    assert_eq!(cx.warnings.len(), 1, "{:?}", cx.warnings);
}

/// T5's attention: a bias that the exporter has folded, then a mask.
const BIASED: &str = "trainyard-ir 1
module @biased imported {
  data @0 \"bias\" : f32[1, 4, 3, 3]
  data @1 \"mask\" : f32[1, 1, 3, 3]
  func @forward(%0 \"q\" batched : f32[2, 4, 3, 5], %1 \"k\" batched : f32[2, 4, 3, 5], %2 \"v\" batched : f32[2, 4, 3, 5]) {
    %3 = constant {data = @0} : f32[1, 4, 3, 3] !{fwd}
    %4 = constant {data = @1} : f32[1, 1, 3, 3] !{fwd}
    %5 = contract %0, %1 {lhs = bhsd, rhs = bhtd, out = bhst} : f32[2, 4, 3, 3] !{fwd}
    %6 = add %5, %3 : f32[2, 4, 3, 3] !{fwd}
    %7 = add %6, %4 : f32[2, 4, 3, 3] !{fwd}
    %8 = softmax %7 {dim = 3} : f32[2, 4, 3, 3] !{fwd}
    %9 = contract %8, %2 {lhs = bhst, rhs = bhtd, out = bhsd} : f32[2, 4, 3, 5] !{fwd}
  }
  output \"y\" = %9
}";

#[test]
fn a_bias_on_scores_is_trained_with_a_warning_beside_a_mask() {
    for hidden in [f64::from(f32::MIN), 0.0] {
        for fused in [false, true] {
            let mask = |i| if i % 3 > i / 3 { hidden } else { 0.0 };
            let numbers = |name: &str, i| if name == "mask" { mask(i) } else { normal(name, i) };
            let (mut module, mut cx) = (module(BIASED, numbers), PassContext::default());
            if fused {
                Pass::from(Canonicalize::default()).run(&mut module, &mut cx).expect("the pass succeeds");
                let names: Vec<&str> = module.nodes().map(|(_, node)| node.op.name()).collect();
                assert_eq!(names, ["constant", "attention"]);
            }
            let reports = run(&mut module, &mut cx, Parameters::default());
            assert_eq!(reports["bias"].role, RowRole::Parameter, "{}", reports["bias"].reason);
            assert_eq!(cx.warnings.len(), 1, "{:?}", cx.warnings);
            // After fusion the mask is an attribute or gone.
            assert_eq!(reports["mask"].role, RowRole::Constant, "{hidden}");
            assert_eq!(reports["mask"].reason == "no node reads it", fused, "{hidden}");
        }
    }
}

#[test]
fn the_bias_of_a_classifier_is_no_mask_though_it_is_zero_before_a_softmax() {
    let text = "trainyard-ir 1
module @classifier imported {
  data @0 \"weight\" : f32[4, 3]
  data @1 \"bias\" : f32[3]
  func @forward(%0 \"x\" batched : f32[2, 4]) {
    %1 = constant {data = @0} : f32[4, 3] !{fwd}
    %2 = constant {data = @1} : f32[3] !{fwd}
    %3 = contract %0, %1 {lhs = bk, rhs = kc, out = bc} : f32[2, 3] !{fwd}
    %4 = add %3, %2 : f32[2, 3] !{fwd}
    %5 = softmax %4 {dim = 1} : f32[2, 3] !{fwd}
  }
  output \"probabilities\" = %5
}";
    let zero_bias = |name: &str, i| if name == "bias" { 0.0 } else { normal(name, i) };
    let reports = run(&mut module(text, zero_bias), &mut PassContext::default(), Parameters::default());
    assert_eq!(reports["bias"].role, RowRole::Parameter);
}

const UNTIED: &str = "trainyard-ir 1
module @untied imported {
  data @0 \"wte.weight\" : f32[7, 4]
  data @1 \"onnx::MatMul_596\" : f32[4, 7]
  func @forward(%0 \"tokens\" batched : i64[2, 3]) {
    %1 = constant {data = @0} : f32[7, 4] !{fwd}
    %2 = constant {data = @1} : f32[4, 7] !{fwd}
    %3 = gather %1, %0 {dim = 0} : f32[2, 3, 4] !{fwd}
    %4 = contract %3, %2 {lhs = abk, rhs = kc, out = abc} : f32[2, 3, 7] !{fwd}
  }
  output \"logits\" = %4
}";

/// The second matrix is the first, transposed.
fn transposed(name: &str, i: usize) -> f64 {
    let i = if name == "wte.weight" { i } else { i % 7 * 4 + i / 7 };
    normal("wte.weight", i)
}

#[test]
fn a_head_that_has_the_embeddings_bytes_transposed_is_tied_again() {
    let mut cx = PassContext::default();
    let mut tied = module(UNTIED, transposed);
    let reports = run(&mut tied, &mut cx, Parameters::default());
    assert_eq!(tied.states.values().map(|state| state.name.as_str()).collect::<Vec<_>>(), ["wte.weight"]);
    assert!(cx.warnings[0].message.contains("transposed"), "{:?}", cx.warnings);
    // The view leads from the tied matrix to the state, and back.
    let head = &reports["onnx::MatMul_596"];
    let [whole, other] =
        [0, 1].map(|i| interp::file_tensor(&tied.data[ir::DataId::from_u32(i)]).expect("it is here"));
    assert_eq!(view::apply(&head.states[0].view, &other), Some(whole.clone()));
    let mut back = Tensor::splat(DType::F32, vec![4, 7], 0.0);
    view::write_back(&head.states[0].view, &whole, &mut back).expect("the view fits");
    assert_eq!(back, other);
    // The program computes the same values, and the contraction reads the state without a transpose.
    assert!(tied.nodes().all(|(_, node)| node.op.name() != "transpose"));
    let tokens = Tensor::int(DType::I64, vec![2, 3], vec![0, 1, 2, 3, 4, 6]);
    let logits = [module(UNTIED, transposed), tied].map(|module| {
        let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("the weights are here");
        let microbatch = BTreeMap::from([("tokens".to_string(), tokens.clone())]);
        interp::step(&module, Mode::Exact, &mut states, &[microbatch]).expect("it runs")["logits"].clone()
    });
    assert_eq!(logits[0], logits[1]);
}

#[test]
fn untied_keeps_equal_matrices_apart() {
    let mut module = module(UNTIED, transposed);
    run(&mut module, &mut PassContext::default(), Parameters { untied: true, ..Parameters::default() });
    assert_eq!(module.states.len(), 2);
}

#[test]
fn matrices_of_equal_elements_are_not_tied() {
    let mut module = module(UNTIED, |_, _| 0.0);
    run(&mut module, &mut PassContext::default(), Parameters::default());
    assert_eq!(module.states.len(), 2);
}

#[test]
fn the_given_set_of_a_tied_program_trains_the_same_tensors() {
    let (mut compiled, mut reference) = (module(UNTIED, transposed), module(UNTIED, transposed));
    let mut cx = PassContext::default();
    run(&mut compiled, &mut cx, Parameters::default());
    let given = Parameters { set: Set::Only(specs(&cx.reports.parameters)), ..Parameters::default() };
    let pass = Pass::from(given.clone());
    let text = pass.to_string().parse::<passes::Pipeline>().expect("its text parses");
    assert_eq!(text.passes, [pass]);
    run(&mut reference, &mut PassContext::default(), given);
    assert_eq!(
        reference.states.values().map(|state| state.name.as_str()).collect::<Vec<_>>(),
        ["wte.weight"]
    );
    assert!(reference.nodes().all(|(_, node)| node.op.name() != "constant"));
}

#[test]
fn a_renamed_tensor_has_its_module_path_and_both_names_fit_patterns() {
    for pattern in ["lm_head.*", "onnx::*"] {
        let mut cx = PassContext::default();
        cx.aliases.insert("onnx::MatMul_596".into(), vec!["lm_head.weight".into()]);
        cx.aliases.insert("wte.weight".into(), vec!["transformer.wte.weight".into()]);
        let mut module = module(UNTIED, normal);
        let pass = Parameters { freeze: vec![pattern.into()], ..Parameters::default() };
        let reports = run(&mut module, &mut cx, pass);
        let names: Vec<&str> = module.states.values().map(|state| state.name.as_str()).collect();
        assert_eq!(names, ["wte.weight", "lm_head.weight"]);
        assert!(reports["onnx::MatMul_596"].frozen && !reports["wte.weight"].frozen);
    }
}

#[test]
fn a_table_that_the_exporter_repeated_over_the_batch_is_written_back_to_every_sample() {
    let text = "trainyard-ir 1
module @baked imported {
  data @0 \"embedding_1\" : f32[2, 3, 4]
  func @forward(%0 \"x\" batched : f32[2, 3, 4]) {
    %1 = constant {data = @0} : f32[2, 3, 4] !{fwd}
    %2 = slice %1 {dim = 0, start = 0, step = 1} : f32[1, 3, 4] !{fwd}
    %3 = add %0, %2 : f32[2, 3, 4] !{fwd}
  }
  output \"y\" = %3
}";
    let mut module = module(text, |name, i| normal(name, i % 12));
    let reports = run(&mut module, &mut PassContext::default(), Parameters::default());
    let mut back = Tensor::splat(DType::F32, vec![2, 3, 4], 0.0);
    let value = Tensor::float(DType::F32, vec![1, 3, 4], (0..12).map(f64::from).collect());
    for state in &reports["embedding_1"].states {
        view::write_back(&state.view, &value, &mut back).expect("the view fits");
    }
    assert_eq!(back.floats(), [value.floats(), value.floats()].concat());
}

const POSITIONS: &str = "trainyard-ir 1
module @positions imported {
  data @0 \"positions\" : f32[6, 8] named
  data @1 \"mask\" : f32[6, 8] named
  data @2 \"slope\" : f32[] named
  func @forward(%0 \"x\" batched : f32[2, 6, 8]) {
    %1 = constant {data = @0} : f32[6, 8] !{fwd}
    %2 = constant {data = @1} : f32[6, 8] !{fwd}
    %3 = constant {data = @2} : f32[] !{fwd}
    %4 = mul %1, %2 : f32[6, 8] !{fwd}
    %5 = add %0, %4 : f32[2, 6, 8] !{fwd}
    %6 = mul %5, %3 : f32[2, 6, 8] !{fwd}
  }
  output \"y\" = %6
}";

#[test]
fn a_named_tensor_is_trained_unless_its_elements_prove_it_a_table_or_a_mask() {
    let angle = |i: usize| (i / 8) as f64 / 100f64.powf(2.0 * (i % 8 / 2) as f64 / 8.0);
    let wave = |i: usize| if i.is_multiple_of(2) { angle(i).sin() } else { angle(i).cos() };
    for (table, expected) in [(true, RowRole::Constant), (false, RowRole::Parameter)] {
        let numbers = |name: &str, i: usize| match name {
            "mask" => f64::from(u8::from(i.is_multiple_of(3))),
            "positions" if table => wave(i),
            _ => normal(name, i),
        };
        let mut cx = PassContext::default();
        let reports = run(&mut module(POSITIONS, numbers), &mut cx, Parameters::default());
        assert_eq!(reports["positions"].role, expected, "{}", reports["positions"].reason);
        assert_eq!(reports["mask"].role, RowRole::Constant, "{}", reports["mask"].reason);
        assert_eq!(reports["slope"].role, RowRole::Parameter, "{}", reports["slope"].reason);
        let warnings: Vec<&str> = cx.warnings.iter().map(|warning| &warning.message[..]).collect();
        let expected = if table {
            [
                "`slope` is trained only because of its name",
                "not trained: `positions` (a table of sines and cosines), `mask` (a mask of zeros and ones)",
            ]
        } else {
            [
                "2 tensors are trained only because of their names: `positions`, `slope`",
                "not trained: `mask` (a mask of zeros and ones)",
            ]
        };
        assert_eq!(warnings, expected);
    }
}

/// Two thresholds: only a comparison reads the first, and the second is also subtracted.
const THRESHOLDS: &str = "trainyard-ir 1
module @thresholds imported {
  data @0 \"compared\" : f32[] named
  data @1 \"subtracted\" : f32[] named
  func @forward(%0 \"x\" batched : f32[2, 4]) {
    %1 = constant {data = @0} : f32[] !{fwd}
    %2 = constant {data = @1} : f32[] !{fwd}
    %3 = add %1, %1 : f32[] !{fwd}
    %4 = greater %0, %3 : bool[2, 4] !{fwd}
    %5 = greater %0, %2 : bool[2, 4] !{fwd}
    %6 = sub %0, %2 : f32[2, 4] !{fwd}
    %7 = select %5, %6, %0 : f32[2, 4] !{fwd}
    %8 = select %4, %7, %6 : f32[2, 4] !{fwd}
  }
  output \"y\" = %8
}";

#[test]
fn a_number_that_only_a_comparison_reads_is_no_parameter_whatever_its_name() {
    let mut cx = PassContext::default();
    let reports = run(&mut module(THRESHOLDS, normal), &mut cx, Parameters::default());
    let compared = &reports["compared"];
    assert_eq!(compared.role, RowRole::Constant, "{}", compared.reason);
    assert!(compared.reason.starts_with("no gradient comes to it"), "{}", compared.reason);
    assert_eq!(reports["subtracted"].role, RowRole::Parameter);
    assert_eq!(cx.warnings.len(), 1, "only the trained number is warned of: {:?}", cx.warnings);
}

/// The first step of a recurrent cell whose state the exporter wrote for each of two samples.
const FIRST_STATE: &str = "trainyard-ir 1
module @cell imported {
  data @0 \"state\" : f32[2, 4]
  data @1 \"weight\" : f32[4, 4]
  func @forward(%0 \"x\" batched : f32[2, 4]) {
    %1 = constant {data = @0} : f32[2, 4] !{fwd}
    %2 = constant {data = @1} : f32[4, 4] !{fwd}
    %3 = contract %0, %2 {lhs = bi, rhs = oi, out = bo} : f32[2, 4] !{fwd}
    %4 = sigmoid %3 : f32[2, 4] !{fwd}
    %5 = mul %4, %1 : f32[2, 4] !{fwd}
    %6 = add %5, %0 : f32[2, 4] !{fwd}
  }
  output \"y\" = %6
}";

#[test]
fn the_role_of_a_tensor_does_not_depend_on_the_batch() {
    for batch in [1, 2, 4] {
        let numbers = |name: &str, i| if name == "state" { normal(name, i % 4) } else { normal(name, i) };
        let (mut module, mut cx) = (module(FIRST_STATE, numbers), PassContext::default());
        let bind = Bind { sizes: [("batch".to_owned(), batch)].into() };
        Pass::from(bind).run(&mut module, &mut cx).expect("the batch is bound");
        let reports = run(&mut module, &mut cx, Parameters::default());
        assert_eq!(reports["state"].role, RowRole::Constant, "batch {batch}: {}", reports["state"].reason);
        assert_eq!(reports["weight"].role, RowRole::Parameter, "batch {batch}");
    }
}
