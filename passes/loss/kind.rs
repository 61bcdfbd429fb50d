//! The names of losses, as flags and pipelines write them.

use crate::arguments::Arguments;
use std::fmt;
use std::str::FromStr;

/// The loss that is trained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LossKind {
    /// The model's own loss if it has one, else cross-entropy.
    #[default]
    Auto,
    /// Cross-entropy with the next token; the loader shifts the labels.
    NextToken,
    /// Cross-entropy with given labels.
    CrossEntropy,
    /// The mean of squared errors.
    Mse,
    /// Binary cross-entropy of logits.
    Bce,
    /// The model's own loss.
    Model,
    /// The model's output of this name.
    Output(String),
}

/// The prefix of the name of an output.
const OUTPUT: &str = "output:";

impl LossKind {
    /// Returns the kinds that are one word, each with its word.
    pub fn words() -> [(Self, &'static str); 6] {
        [
            (Self::Auto, "auto"),
            (Self::NextToken, "next-token"),
            (Self::CrossEntropy, "cross-entropy"),
            (Self::Mse, "mse"),
            (Self::Bce, "bce"),
            (Self::Model, "model"),
        ]
    }

    pub(super) fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let word = Self::words().into_iter().find(|(_, word)| arguments.flag(word)).map(|(kind, _)| kind);
        Ok(arguments.take("output").map(Self::Output).or(word).unwrap_or_default())
    }

    pub(super) fn print(&self, arguments: &mut Arguments) {
        match self {
            Self::Output(name) => arguments.push("output", name),
            kind => arguments.push_flag(&kind.to_string(), *kind != Self::default()),
        }
    }
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Output(name) = self {
            return write!(f, "{OUTPUT}{name}");
        }
        let words = Self::words();
        let word = words.iter().find(|(kind, _)| kind == self).map_or("", |(_, word)| word);
        f.write_str(word)
    }
}

impl FromStr for LossKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix(OUTPUT) {
            let missing = || format!("`{text}` does not name an output; write {OUTPUT}NAME");
            return (!name.is_empty()).then(|| Self::Output(name.into())).ok_or_else(missing);
        }
        let words = Self::words();
        let names: Vec<&str> = words.iter().map(|(_, word)| *word).collect();
        let unknown = || format!("`{text}` is not a loss; losses are {}, {OUTPUT}NAME", names.join(", "));
        words.iter().find(|(_, word)| *word == text).map(|(kind, _)| kind.clone()).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_from_its_text() {
        let output = LossKind::Output("total loss".into());
        for kind in LossKind::words().map(|(kind, _)| kind).into_iter().chain([output]) {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }

    #[test]
    fn a_name_that_is_no_loss_is_told_those_there_are() {
        let list = "losses are auto, next-token, cross-entropy, mse, bce, model, output:NAME";
        assert_eq!("l3".parse::<LossKind>(), Err(format!("`l3` is not a loss; {list}")));
        let empty = "output:".parse::<LossKind>();
        assert_eq!(empty, Err("`output:` does not name an output; write output:NAME".into()));
    }
}
