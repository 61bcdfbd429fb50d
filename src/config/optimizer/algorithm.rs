//! `--optimizer NAME[:key=value,…]`, with PyTorch's defaults.

use passes::optimizer::{Algorithm, Hyperparameter, Range};
use serde::Serializer;

use crate::config::value::{Spec, ValueError, below_one, positive, unknown_name};

/// Reads an update rule.
pub(super) fn parse(text: &str) -> Result<Algorithm, ValueError> {
    let spec = Spec::parse(text)?;
    let Some(mut algorithm) = Algorithm::named(spec.name) else {
        return Err(unknown_name("optimizer", spec.name, &Algorithm::ALL.map(|(_, name)| name)));
    };
    let hyperparameters = algorithm.hyperparameters();
    let known: Vec<&str> = hyperparameters.iter().map(|hyperparameter| hyperparameter.name).collect();
    let spec = spec.allow(&known)?;
    for Hyperparameter { name, value, range } in hyperparameters {
        *value = match range {
            Range::Share => spec.take(name, *value, below_one),
            Range::Epsilon => spec.take(name, *value, positive),
        }?;
    }
    algorithm.check().map_err(ValueError::new)?;
    Ok(algorithm)
}

/// Writes an update rule, all its numbers shown, so that [`parse`] reads it back.
pub(super) fn serialize<S: Serializer>(algorithm: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    let name = match algorithm {
        // With its momentum written, it is the same rule.
        Algorithm::Sgd { nesterov: false, .. } => "sgd",
        Algorithm::Sgd { nesterov: true, .. } | Algorithm::Adagrad { .. } | Algorithm::Adam { .. } => {
            algorithm.name()
        }
    };
    let mut algorithm = *algorithm;
    let numbers = algorithm.hyperparameters().into_iter();
    let numbers: Vec<String> = numbers.map(|number| format!("{}={:?}", number.name, number.value)).collect();
    serializer.collect_str(&format!("{name}:{}", numbers.join(",")))
}
