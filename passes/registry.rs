//! The list of passes, one line each.

use crate::arguments::{Arguments, Options};
use crate::pass::{PassContext, Transform};
use crate::{
    absorb, autodiff, bind, buckets, canonicalize, collectives, compress_activations, compress_gradients,
    delay, dropout, evaluation, fold, hierarchy, initialize, join, keep, loss, moe, offload, optimizer,
    parameters, precision, recompute, router_bias, simplify, spmd, stage, update,
};
use ir::{Changed, Diagnostic, Module};
use std::fmt;

macro_rules! passes {
    ($($variant:ident($options:ty))*) => {
        /// A pass with its options.
        #[allow(missing_docs)] // each variant is documented at its options
        #[derive(Clone, Debug, PartialEq)]
        pub enum Pass {
            $($variant($options)),*
        }

        $(impl From<$options> for Pass {
            fn from(options: $options) -> Self {
                Self::$variant(options)
            }
        })*

        impl Pass {
            /// The names of all passes.
            pub const NAMES: &[&str] = &[$(<$options as Transform>::NAME),*];

            /// Returns the name in pipelines.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => <$options as Transform>::NAME),*
                }
            }

            /// Whether a program is wrong or incomplete if this pass is skipped.
            pub fn is_needed(&self) -> bool {
                match self {
                    $(Self::$variant(_) => <$options as Transform>::NEEDED),*
                }
            }

            /// Returns the pass with this name and these options. Options that it does not use stay in `arguments`.
            pub fn parse(name: &str, arguments: &mut Arguments) -> Result<Self, String> {
                $(if name == <$options as Transform>::NAME {
                    let mut pass = <$options>::default();
                    Options::read(arguments, |options| pass.options(options))?;
                    return Ok(Self::$variant(pass));
                })*
                Err(format!("there is no such pass; the passes are {}", Self::NAMES.join(", ")))
            }

            fn arguments(&self) -> Arguments {
                let mut arguments = Arguments::default();
                match self {
                    $(Self::$variant(pass) => {
                        Options::write(&mut arguments, |options| pass.clone().options(options));
                    }),*
                }
                arguments
            }

            /// Runs the pass, without verifying the program after it.
            pub fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
                match self {
                    $(Self::$variant(options) => options.run(module, cx)),*
                }
            }
        }
    };
}

passes! {
    Bind(bind::Bind)
    Dropout(dropout::Dropout)
    Fold(fold::Fold)
    Canonicalize(canonicalize::Canonicalize)
    Parameters(parameters::Parameters)
    Moe(moe::Moe)
    Loss(loss::Loss)
    Initialize(initialize::Initialize)
    Stage(stage::Stage)
    Delay(delay::Delay)
    Autodiff(autodiff::Autodiff)
    Precision(precision::Precision)
    RouterBias(router_bias::RouterBias)
    CompressGradients(compress_gradients::CompressGradients)
    Optimizer(optimizer::Optimizer)
    Simplify(simplify::Simplify)
    Spmd(spmd::Spmd)
    Collectives(collectives::Collectives)
    Buckets(buckets::Buckets)
    Hierarchy(hierarchy::Hierarchy)
    Recompute(recompute::Recompute)
    CompressActivations(compress_activations::CompressActivations)
    Offload(offload::Offload)
    Evaluation(evaluation::Evaluation)
    Update(update::Update)
    Keep(keep::Keep)
    Absorb(absorb::Absorb)
    Join(join::Join)
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name(), self.arguments())
    }
}
