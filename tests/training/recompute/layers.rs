//! Random models of layers `x + f(x)`: products, norms, activation functions, attention and dropout.

use ir::ops::Float;
use ir::ops::attention::Attention;
use ir::ops::contract::Contract;
use ir::ops::dropout::Dropout;
use ir::ops::elementwise::Unary;
use ir::ops::norm::LayerNorm;
use ir::ops::softmax::Softmax;
use ir::testing::Choices;
use ir::{Builder, DType, Dim, Initializer, Module, Role, ScalarPart, StepOutput, Type, TypeError, ValueId};

/// A forward program of `layers` layers, with the output `loss`. Its batch is even.
pub(super) fn program(seed: u64, layers: usize) -> Module {
    let mut module = Module::new(format!("layers_{seed}"));
    let mut choices = Choices::new(seed);
    let sizes = [2, choices.of(&[2, 4, 8]), choices.of(&[4, 8, 16])];
    let input = module.add_input("x", Type::of(DType::F32, &sizes), true);
    let b = Builder::new(&mut module, "random");
    let mut model = Model { b, choices, sizes, dropouts: 0 };
    let (sum, weight) = model.build(input, layers).expect("the layers are well typed");
    model.b.finish();
    module.add_output(StepOutput::loss(0, ScalarPart::Sum), sum);
    module.add_output(StepOutput::loss(0, ScalarPart::Weight), weight);
    module
}

/// Adds an operator to a value of the model's sizes.
type Kind<M> = fn(&mut M, ValueId) -> Result<ValueId, TypeError>;

struct Model<'m> {
    b: Builder<'m>,
    choices: Choices,
    /// Samples, positions, and the width of a position.
    sizes: [u64; 3],
    dropouts: u32,
}

impl Model<'_> {
    fn build(&mut self, input: ValueId, layers: usize) -> Result<(ValueId, ValueId), TypeError> {
        // Every second model has equal layers.
        let equal = self.choices.below(2) == 0;
        let first = self.choices;
        let mut x = input;
        for layer in 0..layers {
            if equal {
                self.choices = first;
            }
            self.b.origin(format!("/layer.{layer}"));
            let more = self.layer(x)?;
            x = self.b.build(x + more)?;
            if self.choices.below(4) == 0 {
                x = self.b.one(Unary::Tanh, &[x])?;
            }
        }
        self.b.origin("/loss");
        let square = self.b.build(x * x)?;
        let sum = self.b.sum(square, &[0, 1, 2])?;
        Ok((sum, self.b.scalar(DType::F32, self.sizes[0] as f64)?))
    }

    /// One to four operators on a value of the model's sizes.
    fn layer(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        let kinds: [Kind<Self>; 6] =
            [Self::linear, Self::expanded, Self::norm, Self::function, Self::attention, Self::dropout];
        let mut value = x;
        for _ in 0..1 + self.choices.below(4) {
            value = self.choices.of(&kinds)(self, value)?;
        }
        self.b.build(value * 0.5)
    }

    fn weight(&mut self, sizes: &[u64]) -> ValueId {
        let name = format!("w{}", self.b.module().states.len());
        let normal = Initializer::Normal { std: 0.3f64.to_bits(), data: None };
        let id = self.b.tables().add_state(name, Type::of(DType::F32, sizes), Role::Parameter, normal);
        self.b.module().states[id].input
    }

    fn linear(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        let width = self.sizes[2];
        let weight = self.weight(&[width, width]);
        self.b.one(Contract::new("bsd,do->bso"), &[x, weight])
    }

    fn expanded(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        let (width, inner) = (self.sizes[2], 2 * self.sizes[2]);
        let (up, down) = (self.weight(&[width, inner]), self.weight(&[inner, width]));
        let x = self.b.one(Contract::new("bsd,do->bso"), &[x, up])?;
        let x = self.function(x)?;
        self.b.one(Contract::new("bso,od->bsd"), &[x, down])
    }

    fn norm(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        let (scale, bias) = (self.weight(&[self.sizes[2]]), self.weight(&[self.sizes[2]]));
        Ok(self.b.push(LayerNorm { eps: Float::new(1e-5) }, &[x, scale, bias])?[0])
    }

    fn function(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        match self.choices.below(4) {
            0 => self.b.one(Softmax { dim: 2 }, &[x]),
            kind => self.b.one([Unary::Tanh, Unary::GeluTanh, Unary::Sigmoid][kind - 1], &[x]),
        }
    }

    fn attention(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        let [batch, length, width] = self.sizes;
        let split = |model: &mut Self| {
            let flat = model.linear(x)?;
            let heads = model.b.reshape(flat, [batch, length, 2, width / 2].map(Dim::known))?;
            model.b.transpose(heads, &[0, 2, 1, 3])
        };
        let (q, k, v) = (split(self)?, split(self)?, split(self)?);
        let causal = self.choices.below(2) == 0;
        let attended = self.b.push(Attention { scale: Float::new(0.7), causal }, &[q, k, v])?[0];
        let back = self.b.transpose(attended, &[0, 2, 1, 3])?;
        self.b.reshape(back, self.sizes.map(Dim::known))
    }

    fn dropout(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.dropouts += 1;
        let op = Dropout { ratio: Float::new(0.25), id: self.dropouts, seed: 0, dim: 0 };
        self.b.one(op, &[x])
    }
}
