//! Plans of models that are larger than all GPUs together: the rows of PatrickStar (Fang et al., arXiv 2108.05818), whose states rest
//! on the host.

use ir::machine::{Device, Node, Preset};
use passes::precision::Precision;
use passes::{Manager, Pass, Pipeline};
use runtime::target::{Multiprocessors, Target};
use std::collections::BTreeMap;
use testing::models::gpt::Gpt;
use testing::models::{adamw, done};
use testing::testdata;
use trainyard::compilation::Source;
use trainyard::config::memory::{Budget, Budgets, Tiers};
use trainyard::pipeline::{Batch, CompilationPlan};
use trainyard::tiers::{self, Fit, Place};

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

impl Row {
    /// The plan of a step of one microbatch for each GPU, in fp16, with states and weights divided over all GPUs.
    fn fit(&self) -> Fit {
        let Self { layers, hidden, heads, gpus, host, microbatch, .. } = *self;
        let batch = gpus * microbatch;
        let gpt = Gpt { batch, sequence: 1024, hidden, heads, layers, vocabulary: 50_304, dropout: false };
        let mesh: Pipeline = format!("spmd(mesh=dp:{gpus}, zero=3)").parse().expect("a pipeline");
        let [Pass::Spmd(spmd)] = &mesh.passes[..] else { panic!("not spmd alone: {mesh}") };
        let device: Device = self.gpu.device();
        let plan = CompilationPlan {
            optimizer: adamw(),
            precision: Precision { compute: ir::DType::F16, ..Precision::default() },
            spmd: spmd.clone(),
            batch: Batch { global: Some(batch), data_ranks: gpus },
            ..CompilationPlan::default()
        };
        let plan = plan.priced_on(&device);
        let manager = Manager { trial: true, ..Manager::default() };
        let mut source = done(Source::load(&testdata("bench/bench-mlp-loss.onnx"), &BTreeMap::new()));
        // The passes read nothing else of an ONNX file.
        source.imported.module = gpt.imported();
        let mut compilation = done(source.compile(&plan, &manager, |_, _, _| {}));
        let node = Node { device, ..self.gpu.cluster(1).node };
        let budgets =
            Budgets { device: Some(Budget(node.device.memory)), host: Some(Budget(host)), disk: None };
        let tiers = Tiers { offload: Default::default(), is_open: true, budgets };
        let place = Place {
            microbatches: 1,
            target: Target::Cuda,
            multiprocessors: Multiprocessors(node.device.multiprocessors),
            may_update_early: false,
            node: &node,
        };
        done(tiers::fit(&mut compilation, &manager, &tiers, place, |_, _| {}))
    }
}

/// Plans a row, whose states are larger than all of its GPUs.
fn check(row: &Row) {
    let fit = row.fit();
    println!("{fit}");
    let offload = fit.candidate.offload.expect("the states are larger than all GPUs");
    assert!(offload.classes.optimizer && offload.keep > 0, "{offload:?}");
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

/// GPUs of which eight share a host of 1 TB.
const ON_A100: Row = Row { gpu: Preset::A100With40, host: 125_000_000_000, ..ON_V100 };

#[test]
#[ignore = "longer"] // programs of 90 blocks
fn of_18_billion_parameters_on_eight_v100() {
    check(&ON_V100);
}

#[test]
#[ignore = "longer"] // programs of 120 blocks, at night
fn of_24_billion_parameters_on_eight_v100() {
    check(&Row { layers: 120, ..ON_V100 });
}

#[test]
#[ignore = "longer"] // programs of 66 blocks, at night
fn of_68_billion_parameters_on_eight_a100() {
    check(&Row { layers: 66, hidden: 9216, ..ON_A100 });
}

#[test]
#[ignore = "longer"] // programs of 96 blocks, at night
fn of_175_billion_parameters_on_32_a100() {
    check(&Row { layers: 96, hidden: 12_288, heads: 96, gpus: 32, ..ON_A100 });
}
