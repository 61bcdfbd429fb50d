//! Collectives on transformers: Megatron-LM's sequence parallelism comes out by itself where it pays, and no number
//! changes.

use ir::ops::collective::Collective;
use ir::{Module, Op, Phase};
use passes::{Manager, PassContext, Pipeline};
use std::fmt::Write;

/// A decoder as `canonicalize` leaves it, written as text.
struct Decoder {
    blocks: usize,
    batch: usize,
    sequence: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
    states: String,
    parameters: String,
    nodes: String,
    values: usize,
}

impl Decoder {
    fn new(blocks: usize, batch: usize, sequence: usize, width: usize) -> Self {
        let (heads, vocabulary) = (4, 4 * width);
        let (states, parameters, nodes) = Default::default();
        // Values below 10,000 are parameters.
        Self { blocks, batch, sequence, width, heads, vocabulary, states, parameters, nodes, values: 10_000 }
    }

    fn text(mut self) -> String {
        let (b, s, h, v) = (self.batch, self.sequence, self.width, self.vocabulary);
        let table = self.parameter("wte", &format!("f32[{v}, {h}]"));
        let positions = self.parameter("wpe", &format!("f32[{s}, {h}]"));
        let tokens = self.node("gather", &[table, 0], "dim = 0", &self.activation());
        let mut x = self.node("add", &[tokens, positions], "", &self.activation());
        for block in 0..self.blocks {
            x = self.block(&format!("h.{block}"), x);
        }
        let last = self.norm("ln_f", x);
        let head = self.parameter("head", &format!("f32[{h}, {v}]"));
        let logits = self.node(
            "contract",
            &[last, head],
            "lhs = abc, rhs = cd, out = abd",
            &format!("f32[{b}, {s}, {v}]"),
        );
        let Self { states, parameters, nodes, .. } = self;
        format!(
            "trainyard-ir 1\nmodule @decoder imported {{\n{states}  func @forward(%0 \"ids\" batched : i64[{b}, {s}]{parameters}) {{\n\
             {nodes}  }}\n  output \"logits\" = %{logits}\n}}\n"
        )
    }

    fn activation(&self) -> String {
        format!("f32[{}, {}, {}]", self.batch, self.sequence, self.width)
    }

    fn parameter(&mut self, name: &str, ty: &str) -> usize {
        let id = 1 + self.states.lines().count();
        writeln!(self.states, "  state @{name} : {ty} parameter = normal 0.2").unwrap();
        write!(self.parameters, ", %{id} = @{name}").unwrap();
        id
    }

    fn node(&mut self, op: &str, operands: &[usize], attributes: &str, types: &str) -> usize {
        let operands: Vec<String> = operands.iter().map(|operand| format!("%{operand}")).collect();
        let attributes = if attributes.is_empty() { String::new() } else { format!("{{{attributes}}} ") };
        let results = types.matches('[').count();
        let names: Vec<String> = (0..results).map(|i| format!("%{}", self.values + i)).collect();
        let line =
            format!("{} = {op} {} {attributes}: {types} !{{fwd}}", names.join(", "), operands.join(", "));
        writeln!(self.nodes, "    {line}").unwrap();
        self.values += results;
        self.values - results
    }

    fn norm(&mut self, name: &str, x: usize) -> usize {
        let (b, s, h) = (self.batch, self.sequence, self.width);
        let [scale, bias] =
            ["weight", "bias"].map(|part| self.parameter(&format!("{name}.{part}"), &format!("f32[{h}]")));
        let statistic = format!("f32[{b}, {s}]");
        let types = format!("{}, {statistic}, {statistic}", self.activation());
        self.node("layer_norm", &[x, scale, bias], "eps = 1e-5", &types)
    }

    fn linear(&mut self, name: &str, x: usize, from: usize, to: usize) -> usize {
        let weight = self.parameter(&format!("{name}.weight"), &format!("f32[{from}, {to}]"));
        let bias = self.parameter(&format!("{name}.bias"), &format!("f32[{to}]"));
        let ty = format!("f32[{}, {}, {to}]", self.batch, self.sequence);
        let product = self.node("contract", &[x, weight], "lhs = abc, rhs = cd, out = abd", &ty);
        self.node("add", &[product, bias], "", &ty)
    }

