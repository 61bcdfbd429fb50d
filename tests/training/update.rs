//! Updates multiply gradients by one scalar, and a skipped update keeps its states by itself. Steps with early updates have the same bits
//! as steps with late ones, in less memory.

use ir::tensor::Elements;
use passes::Manager;
use passes::optimizer::Optimizer;
use passes::precision::{Precision, Scaling};
use passes::recompute::Recompute;
use program::UpdateTime;
use std::collections::BTreeMap;
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::compilation::Compilation;
use trainyard::failure::Failure;
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;
use trainyard::verification::execute::{Machine, Tensors};
use trainyard::verification::{Mode, inputs};

const STEPS: u64 = 20;
/// So few samples that gradients take more memory than activations.
const SAMPLES: u64 = 2;

/// A model compiled as for a run: gradients are not outputs, so their memory can be reused.
fn compiled(fixture: &Fixture, plan: &CompilationPlan, update: UpdateTime) -> Result<Compilation, Failure> {
    let (source, CompilationPlan { bind, .. }) = fixture.source(SAMPLES, plan.optimizer.clone());
    source.compile(&CompilationPlan { bind, update, ..plan.clone() }, &Manager::default(), |_, _, _| {})
}

/// The bytes of tensors, by name. A NaN equals itself as bytes.
type Bits = BTreeMap<String, Vec<u8>>;

/// The losses and norms of each step, and the states after the last one. A step has `microbatches` microbatches.
fn run(compilation: &Compilation, mode: Mode, [steps, microbatches]: [u64; 2]) -> (Vec<Bits>, Bits) {
    run_on(compilation, mode, [steps, microbatches], |_| {})
}

/// As [`run`], on inputs that are changed.
fn run_on(
    compilation: &Compilation,
    mode: Mode,
    [steps, microbatches]: [u64; 2],
    change: impl Fn(&mut Tensors),
) -> (Vec<Bits>, Bits) {
    let bits = |tensors: Tensors| -> Bits {
        tensors.into_iter().map(|(name, tensor)| (name, tensor.to_bytes())).collect()
    };
    let (step, start) = (done(trainyard::training::step(&compilation.training)), Tensors::new());
    let mut machine = done(Machine::with(&step, mode, microbatches as usize, compilation.update, &start));
    let (mut outputs, mut states) = (vec![], Bits::new());
    for step in 0..steps {
        let mut inputs = done(inputs::draw(&compilation.forward, step, microbatches));
        inputs.iter_mut().for_each(&change);
        let executed = done(machine.step(&inputs));
        outputs.push(bits(executed.last_outputs(|name| name == "loss" || name == "grad_norm")));
        states = bits(executed.states);
    }
    (outputs, states)
}

/// The bytes that the programs take on each device.
fn peak(compilation: &Compilation) -> u64 {
    done(Programs::lower(compilation, 1, cpu::TARGET)).peak()
}

fn both(fixture: &Fixture, plan: &CompilationPlan) -> [Compilation; 2] {
    let plan = CompilationPlan { optimizer: adamw(), ..plan.clone() };
    [UpdateTime::Late, UpdateTime::Early].map(|update| done(compiled(fixture, &plan, update)))
}

/// Checks the bits of a plan, with one and with three microbatches in a step. Returns the bytes of one-microbatch steps with late and with
/// early updates.
fn check(fixture: &Fixture, plan: &CompilationPlan) -> [u64; 2] {
    let [late, early] = both(fixture, plan);
    for [steps, microbatches] in [[STEPS, 1], [STEPS / 4, 3]] {
        let bits = |compilation| run(compilation, Mode::On(cpu::TARGET), [steps, microbatches]);
        let what = format!("{}, {microbatches} microbatches", fixture.file);
        assert!(bits(&late) == bits(&early), "{what}: other bits with early updates");
    }
    [peak(&late), peak(&early)]
}

/// Checks the bits of a plan, and that it takes less memory with early updates.
fn check_saving(fixture: &Fixture, plan: &CompilationPlan) {
    let [late, early] = check(fixture, plan);
    assert!(early < late, "{}: {early} and {late} bytes", fixture.file);
}

#[test]
fn early_updates_of_gpt2_have_the_same_bits_in_less_memory() {
    check_saving(&models::GPT2_DYNAMO, &CompilationPlan::default());
}

#[test]
fn early_updates_have_the_same_bits_beside_recomputation() {
    let plan = CompilationPlan { recompute: Some(Recompute::FULL), ..CompilationPlan::default() };
    check_saving(&models::GPT2_DYNAMO, &plan);
}

