//! The bytes that each device of a mesh holds: the formulas of ZeRO's stages and of tensor parallelism, for small models and for a model of
//! 175 billion parameters.

use ir::analysis::{Share, Shares};
use ir::{DType, Module, Op, Phase, Role, State};
use passes::bind::{BATCH, Bind};
use passes::precision::Precision;
use passes::{Manager, Pass, PassContext, Pipeline};
use testing::layers::{Reductions, reductions, stored};
use testing::models::{self, Fixture, adamw, done, path};
use trainyard::compilation::{self, Forward, Source};
use trainyard::pipeline::CompilationPlan;

/// A model compiled up to its loss, to be split in several ways.
struct Subject {
    source: Source,
    plan: CompilationPlan,
    forward: Forward,
}

impl Subject {
    fn new(source: Source, plan: CompilationPlan) -> Self {
        let forward = done(source.forward(&plan, &Manager::default(), |_, _, _| {}));
        Self { source, plan, forward }
    }

    fn of(fixture: &Fixture) -> Self {
        let (source, plan) = fixture.source(4, adamw());
        Self::new(source, plan)
    }

    /// A model with GPT-3's sizes, with `batch` samples in all.
    fn gpt3(batch: u64) -> Self {
        let sizes = [(BATCH.to_owned(), batch)].into();
        let source = done(Source::load(&path("gpt3-175b-noweights.onnx"), &sizes));
        Self::new(
            source,
            CompilationPlan { bind: Bind { sizes }, optimizer: adamw(), ..CompilationPlan::default() },
        )
    }

    /// The step after `spmd`, without the later passes.
    fn placed(&self, precision: &Precision, spmd: &str) -> Module {
        let spmd: Pipeline = spmd.parse().expect("a pipeline");
        let [Pass::Spmd(spmd)] = &spmd.passes[..] else { panic!("not spmd alone: {spmd}") };
        let plan = CompilationPlan { precision: precision.clone(), spmd: spmd.clone(), ..self.plan.clone() };
        let mut passes = plan.training().passes;
        let end = passes.iter().position(|pass| matches!(pass, Pass::Spmd(_))).expect("it is one of them");
        passes.truncate(end + 1);
        let (mut module, mut cx) = (self.forward.module.clone(), PassContext::default());
        let pipeline = Pipeline { passes };
        done(compilation::run(&Manager::default(), &pipeline, &mut module, &mut cx, |_, _, _| {}));
        module
    }
}

fn parameters(module: &Module) -> impl Iterator<Item = &State> {
    module.states.values().filter(|state| state.role == Role::Parameter)
}

fn elements(state: &State) -> u64 {
    state.ty.numel().expect("bound")
}

/// All values in bf16, except the master weights and moments, as Rajbhandari et al. (arXiv 1910.02054, section 3.1) count: for each
/// parameter 2 bytes of weight, 2 of gradient and 12 of the optimizer.
fn mixed() -> Precision {
    Precision { compute: DType::BF16, grad_dtype: DType::BF16, ..Precision::default() }
}

/// Bytes of a parameter's weight, gradient and optimizer states, in 24ths so that shares are whole numbers. `is_half`: the model reads the
/// parameter in half precision.
fn formula(stage: u64, ranks: u64, is_half: bool) -> [u64; 3] {
    let share = |from: u64, bytes: u64| if stage >= from { 24 * bytes / ranks } else { 24 * bytes };
    let [weight, gradient, optimizer] = if is_half { [2, 2, 12] } else { [4, 2, 8] };
    [share(3, weight), share(2, gradient), share(1, optimizer)]
}

/// Whether the model reads a parameter in half precision. Then the optimizer keeps the f32 weight.
fn is_half(module: &Module, state: &State) -> bool {
    module.nodes().any(|(_, node)| {
        let is_cast = matches!(node.op, Op::Cast(_));
        is_cast
            && node.phase == Phase::Prepare
            && stored(module, node.operands[0]) == module.state(&state.name)
    })
}

