//! GPT models of any size as imported programs, without weights: for predictions and for formulas of memory.

use std::fmt::Write as _;

use ir::Module;

use super::done;

/// The sizes of a GPT as in Megatron-LM (arXiv 1909.08053). It has a learned embedding of positions, and blocks of attention and of a
/// feed-forward part four times as wide. The embedding of tokens also makes the logits.
#[derive(Clone, Copy, Debug)]
pub struct Gpt {
    /// Sequences of a microbatch.
    pub batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Numbers of a token.
    pub hidden: u64,
    /// Heads of attention, each of `hidden / heads` numbers.
    pub heads: u64,
    /// Blocks.
    pub layers: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
    /// Whether dropout with ratio 0.1 follows the embedding, the attention probabilities and each part of a block. Attention is then not
    /// fused.
    pub dropout: bool,
}

impl Gpt {
    /// Elements of all parameters.
    pub fn parameters(&self) -> u64 {
        let Self { sequence, hidden, layers, vocabulary, .. } = self;
        layers * (12 * hidden * hidden + 13 * hidden) + (vocabulary + sequence + 2) * hidden
    }

    /// Floating-point operations of a step of `sequences` sequences in which forward runs twice (arXiv 2104.04473, section 3).
    pub fn flops_with_full_recompute(&self, sequences: u64) -> f64 {
        let [s, h, layers, v] =
            [self.sequence, self.hidden, self.layers, self.vocabulary].map(|size| size as f64);
        96.0 * sequences as f64 * s * layers * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * layers * h))
    }

    /// The program.
    pub fn imported(&self) -> Module {
        let mut text = Text::default();
        let Self { batch, sequence, hidden, layers, vocabulary, .. } = *self;
        let tokens = format!("{batch}, {sequence}");
        let embedding = text.weight("embed.weight", &format!("{vocabulary}, {hidden}"));
        let positions = text.weight("positions.weight", &format!("{sequence}, {hidden}"));
        let ids = text.node("cast %0 {to = i64}", &format!("i64[{tokens}]"));
        let stream = format!("f32[{tokens}, {hidden}]");
        let tokens = text.node(&format!("gather {embedding}, {ids} {{dim = 0}}"), &stream);
        let x = text.node(&format!("add {tokens}, {positions}"), &stream);
        let mut x = self.dropped(&mut text, x, &stream);
        for layer in 0..layers {
            x = self.block(&mut text, layer, &x, &stream);
        }
        let x = self.norm(&mut text, "norm", &x, &stream);
        let logits = format!("f32[{batch}, {sequence}, {vocabulary}]");
        let y = text.node(&format!("contract {x}, {embedding} {{lhs = amk, rhs = nk, out = amn}}"), &logits);
        let Text { data, nodes, .. } = text;
        let inputs = format!("%0 \"input_ids\" batched : i64[{batch}, {sequence}]");
        let text = format!(
            "trainyard-ir 1\nmodule @gpt imported {{\n{data}  func @forward({inputs}) {{\n{nodes}  }}\n  output \"logits\" = {y}\n}}\n"
        );
        done(ir::text::parse(&text))
    }

    fn block(&self, text: &mut Text, layer: u64, x: &str, stream: &str) -> String {
        let Self { batch, sequence, hidden, heads, .. } = *self;
        let (width, wide) = (hidden / heads, 4 * hidden);
        let name = |part: &str| format!("layers.{layer}.{part}");
        let y = self.norm(text, &name("norm1"), x, stream);
        let split = format!("f32[{batch}, {sequence}, {heads}, {width}]");
        let by_head = format!("f32[{batch}, {heads}, {sequence}, {width}]");
        let [q, k, v] = ["q", "k", "v"].map(|part| {
            let y = linear(text, &name(part), &y, [hidden, hidden], stream);
            let y = text.node(&format!("reshape {y}"), &split);
            text.node(&format!("transpose {y} {{permutation = [0, 2, 1, 3]}}"), &by_head)
        });
        let scores = format!("f32[{batch}, {heads}, {sequence}, {sequence}]");
        let s = text.node(&format!("contract {q}, {k} {{lhs = abmk, rhs = abnk, out = abmn}}"), &scores);
        let scale = text.node(&format!("splat {{value = {:?}}}", (width as f64).powf(-0.5)), "f32[]");
        let s = text.node(&format!("mul {s}, {scale}"), &scores);
        let mask = self.mask(text);
        let s = text.node(&format!("add {s}, {mask}"), &scores);
        let p = text.node(&format!("softmax {s} {{dim = 3}}"), &scores);
        let p = self.dropped(text, p, &scores);
        let y = text.node(&format!("contract {p}, {v} {{lhs = abmn, rhs = abnk, out = abmk}}"), &by_head);
        let y = text.node(&format!("transpose {y} {{permutation = [0, 2, 1, 3]}}"), &split);
        let y = text.node(&format!("reshape {y}"), stream);
        let y = linear(text, &name("o"), &y, [hidden, hidden], stream);
        let y = self.dropped(text, y, stream);
        let x = text.node(&format!("add {x}, {y}"), stream);
        let y = self.norm(text, &name("norm2"), &x, stream);
        let inner = format!("f32[{batch}, {sequence}, {wide}]");
        let y = linear(text, &name("up"), &y, [hidden, wide], &inner);
        let y = text.node(&format!("gelu_tanh {y}"), &inner);
        let y = linear(text, &name("down"), &y, [wide, hidden], stream);
        let y = self.dropped(text, y, stream);
        text.node(&format!("add {x}, {y}"), stream)
    }

    /// The causal mask, whose elements are 0 or the smallest number.
    fn mask(&self, text: &mut Text) -> String {
        let size = self.sequence;
        let row = text.node("iota {dim = 0}", &format!("i64[{size}, 1]"));
        let column = text.node("iota {dim = 1}", &format!("i64[1, {size}]"));
        let hidden = text.node(&format!("less {row}, {column}"), &format!("bool[{size}, {size}]"));
        let zero = text.node("splat {value = 0.0}", "f32[]");
        let low = text.node("splat {value = -3.4028234663852886e38}", "f32[]");
        text.node(&format!("select {hidden}, {low}, {zero}"), &format!("f32[{size}, {size}]"))
    }

    fn norm(&self, text: &mut Text, name: &str, x: &str, stream: &str) -> String {
        let [scale, bias] =
            ["weight", "bias"].map(|part| text.weight(&format!("{name}.{part}"), &self.hidden.to_string()));
        let rows = format!("f32[{}, {}]", self.batch, self.sequence);
        text.node_of_three(&format!("layer_norm {x}, {scale}, {bias} {{eps = 1e-5}}"), [stream, &rows, &rows])
    }

    fn dropped(&self, text: &mut Text, x: String, ty: &str) -> String {
        if !self.dropout {
            return x;
        }
        text.draws += 1;
        text.node(&format!("dropout {x} {{ratio = 0.1, id = {}, seed = 0, dim = 0}}", text.draws - 1), ty)
    }
}

