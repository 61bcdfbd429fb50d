//! `--loss-scale X`, or `--loss-scale dynamic[:initial=X,interval=N,hysteresis=N,min=X]`.

use passes::precision::Scaling;
use serde::Serializer;

use crate::config::value::{Spec, ValueError, count_from, positive};

/// The scale that follows the overflows.
const DYNAMIC: &str = "dynamic";

/// Reads a number that a program can multiply a loss by: its f32 is neither zero nor infinite.
fn scale(text: &str) -> Result<f64, ValueError> {
    let number = positive(text)?;
    if (number as f32).is_normal() {
        Ok(number)
    } else {
        Err(ValueError::new(format!("`{text}` is not a number of the type f32")))
    }
}

/// Reads a scale. A fixed scale has equal limits.
pub(super) fn parse(text: &str) -> Result<Scaling, ValueError> {
    let spec = Spec::parse(text)?;
    let default = Scaling::default();
    if spec.name != DYNAMIC {
        let scale = scale(text).map_err(|_| {
            ValueError::new(format!(
                "`{text}` is not a scale of the loss: give a number above 0, or `{DYNAMIC}`"
            ))
        })?;
        return Ok(Scaling { initial: scale, min: scale, max: scale, ..default });
    }
    let spec = spec.allow(&["initial", "interval", "hysteresis", "min"])?;
    let initial = spec.take("initial", default.initial, scale)?;
    let min = spec.take("min", default.min, scale)?;
    if min > initial {
        return Err(ValueError::new(format!(
            "the loss scale begins at {initial:?}, which is below min={min:?}"
        )));
    }
    let count = |key: &str, default| spec.take(key, default, |text| count_from(1, text));
    let (interval, hysteresis) =
        (count("interval", default.interval)?, count("hysteresis", default.hysteresis)?);
    let max = default.max.max(initial);
    if min == max {
        return Ok(Scaling { initial, min, max, ..default });
    }
    Ok(Scaling { initial, min, interval, hysteresis, max, ..default })
}

/// Writes a scale so that [`parse`] reads it back.
pub(super) fn serialize<S: Serializer>(scaling: &Option<Scaling>, serializer: S) -> Result<S::Ok, S::Error> {
    let Scaling { initial, interval, hysteresis, min, max, .. } = scaling.unwrap_or_default();
    if min == max {
        serializer.serialize_f64(initial)
    } else {
        serializer.collect_str(&format!(
            "{DYNAMIC}:initial={initial:?},interval={interval},hysteresis={hysteresis},min={min:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_scale_has_equal_limits() {
        let scaling = parse("128").expect("it is a scale");
        assert_eq!((scaling.initial, scaling.min, scaling.max), (128.0, 128.0, 128.0));
    }

    #[test]
    fn a_dynamic_scale_may_begin_above_the_usual_limit() {
        let scaling = parse("dynamic:initial=4294967296,hysteresis=1").expect("it is a scale");
        assert_eq!((scaling.initial, scaling.max, scaling.hysteresis), (4294967296.0, 4294967296.0, 1));
        assert_eq!(parse("dynamic").expect("it is a scale"), Scaling::default());
    }

    #[test]
    fn faults_are_told() {
        for (text, fault) in [
            ("0", "give a number above 0, or `dynamic`"),
            ("static", "give a number above 0, or `dynamic`"),
            ("1e300", "give a number above 0, or `dynamic`"),
            ("dynamic:min=1e-60", "`1e-60` is not a number of the type f32"),
            ("128:min=1", "give a number above 0, or `dynamic`"),
            ("dynamic:interval=0", "interval: `0` is not a whole number from 1"),
            ("dynamic:initial=2,min=4", "begins at 2.0, which is below min=4.0"),
            ("dynamic:growth=2", "`dynamic` has no setting `growth`"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