/// Checks that the stages of ZeRO on `ranks` data ranks hold the bytes of the formulas, parameter by parameter. `near` is the allowed
/// difference from the formulas with all parameters in half, because of the scales and biases of norms.
fn check_stages(subject: &Subject, ranks: u64, near: f64) {
    for stage in 0..4 {
        let module = subject.placed(&mixed(), &format!("spmd(mesh=dp:{ranks}, zero={stage})"));
        let shares = Shares::of(&module);
        let held = [shares.parameters, shares.gradients, shares.optimizer].map(|share| share.device);
        let mut expected = [0; 3];
        for state in parameters(&module) {
            // A bias of ten classes does not divide, so each of four devices has the whole bias.
            let divides = state.ty.sizes().expect("bound").iter().any(|size| size.is_multiple_of(ranks));
            let bytes = formula(if divides { stage } else { 0 }, ranks, is_half(&module, state));
            (0..3).for_each(|kind| expected[kind] += elements(state) * bytes[kind]);
        }
        let count: u64 = parameters(&module).map(elements).sum();
        let what =
            format!("{} stage {stage}: {held:?} for {count} parameters", subject.source.imported.module.name);
        assert_eq!(held.map(|bytes| 24 * bytes), expected, "{what}");
        let whole = match stage {
            0 => 16.0,
            1 => 4.0 + 12.0 / ranks as f64,
            2 => 2.0 + 14.0 / ranks as f64,
            _ => 16.0 / ranks as f64,
        };
        let each = held.into_iter().sum::<u64>() as f64 / count as f64;
        println!("{what}: {each:.4} bytes each, {whole} of the formula");
        assert!((each - whole).abs() <= near * whole, "{what}: {each} bytes each, not {whole}");
    }
}

#[test]
fn stages_of_zero_hold_what_the_formulas_say() {
    for fixture in [models::GPT2_DYNAMO, models::LLAMA_DYNAMO, models::BERT_DYNAMO, models::MLP_DYNAMO] {
        let subject = Subject::of(&fixture);
        check_stages(&subject, 2, 1e-3);
        check_stages(&subject, 4, 2e-3);
    }
}

/// Checks that each tensor rank holds a share of every trained state, except those whose names end in one of `replicated`.
fn check_tensor(subject: &Subject, ranks: u64, replicated: &[&str]) {
    let module = subject.placed(&Precision::default(), &format!("spmd(mesh=tp:{ranks})"));
    let is_whole = |state: &&State| replicated.iter().any(|end| state.name.ends_with(end));
    for state in parameters(&module) {
        assert_eq!(state.ty.sharding.is_whole(), is_whole(&state), "`{}` on tp={ranks}", state.name);
    }
    let sizes = |module: &Module, whole: bool| -> u64 {
        parameters(module).filter(|state| is_whole(state) == whole).map(elements).sum()
    };
    let (split, whole) = (sizes(&module, false), sizes(&module, true));
    let each = split / ranks + whole;
    let shares = Shares::of(&module);
    let held = [shares.parameters, shares.gradients, shares.optimizer].map(|share| share.device);
    assert_eq!(
        held,
        [4 * each, 4 * each, 8 * each],
        "tp={ranks}: {split} parameters are split, {whole} are not"
    );
}

/// Norms, the biases of row-parallel layers, positions, and the layer between two norms (BERT's transform) are replicated.
#[test]
fn tensor_ranks_hold_shares_of_all_but_norms_row_biases_and_positions() {
    for ranks in [2, 4] {
        let norms = ["ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "ln_f.weight", "ln_f.bias"];
        let others = ["c_proj.bias", "embedding_1"];
        check_tensor(&Subject::of(&models::GPT2_DYNAMO), ranks, &[&norms[..], &others].concat());
        let norms = ["LayerNorm.weight", "LayerNorm.bias"];
        let others = ["output.dense.bias", "embedding_2", "token_type_embeddings.weight"];
        let transform = ["transform.dense.weight", "transform.dense.bias"];
        check_tensor(&Subject::of(&models::BERT_DYNAMO), ranks, &[&norms[..], &others, &transform].concat());
    }
    check_tensor(&Subject::of(&models::LLAMA_DYNAMO), 2, &["norm.weight"]);
}

fn check_layers(subject: &Subject, module: &Module, layers: usize) {
    let found = reductions(module, &subject.source.imported.aliases, "tp");
    let Reductions { layers: of_layers, embedding, head, .. } = &found;
    assert_eq!((of_layers.len(), *embedding, *head), (layers, 1, 1), "{found:?}");
    assert!(of_layers.values().all(|counts| *counts == [2, 2]), "{found:?}");
}

#[test]
fn eight_devices_hold_eighths_of_175_billion_parameters() {
    let subject = Subject::gpt3(1);
    let module = subject.placed(&Precision::default(), "spmd(mesh=tp:8)");
    let shares = Shares::of(&module);
    for (what, Share { one_device, device, .. }) in
        [("weights", shares.parameters), ("gradients", shares.gradients), ("optimizer", shares.optimizer)]
    {
        let times = one_device as f64 / device as f64;
        println!("{what}: {device} of {one_device} bytes, a {times:.4}th");
        assert!((times - 8.0).abs() <= 0.08, "{what}: {device} of {one_device} bytes");
    }
    check_layers(&subject, &module, 96);
}

#[test]
#[ignore = "night: large"]
fn stages_of_zero_hold_what_the_formulas_say_of_175_billion_parameters() {
    check_stages(&Subject::gpt3(8), 8, 1e-4);
}
