//! The models of `testdata/models`, how each is bound, and how a test compiles one.

pub(crate) mod bench;
pub(crate) mod configurations;
pub(crate) mod half;
pub(crate) mod losses;

use passes::bind::{BATCH, Bind};
use passes::optimizer::{Algorithm, Decay, Optimizer};
use passes::registry::Pass;
use passes::spmd::Spmd;
use passes::{Manager, Pipeline};
use runtime::checkpoint::StateBytes;
use std::path::PathBuf;
use trainyard::compilation::Source;
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;
use trainyard::pipeline::Plan;
use trainyard::verification::Subject;

/// An export with the numbers that PyTorch computed for its model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixture {
    /// The file, without `.onnx`.
    pub(crate) file: &'static str,
    /// The model, as its `.npz` and `.json` files call it.
    pub(crate) model: &'static str,
    /// Samples in PyTorch's batch.
    pub(crate) batch: u64,
    /// Sizes of symbolic dims other than the batch.
    pub(crate) bindings: &'static [(&'static str, u64)],
    /// Parameters of PyTorch's module.
    pub(crate) parameters: usize,
    /// How near PyTorch's numbers are.
    pub(crate) bounds: Bounds,
}

/// The largest difference from PyTorch's numbers, relative for tensors (as `verify` has it), absolute for losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Of parameters before the step.
    pub(crate) parameters: f64,
    /// Of the model's outputs.
    pub(crate) outputs: f64,
    /// Of gradients, in mode `exact`.
    pub(crate) gradients: f64,
    /// Of gradients on the CPU backend.
    pub(crate) gradients_cpu: f64,
    /// Of the losses of SGD and of AdamW in mode `exact`, from those of PyTorch in f64.
    pub(crate) exact: [f64; 2],
    /// Of the losses of SGD on the CPU backend, from those of PyTorch in f32.
    pub(crate) sgd: f64,
    /// The same of AdamW, the first ten losses and the last ten.
    pub(crate) adamw: [f64; 2],
}

const BOUNDS: Bounds = Bounds {
    parameters: 0.0,
    outputs: 1e-5,
    gradients: 1e-5,
    gradients_cpu: 1e-5,
    exact: [1e-7; 2],
    sgd: 1e-4,
    adamw: [2e-5; 2],
};
/// PyTorch computed the norms of these in f32.
const NORMS_IN_F32: Bounds = Bounds { exact: [5e-6; 2], ..BOUNDS };

const MLP: Fixture = Fixture {
    file: "mlp.dynamo",
    model: "mlp",
    batch: 8,
    bindings: &[],
    parameters: 6,
    bounds: Bounds { exact: [1e-9; 2], ..BOUNDS },
};
const GPT2: Fixture =
    Fixture { file: "gpt2.dynamo", model: "gpt2", batch: 2, bindings: &[], parameters: 28, bounds: BOUNDS };
const LLAMA: Fixture = Fixture {
    file: "llama.dynamo",
    model: "llama",
    batch: 2,
    bindings: &[],
    parameters: 21,
    bounds: NORMS_IN_F32,
};
const BERT: Fixture = Fixture {
    file: "bert.dynamo",
    model: "bert",
    batch: 2,
    bindings: &[],
    parameters: 42,
    bounds: Bounds { exact: [1e-9; 2], ..BOUNDS },
};
const MIXTRAL: Fixture = Fixture {
    file: "mixtral.dynamo",
    model: "mixtral",
    batch: 2,
    bindings: &[],
    parameters: 21,
    // Momentum at this rate carries the rounding of the norms through the choice of experts.
    bounds: Bounds { exact: [1e-4, 5e-6], ..NORMS_IN_F32 },
};
const T5: Fixture =
    Fixture { file: "t5.dynamo", model: "t5", batch: 2, bindings: &[], parameters: 26, bounds: BOUNDS };
/// A small network that brings its loss.
const OWN_LOSS: Fixture = Fixture {
    file: "joined-loss.dynamo",
    model: "joined-loss",
    batch: 8,
    bindings: &[],
    parameters: 4,
    bounds: Bounds { exact: [1e-9; 2], ..BOUNDS },
};
/// The size of the sequence where the file leaves it open.
const SEQUENCE: &[(&str, u64)] = &[("seq", 32)];

