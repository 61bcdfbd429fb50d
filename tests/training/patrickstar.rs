//! Plans of models that are larger than all GPUs together. The rows are those of PatrickStar (Fang et al., arXiv 2108.05818), in which
//! states rest on the host.

use ir::machine::{Machine, Node, Preset};
use ir::{Module, Op};
use passes::precision::Precision;
use passes::{Manager, Pass, Pipeline};
use program::Multiprocessors;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use testing::models::gpt::Gpt;
use testing::models::{adamw, done};
use testing::testdata;
use trainyard::compilation::{Compilation, Source};
use trainyard::config::memory::{Budget, Budgets, Tiers};
use trainyard::failure::Failure;
use trainyard::fit::{self, Conditions, Fit};
use trainyard::inspection::PredictionFacts;
use trainyard::pipeline::{Batch, CompilationPlan};
use trainyard::plan::MemoryPlan;
use trainyard::training::Programs;

/// A model and the node that it is planned for.
struct Row {
    layers: u64,
    hidden: u64,
    heads: u64,
    gpus: u64,
    gpu: Preset,
    /// Bytes of the host's memory for each GPU.
    host: u64,
    microbatch: u64,
}

/// Tokens of a sequence.
const SEQUENCE: u64 = 1024;

impl Row {
    fn gpt(&self) -> Gpt {
        let Self { layers, hidden, heads, .. } = *self;
        let batch = self.gpus * self.microbatch;
        Gpt { batch, sequence: SEQUENCE, hidden, heads, layers, vocabulary: 50_304, dropout: false }
    }

    /// The node that the model is planned for.
    fn node(&self) -> Node {
        Node { device: self.gpu.device(), ..self.gpu.cluster(1).node }
    }

    /// The memories of a GPU.
    fn budgets(&self) -> Budgets {
        let device = self.gpu.device().memory;
        Budgets { device: Some(Budget(device)), host: Some(Budget(self.host)), disk: None }
    }

    /// The plan of a step of one microbatch for each GPU, in fp16, with states and weights divided over all GPUs.
    fn fit(&self) -> Result<(Fit, Compilation), Failure> {
        let gpus = self.gpus;
        let (gpt, batch) = (self.gpt(), gpus * self.microbatch);
        let mesh: Pipeline = format!("spmd(mesh=dp:{gpus}, zero=3)").parse().expect("a pipeline");
        let [Pass::Spmd(spmd)] = &mesh.passes[..] else { panic!("not spmd alone: {mesh}") };
        let node = self.node();
        let plan = CompilationPlan {
            optimizer: adamw(),
            precision: Precision { compute: ir::DType::F16, ..Precision::default() },
            spmd: spmd.clone(),
            batch: Batch { global: Some(batch), data_ranks: gpus },
            ..CompilationPlan::default()
        };
        let plan = plan.priced_on(&node.device);
        let manager = Manager { trial: true, ..Manager::default() };
        let mut source = done(Source::load(&testdata("bench/bench-mlp-loss.onnx"), &BTreeMap::new()));
        // The passes read nothing else of an ONNX file.
        source.imported.module = gpt.imported();
        let mut compilation = done(source.compile(&plan, &manager, |_, _, _| {}));
        let tiers = Tiers { offload: Default::default(), is_open: true, budgets: self.budgets() };
        let conditions = Conditions {
            microbatches: 1,
            target: cuda::TARGET,
            multiprocessors: Multiprocessors(node.device.multiprocessors),
            may_update_early: false,
            node: &node,
        };
        let fit = fit::fit(&mut compilation, &manager, &tiers, conditions, |_, _| {})?;
        Ok((fit, compilation))
    }

    /// TFLOP/s of all GPUs together in the predicted step: 8 operations for each weight and token, since all activations are computed
    /// again. `None` if no plan fits.
    fn teraflops(&self) -> Option<f64> {
        let (fit, compilation) = self.fit().ok()?;
        let machine = Machine::Cluster(self.gpu.cluster(1));
        let step = done(PredictionFacts::of(&compilation.training, 1, compilation.update, &machine));
        let tokens = (self.gpus * self.microbatch * SEQUENCE) as f64;
        let teraflops = 8.0 * self.gpt().parameters() as f64 * tokens / (step.step_ms * 1e-3) / 1e12;
        println!("microbatch {}: {:.0} ms, {teraflops:.0} TFLOP/s; {fit}", self.microbatch, step.step_ms);
        Some(teraflops)
    }
}

