//! Canonicalize on a deep model and on random programs.

use ir::interp::{self, Missing, Mode, StepOutputs};
use ir::{Changed, DType, Module, testing};
use passes::canonicalize::Canonicalize;
use passes::{Pass, PassContext};
use proptest::prelude::*;
use std::fmt::Write;

/// The forward pass of a GPT-2 as an exporter writes it, as text.
#[derive(Default)]
struct Model {
    data: String,
    nodes: String,
    rows: usize,
    values: usize,
}

const BATCH_SEQUENCE_WIDTH: &str = "f32[2, 4, 8]";

impl Model {
    /// Returns a model of `blocks` blocks, with 2 samples, 4 positions, width 8 and 2 heads.
    fn deep(blocks: usize) -> String {
        let mut model = Self { values: 1, ..Self::default() };
        let mut x = 0;
        for _ in 0..blocks {
            let normed = model.layer_norm(x);
            let attended = model.attention(normed);
            x = model.node("add", &[x, attended], "", BATCH_SEQUENCE_WIDTH);
            let normed = model.layer_norm(x);
            let wide = model.linear(normed, 8, 16);
            let activated = model.gelu(wide);
            let narrow = model.linear(activated, 16, 8);
            x = model.node("add", &[x, narrow], "", BATCH_SEQUENCE_WIDTH);
        }
        let Self { data, nodes, .. } = model;
        format!(
            "trainyard-ir 1\nmodule @deep imported {{\n{data}  func @forward(%0 \"x\" batched : \
             {BATCH_SEQUENCE_WIDTH}) {{\n{nodes}  }}\n  output \"y\" = %{x}\n}}\n"
        )
    }

    fn node(&mut self, op: &str, operands: &[usize], attributes: &str, ty: &str) -> usize {
        let operands: Vec<String> = operands.iter().map(|operand| format!("%{operand}")).collect();
        let attributes = if attributes.is_empty() { String::new() } else { format!("{{{attributes}}} ") };
        let line = format!("    %{} = {op} {} {attributes}: {ty} !{{fwd}}", self.values, operands.join(", "));
        writeln!(self.nodes, "{line}").expect("a string takes all text");
        self.values += 1;
        self.values - 1
    }

    fn constant(&mut self, ty: &str, elements: &str) -> usize {
        let row = self.rows;
        self.rows += 1;
        writeln!(self.data, "  data @{row} \"row.{row}\" : {ty}{elements}").expect("a string takes all text");
        self.node("constant", &[], &format!("data = @{row}"), ty)
    }

    fn number(&mut self, number: f64) -> usize {
        self.node("splat", &[], &format!("value = {number:?}"), "f32[]")
    }

    /// Adds a linear layer with flattened leading dims, as `addmm` and `Gemm` want them.
    fn linear(&mut self, x: usize, from: usize, to: usize) -> usize {
        let weight = self.constant(&format!("f32[{from}, {to}]"), "");
        let bias = self.constant(&format!("f32[{to}]"), "");
        let flat = self.node("reshape", &[x], "", &format!("f32[8, {from}]"));
        let labels = "lhs = ab, rhs = bc, out = ac";
        let product = self.node("contract", &[flat, weight], labels, &format!("f32[8, {to}]"));
        let sum = self.node("add", &[product, bias], "", &format!("f32[8, {to}]"));
        self.node("reshape", &[sum], "", &format!("f32[2, 4, {to}]"))
    }

    fn layer_norm(&mut self, x: usize) -> usize {
        let (scale, bias) = (self.constant("f32[8]", ""), self.constant("f32[8]", ""));
        let (over_last, one) = ("kind = mean, dims = [2], keep = true", "f32[2, 4, 1]");
        let mean = self.node("reduce", &[x], over_last, one);
        let centred = self.node("sub", &[x, mean], "", BATCH_SEQUENCE_WIDTH);
        let two = self.number(2.0);
        let square = self.node("pow", &[centred, two], "", BATCH_SEQUENCE_WIDTH);
        let variance = self.node("reduce", &[square], over_last, one);
        let eps = self.number(1e-5);
        let shifted = self.node("add", &[variance, eps], "", one);
        let deviation = self.node("sqrt", &[shifted], "", one);
        let normal = self.node("div", &[centred, deviation], "", BATCH_SEQUENCE_WIDTH);
        let scaled = self.node("mul", &[normal, scale], "", BATCH_SEQUENCE_WIDTH);
        self.node("add", &[scaled, bias], "", BATCH_SEQUENCE_WIDTH)
    }

    fn gelu(&mut self, x: usize) -> usize {
        let ty = "f32[2, 4, 16]";
        let [half, one, root] = [0.5, 1.0, std::f64::consts::SQRT_2].map(|number| self.number(number));
        let shrunk = self.node("div", &[x, root], "", ty);
        let erf = self.node("erf", &[shrunk], "", ty);
        let gate = self.node("add", &[erf, one], "", ty);
        let product = self.node("mul", &[x, gate], "", ty);
        self.node("mul", &[product, half], "", ty)
    }

