//! Activations by name. Gates of recurrent layers have names of activations, so do products and convolutions into which ONNX Runtime fuses
//! an activation, and so do nodes.

use super::activation;
use super::arithmetic::Built;
use super::context::{Context, Problem};
use ir::ValueId;
use ir::ops::elementwise::Unary;

/// An activation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gate {
    kind: Kind,
    alpha: f64,
    beta: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Affine,
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    ScaledTanh,
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu,
}

/// The name, and the defaults of alpha and beta, where the activation has them.
const KINDS: &[(&str, Kind, Option<f64>, Option<f64>)] = &[
    ("Affine", Kind::Affine, Some(1.0), Some(0.0)),
    ("Elu", Kind::Elu, Some(1.0), None),
    ("HardSigmoid", Kind::HardSigmoid, Some(0.2), Some(0.5)),
    ("LeakyRelu", Kind::LeakyRelu, Some(0.01), None),
    ("Relu", Kind::Relu, None, None),
    ("ScaledTanh", Kind::ScaledTanh, Some(1.0), Some(1.0)),
    ("Sigmoid", Kind::Sigmoid, None, None),
    ("Softplus", Kind::Softplus, None, None),
    ("Softsign", Kind::Softsign, None, None),
    ("Tanh", Kind::Tanh, None, None),
    ("ThresholdedRelu", Kind::ThresholdedRelu, Some(1.0), None),
];

impl Gate {
    pub(super) const SIGMOID: Self = Self::plain(Kind::Sigmoid);
    pub(super) const TANH: Self = Self::plain(Kind::Tanh);
    pub(super) const RELU: Self = Self::plain(Kind::Relu);

    /// Returns an activation without parameters.
    const fn plain(kind: Kind) -> Self {
        Self { kind, alpha: 0.0, beta: 0.0 }
    }

    /// Returns the activations with these names. Each list has the numbers of all activations that have such a parameter, in
    /// order.
    pub(super) fn all(names: &[&str], alphas: &[f64], betas: &[f64]) -> Result<Vec<Self>, Problem> {
        let (mut alphas, mut betas) = (alphas.iter().copied(), betas.iter().copied());
        let gates = names.iter().map(|name| Self::take(name, &mut alphas, &mut betas));
        let gates = gates.collect::<Result<Vec<_>, Problem>>()?;
        match (alphas.len(), betas.len()) {
            (0, 0) => Ok(gates),
            (alphas, betas) => Err(Problem::new(format!(
                "the activations {names:?} take {} fewer parameters than the node gives",
                alphas + betas
            ))),
        }
    }

    /// Returns the activation with this name and these parameters.
    pub(super) fn named(name: &str, alpha: Option<f64>, beta: Option<f64>) -> Result<Self, Problem> {
        Self::take(name, &mut alpha.into_iter(), &mut beta.into_iter())
    }

    fn take(
        name: &str,
        alphas: &mut dyn Iterator<Item = f64>,
        betas: &mut dyn Iterator<Item = f64>,
    ) -> Result<Self, Problem> {
        let known = KINDS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
        let &(_, kind, alpha, beta) =
            known.ok_or_else(|| Problem::new(format!("the activation `{name}` is unknown")))?;
        let number = |list: &mut dyn Iterator<Item = f64>, default: Option<f64>| {
            default.map_or(0.0, |default| list.next().unwrap_or(default))
        };
        Ok(Self { kind, alpha: number(alphas, alpha), beta: number(betas, beta) })
    }

    /// Applies the activation to a value.
    pub(super) fn of(self, cx: &mut Context, x: ValueId) -> Built {
        let Self { kind, alpha, beta } = self;
        match kind {
            Kind::Affine => cx.build(x * alpha + beta),
            Kind::Elu => activation::elu(cx, x, alpha),
            Kind::HardSigmoid => activation::hard_sigmoid(cx, x, alpha, beta),
            Kind::LeakyRelu => activation::leaky_relu(cx, x, alpha),
            Kind::Relu => cx.build(Unary::Relu.of(x)),
            Kind::ScaledTanh => cx.build(Unary::Tanh.of(x * beta) * alpha),
            Kind::Sigmoid => cx.build(Unary::Sigmoid.of(x)),
            Kind::Softplus => activation::softplus(cx, x),
            Kind::Softsign => activation::softsign(cx, x),
            Kind::Tanh => cx.build(Unary::Tanh.of(x)),
            Kind::ThresholdedRelu => activation::thresholded_relu(cx, x, alpha),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_to_the_activations_that_take_them_in_their_order() {
        let gates = Gate::all(&["tanh", "HardSigmoid", "Elu"], &[0.1, 0.7], &[0.3]).unwrap();
        assert_eq!((gates[1].alpha, gates[1].beta, gates[2].alpha), (0.1, 0.3, 0.7));
        let gates = Gate::all(&["HardSigmoid", "LeakyRelu"], &[], &[]).unwrap();
        assert_eq!((gates[0].alpha, gates[0].beta, gates[1].alpha), (0.2, 0.5, 0.01));
        assert!(Gate::all(&["Tanh"], &[0.1], &[]).is_err());
        assert!(Gate::all(&["Gelu"], &[], &[]).is_err());
    }
}
