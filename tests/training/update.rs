//! Steps with early updates have the bits of steps with late ones, in less memory.

use passes::Manager;
use passes::optimizer::Optimizer;
use passes::precision::Precision;
use passes::recompute::Recompute;
use runtime::program::UpdateTime;
use runtime::target::Target;
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::compilation::Compilation;
use trainyard::failure::Failure;
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;
use trainyard::verification::execute::{Machine, Tensors};
use trainyard::verification::{Mode, inputs};

const STEPS: u64 = 20;
/// So few that gradients take more memory than activations.
const SAMPLES: u64 = 2;

/// A model compiled as a run compiles it: the gradients are no outputs, so their memory can be used again.
fn compiled(fixture: &Fixture, plan: &CompilationPlan, update: UpdateTime) -> Result<Compilation, Failure> {
    let (source, CompilationPlan { bind, .. }) = fixture.source(SAMPLES, plan.optimizer.clone());
    source.compile(&CompilationPlan { bind, update, ..plan.clone() }, &Manager::default(), |_, _, _| {})
}

/// The losses and norms of each step, and the states after the last one.
fn run(compilation: &Compilation, mode: Mode, steps: u64) -> (Vec<Tensors>, Tensors) {
    let (step, start) = (done(trainyard::training::step(&compilation.training)), Tensors::new());
    let mut machine = done(Machine::with(&step, mode, 1, compilation.update, &start));
    let (mut outputs, mut states) = (vec![], Tensors::new());
    for step in 0..steps {
        let executed = done(machine.step(&done(inputs::draw(&compilation.forward, step, 1))));
        outputs.push(executed.last_outputs(|name| name == "loss" || name == "grad_norm"));
        states = executed.states;
    }
    (outputs, states)
}

/// The bytes that the programs take on each device.
fn peak(compilation: &Compilation) -> u64 {
    done(Programs::lower(compilation, 1, Target::Cpu)).peak()
}

fn both(fixture: &Fixture, plan: &CompilationPlan) -> [Compilation; 2] {
    let plan = CompilationPlan { optimizer: adamw(), ..plan.clone() };
    [UpdateTime::Late, UpdateTime::Early].map(|update| done(compiled(fixture, &plan, update)))
}

/// Checks the bits of a plan. Returns the bytes of late and of early updates.
fn check(fixture: &Fixture, plan: &CompilationPlan) -> [u64; 2] {
    let [late, early] = both(fixture, plan);
    let bits = |compilation| run(compilation, Mode::Cpu, STEPS);
    assert!(bits(&late) == bits(&early), "{}: other bits with early updates", fixture.file);
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
    // So small a model has one bucket: all gradients are reduced together, after the last one.
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
    let [late, early] = both(&models::GPT2_DYNAMO, &plan).map(|compilation| run(&compilation, Mode::Cuda, 3));
    assert!(late == early, "other bits with early updates");
}

/// The messages of a compilation that is refused.
fn refusal(plan: CompilationPlan, microbatches: u64) -> String {
    let compiled = compiled(&models::GPT2_DYNAMO, &plan, UpdateTime::Early);
    let lowered = compiled.and_then(|compiled| Programs::lower(&compiled, microbatches, Target::Cpu));
    let Err(Failure::User(errors)) = lowered else { panic!("early updates are not refused") };
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn early_updates_are_refused_with_clipping_fp16_and_several_microbatches() {
    let clipped = Optimizer { clip: Some(1.0), ..adamw() };
    let precision = Precision { compute: ir::DType::F16, ..Precision::default() };
    let both = refusal(CompilationPlan { optimizer: clipped, precision, ..CompilationPlan::default() }, 1);
    assert!(both.contains("--update early cannot be used with --clip"), "{both}");
    assert!(both.contains("--update early cannot be used with fp16"), "{both}");
    let parts = refusal(CompilationPlan { optimizer: adamw(), ..CompilationPlan::default() }, 2);
    assert!(parts.contains("--update early cannot be used with 2 microbatches"), "{parts}");
}
