//! The graphs of `testdata/bench`, which have no weights, and their compilation in tests.

use super::{adamw, done};
use crate::testdata;
use checkpoint::StateBytes;
use ir::DType;
use passes::Manager;
use passes::bind::{BATCH, Bind};
use passes::initialize::{Initialize, Rule};
use passes::precision::Precision;
use std::collections::BTreeMap;
use trainyard::compilation::{Compilation, Source};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Subject;

/// A graph without weights.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// The file, without `.onnx`.
    pub file: &'static str,
    /// Sizes of symbolic dims.
    pub bindings: &'static [(&'static str, u64)],
}

/// An MLP of three layers, 128 samples, with its loss.
pub const MLP: Bench = Bench { file: "bench-mlp-loss", bindings: &[] };
/// A GPT-2 of four layers, 8 x 128 tokens, a vocabulary of 8192, with its loss.
pub const GPT2: Bench = Bench { file: "bench-gpt2-loss", bindings: &[] };

/// Eight sequences of 1024 tokens.
const TOKENS: &[(&str, u64)] = &[(BATCH, 8), ("seq", 1024)];

/// The models that a GPU is measured with.
pub const LARGE: [Bench; 4] = [
    Bench { file: "gpt2-124m", bindings: TOKENS },
    Bench { file: "gpt2-350m", bindings: TOKENS },
    Bench { file: "gpt2-1.5b", bindings: TOKENS },
    Bench { file: "llama-1b", bindings: TOKENS },
];

/// Layers of larger models, or of other kinds, with embedding and logits: `testdata/bench/FILE.ir`.
pub const LAYERS: [Layers; 3] =
    [Layers("llama-8b-layer"), Layers("mixtral-8x7b-layer"), Layers("masked-layers")];

/// Layers as an imported program.
#[derive(Clone, Copy, Debug)]
pub struct Layers(
    /// The file, without `.ir`.
    pub &'static str,
);

impl Layers {
    /// The program of a step.
    pub fn training(&self, compute: DType) -> ir::Module {
        let file = testdata(&format!("bench/{}.ir", self.0));
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut source = done(Source::load(&testdata("bench/bench-mlp-loss.onnx"), &BTreeMap::new()));
        // The passes read nothing else of an ONNX file.
        source.imported.module = done(ir::text::parse(&text));
        let precision = Precision { compute, ..Precision::default() };
        let plan = CompilationPlan { optimizer: adamw(), precision, ..CompilationPlan::default() };
        done(Subject::compile(&source, plan, &Manager::default(), |_, _, _| {})).training
    }
}

impl Bench {
    /// The plan of the compilation with AdamW, and the compiled model.
    fn compiled(&self, compute: DType, initialize: Option<Initialize>) -> (CompilationPlan, Compilation) {
        let sizes = self.bindings.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        let source = done(Source::load(&testdata(&format!("bench/{}.onnx", self.file)), &sizes));
        let precision = Precision { compute, ..Precision::default() };
        let (bind, optimizer) = (Bind { sizes }, adamw());
        let plan = CompilationPlan { bind, optimizer, precision, initialize, ..CompilationPlan::default() };
        let compilation = done(Subject::compile(&source, plan.clone(), &Manager::default(), |_, _, _| {}));
        (plan, compilation)
    }

    /// The program of a step.
    pub fn training(&self, compute: DType) -> ir::Module {
        self.compiled(compute, None).1.training
    }

    /// The model in f32, with new weights.
    pub fn subject(&self) -> Subject {
        let (plan, compilation) = self.compiled(DType::F32, Some(Initialize { rule: Rule::Gpt2 }));
        done(Subject::new(plan, compilation, 0, StateBytes::new()))
    }
}
