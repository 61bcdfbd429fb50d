//! The outputs of a step that the compiler adds to the model's outputs, and their names in a program.

use std::fmt;

/// An output that a pass adds, and that another pass or the runtime reads. Its text is the name of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutput<'a> {
    /// `loss`: the mean loss over the global batch, computed in the update.
    Loss,
    /// `lr`: the learning rate of this step.
    LearningRate,
    /// `grad_norm`: the norm of all gradients, before clipping.
    GradientNorm,
    /// `grad.NAME`: the gradient of the parameter `NAME`.
    Gradient(&'a str),
    /// `loss.sum`, `loss.1.weight`, `metric.NAME.floor`: a part of a class of a scalar, for one microbatch.
    Part {
        /// The scalar.
        scalar: Scalar<'a>,
        /// The class, from 0; class 0 is left out of the name.
        class: usize,
        /// The part.
        part: ScalarPart,
    },
    /// `loss.unsmoothed`: the sum of the losses without label smoothing, which an evaluation reads instead of `loss.sum`.
    UnsmoothedSum,
    /// `loss.penalty`: a scalar of one microbatch that is minimised together with the loss, such as the balance losses of experts.
    /// The pass `loss` reads it.
    Penalty,
    /// `loss.objective`: the sum that is differentiated instead of `loss.sum`: it includes the penalty times the weight.
    Objective,
    /// `metric.NAME`: a scalar of the model that is not trained, for the global batch.
    Metric(&'a str),
    /// `load.NAME`: for each expert of the router `NAME`, the number of choices that fell on it, `[experts]`. It counts one
    /// microbatch, or the global batch once the program has an update.
    Load(&'a str),
    /// `skipped`: whether this step changes only the states of the scaler.
    Skipped,
    /// `loss_scale`: the loss scale of this step.
    LossScale,
    /// `loss_scale.exhausted`: whether the step is skipped although the loss scale is already the smallest allowed.
    ScaleExhausted,
}

/// A scalar that is the sum of its classes. Each class is a sum over positions divided by a weight.
///
/// Over several microbatches, a class has the value `Σ sum / (max(Σ weight, floor) + epsilon)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// The loss, `loss`.
    Loss,
    /// Another scalar of the model, `metric.NAME`.
    Metric(&'a str),
}

/// A part of a class of a [`Scalar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScalarPart {
    /// `sum`: the sum over the positions.
    Sum,
    /// `weight`: the divisor, such as the number of positions.
    Weight,
    /// `floor`: the smallest divisor; there is no such output if it is 0.
    Floor,
    /// `epsilon`: a number added to the divisor; there is no such output if it is 0.
    Epsilon,
    /// `count`: the number of samples, by which the floor and the epsilon of a mean are multiplied. Without this output they apply
    /// to the whole sum.
    Count,
}

const LOSS: &str = "loss";
const METRIC: &str = "metric.";
const LOAD: &str = "load.";

impl ScalarPart {
    /// Every part.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Weight, Self::Floor, Self::Epsilon, Self::Count];

    /// Whether the numbers of several microbatches are added. The other parts are constants.
    pub fn adds_up(self) -> bool {
        matches!(self, Self::Sum | Self::Weight | Self::Count)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Weight => "weight",
            Self::Floor => "floor",
            Self::Epsilon => "epsilon",
            Self::Count => "count",
        }
    }
}

impl<'a> StepOutput<'a> {
    /// The prefix of a gradient's name, before the name of the parameter.
    pub const GRADIENT: &'static str = "grad.";

    /// The outputs whose names contain no other name.
    const FIXED: [StepOutput<'static>; 9] = [
        StepOutput::Loss,
        StepOutput::LearningRate,
        StepOutput::GradientNorm,
        StepOutput::UnsmoothedSum,
        StepOutput::Penalty,
        StepOutput::Objective,
        StepOutput::Skipped,
        StepOutput::LossScale,
        StepOutput::ScaleExhausted,
    ];

    /// Returns the output of a part of a class of the loss.
    pub fn loss(class: usize, part: ScalarPart) -> Self {
        Self::Part { scalar: Scalar::Loss, class, part }
    }

    /// Parses a name; `None` for an output of the model. `metric.a.1.sum` is read as the sum of class 1 of `a`, although a scalar
    /// may be called `a.1`, or `a.1.sum`.
    pub fn of(name: &'a str) -> Option<Self> {
        if let Some(fixed) = Self::FIXED.into_iter().find(|output| output.to_string() == name) {
            return Some(fixed);
        }
        if let Some(state) = Self::gradient_of(name) {
            return Some(Self::Gradient(state));
        }
        let parts = name.rsplit_once('.').and_then(|(class, part)| {
            let part = ScalarPart::ALL.into_iter().find(|known| known.name() == part)?;
            let (scalar, class) = class_of(class)?;
            Some(Self::Part { scalar, class, part })
        });
        parts
            .or_else(|| Self::metric_of(name).map(Self::Metric))
            .or_else(|| Self::load_of(name).map(Self::Load))
    }