#[test]
fn early_updates_have_the_same_bits_on_meshes() {
    let plan = |options| CompilationPlan { spmd: split(options), ..CompilationPlan::default() };
    check_saving(&models::GPT2_DYNAMO, &plan("mesh=tp:2"));
    // Such a small model has one bucket: all gradients are reduced together, after the last one.
    let [late, early] = check(&models::GPT2_DYNAMO, &plan("mesh=dp:2, zero=1"));
    assert_eq!(early, late);
}

#[test]
fn early_updates_have_the_same_bits_in_bf16_with_batch_norms_and_with_dropout() {
    let precision = Precision { compute: ir::DType::BF16, ..Precision::default() };
    check(&models::GPT2_DYNAMO, &CompilationPlan { precision, ..CompilationPlan::default() });
    check(&models::RESNET_TRAINMODE, &CompilationPlan::default());
    check(&models::GPT2_DROPOUT, &CompilationPlan::default());
}

#[test]
#[ignore = "needs a C++ compiler"]
fn early_updates_have_the_same_bits_in_the_commands_of_a_gpu() {
    let precision = Precision { compute: ir::DType::BF16, ..Precision::default() };
    let plan = CompilationPlan { precision, ..CompilationPlan::default() };
    let [late, early] = both(&models::GPT2_DYNAMO, &plan)
        .map(|compilation| run(&compilation, Mode::On(cuda::TARGET), [2, 1]));
    assert!(late == early, "other bits with early updates");
    let [late, early] = both(&models::GPT2_DYNAMO, &plan)
        .map(|compilation| run(&compilation, Mode::On(cuda::TARGET), [2, 2]));
    assert!(late == early, "other bits with early updates of two microbatches");
}

/// The messages of a compilation that is refused.
fn refusal(plan: CompilationPlan) -> String {
    let compiled = compiled(&models::GPT2_DYNAMO, &plan, UpdateTime::Early);
    let Err(Failure::User(errors)) = compiled else { panic!("early updates are not refused") };
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn early_updates_are_refused_with_clipping_and_fp16() {
    let clipped = Optimizer { clip: Some(1.0), ..adamw() };
    let precision = Precision { compute: ir::DType::F16, ..Precision::default() };
    let both = refusal(CompilationPlan { optimizer: clipped, precision, ..CompilationPlan::default() });
    assert!(both.contains("--update early cannot be used with --clip"), "{both}");
    assert!(both.contains("--update early cannot be used with fp16"), "{both}");
}

/// A step in fp16 with clipping.
fn clipped_fp16(reads_gradients: bool) -> Compilation {
    let optimizer = Optimizer { clip: Some(0.5), reads_gradients, ..adamw() };
    // The first steps overflow and are skipped.
    let scaling = Scaling { initial: 16_777_216.0, hysteresis: 1, ..Scaling::default() };
    let precision = Precision { compute: ir::DType::F16, scaling, ..Precision::default() };
    let plan = CompilationPlan { optimizer, precision, ..CompilationPlan::default() };
    done(compiled(&models::GPT2_DYNAMO, &plan, UpdateTime::Late))
}

#[test]
fn no_node_multiplies_a_gradient_or_selects_a_state_in_a_clipped_step_of_fp16() {
    let tensors = |module: &ir::Module| {
        let is_tensor = |node: &ir::Node| module.ty(node.results[0]).ndim() > 0;
        let nodes = module.nodes().map(|(_, node)| node).filter(|node| node.phase == ir::Phase::Update);
        let elementwise =
            nodes.filter(|node| matches!(node.op, ir::Op::Binary(_) | ir::Op::Select(_)) && is_tensor(node));
        elementwise.count()
    };
    assert_eq!(tensors(&clipped_fp16(false).training), 0);
    // Gradients that are also outputs are each multiplied by the divisor and by the loss scale.
    assert!(tensors(&clipped_fp16(true).training) > 0);
}

/// Makes all labels count. The divisor of the loss is then 1, so all factors except that of clipping are powers of two.
fn count_all_labels(inputs: &mut Tensors) {
    let labels = inputs.get_mut("labels").expect("the loss takes labels");
    let Elements::Int(labels) = &mut labels.elements else { panic!("labels are integers") };
    labels.iter_mut().for_each(|label| *label = (*label).max(0));
}

#[test]
fn one_scalar_for_all_factors_changes_no_bit() {
    let [factored, plain] = [false, true].map(clipped_fp16);
    let bits = |compilation| run_on(compilation, Mode::On(cpu::TARGET), [STEPS, 1], count_all_labels);
    assert!(bits(&factored) == bits(&plain));
    assert!(peak(&factored) < peak(&plain), "{} and {} bytes", peak(&factored), peak(&plain));
}
