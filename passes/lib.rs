//! The passes, which make every change of a program between its import and its lowering.
//!
//! [`pass`] has their trait and the context that they share, [`arguments`] their options as text, [`reports`] their findings as data;
//! `analysis` and [`rewriting`] hold the parts that several passes use, and [`causality`] answers a question of the driver. Every other
//! module is one pass, and imports none of the three that use all passes: [`registry`] lists them, one line each; [`pipeline`] is a list
//! of them; [`manager`] runs them, verifies after each and shows their effects. A pass first decides (without changes; the decision
//! prints) and then applies the decision.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod absorb;
mod analysis;
pub mod arguments;
pub mod autodiff;
pub mod bind;
pub mod buckets;
pub mod canonicalize;
pub mod causality;
pub mod collectives;
pub mod compress_activations;
pub mod compress_gradients;
pub mod delay;
pub mod dropout;
pub mod evaluation;
pub mod fold;
pub mod hierarchy;
pub mod initialize;
pub mod join;
pub mod keep;
pub mod loss;
pub mod manager;
pub mod moe;
pub mod offload;
pub mod optimizer;
pub mod parameters;
pub mod pass;
pub mod pipeline;
pub mod precision;
pub mod recompute;
pub mod registry;
pub mod reports;
pub mod rewriting;
pub mod router_bias;
pub mod simplify;
pub mod spmd;
pub mod stage;
pub mod update;

pub use arguments::{Arguments, Options};
pub use manager::{Failure, Manager, Runs, Timing};
pub use pass::{PassContext, Transform};
pub use pipeline::Pipeline;
pub use registry::Pass;
