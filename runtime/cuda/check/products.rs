//! The matrix products in a step of the benchmark's models. The simulator takes their rates.

/// A linear layer on all tokens of a microbatch, with the product of its forward pass and the products of its two gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The model and the layer.
    pub name: String,
    /// The tokens of a microbatch.
    pub tokens: u64,
    /// The width of the input.
    pub input: u64,
    /// The width of the output.
    pub output: u64,
}

/// A product of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient of the input.
    InputGradient,
    /// The gradient of the weight.
    WeightGradient,
}

impl Pass {
    /// All passes, with their names.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Forward, "forward"),
        (Self::InputGradient, "input_gradient"),
        (Self::WeightGradient, "weight_gradient"),
    ];
}

impl Layer {
    /// Returns the layers of the benchmark's models at its microbatches, in the order of the models' sizes. A shape that a model has
    /// several times is listed once.
    pub fn of_benchmark() -> Vec<Self> {
        let models = [
            ("gpt2-124m", 16 * 1024, 768, 50304),
            ("gpt2-350m", 8 * 1024, 1024, 50304),
            ("gpt2-1.5b", 8 * 1024, 1600, 50304),
        ];
        let gpt2 = models.into_iter().flat_map(|(model, tokens, width, vocabulary)| {
            let layers = [
                ("qkv", width, 3 * width),
                ("projection", width, width),
                ("up", width, 4 * width),
                ("down", 4 * width, width),
                ("head", width, vocabulary),
            ];
            layers.map(|layer| (model, tokens, layer))
        });
        let llama = [
            // Layers with the same input are joined.
            ("qkv", 2048, 3072),
            ("projection", 2048, 2048),
            ("gate_up", 2048, 16384),
            ("down", 8192, 2048),
            ("head", 2048, 128_256),
        ];
        let llama = llama.map(|layer| ("llama-1b", 4 * 2048, layer));
        let layer = |(model, tokens, (layer, input, output))| Self {
            name: format!("{model}_{layer}"),
            tokens,
            input,
            output,
        };
        gpt2.chain(llama).map(layer).collect()
    }

    /// Returns the text of a product as a contraction, and the sizes of its operands.
    pub fn product(&self, pass: Pass) -> (String, [[u64; 2]; 2]) {
        // A weight has the layout of PyTorch's `Linear`.
        let [lhs, rhs, out] = match pass {
            Pass::Forward => ["ti", "oi", "to"],
            Pass::InputGradient => ["to", "oi", "ti"],
            Pass::WeightGradient => ["to", "ti", "oi"],
        };
        let size = |dim: char| match dim {
            't' => self.tokens,
            'i' => self.input,
            _ => self.output,
        };
        let sizes = [lhs, rhs].map(|dims| {
            let mut sizes = dims.chars().map(size);
            [(); 2].map(|()| sizes.next().expect("each operand has two dims"))
        });
        (format!("{lhs},{rhs}->{out}"), sizes)
    }

    /// Returns the operations of each product.
    pub fn flops(&self) -> f64 {
        2.0 * self.tokens as f64 * self.input as f64 * self.output as f64
    }
}
