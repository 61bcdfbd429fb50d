//! Compares the bytes of activations that backward keeps with the formulas of Korthikanti et al., Reducing Activation Recomputation in
//! Large Transformer Models (arXiv 2205.05198, table 2 and section 4).
//!
//! The formulas are for a layer of `GPT` in 16 bits with `s` tokens of `b` sequences, `h` features, `a` heads and `t` tensor ranks.
//! They count masks of dropout and the scores of all heads. Here dropout draws its numbers again, and attention keeps no scores, so
//! the bytes are fewer.

use crate::collectives::decoder::Sizes;
use crate::collectives::run;
use ir::{Definition, Module, Movement, Phase, ValueId};
use std::collections::BTreeSet;

/// The 22B model of the paper, section 6: 48 layers, 8 tensor ranks, microbatches of 4.
const MODEL_22B: Sizes = Sizes { blocks: 0, batch: 4, sequence: 2048, width: 6144, heads: 64 };
/// The 175B model: 96 layers, 8 tensor ranks, 8 stages that are interleaved 3 times, microbatches of 1.
const MODEL_175B: Sizes = Sizes { blocks: 0, batch: 1, sequence: 2048, width: 12288, heads: 96 };

const SELECTIVE: &str = "recompute(price=1536)";
const FULL: &str = "recompute(price=1125899906842624)";

/// Returns the bytes on a device of the forward values that backward reads.
fn saved(module: &Module) -> u64 {
    let backward = module.nodes().filter(|(_, node)| node.phase == Phase::Backward);
    let read = backward.flat_map(|(_, node)| node.operands.iter().copied());
    let bases: BTreeSet<ValueId> = read.map(|value| module.viewed(value, Movement::is_layout)).collect();
    let is_activation = |value: &ValueId| match module.value(*value).definition {
        Definition::Node(id, _) => module.node(id).phase == Phase::Forward,
        Definition::Input(_) | Definition::State(_) => false,
    };
    let kept = bases.into_iter().filter(is_activation);
    kept.map(|value| module.ty(value).local_bytes(&module.mesh).expect("dims are bound")).sum()
}

/// Returns the bytes that a layer keeps, from models of two and of four layers.
fn per_layer(sizes: Sizes, passes: &str) -> u64 {
    let [two, four] = [2, 4].map(|blocks| {
        let mut module = Sizes { blocks, ..sizes }.decoder();
        run(&mut module, "loss autodiff precision(bf16) optimizer(adamw, lr=0.01) simplify");
        run(&mut module, passes);
        saved(&module)
    });
    (four - two) / 2
}

const GIB: f64 = (1u64 << 30) as f64;
const TENSOR: &str = "spmd(mesh=tp:8)";
const SEQUENCE: &str = "spmd(mesh=tp:8, sequence-parallel) collectives buckets";

/// A row of the paper's table: the passes for it, and its formula of `5as/h` and `t`, in units of `sbh` bytes.
type Row = ([&'static str; 2], fn(f64, f64) -> f64);

const ROWS: [Row; 8] = [
    (["", ""], |scores, _| 34.0 + scores),
    ([TENSOR, ""], |scores, t| 10.0 + 24.0 / t + scores / t),
    ([SEQUENCE, ""], |scores, t| (34.0 + scores) / t),
    ([TENSOR, SELECTIVE], |_, t| 10.0 + 24.0 / t),
    ([SEQUENCE, SELECTIVE], |_, t| 34.0 / t),
    (["", FULL], |_, _| 2.0),
    // The result of the reduction after attention is kept beside the layer's input, since no reduction is repeated.
    ([TENSOR, FULL], |_, _| 4.0),
    ([SEQUENCE, FULL], |_, t| 4.0 / t),
];

#[test]
fn a_layer_keeps_at_most_the_bytes_of_the_published_formulas() {
    for sizes in [MODEL_22B, MODEL_175B] {
        let Sizes { batch, sequence, width, heads, .. } = sizes;
        let unit = (batch * sequence * width) as f64;
        let scores = 5.0 * (heads * sequence) as f64 / width as f64;
        for ([mesh, recompute], formula) in ROWS {
            let kept = per_layer(sizes, &format!("{mesh} {recompute}")) as f64 / unit;
            let published = formula(scores, 8.0);
            println!("{kept:6.2} of {published:6.2} sbh: {mesh} {recompute}");
            assert!(kept <= published, "{mesh} {recompute}: {kept} of {published} sbh");
            if recompute == FULL {
                assert!((kept - published).abs() < 1e-9, "{mesh}: {kept} is not {published} sbh");
            }
        }
    }
}

#[test]
fn the_first_stages_of_two_models_keep_at_most_their_published_bytes() {
    // The first of p stages holds p microbatches of L/p layers, and with m interleaved parts (p - 1)/(pm) more.
    for (sizes, layers, live, published) in
        [(MODEL_22B, 48.0, 1.0, 9.5625), (MODEL_175B, 96.0, 1.0 + 7.0 / 24.0, 12.3516)]
    {
        let kept = per_layer(sizes, &format!("{SEQUENCE} {SELECTIVE}")) as f64 * layers * live / GIB;
        println!("{kept:.4} of {published} GiB");
        assert!(kept <= published, "{kept} of {published} GiB");
    }
}
