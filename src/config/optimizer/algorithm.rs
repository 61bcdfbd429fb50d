//! `--optimizer NAME[:key=value,…]`, with PyTorch's defaults.

use passes::optimizer::Algorithm;
use serde::Serializer;

use crate::config::value::{Spec, ValueError, below_one, positive, unknown_name};

/// Reads an update rule.
pub(super) fn parse(text: &str) -> Result<Algorithm, ValueError> {
    let spec = Spec::parse(text)?;
    let Some((default, _)) = Algorithm::ALL.into_iter().find(|(_, name)| *name == spec.name) else {
        return Err(unknown_name("optimizer", spec.name, &Algorithm::ALL.map(|(_, name)| name)));
    };
    match default {
        Algorithm::Sgd { momentum, nesterov } => {
            let spec = spec.allow(&["momentum"])?;
            match spec.take("momentum", momentum, below_one)? {
                0.0 if nesterov => Err(ValueError::new("nesterov's rule needs a momentum above 0")),
                momentum => Ok(Algorithm::Sgd { momentum, nesterov }),
            }
        }
        Algorithm::Adagrad { eps } => {
            let spec = spec.allow(&["eps"])?;
            Ok(Algorithm::Adagrad { eps: spec.take("eps", eps, positive)? })
        }
        Algorithm::Adam { beta1, beta2, eps, decoupled } => {
            let spec = spec.allow(&["beta1", "beta2", "eps"])?;
            Ok(Algorithm::Adam {
                beta1: spec.take("beta1", beta1, below_one)?,
                beta2: spec.take("beta2", beta2, below_one)?,
                eps: spec.take("eps", eps, positive)?,
                decoupled,
            })
        }
    }
}

/// Writes an update rule, all its numbers shown, so that [`parse`] reads it back.
pub(super) fn serialize<S: Serializer>(algorithm: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&match algorithm {
        Algorithm::Sgd { momentum, nesterov } => {
            format!("{}:momentum={momentum:?}", if *nesterov { "nesterov" } else { "sgd" })
        }
        Algorithm::Adagrad { eps } => format!("adagrad:eps={eps:?}"),
        Algorithm::Adam { beta1, beta2, eps, decoupled } => {
            let name = if *decoupled { "adamw" } else { "adam" };
            format!("{name}:beta1={beta1:?},beta2={beta2:?},eps={eps:?}")
        }
    })
}
