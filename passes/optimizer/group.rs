//! Groups of parameters with a learning rate or a weight decay of their own.

use super::algorithm::not_negative;
use crate::arguments::pattern;
use std::fmt;
use std::str::FromStr;

/// The settings of the parameters whose names match a pattern. If several groups match a parameter, the last one that sets the rate
/// decides the rate, and the last one that sets the decay decides the decay.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// A glob over the names of tensors: those of the file, and the module paths of tensors that the exporter renamed.
    pub pattern: String,
    /// The factor of the learning rate of every step.
    pub lr: Option<f64>,
    /// The weight decay, which replaces that of the optimizer, whether the parameter would decay or not.
    pub weight_decay: Option<f64>,
}

/// Reads `h.*.ln_*:lr=0.5,weight-decay=0`, with either setting or both.
impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':').filter(|(pattern, settings)| {
            let starts = |key: &str| settings.trim_start().starts_with(key);
            !pattern.is_empty() && (settings.contains('=') || starts("lr") || starts("weight-decay"))
        });
        let Some((pattern, settings)) = parts else {
            return Err(format!(
                "`{text}` is not of the form PATTERN:lr=FACTOR,weight-decay=X, such as 'h.*.ln_*:weight-decay=0'"
            ));
        };
        let mut group = Self { pattern: pattern.to_string(), lr: None, weight_decay: None };
        for setting in settings.split(',') {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            let place = match key.trim() {
                "lr" => &mut group.lr,
                "weight-decay" => &mut group.weight_decay,
                other => {
                    return Err(format!(
                        "a group has no setting `{other}`; its settings are lr and weight-decay"
                    ));
                }
            };
            let number =
                value.trim().parse::<f64>().map_err(|_| format!("{key}: `{value}` is not a number"))?;
            not_negative(key, number)?;
            if place.replace(number).is_some() {
                return Err(format!("`{key}` is given twice in `{text}`"));
            }
        }
        Ok(group)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lr = self.lr.map(|lr| format!("lr={lr:?}"));
        let decay = self.weight_decay.map(|decay| format!("weight-decay={decay:?}"));
        let settings: Vec<String> = [lr, decay].into_iter().flatten().collect();
        write!(f, "{}:{}", self.pattern, settings.join(","))
    }
}

impl Group {
    /// Whether the pattern matches one of a parameter's names.
    pub fn fits<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        names.into_iter().any(|name| pattern::matches(&self.pattern, name))
    }
}

/// Returns the factor of the learning rate of a parameter with these names, and its weight decay if a group sets it.
pub fn settings(groups: &[Group], names: &[&str]) -> (f64, Option<f64>) {
    let fitting = || groups.iter().filter(|group| group.fits(names.iter().copied()));
    let lr = fitting().filter_map(|group| group.lr).next_back();
    (lr.unwrap_or(1.0), fitting().filter_map(|group| group.weight_decay).next_back())
}

#[cfg(test)]
mod tests {
    use super::{Group, settings};

    fn groups(texts: &[&str]) -> Vec<Group> {
        texts.iter().map(|text| text.parse().expect("a group")).collect()
    }

    #[test]
    fn the_last_group_that_says_something_says_it() {
        let groups = groups(&["*:lr=0.5,weight-decay=0.2", "h.*:lr=0.25", "*.bias:weight-decay=0"]);
        assert_eq!(settings(&groups, &["h.0.bias"]), (0.25, Some(0.0)));
        assert_eq!(settings(&groups, &["wte"]), (0.5, Some(0.2)));
        assert_eq!(settings(&groups, &["val_1", "h.1.weight"]), (0.25, Some(0.2)));
        assert_eq!(settings(&[], &["wte"]), (1.0, None));
    }

    #[test]
    fn a_group_is_written_as_it_is_read() {
        for text in ["a*:lr=0.1", "onnx::MatMul_5*:lr=0.0,weight-decay=1e-300", "x=y:weight-decay=0.0"] {
            assert_eq!(text.parse::<Group>().expect("a group").to_string(), text);
        }
    }

    #[test]
    fn a_group_that_is_none_says_why() {
        for (text, why) in [
            ("a", "is not of the form PATTERN:lr=FACTOR"),
            ("onnx::MatMul_5", "is not of the form"),
            (":lr=1", "is not of the form"),
            ("a:lr", "lr: `` is not a number"),
            ("a:lr=fast", "lr: `fast` is not a number"),
            ("a:lr=-1", "lr is -1; it must be a number that is not negative"),
            ("a:lr=nan", "lr is NaN"),
            ("a:lr=1,lr=1", "`lr` is given twice in `a:lr=1,lr=1`"),
            ("a:decay=1", "a group has no setting `decay`; its settings are lr and weight-decay"),
        ] {
            let error = text.parse::<Group>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
