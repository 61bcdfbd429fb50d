//! Learning-rate schedules: the rate of a step as scalar nodes, computed on the device from the step counter.

use crate::arguments::Options;
use ir::ops::elementwise::{Binary, Compare, Select, Unary};
use ir::{Builder, DType, TypeError, ValueId};

/// The learning rate of step `s`, counted from 0. `lr` is the highest rate:
///
/// - `s < warmup`: `lr · (s + 1) / warmup`;
/// - then, with progress `p = min(1, (s - warmup) / (steps - warmup))`: constant `lr`; linear `lr + (min - lr)·p`;
///   cosine `min + (lr - min)·(1 + cos πp)/2` (Loshchilov and Hutter, arXiv 1608.03983, without restarts);
/// - warmup-stable-decay (Hu et al., arXiv 2404.06395): `lr`, and over the last `decay` steps linear as above, with
///   `p = (s - (steps - decay)) / decay` in [0, 1] (a line, as Hägele et al., arXiv 2405.18392, have it).
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The curve after the warm-up.
    pub curve: Curve,
    /// The number of steps of linear warm-up; 0 for none.
    pub warmup: u64,
    /// The rate at the end of the curve, as an absolute number.
    pub min: f64,
    /// The step at which the curve ends; more than `warmup` where the curve is not constant.
    pub steps: u64,
    /// The number of steps of the final decay of warmup-stable-decay; 0 for a tenth of `steps`.
    pub decay: u64,
}

/// The course of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Curve {
    /// The rate stays.
    #[default]
    Constant,
    /// The rate falls linearly.
    Linear,
    /// The rate falls like half a cosine.
    Cosine,
    /// The rate stays, and falls linearly in the end.
    WarmupStableDecay,
}

impl Curve {
    /// Every curve with its name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Constant, "constant"),
        (Self::Linear, "linear"),
        (Self::Cosine, "cosine"),
        (Self::WarmupStableDecay, "wsd"),
    ];
}

impl Default for Schedule {
    fn default() -> Self {
        Self { curve: Curve::Constant, warmup: 0, min: 0.0, steps: 0, decay: 0 }
    }
}

impl Schedule {
    /// Names the options of a schedule.
    pub(crate) fn options(&mut self, options: &mut Options) {
        let default = Self::default();
        options.word(&Curve::ALL, &mut self.curve, Some(default.curve));
        options.value("warmup", &mut self.warmup, default.warmup);
        options.value("min", &mut self.min, default.min);
        options.value("steps", &mut self.steps, default.steps);
        options.value("decay", &mut self.decay, default.decay);
    }

    /// Refuses numbers that make no curve.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { curve, warmup, steps, .. } = *self;
        if curve == Curve::Constant {
            return Ok(());
        }
        if steps <= warmup {
            return Err(format!("a curve of {steps} steps ends before its warm-up of {warmup} steps does"));
        }
        let decay = self.decay_steps();
        if curve == Curve::WarmupStableDecay && decay > steps - warmup {
            return Err(format!(
                "a warm-up of {warmup} steps and a decay of {decay} do not fit into the {steps} steps of the schedule"
            ));
        }
        Ok(())
    }

    /// Returns the fewest steps of a run whose schedule has no length of its own: the warm-up and the final decay, or the warm-up and one
    /// step.
    pub fn least_steps(&self) -> u64 {
        self.warmup.saturating_add(self.decay.max(1))
    }

    /// Returns the number of steps of the final decay of warmup-stable-decay.
    pub fn decay_steps(&self) -> u64 {
        match self.decay {
            0 => (self.steps / 10).clamp(1, self.steps.saturating_sub(self.warmup).max(1)),
            decay => decay,
        }
    }

    /// Returns the step at which the rate begins to fall.
    fn fall(&self) -> u64 {
        match self.curve {
            Curve::WarmupStableDecay => self.steps.saturating_sub(self.decay_steps()),
            _ => self.warmup,
        }
    }

    /// Returns the rate of step `s`, as `build` computes it on the device.
    pub fn rate(&self, lr: f64, s: u64) -> f64 {
        if s < self.warmup {
            return lr * (s + 1) as f64 / self.warmup as f64;
        }
        let fall = self.fall();
        let progress = || (s.saturating_sub(fall) as f64 / (self.steps - fall) as f64).min(1.0);
        match self.curve {
            Curve::Constant => lr,
            Curve::Linear | Curve::WarmupStableDecay => lr + (self.min - lr) * progress(),
            Curve::Cosine => {
                self.min + (lr - self.min) * (1.0 + (std::f64::consts::PI * progress()).cos()) * 0.5
            }
        }
    }

    /// Adds nodes for the rate, an f64 scalar, given the step, an f64 scalar that counts from 0.
    pub(crate) fn build(&self, b: &mut Builder, lr: f64, step: ValueId) -> Result<ValueId, TypeError> {
        let after = self.build_curve(b, lr, step)?;
        if self.warmup == 0 {
            return Ok(after);
        }
        let (one, peak) = (b.scalar(DType::F64, 1.0)?, b.scalar(DType::F64, lr)?);
        let warmup = b.scalar(DType::F64, self.warmup as f64)?;
        let rising = b.build(peak * (step + one) / warmup)?;
        b.build(Select.of(Compare::Less.of(step, warmup), rising, after))
    }

    fn build_curve(&self, b: &mut Builder, lr: f64, step: ValueId) -> Result<ValueId, TypeError> {
        if self.curve == Curve::Constant {
            return b.scalar(DType::F64, lr);
        }
        let fall = self.fall();
        let start = b.scalar(DType::F64, fall as f64)?;
        let length = b.scalar(DType::F64, (self.steps - fall) as f64)?;
        let one = b.scalar(DType::F64, 1.0)?;
        let mut progress = b.build(Binary::Min.of((step - start) / length, one))?;
        if self.curve == Curve::WarmupStableDecay {
            progress = b.build(Binary::Max.of(progress, 0.0))?;
        }
        match self.curve {
            Curve::Constant | Curve::Linear | Curve::WarmupStableDecay => {
                b.build(lr + progress * (self.min - lr))
            }
            Curve::Cosine => {
                let raised = b.build(one + Unary::Cos.of(progress * std::f64::consts::PI))?;
                b.build(self.min + (lr - self.min) * raised * 0.5)
            }
        }
    }
}
