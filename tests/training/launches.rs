//! The number of launches that a GPU gets in a step. Counting them needs no GPU.

use ir::DType;
use passes::Manager;
use passes::bind::Bind;
use passes::precision::Precision;
use program::lower::LowerOptions;
use program::{Microbatches, Section};
use std::path::Path;
use std::sync::Arc;
use testing::models::{adamw, done};
use trainyard::compilation::Source;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Subject;

/// Launches of a step in bf16 of a model of `testdata/bench`, 8 sequences of 1024 tokens.
fn launches(model: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/bench").join(model);
    let sizes = [("batch", 8), ("seq", 1024)].map(|(name, size)| (name.to_owned(), size));
    let sizes = sizes.into_iter().collect();
    let source = done(Source::load(&path, &sizes));
    let plan = CompilationPlan {
        bind: Bind { sizes },
        optimizer: adamw(),
        precision: Precision { compute: DType::BF16, ..Precision::default() },
        ..CompilationPlan::default()
    };
    let compilation = done(Subject::compile(&source, plan, &Manager::default(), |_, _, _| {}));
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cuda::TARGET) };
    let step = done(trainyard::training::step(&compilation.training));
    let program = done(trainyard::lowering::lower(&step, &options));
    let cuda = cuda::lower::lower(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"));
    Section::ALL.iter().map(|(section, _)| cuda.launches(*section).total()).sum()
}

/// A whole step: embeddings, layers, loss and update, divided by the number of layers.
#[test]
fn gpt2_takes_at_most_25_launches_a_layer() {
    let count = launches("gpt2-124m.onnx");
    assert!(count <= 12 * 25, "{count}");
}

#[test]
fn llama_takes_at_most_31_launches_a_layer() {
    let count = launches("llama-1b.onnx");
    assert!(count <= 16 * 31, "{count}");
}
