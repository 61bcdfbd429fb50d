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
    let (mut default, words) = (algorithm.default_of(), algorithm.own_words());
    let words = words.into_iter().map(|(name, word)| format!("{name}={word}"));
    let numbers = algorithm.hyperparameters().into_iter().zip(default.hyperparameters());
    let numbers = numbers.filter(|(own, default)| *own.value != *default.value);
    let numbers = numbers.map(|(own, _)| format!("{}={:?}", own.name, own.value));
    let settings: Vec<String> = numbers.chain(words).collect();
    match settings.is_empty() {
        true => algorithm.name().to_owned(),
        false => format!("{}:{}", algorithm.name(), settings.join(",")),
    }
}

/// Writes an update rule so that [`parse`] reads it back: all its numbers, and its words that are not defaults.
pub(super) fn serialize<S: Serializer>(algorithm: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    let name = match algorithm {
        // `sgd` with its momentum is the rule `momentum`.
        Algorithm::Sgd { nesterov: false, .. } => "sgd",
        Algorithm::Sgd { nesterov: true, .. }
        | Algorithm::Adagrad { .. }
        | Algorithm::Adafactor(_)
        | Algorithm::Lion { .. }
        | Algorithm::Adam { .. } => algorithm.name(),
    };
    let mut algorithm = *algorithm;
    let words = algorithm.own_words().into_iter().map(|(name, word)| format!("{name}={word}"));
    let numbers = algorithm.hyperparameters().into_iter();
    let numbers = numbers.map(|number| format!("{}={:?}", number.name, number.value));
    let settings: Vec<String> = numbers.chain(words).collect();
    serializer.collect_str(&format!("{name}:{}", settings.join(",")))
}
