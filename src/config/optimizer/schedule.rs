//! `--lr-schedule NAME[:warmup=,min=,steps=]`.

use passes::schedule::{Curve, Schedule};
use serde::Serializer;

use crate::config::value::{Spec, ValueError, count_from, name_of, not_negative, unknown_name};

/// Reads a schedule; its `steps` are 0 when the text has none.
pub(super) fn parse(text: &str) -> Result<Schedule, ValueError> {
    let spec = Spec::parse(text)?;
    let Some((curve, _)) = Curve::ALL.into_iter().find(|(_, name)| *name == spec.name) else {
        return Err(unknown_name("schedule", spec.name, &Curve::ALL.map(|(_, name)| name)));
    };
    let falls = curve != Curve::Constant;
    let spec = spec.allow(if falls { &["warmup", "min", "steps"] } else { &["warmup"] })?;
    let warmup = spec.take("warmup", 0, |text| count_from(0, text))?;
    if !falls {
        return Ok(Schedule { curve, warmup, ..Schedule::default() });
    }
    let min = spec.take("min", 0.0, not_negative)?;
    let steps = spec.take("steps", 0, |text| count_from(1, text))?;
    if (1..=warmup).contains(&steps) {
        return Err(ValueError::new(format!(
            "the warm-up of {warmup} steps leaves none of the schedule's {steps} steps"
        )));
    }
    Ok(Schedule { curve, warmup, min, steps })
}

/// Writes a schedule so that [`parse`] reads it back.
pub(super) fn serialize<S: Serializer>(schedule: &Schedule, serializer: S) -> Result<S::Ok, S::Error> {
    let Schedule { curve, warmup, min, steps } = schedule;
    let mut text = format!("{}:warmup={warmup}", name_of(&Curve::ALL, curve));
    if *curve != Curve::Constant {
        text += &format!(",min={min:?}");
    }
    if *steps > 0 {
        text += &format!(",steps={steps}");
    }
    serializer.serialize_str(&text)
}
