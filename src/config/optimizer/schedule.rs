//! `--lr-schedule NAME[:warmup=,decay=,min=,steps=]`.

use passes::optimizer::schedule::{Curve, Schedule};
use serde::Serializer;

use crate::config::value::{Spec, ValueError, count_from, name_of, not_negative, unknown_name};

/// Reads a schedule; its `steps` are 0 when the text has none.
pub(super) fn parse(text: &str) -> Result<Schedule, ValueError> {
    let spec = Spec::parse(text)?;
    let Some((curve, _)) = Curve::ALL.into_iter().find(|(_, name)| *name == spec.name) else {
        return Err(unknown_name("schedule", spec.name, &Curve::ALL.map(|(_, name)| name)));
    };
    let known: &[&str] = match curve {
        Curve::Constant => &["warmup"],
        Curve::Linear | Curve::Cosine => &["warmup", "min", "steps"],
        Curve::WarmupStableDecay => &["warmup", "decay", "min", "steps"],
    };
    let spec = spec.allow(known)?;
    let number = |key: &str, low: u64| {
        if known.contains(&key) { spec.take(key, 0, |text| count_from(low, text)) } else { Ok(0) }
    };
    let (warmup, steps, decay) = (number("warmup", 0)?, number("steps", 1)?, number("decay", 1)?);
    let min = if known.contains(&"min") { spec.take("min", 0.0, not_negative)? } else { 0.0 };
    if (1..=warmup).contains(&steps) {
        return Err(ValueError::new(format!(
            "the warm-up of {warmup} steps is as long as the schedule's {steps} steps or longer"
        )));
    }
    if steps > 0 && warmup.saturating_add(decay) > steps {
        return Err(ValueError::new(format!(
            "a warm-up of {warmup} steps and a decay of {decay} steps do not fit into the schedule's {steps} \
             steps"
        )));
    }
    Ok(Schedule { curve, warmup, min, steps, decay })
}

/// Writes a schedule so that [`parse`] reads it back.
pub(super) fn serialize<S: Serializer>(schedule: &Schedule, serializer: S) -> Result<S::Ok, S::Error> {
    let Schedule { curve, warmup, min, steps, decay } = schedule;
    let mut text = format!("{}:warmup={warmup}", name_of(&Curve::ALL, curve));
    if *curve != Curve::Constant {
        text += &format!(",min={min:?}");
    }
    if *decay > 0 {
        text += &format!(",decay={decay}");
    }
    if *steps > 0 {
        text += &format!(",steps={steps}");
    }
    serializer.serialize_str(&text)
}
