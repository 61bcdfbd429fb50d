//! Simulated steps beside published measurements: Megatron-LM on A100 (Narayanan et al., arXiv 2104.04473, table 1), the rows without
//! pipeline stages. All their activations are computed again, attention is not fused, and half of the numbers are fp16 or bf16. Gradients
//! were summed over data ranks after backward: the time of these sums that our program hides in backward is added to its step.

use ir::DType;
use ir::machine::{Machine, Preset};
use passes::precision::Precision;
use passes::recompute::Recompute;
use passes::{Manager, Pass, Pipeline};
use runtime::program::UpdateTime;
use std::collections::BTreeMap;
use testing::models::gpt::Gpt;
use testing::models::{adamw, done};
use testing::testdata;
use trainyard::compilation::Source;
use trainyard::inspection::PredictionFacts;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Subject;

/// A row of the table.
struct Published {
    layers: u64,
    hidden: u64,
    heads: u64,
    tensor: u64,
    gpus: u64,
    /// Sequences of a step.
    batch: u64,
    /// TFLOP/s of each GPU.
    teraflops: f64,
}

const OF_1_7_BILLION: Published =
    Published { layers: 24, hidden: 2304, heads: 24, tensor: 1, gpus: 32, batch: 512, teraflops: 137.0 };
const OF_7_5_BILLION: Published =
    Published { layers: 36, hidden: 4096, heads: 32, tensor: 4, gpus: 128, batch: 512, teraflops: 142.0 };
const OF_18_4_BILLION: Published =
    Published { layers: 40, hidden: 6144, heads: 48, tensor: 8, gpus: 256, batch: 1024, teraflops: 135.0 };

impl Published {
    fn gpt(&self, batch: u64) -> Gpt {
        let Self { layers, hidden, heads, .. } = *self;
        Gpt { batch, sequence: 2048, hidden, heads, layers, vocabulary: 51_200, dropout: true }
    }

    /// A step with so many sequences in each data rank's microbatch.
    fn predicted(&self, microbatch: u64) -> PredictionFacts {
        let data = self.gpus / self.tensor;
        let mut source = done(Source::load(&testdata("bench/bench-mlp-loss.onnx"), &BTreeMap::new()));
        // The passes read nothing else of an ONNX file.
        source.imported.module = self.gpt(microbatch * data).imported();
        let mesh =
            if self.tensor > 1 { format!("dp:{data}*tp:{}", self.tensor) } else { format!("dp:{data}") };
        let spmd: Pipeline = format!("spmd(mesh={mesh})").parse().expect("a pipeline");
        let [Pass::Spmd(spmd)] = &spmd.passes[..] else { panic!("not spmd alone: {spmd}") };
        let plan = CompilationPlan {
            optimizer: adamw(),
            precision: Precision { compute: DType::BF16, ..Precision::default() },
            spmd: spmd.clone(),
            recompute: Some(Recompute::FULL),
            ..CompilationPlan::default()
        };
        let compiled = done(Subject::compile(&source, plan, &Manager::default(), |_, _, _| {}));
        let machine = Machine::Cluster(Preset::A100.cluster(self.gpus / 8));
        done(PredictionFacts::of(
            &compiled.training,
            self.batch / data / microbatch,
            UpdateTime::Late,
            &machine,
        ))
    }

    /// TFLOP/s of each GPU with the microbatch that is fastest and fits.
    fn teraflops(&self) -> f64 {
        let sequences = self.batch / (self.gpus / self.tensor);
        let memory = Preset::A100.device().memory;
        let flops = self.gpt(1).flops_with_full_recompute(self.batch);
        let hidden = |step: &PredictionFacts| -> f64 {
            let over_data = step.exchanges.iter().filter(|exchange| exchange.axes == ["dp"]);
            over_data.map(|exchange| exchange.ms - exchange.not_hidden_ms).sum()
        };
        let rate =
            |step: &PredictionFacts| flops / ((step.step_ms + hidden(step)) * 1e-3) / self.gpus as f64 / 1e12;
        let sizes = [1, 2, 4, 8, 16].into_iter().filter(|size| sequences.is_multiple_of(*size));
        let steps = sizes.map(|size| self.predicted(size)).filter(|step| step.planned <= memory);
        steps.map(|step| rate(&step)).fold(0.0, f64::max)
    }

    fn check(&self) {
        let (found, published) = (self.teraflops(), self.teraflops);
        println!("{found:.1} TFLOP/s, published {published}");
        assert!((found / published - 1.0).abs() < 0.15, "{found:.1} TFLOP/s, published {published}");
    }
}

#[test]
#[ignore = "longer"] // programs of up to 40 blocks
fn a_gpt_of_1_7_billion_parameters_trains_as_fast_as_published() {
    OF_1_7_BILLION.check();
}

#[test]
#[ignore = "longer"] // programs of up to 40 blocks
fn a_gpt_of_7_5_billion_parameters_trains_as_fast_as_published() {
    OF_7_5_BILLION.check();
}

#[test]
#[ignore = "longer"] // programs of up to 40 blocks
fn a_gpt_of_18_4_billion_parameters_trains_as_fast_as_published() {
    OF_18_4_BILLION.check();
}
