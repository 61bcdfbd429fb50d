//! `--optimizer NAME[:key=value,…]`, with PyTorch's defaults.

use passes::optimizer::{Algorithm, Hyperparameter, Range};
use serde::Serializer;

use crate::config::value::{Spec, ValueError, below_one, positive, unknown_name};

/// Reads an update rule.
pub(super) fn parse(text: &str) -> Result<Algorithm, ValueError> {
    let spec = Spec::parse(text)?;
    let Some(algorithm) = Algorithm::named(spec.name) else {
        return Err(unknown_name("optimizer", spec.name, &Algorithm::ALL.map(|(_, name)| name)));
    };
    let mut named = algorithm;
    let mut known: Vec<&str> = named.words().iter().map(|word| word.name).collect();
    known.extend(named.hyperparameters().iter().map(|hyperparameter| hyperparameter.name));
    let spec = spec.allow(&known)?;
    let word_of = |name: &'static str| spec.text(name).map(str::to_owned);
    let mut algorithm = algorithm.with_words(word_of).map_err(ValueError::new)?;
    let hyperparameters = algorithm.hyperparameters();
    for Hyperparameter { name, value, range } in hyperparameters {
        *value = match range {
            Range::Share => spec.take(name, *value, below_one),
            Range::Positive | Range::Epsilon => spec.take(name, *value, positive),
        }?;
    }
    algorithm.check().map_err(ValueError::new)?;
    Ok(algorithm)
}

/// Returns an update rule as a user writes it: with the numbers and the words that are not its defaults.
pub(in crate::config) fn short(mut algorithm: Algorithm) -> String {
    let (name, mut default) = (algorithm.name(), algorithm.default_of());
    let default: Vec<f64> = default.hyperparameters().iter().map(|number| *number.value).collect();
    written(name, &mut algorithm, |at, number| number != default[at])
}

/// Writes an update rule so that [`parse`] reads it back: all its numbers, and its words that are not defaults.
pub(super) fn serialize<S: Serializer>(algorithm: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    // `sgd` with its momentum is the rule `momentum`.
    let is_sgd = matches!(algorithm, Algorithm::Sgd { nesterov: false, .. });
    let name = if is_sgd { "sgd" } else { algorithm.name() };
    let mut algorithm = *algorithm;
    serializer.serialize_str(&written(name, &mut algorithm, |_, _| true))
}

/// Writes an update rule with its words and some of its numbers. `is_shown` gets the index and the value of a number.
fn written(name: &str, algorithm: &mut Algorithm, is_shown: impl Fn(usize, f64) -> bool) -> String {
    let words = algorithm.own_words().into_iter().map(|(name, word)| format!("{name}={word}"));
    let numbers = algorithm.hyperparameters().into_iter().enumerate();
    let numbers = numbers.filter(|(at, number)| is_shown(*at, *number.value));
    let numbers = numbers.map(|(_, number)| format!("{}={:?}", number.name, number.value));
    let settings: Vec<String> = numbers.chain(words).collect();
    if settings.is_empty() { name.to_owned() } else { format!("{name}:{}", settings.join(",")) }
}
