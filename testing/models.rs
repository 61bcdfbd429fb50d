//! The models of `testdata/models`: their files, the sizes of their dims, and their compilation in tests.

pub mod bench;
pub mod calls;
pub mod configurations;
pub mod gpt;
pub mod half;
pub mod losses;
pub mod parameters;

use checkpoint::StateBytes;
use passes::bind::{BATCH, Bind};
use passes::optimizer::{Algorithm, Decay, Optimizer};
use passes::registry::Pass;
use passes::spmd::Spmd;
use passes::{Manager, Pipeline};
use std::path::PathBuf;
use trainyard::compilation::Source;
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Subject;

/// An export with the numbers that PyTorch computed for its model.
#[derive(Clone, Copy, Debug)]
pub struct Fixture {
    /// The file, without `.onnx`.
    pub file: &'static str,
    /// The model, as its `.npz` and `.json` files call it.
    pub model: &'static str,
    /// Samples in PyTorch's batch.
    pub batch: u64,
    /// Sizes of symbolic dims other than the batch.
    pub bindings: &'static [(&'static str, u64)],
    /// Parameters of PyTorch's module.
    pub parameters: usize,
    /// The allowed differences from PyTorch's numbers.
    pub bounds: Bounds,
}

/// The largest difference from PyTorch's numbers: relative for tensors, as in `verify`, and absolute for losses.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The difference of parameters before the step.
    pub parameters: f64,
    /// The difference of the model's outputs.
    pub outputs: f64,
    /// The difference of gradients in mode `exact`.
    pub gradients: f64,
    /// The difference of gradients on the CPU backend.
    pub gradients_cpu: f64,
    /// The difference of the losses of SGD and of AdamW in mode `exact` from those of PyTorch in f64.
    pub exact: [f64; 2],
    /// The difference of the losses of SGD on the CPU backend from those of PyTorch in f32.
    pub sgd: f64,
    /// The difference of the losses of AdamW on the CPU backend: for the first ten losses and for the last ten.
    pub adamw: [f64; 2],
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
/// The bounds of models whose norms PyTorch computed in f32.
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
    // Momentum at this rate amplifies the rounding of the norms through the choice of experts.
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
/// The size of the sequence if the file leaves it open.
const SEQUENCE: &[(&str, u64)] = &[("seq", 32)];

