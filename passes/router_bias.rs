//! Router bias: experts with too many tokens are chosen less often from the next step on, which balances without a loss (Wang et al.,
//! arXiv 2408.15664, algorithm 1; DeepSeek-AI, arXiv 2412.19437, section 2.1.2).
//!
//! The pass reads the outputs `load.NAME`, the number of choices of each expert in the whole step, and gives the buffers `NAME.bias` of
//! [`crate::moe`] a new value: `bias + rate · sign(mean load − load)`. Invariants: gradients and gates stay as they are; the pass runs
//! after `autodiff`, which sums loads over the microbatches, and before `optimizer`, which keeps every state if a step is skipped.

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::settle::settle;
use ir::ops::elementwise::Compare;
use ir::{
    At, Builder, Changed, DType, Diagnostic, Level, Module, Phase, StateId, StepOutput, TypeError, ValueId,
};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterBias {
    /// The change of a bias in a step.
    pub rate: f64,
}

impl Default for RouterBias {
    fn default() -> Self {
        Self { rate: 0.001 }
    }
}

/// Returns the name of a router's buffer, which has a bias for each expert.
pub fn name(router: &str) -> String {
    format!("{router}.bias")
}

impl Transform for RouterBias {
    const NAME: &'static str = "router_bias";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.written("rate", &mut self.rate);
        let (rate, is_right) = (self.rate, self.rate > 0.0 && self.rate.is_finite());
        let wrong = || format!("rate={rate} is not allowed; give a finite number above 0, such as 0.001");
        options.check(|| (!is_right).then(wrong));
    }

    /// Errors: the program has no update; no router has a bias.
    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let biases = biases(module);
        if module.level != Level::Training || biases.is_empty() {
            let error = Diagnostic::new("the pass `router_bias` finds no loads of routers with a bias");
            return Err(error.note("run `moe(…, bias=0.001)` and `autodiff` before it"));
        }
        let mut b = Builder::new(module, Self::NAME);
        for (state, load) in biases {
            self.move_bias(&mut b, state, load)?;
        }
        let changed = b.finish();
        Ok(changed.or(settle(module, Self::NAME)?))
    }
}

/// Returns the biases, each with its load.
fn biases(module: &Module) -> Vec<(StateId, ValueId)> {
    let bias = |output: &ir::Output| {
        let router = StepOutput::load_of(&output.name)?;
        Some((module.state(&name(router))?, output.value))
    };
    module.outputs.iter().filter_map(bias).collect()
}

impl RouterBias {
    fn move_bias(self, b: &mut Builder, id: StateId, load: ValueId) -> Result<(), TypeError> {
        let state = b.module().states[id].clone();
        b.origin(state.name.as_str()).stage(state.stage).at(At::End(Phase::Update));
        // Whole numbers are compared: experts · load, and the sum of all loads.
        let experts = b.ty(load).numel().unwrap_or(1) as f64;
        let own = b.build(load * experts)?;
        let all = b.sum(load, &[0])?;
        let mut side = |less: ValueId, more: ValueId| b.build(Compare::Less.of(less, more).cast(DType::F32));
        let (too_few, too_many) = (side(own, all)?, side(all, own)?);
        let new = b.build(state.input + (too_few - too_many) * self.rate)?;
        b.tables().states[id].output = Some(new);
        Ok(())
    }
}