    fn attention(&mut self, name: &str, x: usize) -> usize {
        let (b, s, h, n) = (self.batch, self.sequence, self.width, self.heads);
        let d = h / n;
        let heads = format!("f32[{b}, {n}, {s}, {d}]");
        let parts = ["q", "k", "v"].map(|part| {
            let part = self.linear(&format!("{name}.{part}"), x, h, h);
            let split = self.node("reshape", &[part], "", &format!("f32[{b}, {s}, {n}, {d}]"));
            self.node("transpose", &[split], "permutation = [0, 2, 1, 3]", &heads)
        });
        let types = format!("{heads}, f32[{b}, {n}, {s}]");
        let attended = self.node("attention", &parts, "scale = 0.5, causal = true", &types);
        let back = self.node(
            "transpose",
            &[attended],
            "permutation = [0, 2, 1, 3]",
            &format!("f32[{b}, {s}, {n}, {d}]"),
        );
        let merged = self.node("reshape", &[back], "", &self.activation());
        self.linear(&format!("{name}.out"), merged, h, h)
    }

    fn block(&mut self, name: &str, x: usize) -> usize {
        let (h, ty) = (self.width, self.activation());
        let normed = self.norm(&format!("{name}.ln_1"), x);
        let attended = self.attention(&format!("{name}.attn"), normed);
        let x = self.node("add", &[x, attended], "", &ty);
        let normed = self.norm(&format!("{name}.ln_2"), x);
        let wide = self.linear(&format!("{name}.fc"), normed, h, 4 * h);
        let active =
            self.node("gelu", &[wide], "", &format!("f32[{}, {}, {}]", self.batch, self.sequence, 4 * h));
        let narrow = self.linear(&format!("{name}.proj"), active, 4 * h, h);
        self.node("add", &[x, narrow], "", &ty)
    }
}

fn run(module: &mut Module, pipeline: &str) {
    let (pipeline, mut cx) = (pipeline.parse::<Pipeline>().unwrap(), PassContext::default());
    let end = Manager::default().run(&pipeline, module, &mut cx, |_, _, _| {});
    let timings = end.unwrap_or_else(|failure| panic!("{failure}"));
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{timings:?}");
    }
    assert!(cx.warnings.is_empty(), "{:?}", cx.warnings);
}

/// The step of a decoder on a mesh.
fn placed(decoder: Decoder, spmd: &str) -> Module {
    let mut module = ir::text::parse(&decoder.text()).unwrap_or_else(|error| panic!("{error}"));
    run(&mut module, &format!("loss autodiff optimizer(adamw, lr=0.01) simplify spmd({spmd})"));
    module
}

/// How many collectives of each kind a phase has; on activations (three dims) or on others.
fn count(module: &Module, phase: Phase, activations: bool) -> [usize; 5] {
    use Collective::{AllGather, AllReduce, AllSlice, AllToAll, ReduceScatter};
    [AllReduce, AllGather, ReduceScatter, AllToAll, AllSlice].map(|kind| {
        let nodes = module.nodes().filter(|(_, node)| {
            let large = module.ty(node.results[0]).ndim() >= 3;
            node.phase == phase && node.op == Op::from(kind) && large == activations
        });
        nodes.count()
    })
}

#[test]
fn large_sequences_are_split_between_the_regions_of_tensor_parallelism() {
    let blocks: usize = std::env::var("BLOCKS").map_or(24, |b| b.parse().unwrap());
    let mut module = placed(Decoder::new(blocks, 8, 2048, 4096), "mesh=dp:2*tp:4");
    for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
        eprintln!("{phase:?} {:?} {:?}", count(&module, phase, true), count(&module, phase, false));
    }
    run(&mut module, "collectives");
    for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
        eprintln!("{phase:?} {:?} {:?}", count(&module, phase, true), count(&module, phase, false));
    }
}