/// An MLP, as PyTorch's dynamo exporter writes it.
pub const MLP_DYNAMO: Fixture = MLP;
/// The MLP with symbolic dims.
pub const MLP_DYNAMIC: Fixture = Fixture { file: "mlp.dynamo-dyn", ..MLP };
/// The MLP of the older exporter.
pub const MLP_LEGACY: Fixture = Fixture { file: "mlp.legacy", ..MLP };
/// The MLP with its loss in the file.
pub const MLP_LOSS: Fixture = Fixture { file: "mlp-loss.dynamo", ..MLP };
/// A small GPT-2.
pub const GPT2_DYNAMO: Fixture = GPT2;
/// The GPT-2 as PyTorch exports it in training mode, with dropout.
pub const GPT2_DROPOUT: Fixture = Fixture { file: "gpt2-dropout.legacy", ..GPT2_MASK };
/// The GPT-2 with symbolic dims.
pub const GPT2_DYNAMIC: Fixture = Fixture { file: "gpt2.dynamo-dyn", bindings: SEQUENCE, ..GPT2 };
/// The GPT-2, exported without the exporter's optimizations.
pub const GPT2_UNOPTIMIZED: Fixture = Fixture { file: "gpt2.dynamo-noopt", ..GPT2 };
/// The GPT-2 of the older exporter, with an attention mask as an input.
pub const GPT2_MASK: Fixture = Fixture { file: "gpt2.legacy-mask", ..GPT2 };
/// The GPT-2 with its weights rounded to fp16.
pub const GPT2_FP16: Fixture = Fixture {
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
/// The GPT-2 in operator set 23.
pub const GPT2_OPSET23: Fixture = Fixture { file: "gpt2.dynamo-op23", ..GPT2 };
/// The GPT-2 with its loss in the file.
pub const GPT2_LOSS: Fixture = Fixture { file: "gpt2-loss.dynamo", ..GPT2 };
/// A small Llama.
pub const LLAMA_DYNAMO: Fixture = LLAMA;
/// The Llama in operator set 23.
pub const LLAMA_OPSET23: Fixture = Fixture { file: "llama.dynamo-op23", ..LLAMA };
/// The Llama with symbolic dims.
pub const LLAMA_DYNAMIC: Fixture = Fixture { file: "llama.dynamo-dyn", bindings: SEQUENCE, ..LLAMA };
/// The Llama of the older exporter, with an attention mask as an input.
pub const LLAMA_MASK: Fixture = Fixture { file: "llama.legacy-mask", ..LLAMA };
/// A small BERT.
pub const BERT_DYNAMO: Fixture = BERT;
/// The BERT of the older exporter, with symbolic dims.
pub const BERT_LEGACY: Fixture = Fixture { file: "bert.legacy-dyn", bindings: SEQUENCE, ..BERT };
/// A small Mixtral.
pub const MIXTRAL_DYNAMO: Fixture = MIXTRAL;
/// The Mixtral with symbolic dims.
pub const MIXTRAL_DYNAMIC: Fixture = Fixture { file: "mixtral.dynamo-dyn", bindings: SEQUENCE, ..MIXTRAL };
/// A small T5. The exporter folded the tables of its relative position bias. The folded tensors, with an element for each pair of
/// positions, are trained.
pub const T5_FOLDED: Fixture = T5;
/// The T5 with symbolic dims.
pub const T5_DYNAMIC: Fixture =
    Fixture { file: "t5.dynamo-dyn", bindings: &[("seq", 32), ("dseq", 24)], ..T5 };
/// A loss with label smoothing, weights for classes, and labels that do not count.
pub const SMOOTHED_LOSS: Fixture =
    Fixture { file: "smoothed-loss.dynamo", model: "smoothed-loss", ..OWN_LOSS };
/// The same loss without smoothing.
pub const WEIGHTED_LOSS: Fixture =
    Fixture { file: "weighted-loss.dynamo", model: "weighted-loss", ..OWN_LOSS };
/// A binary loss with weights for the positives.
pub const POSITIVES_LOSS: Fixture =
    Fixture { file: "positives-loss.dynamo", model: "positives-loss", ..OWN_LOSS };
/// A loss of tokens under a mask that shows an uneven number of them, none in two samples.
pub const CLAMPED_LOSS: Fixture =
    Fixture { file: "clamped-loss.dynamo", model: "clamped-loss", parameters: 3, ..OWN_LOSS };
/// The same loss as a quotient of means.
pub const QUOTIENT_LOSS: Fixture = Fixture { file: "quotient-loss.dynamo", ..CLAMPED_LOSS };
/// The sum of three losses that count different things.
pub const PARTED_LOSS: Fixture = Fixture { file: "parted-loss.dynamo", model: "parted-loss", ..OWN_LOSS };
/// A loss that is a sum over the samples.
pub const SUMMED_LOSS: Fixture = Fixture { file: "summed-loss.dynamo", model: "summed-loss", ..OWN_LOSS };
/// A loss of sums over the samples that are divided by their number.
pub const BATCH_LOSS: Fixture = Fixture { file: "batch-loss.dynamo", model: "batch-loss", ..OWN_LOSS };
/// A loss that is the root of a mean: the losses of microbatches do not add up to it.
pub const ROOT_LOSS: Fixture = Fixture { file: "root-loss.dynamo", model: "root-loss", ..OWN_LOSS };
/// The sum of two losses.
pub const JOINED_LOSS: Fixture = OWN_LOSS;
/// A freshly initialised model. Only the exporter's record says which tensors were merged, dropped, renamed and detached.
pub const RECORDED: Fixture =
    Fixture { file: "recorded-loss.dynamo", model: "recorded-loss", batch: 4, parameters: 15, ..OWN_LOSS };
/// A small ResNet with batch norms that train. Rounding grows in them, and AdamW divides by it where gradients are small.
pub const RESNET_TRAINMODE: Fixture = Fixture {
    file: "resnet.legacy-trainmode",
    model: "resnet-trainmode",
    batch: 4,
    bindings: &[],
    parameters: 62,
    bounds: Bounds { gradients_cpu: 1e-4, exact: [1e-9; 2], sgd: 1e-5, adamw: [5e-3, 5e-4], ..BOUNDS },
};
/// The ResNet with its batch norms folded into convolutions. The testdata have PyTorch's outputs, but no training numbers.
pub const RESNET_FOLDED: Fixture =
    Fixture { file: "resnet.dynamo", model: "resnet", parameters: 42, bounds: BOUNDS, ..RESNET_TRAINMODE };

/// AdamW as PyTorch ran it for the fixtures: decay on all parameters.
pub fn adamw() -> Optimizer {
    Optimizer { weight_decay: 0.01, decay: Decay::All, ..Optimizer::default() }
}

/// SGD with momentum as PyTorch ran it for the fixtures.
pub fn momentum() -> Optimizer {
    Optimizer {
        algorithm: Algorithm::Sgd { momentum: 0.9, nesterov: false },
        lr: 0.05,
        ..Optimizer::default()
    }
}

/// The pass `spmd` with these options, such as `mesh=dp:2*tp:2, zero=1`.
pub fn split(options: &str) -> Spmd {
    let pipeline: Pipeline = format!("spmd({options})").parse().expect("these are the options of spmd");
    match pipeline.passes.as_slice() {
        [Pass::Spmd(spmd)] => spmd.clone(),
        passes => panic!("{passes:?}"),
    }
}

/// A file of `testdata/models`. If its numbers are stored in two files, the path of a file in which they are put together.
pub fn path(name: &str) -> PathBuf {
    parameters::whole(name)
}

/// Returns the result, or panics with the text that the user would read.
pub fn done<T>(result: Result<T, impl Into<Failure>>) -> T {
    result.unwrap_or_else(|failure| {
        let failure: Failure = failure.into();
        panic!("{}", render(Severity::Error, &failure.diagnostics(), false))
    })
}

impl Fixture {
    /// The model's file, imported with a batch of this size, and the plan of its compilation.
    pub fn source(&self, batch: u64, optimizer: Optimizer) -> (Source, CompilationPlan) {
        let sizes = self.bindings.iter().copied().chain([(BATCH, batch)]);
        let sizes = sizes.map(|(name, size)| (name.to_owned(), size)).collect();
        let source = done(Source::load(&path(&format!("{}.onnx", self.file)), &sizes));
        let plan = CompilationPlan { bind: Bind { sizes }, optimizer, ..CompilationPlan::default() };
        (source, plan)
    }

    /// The model, compiled for a batch of this size.
    pub fn subject(&self, batch: u64, optimizer: Optimizer) -> Subject {
        self.compiled(batch, CompilationPlan { optimizer, ..CompilationPlan::default() })
    }

    /// The model, compiled for a batch of this size with `options`, whose dims are replaced by the fixture's.
    pub fn compiled(&self, batch: u64, options: CompilationPlan) -> Subject {
        let (source, CompilationPlan { bind, .. }) = self.source(batch, options.optimizer.clone());
        let plan = CompilationPlan { bind, ..options };
        let compilation = done(Subject::compile(&source, plan.clone(), &Manager::default(), |_, _, _| {}));
        done(Subject::new(plan, compilation, 0, StateBytes::new()))
    }
}