    /// Adds an attention in the SDPA form: fused QKV, a root of the scale on q and on k, a causal mask, the guard.
    fn attention(&mut self, x: usize) -> usize {
        let qkv = self.linear(x, 8, 24);
        let heads = "f32[2, 2, 4, 4]";
        let [q, k, v] = [0, 8, 16].map(|start| {
            let cut = format!("dim = 2, start = {start}, step = 1");
            let part = self.node("slice", &[qkv], &cut, BATCH_SEQUENCE_WIDTH);
            let split = self.node("reshape", &[part], "", "f32[2, 4, 2, 4]");
            self.node("transpose", &[split], "permutation = [0, 2, 1, 3]", heads)
        });
        let mask = self.constant(
            "f32[1, 1, 4, 4]",
            " = [0.0, -inf, -inf, -inf, 0.0, 0.0, -inf, -inf, 0.0, 0.0, 0.0, -inf, 0.0, 0.0, 0.0, 0.0]",
        );
        let root = self.number(std::f64::consts::FRAC_1_SQRT_2);
        let query = self.node("mul", &[q, root], "", heads);
        let turned = self.node("transpose", &[k], "permutation = [0, 1, 3, 2]", heads);
        let key = self.node("mul", &[turned, root], "", heads);
        let scores = self.node("contract", &[query, key], "lhs = abmk, rhs = abkn, out = abmn", heads);
        let masked = self.node("add", &[scores, mask], "", heads);
        let softmax = self.node("softmax", &[masked], "dim = 3", heads);
        let broken = self.node("is_nan", &[softmax], "", "bool[2, 2, 4, 4]");
        let zero = self.number(0.0);
        let guarded = self.node("select", &[broken, zero, softmax], "", heads);
        let weighed = self.node("contract", &[guarded, v], "lhs = abst, rhs = abtd, out = absd", heads);
        let back = self.node("transpose", &[weighed], "permutation = [0, 2, 1, 3]", "f32[2, 4, 2, 4]");
        let merged = self.node("reshape", &[back], "", BATCH_SEQUENCE_WIDTH);
        self.linear(merged, 8, 8)
    }
}

fn canonicalize(module: &mut Module) -> Changed {
    let mut cx = PassContext::default();
    let changed =
        Pass::from(Canonicalize::default()).run(module, &mut cx).expect("canonicalize has no errors");
    assert!(cx.warnings.is_empty(), "{:?}", cx.warnings);
    ir::verify::verify(module).expect("canonicalize makes valid programs");
    changed
}

fn canonical(text: &str) -> Module {
    let mut module = ir::text::parse(text).expect("the model is well-formed");
    assert_eq!(canonicalize(&mut module), Changed::Yes);
    module
}

fn count(module: &Module, op: &str) -> usize {
    module.nodes().filter(|(_, node)| node.op.name() == op).count()
}

#[test]
fn every_pattern_of_24_blocks_is_found() {
    let module = canonical(&Model::deep(24));
    let found = ["attention", "layer_norm", "gelu"].map(|op| count(&module, op));
    assert_eq!(found, [24, 48, 24]);
    // The operators in the patterns are gone; views still split and merge heads.
    for op in ["erf", "softmax", "select", "is_nan", "pow", "sqrt", "div", "reduce"] {
        assert_eq!(count(&module, op), 0, "{op}");
    }
    // q, k, v, the projection, and two of the MLP
    assert_eq!(count(&module, "contract"), 24 * 6);
}

#[test]
fn the_same_model_gives_the_same_text() {
    let text = Model::deep(24);
    assert_eq!(ir::text::print(&canonical(&text)), ir::text::print(&canonical(&text)));
}

#[test]
fn a_second_run_changes_nothing() {
    let mut module = canonical(&Model::deep(4));
    let once = ir::text::print(&module);
    assert_eq!(canonicalize(&mut module), Changed::No);
    assert_eq!(ir::text::print(&module), once);
}

fn outputs(module: &Module, seed: u64) -> StepOutputs {
    let mut states = interp::initial_states(module, seed, Missing::Draw).expect("states can be made");
    let microbatches: Vec<_> = (0..2).map(|index| testing::microbatch(module, seed, index)).collect();
    interp::step(module, Mode::Exact, &mut states, &microbatches).expect("the program runs")
}

/// Returns the largest difference between outputs, relative to their size.
fn difference(before: &StepOutputs, after: &StepOutputs) -> f64 {
    let mut largest: f64 = 0.0;
    assert!(before.keys().eq(after.keys()));
    for (old, new) in before.values().flatten().zip(after.values().flatten()) {
        assert_eq!(old.sizes, new.sizes);
        for (a, b) in old.numbers().iter().zip(new.numbers()) {
            largest = largest.max((a - b).abs() / (1.0 + a.abs()));
        }
    }
    largest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_keep_their_outputs(seed: u64, steps in 1usize..40) {
        let before = testing::program(seed, DType::F64, steps);
        let mut after = before.clone();
        canonicalize(&mut after);
        let difference = difference(&outputs(&before, seed), &outputs(&after, seed));
        prop_assert!(difference <= 1e-12, "seed {}: outputs differ by {}", seed, difference);
    }

    #[test]
    fn random_programs_are_canonical_after_one_run_or_two(seed: u64, steps in 1usize..40) {
        let mut module = testing::program(seed, DType::F64, steps);
        canonicalize(&mut module);
        canonicalize(&mut module);
        let twice = ir::text::print(&module);
        canonicalize(&mut module);
        prop_assert_eq!(ir::text::print(&module), twice);
    }
}