    /// Returns the parameter's name, if the output of that name is a gradient.
    pub fn gradient_of(name: &'a str) -> Option<&'a str> {
        name.strip_prefix(Self::GRADIENT)
    }

    /// Returns the name of the model's scalar, if the output of that name is a metric of the update. Parts of a scalar, which are
    /// outputs of a microbatch, have such names too.
    pub fn metric_of(name: &'a str) -> Option<&'a str> {
        name.strip_prefix(METRIC)
    }

    /// Returns the router's name, if the output of that name counts the choices of its experts.
    pub fn load_of(name: &'a str) -> Option<&'a str> {
        name.strip_prefix(LOAD)
    }

    /// Whether the output of a model may not have that name, because it would be confused with an output of a step.
    pub fn reserves(name: &str) -> bool {
        name.starts_with(METRIC)
            || name.starts_with(LOAD)
            || name.strip_prefix(LOSS).is_some_and(|rest| rest.starts_with('.'))
    }
}

/// Returns the scalar and the class in the name of a part, given without the part.
fn class_of(name: &str) -> Option<(Scalar<'_>, usize)> {
    let numbered = name.rsplit_once('.').and_then(|(scalar, text)| {
        let class: usize = text.parse().ok()?;
        (class > 0 && class.to_string() == text).then_some((scalar, class))
    });
    let (scalar, class) = numbered.unwrap_or((name, 0));
    match scalar {
        LOSS => Some((Scalar::Loss, class)),
        scalar => Some((Scalar::Metric(scalar.strip_prefix(METRIC)?), class)),
    }
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss => f.write_str(LOSS),
            Self::Metric(name) => write!(f, "{METRIC}{name}"),
        }
    }
}

impl fmt::Display for StepOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss => f.write_str(LOSS),
            Self::LearningRate => f.write_str("lr"),
            Self::GradientNorm => f.write_str("grad_norm"),
            Self::Gradient(state) => write!(f, "{}{state}", Self::GRADIENT),
            Self::Part { scalar, class: 0, part } => write!(f, "{scalar}.{}", part.name()),
            Self::Part { scalar, class, part } => write!(f, "{scalar}.{class}.{}", part.name()),
            Self::UnsmoothedSum => f.write_str("loss.unsmoothed"),
            Self::Penalty => f.write_str("loss.penalty"),
            Self::Objective => f.write_str("loss.objective"),
            Self::Metric(name) => Scalar::Metric(name).fmt(f),
            Self::Load(router) => write!(f, "{LOAD}{router}"),
            Self::Skipped => f.write_str("skipped"),
            Self::LossScale => f.write_str("loss_scale"),
            Self::ScaleExhausted => f.write_str("loss_scale.exhausted"),
        }
    }
}

/// Returns the name of the output.
impl From<StepOutput<'_>> for String {
    fn from(output: StepOutput) -> Self {
        output.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_the_output_that_it_was_made_of() {
        let metric = Scalar::Metric("a.b");
        let parts = ScalarPart::ALL.into_iter().flat_map(|part| {
            [(Scalar::Loss, 0), (Scalar::Loss, 12), (metric, 0), (metric, 3)]
                .map(|(scalar, class)| StepOutput::Part { scalar, class, part })
        });
        let named = [
            StepOutput::Gradient("loss.sum"),
            StepOutput::Metric("mse"),
            StepOutput::Metric("1"),
            StepOutput::Load("h.0.mlp.router"),
        ];
        for output in StepOutput::FIXED.into_iter().chain(parts).chain(named) {
            assert_eq!(StepOutput::of(&output.to_string()), Some(output), "{output}");
        }
    }

    #[test]
    fn an_output_of_the_model_is_none_of_the_step() {
        for name in
            ["logits", "sum", "loss.0.sum", "loss.01.sum", "loss.a.sum", "loss.other", "losses.sum", "Loss"]
        {
            assert_eq!(StepOutput::of(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_the_loss_are_reserved() {
        assert!(["loss.x", "metric.x", "load.x"].into_iter().all(StepOutput::reserves));
        assert!(!["loss", "losses", "lr", "metric", "load", "loads"].into_iter().any(StepOutput::reserves));
    }
}