fn linear(text: &mut Text, name: &str, x: &str, [from, to]: [u64; 2], ty: &str) -> String {
    let weight = text.weight(&format!("{name}.weight"), &format!("{from}, {to}"));
    let bias = text.weight(&format!("{name}.bias"), &to.to_string());
    let y = text.node(&format!("contract {x}, {weight} {{lhs = amk, rhs = kn, out = amn}}"), ty);
    text.node(&format!("add {y}, {bias}"), ty)
}

/// The text of a program, while it is built.
#[derive(Default)]
struct Text {
    data: String,
    nodes: String,
    /// The number of data and of values so far.
    weights: usize,
    values: usize,
    draws: usize,
}

impl Text {
    /// A parameter without bytes, as a value.
    fn weight(&mut self, name: &str, sizes: &str) -> String {
        let number = self.weights;
        self.weights += 1;
        let _ = writeln!(self.data, "  data @{number} \"{name}\" : f32[{sizes}] parameter");
        self.node(&format!("constant {{data = @{number}}}"), &format!("f32[{sizes}]"))
    }

    fn node(&mut self, operation: &str, ty: &str) -> String {
        self.values += 1;
        let value = format!("%{}", self.values);
        let _ = writeln!(self.nodes, "    {value} = {operation} : {ty} !{{fwd}}");
        value
    }

    /// Adds a node of three results, and returns the first.
    fn node_of_three(&mut self, operation: &str, types: [&str; 3]) -> String {
        let first = self.values + 1;
        self.values += 3;
        let values = format!("%{first}, %{}, %{}", first + 1, first + 2);
        let _ = writeln!(self.nodes, "    {values} = {operation} : {} !{{fwd}}", types.join(", "));
        format!("%{first}")
    }
}
