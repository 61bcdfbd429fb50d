//! Decoders in the form that `canonicalize` gives them, as text: any number of blocks of any size.

use ir::Module;
use std::fmt::Write;

/// The sizes of a decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) blocks: usize,
    pub(crate) batch: usize,
    pub(crate) sequence: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
}

impl Sizes {
    /// Returns a GPT of these sizes with learned positions, up to its logits. It has four times as many tokens as features.
    pub(crate) fn decoder(self) -> Module {
        let text = Text { sizes: self, ..Text::default() }.decoder();
        ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self { blocks: 1, batch: 4, sequence: 8, width: 16, heads: 4 }
    }
}

/// The first number of the values of nodes. Parameters have lower numbers.
const FIRST: usize = 10_000;

/// A module while it is written.
#[derive(Default)]
struct Text {
    sizes: Sizes,
    states: String,
    parameters: String,
    nodes: String,
    values: usize,
}

impl Text {
    fn decoder(mut self) -> String {
        let Sizes { blocks, batch, sequence, width, .. } = self.sizes;
        let (vocabulary, activation) = (4 * width, self.rows(width));
        let table = self.parameter("wte", &format!("f32[{vocabulary}, {width}]"));
        let positions = self.parameter("wpe", &format!("f32[{sequence}, {width}]"));
        let tokens = self.node("gather", &[table, 0], "dim = 0", &activation);
        let mut x = self.node("add", &[tokens, positions], "", &activation);
        for block in 0..blocks {
            x = self.block(&format!("h.{block}"), x);
        }
        let last = self.norm("ln_f", x);
        let head = self.parameter("head", &format!("f32[{width}, {vocabulary}]"));
        let logits = self.product(last, head, vocabulary);
        let Self { states, parameters, nodes, .. } = self;
        format!(
            "trainyard-ir 1\nmodule @decoder imported {{\n{states}  \
             func @forward(%0 \"ids\" batched : i64[{batch}, {sequence}]{parameters}) {{\n{nodes}  }}\n  \
             output \"logits\" = %{logits}\n}}\n"
        )
    }

    /// Adds `x + attention(norm(x))`, then `x + mlp(norm(x))`.
    fn block(&mut self, name: &str, x: usize) -> usize {
        let width = self.sizes.width;
        let (narrow, wide) = (self.rows(width), self.rows(4 * width));
        let normed = self.norm(&format!("{name}.ln_1"), x);
        let attended = self.attention(&format!("{name}.attn"), normed);
        let x = self.node("add", &[x, attended], "", &narrow);
        let normed = self.norm(&format!("{name}.ln_2"), x);
        let hidden = self.linear(&format!("{name}.fc"), normed, width, 4 * width);
        let active = self.node("gelu", &[hidden], "", &wide);
        let out = self.linear(&format!("{name}.proj"), active, 4 * width, width);
        self.node("add", &[x, out], "", &narrow)
    }

    fn attention(&mut self, name: &str, x: usize) -> usize {
        let Sizes { batch, sequence, width, heads, .. } = self.sizes;
        let [rows, columns] = [
            format!("f32[{batch}, {sequence}, {heads}, {}]", width / heads),
            format!("f32[{batch}, {heads}, {sequence}, {}]", width / heads),
        ];
        let swap = "permutation = [0, 2, 1, 3]";
        let parts = ["q", "k", "v"].map(|part| {
            let part = self.linear(&format!("{name}.{part}"), x, width, width);
            let split = self.node("reshape", &[part], "", &rows);
            self.node("transpose", &[split], swap, &columns)
        });
        let types = format!("{columns}, f32[{batch}, {heads}, {sequence}]");
        let attended = self.node("attention", &parts, "scale = 0.5, causal = true", &types);
        let back = self.node("transpose", &[attended], swap, &rows);
        let merged = self.node("reshape", &[back], "", &self.rows(width));
        self.linear(&format!("{name}.out"), merged, width, width)
    }

    fn norm(&mut self, name: &str, x: usize) -> usize {
        let Sizes { batch, sequence, width, .. } = self.sizes;
        let weights = ["weight", "bias"]
            .map(|part| self.parameter(&format!("{name}.{part}"), &format!("f32[{width}]")));
        let types = format!("{}, f32[{batch}, {sequence}], f32[{batch}, {sequence}]", self.rows(width));
        self.node("layer_norm", &[x, weights[0], weights[1]], "eps = 1e-5", &types)
    }

    fn linear(&mut self, name: &str, x: usize, from: usize, to: usize) -> usize {
        let weight = self.parameter(&format!("{name}.weight"), &format!("f32[{from}, {to}]"));
        let bias = self.parameter(&format!("{name}.bias"), &format!("f32[{to}]"));
        let product = self.product(x, weight, to);
        self.node("add", &[product, bias], "", &self.rows(to))
    }

    fn product(&mut self, x: usize, weight: usize, to: usize) -> usize {
        self.node("contract", &[x, weight], "lhs = abc, rhs = cd, out = abd", &self.rows(to))
    }

    /// Returns the type of a tensor with `width` features at every position.
    fn rows(&self, width: usize) -> String {
        format!("f32[{}, {}, {width}]", self.sizes.batch, self.sizes.sequence)
    }

    fn parameter(&mut self, name: &str, ty: &str) -> usize {
        let id = 1 + self.states.lines().count();
        writeln!(self.states, "  state @{name} : {ty} parameter = normal 0.2").expect("a string takes all");
        write!(self.parameters, ", %{id} = @{name}").expect("a string takes all");
        id
    }

    /// Adds a node with the name of the latest parameters. Returns the number of its first result.
    fn node(&mut self, op: &str, operands: &[usize], attributes: &str, types: &str) -> usize {
        let operands = operands.iter().map(|operand| format!("%{operand}")).collect::<Vec<_>>().join(", ");
        let attributes = if attributes.is_empty() { String::new() } else { format!("{{{attributes}}} ") };
        let first = FIRST + self.values;
        self.values += types.matches('[').count();
        let results = (first..FIRST + self.values).map(|value| format!("%{value}"));
        let results = results.collect::<Vec<_>>().join(", ");
        writeln!(self.nodes, "    {results} = {op} {operands} {attributes}: {types} !{{fwd}}")
            .expect("a string takes all");
        first
    }
}