/// Replays the places of a compilation in all memories, by a program that shares no code with the planner.
fn replay(row: &Row, compilation: &Compilation) {
    let programs = done(Programs::lower_on(compilation, 1, &row.gpu.device()));
    let plan = done(MemoryPlan::of(&programs, 1, Some(&row.budgets())));
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("plan.json");
    done(plan.write(&file));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/replay_plan.py");
    let output = Command::new("python3").arg(script).arg(file).output().expect("Python 3 is there");
    let [told, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && told.contains("no fault"), "{told}{errors}");
    print!("{told}");
}

/// Plans a row. Its states are larger than the memory of all its GPUs.
fn check(row: &Row) {
    let (fit, compilation) = done(row.fit());
    println!("{fit}");
    let offload = fit.candidate.offload.expect("the states are larger than all GPUs");
    assert!(offload.classes.optimizer && offload.keep > 0, "{offload:?}");
    let (copies, share) = latencies(&compilation.training, &row.node());
    println!("{copies} copies a step, {:.2} % of their time are latencies", 100.0 * share);
    // So joining copies of tensors could save only this share of the time.
    assert!(copies > 100 && share < 0.02, "{copies} copies, {share}");
    replay(row, &compilation);
}

/// The number of copies in a step of one microbatch, and the share of latencies in their time.
fn latencies(module: &Module, node: &Node) -> (usize, f64) {
    let copies = module.nodes().filter(|(_, node)| matches!(node.op, Op::Copy(_))).count();
    let [seconds, _] = fit::seconds_of_copies(module, 1, node);
    (copies, copies as f64 * node.host_link.latency / seconds)
}

/// Prints the largest model of a row's width whose plan fits, within twelve layers, and replays its plan. The row itself must fit.
fn largest(row: &Row) {
    let with = |layers| Row { layers, ..*row };
    let (mut layers, (mut fit, mut compilation)) = (row.layers, done(row.fit()));
    loop {
        match with(layers + 12).fit() {
            Ok(larger) => (layers, (fit, compilation)) = (layers + 12, larger),
            Err(Failure::User(_)) => break,
            Err(failure) => panic!("{failure:?}"),
        }
    }
    let billions = with(layers).gpt().parameters() as f64 / 1e9;
    println!("{layers} layers of {} features fit, {billions:.1} billion parameters: {fit}", row.hidden);
    replay(&with(layers), &compilation);
}

/// Eight GPUs that share a host of 240 GB.
const ON_V100: Row = Row {
    layers: 90,
    hidden: 4096,
    heads: 16,
    gpus: 8,
    gpu: Preset::V100,
    host: 30_000_000_000,
    microbatch: 4,
};

/// A100 GPUs, of which eight share a host of 1 TB.
const ON_A100: Row = Row { gpu: Preset::A100With40, host: 125_000_000_000, ..ON_V100 };

#[test]
#[ignore = "night: large"] // plans of more than 120 blocks
fn the_largest_that_eight_v100_hold() {
    largest(&Row { layers: 120, ..ON_V100 });
}

#[test]
#[ignore = "night: large"] // programs of 90 blocks
fn of_18_billion_parameters_on_eight_v100() {
    check(&ON_V100);
}

#[test]
#[ignore = "night: large"] // programs of 120 blocks
fn of_24_billion_parameters_on_eight_v100() {
    check(&Row { layers: 120, ..ON_V100 });
}

#[test]
#[ignore = "night: large"] // programs of 66 blocks
fn of_68_billion_parameters_on_eight_a100() {
    check(&Row { layers: 66, hidden: 9216, ..ON_A100 });
}

#[test]
#[ignore = "night: large"] // programs of 96 blocks
fn of_175_billion_parameters_on_32_a100() {
    check(&Row { layers: 96, hidden: 12_288, heads: 96, gpus: 32, ..ON_A100 });
}

/// The rates that PatrickStar measured on eight V100 with a host of 240 GB, in TFLOP/s of all GPUs together. The predicted step, with the
/// fastest of a few microbatch sizes, is not slower.
#[test]
#[ignore = "night: large"] // programs of up to 90 blocks
fn patrickstars_steps_are_predicted_no_slower_than_published() {
    let rows =
        [(20, 2048, 444.0), (64, 2304, 426.0), (72, 3072, 467.0), (60, 4096, 482.0), (90, 4096, 419.0)];
    for (layers, hidden, published) in rows {
        let with = |microbatch| Row { layers, hidden, microbatch, ..ON_V100 };
        let rates = [4, 8, 16, 32].into_iter().map_while(|microbatch| with(microbatch).teraflops());
        let found = rates.fold(0.0, f64::max);
        println!("{layers} x {hidden}: {found:.0} TFLOP/s, published {published}");
        assert!(found >= published, "{layers} x {hidden}: {found:.0} TFLOP/s, published {published}");
    }
}