pub(crate) const MLP_DYNAMO: Fixture = MLP;
pub(crate) const MLP_DYNAMIC: Fixture = Fixture { file: "mlp.dynamo-dyn", ..MLP };
pub(crate) const MLP_LEGACY: Fixture = Fixture { file: "mlp.legacy", ..MLP };
pub(crate) const MLP_LOSS: Fixture = Fixture { file: "mlp-loss.dynamo", ..MLP };
pub(crate) const GPT2_DYNAMO: Fixture = GPT2;
pub(crate) const GPT2_DYNAMIC: Fixture = Fixture { file: "gpt2.dynamo-dyn", bindings: SEQUENCE, ..GPT2 };
pub(crate) const GPT2_UNOPTIMIZED: Fixture = Fixture { file: "gpt2.dynamo-noopt", ..GPT2 };
pub(crate) const GPT2_MASK: Fixture = Fixture { file: "gpt2.legacy-mask", ..GPT2 };
/// Its weights are rounded.
pub(crate) const GPT2_FP16: Fixture = Fixture {
    file: "gpt2-fp16.dynamo",
    bounds: Bounds {
        parameters: 1e-3,
        outputs: 1e-3,
        gradients: 2e-3,
        gradients_cpu: 2e-3,
        exact: [5e-4; 2],
        sgd: 5e-4,
        adamw: [5e-4; 2],
    },
    ..GPT2
};
pub(crate) const GPT2_OPSET23: Fixture = Fixture { file: "gpt2.dynamo-op23", ..GPT2 };
pub(crate) const GPT2_LOSS: Fixture = Fixture { file: "gpt2-loss.dynamo", ..GPT2 };
pub(crate) const LLAMA_DYNAMO: Fixture = LLAMA;
pub(crate) const LLAMA_OPSET23: Fixture = Fixture { file: "llama.dynamo-op23", ..LLAMA };
pub(crate) const LLAMA_DYNAMIC: Fixture = Fixture { file: "llama.dynamo-dyn", bindings: SEQUENCE, ..LLAMA };
pub(crate) const LLAMA_MASK: Fixture = Fixture { file: "llama.legacy-mask", ..LLAMA };
pub(crate) const BERT_DYNAMO: Fixture = BERT;
pub(crate) const BERT_LEGACY: Fixture = Fixture { file: "bert.legacy-dyn", bindings: SEQUENCE, ..BERT };
pub(crate) const MIXTRAL_DYNAMO: Fixture = MIXTRAL;
pub(crate) const MIXTRAL_DYNAMIC: Fixture =
    Fixture { file: "mixtral.dynamo-dyn", bindings: SEQUENCE, ..MIXTRAL };
/// With the tables of its relative position bias folded: their elements, read for each pair of positions, are trained.
pub(crate) const T5_FOLDED: Fixture = T5;
pub(crate) const T5_DYNAMIC: Fixture =
    Fixture { file: "t5.dynamo-dyn", bindings: &[("seq", 32), ("dseq", 24)], ..T5 };
/// With label smoothing, weights for classes, and labels that do not count.
pub(crate) const SMOOTHED_LOSS: Fixture =
    Fixture { file: "smoothed-loss.dynamo", model: "smoothed-loss", ..OWN_LOSS };
/// The same without smoothing.
pub(crate) const WEIGHTED_LOSS: Fixture =
    Fixture { file: "weighted-loss.dynamo", model: "weighted-loss", ..OWN_LOSS };
/// Binary, with weights for the positives.
pub(crate) const POSITIVES_LOSS: Fixture =
    Fixture { file: "positives-loss.dynamo", model: "positives-loss", ..OWN_LOSS };
/// Of tokens under a mask that shows an uneven number of them, none in two samples.
pub(crate) const CLAMPED_LOSS: Fixture =
    Fixture { file: "clamped-loss.dynamo", model: "clamped-loss", parameters: 3, ..OWN_LOSS };
/// The sum of three that count different things.
pub(crate) const PARTED_LOSS: Fixture =
    Fixture { file: "parted-loss.dynamo", model: "parted-loss", ..OWN_LOSS };
/// A sum over the samples.
pub(crate) const SUMMED_LOSS: Fixture =
    Fixture { file: "summed-loss.dynamo", model: "summed-loss", ..OWN_LOSS };
