//! Precision: computes a step in bf16 or fp16 where that is safe, on f32 weights.
//!
//! Each operator has a class of its own ([`ir::ops::precision`]). `decide` says which values are kept in half, and `casts` adds the
//! casts. `scaling` keeps fp16 gradients above zero. The pass runs after autodiff, and so on the backward phase too, because each operator of backward has its
//! own class: a value that forward computed in f32 need not be kept in f32 for backward, and sums of gradients are f32 although their
//! addends are half. Invariants: states, inputs and outputs keep their names, dims and element types; in `exact` mode, where casts
//! between floats do nothing, the program computes the same values; no value is cast twice to a type in one phase; the update stays f32.

mod casts;
pub mod decide;
mod scaling;

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::settle::settle;
use ir::{Changed, DType, Diagnostic, Level, Module};

pub use decide::{Decision, decide};
pub use scaling::SCALE;

/// The pass. By default it changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Precision {
    /// The type of values that need not be f32: [`DType::F32`] for no casts, [`DType::BF16`], or [`DType::F16`], which scales
    /// the loss.
    pub compute: DType,
    /// The type in which gradients of parameters are summed over microbatches and ranks: one of the same three. The gradients of one
    /// microbatch are half if their operator is; f32 sums of them lose nothing more. The update reads f32 in any case.
    pub grad_dtype: DType,
    /// The scaling of the loss; used only for [`DType::F16`].
    pub scaling: Scaling,
}

/// The schedule of the loss scale, which doubles while gradients are finite and halves when they are not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The scale at step 0.
    pub initial: f64,
    /// The factor by which the scale grows.
    pub growth: f64,
    /// The number of steps without an overflow before the scale grows.
    pub interval: u64,
    /// The factor by which the scale shrinks.
    pub backoff: f64,
    /// The number of the overflow at which the scale shrinks first. It shrinks at every later one too, until it has grown again.
    pub hysteresis: u64,
    /// The smallest scale.
    pub min: f64,
    /// The largest scale. It keeps the scale finite even if no gradient ever overflows.
    pub max: f64,
}

/// The defaults of Megatron-LM, with Apex's largest scale.
impl Default for Scaling {
    fn default() -> Self {
        Self {
            initial: 65536.0,
            growth: 2.0,
            interval: 2000,
            backoff: 0.5,
            hysteresis: 2,
            min: 1.0,
            max: 16_777_216.0,
        }
    }
}

impl Default for Precision {
    fn default() -> Self {
        Self { compute: DType::F32, grad_dtype: DType::F32, scaling: Scaling::default() }
    }
}

/// The types that a step may compute in, with the users' names for them.
const COMPUTE: [(DType, &str); 3] = [(DType::F32, "fp32"), (DType::BF16, "bf16"), (DType::F16, "fp16")];

impl Transform for Precision {
    const NAME: &'static str = "precision";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.word(&COMPUTE, &mut self.compute, None);
        options.value("grad-dtype", &mut self.grad_dtype, DType::F32);
        let (scaling, default) = (&mut self.scaling, Scaling::default());
        options.value("initial", &mut scaling.initial, default.initial);
        options.value("growth", &mut scaling.growth, default.growth);
        options.value("interval", &mut scaling.interval, default.interval);
        options.value("backoff", &mut scaling.backoff, default.backoff);
        options.value("hysteresis", &mut scaling.hysteresis, default.hysteresis);
        options.value("min", &mut scaling.min, default.min);
        options.value("max", &mut scaling.max, default.max);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        self.check()?;
        if self.compute == DType::F32 && self.grad_dtype == DType::F32 {
            return Ok(Changed::No);
        }
        if module.level != Level::Training || module.state("step").is_some() {
            let error = Diagnostic::new(
                "the pass `precision` needs a program with gradients and without an optimizer",
            );
            return Err(error.note("run `precision` after `autodiff` and before `optimizer`"));
        }
        let scaled = self.compute == DType::F16;
        let scaler = scaled.then(|| scaling::scale_backward(module, &self.scaling)).transpose()?;
        let decision = decide(module, self.compute)?;
        let changed = casts::apply(module, &decision, self.grad_dtype)?;
        cx.reports.precision = (self.compute != DType::F32).then(|| decision.report());
        if let Some(scaler) = scaler {
            scaling::build_update(module, &self.scaling, scaler)?;
        }
        let changed = if scaled { Changed::Yes } else { changed };
        Ok(changed.or(settle(module, Self::NAME)?))
    }
}

impl Precision {
    /// Refuses types that are none of the three, and a scale that could not grow and shrink.
    fn check(&self) -> Result<(), Diagnostic> {
        let Scaling { initial, growth, interval, backoff, hysteresis, min, max } = self.scaling;
        let known = |dtype: DType| COMPUTE.iter().any(|(known, _)| *known == dtype);
        let wrong =
            if let Some(dtype) = [self.compute, self.grad_dtype].into_iter().find(|&dtype| !known(dtype)) {
                format!("a step computes in f32, bf16 or f16, not in {dtype}")
            } else if !(min > 0.0 && min <= initial && initial.is_finite() && max.is_finite()) {
                format!(
                    "the initial loss scale is {initial} and the smallest is {min}: both must be finite and \
                 above 0"
                )
            } else if !(growth > 1.0 && growth.is_finite() && backoff > 0.0 && backoff < 1.0) {
                format!(
                    "the loss scale grows by the factor {growth}, which must be above 1, and shrinks by the \
                 factor {backoff}, which must be below 1"
                )
            } else if interval == 0 || hysteresis == 0 {
                "the loss scale must wait at least one step before it grows or shrinks".into()
            } else {
                return Ok(());
            };
        Err(Diagnostic::new(wrong))
    }
}