/// Sums over the samples that are divided by their number.
pub(crate) const BATCH_LOSS: Fixture = Fixture { file: "batch-loss.dynamo", model: "batch-loss", ..OWN_LOSS };
/// The root of a mean: microbatches do not make it.
pub(crate) const ROOT_LOSS: Fixture = Fixture { file: "root-loss.dynamo", model: "root-loss", ..OWN_LOSS };
/// The sum of two.
pub(crate) const JOINED_LOSS: Fixture = OWN_LOSS;
/// Freshly initialised: what the exporter merged, dropped, renamed and detached is in its record alone.
pub(crate) const RECORDED: Fixture =
    Fixture { file: "recorded-loss.dynamo", model: "recorded-loss", batch: 4, parameters: 15, ..OWN_LOSS };
/// With batch norms that train. Rounding grows in them, and AdamW divides by it where gradients are small.
pub(crate) const RESNET_TRAINMODE: Fixture = Fixture {
    file: "resnet.legacy-trainmode",
    model: "resnet-trainmode",
    batch: 4,
    bindings: &[],
    parameters: 62,
    bounds: Bounds { gradients_cpu: 1e-4, exact: [1e-9; 2], sgd: 1e-5, adamw: [5e-3, 5e-4], ..BOUNDS },
};
/// With its batch norms folded into convolutions; PyTorch's outputs are there, its training is not.
pub(crate) const RESNET_FOLDED: Fixture =
    Fixture { file: "resnet.dynamo", model: "resnet", parameters: 42, bounds: BOUNDS, ..RESNET_TRAINMODE };

/// AdamW as PyTorch ran it for the fixtures: decay on all parameters.
pub(crate) fn adamw() -> Optimizer {
    Optimizer { weight_decay: 0.01, decay: Decay::All, ..Optimizer::default() }
}

/// SGD with momentum as PyTorch ran it for the fixtures.
pub(crate) fn momentum() -> Optimizer {
    Optimizer {
        algorithm: Algorithm::Sgd { momentum: 0.9, nesterov: false },
        lr: 0.05,
        ..Optimizer::default()
    }
}

/// How a program is split, as in text: `mesh=dp:2*tp:2, zero=1`.
pub(crate) fn split(options: &str) -> Spmd {
    let pipeline: Pipeline = format!("spmd({options})").parse().expect("these are the options of spmd");
    match pipeline.passes.as_slice() {
        [Pass::Spmd(spmd)] => spmd.clone(),
        passes => panic!("{passes:?}"),
    }
}

/// A file of `testdata/models`.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/models").join(name)
}

/// The result, or a panic with what the user would read.
pub(crate) fn done<T>(result: Result<T, impl Into<Failure>>) -> T {
    result.unwrap_or_else(|failure| {
        let failure: Failure = failure.into();
        panic!("{}", render(Severity::Error, &failure.diagnostics(), false))
    })
}

impl Fixture {
    /// The model's file, imported with a batch of so many samples, and how it is compiled.
    pub(crate) fn source(&self, batch: u64, optimizer: Optimizer) -> (Source, Plan) {
        let sizes = self.bindings.iter().copied().chain([(BATCH, batch)]);
        let sizes = sizes.map(|(name, size)| (name.to_owned(), size)).collect();
        let source = done(Source::load(&path(&format!("{}.onnx", self.file)), &sizes));
        let plan = Plan { bind: Bind { sizes }, optimizer, ..Plan::default() };
        (source, plan)
    }

    /// The model compiled for a batch of so many samples.
    pub(crate) fn subject(&self, batch: u64, optimizer: Optimizer) -> Subject {
        self.compiled(batch, Plan { optimizer, ..Plan::default() })
    }

    /// The model compiled for a batch of so many samples as `options` says, which need not bind any dims.
    pub(crate) fn compiled(&self, batch: u64, options: Plan) -> Subject {
        let (source, Plan { bind, .. }) = self.source(batch, options.optimizer.clone());
        let plan = Plan { bind, ..options };
        let compilation = done(Subject::compile(&source, plan.clone(), &Manager::default(), |_, _, _| {}));
        done(Subject::new(plan, compilation, 0, StateBytes::new()))
    }
}
