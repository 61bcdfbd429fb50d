//! Random samples as JSON lines, for small models that have their own loss.

use ir::random::philox;
use serde_json::{Map, Value};

/// A field of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name of the input.
    pub name: &'static str,
    /// The number of elements of a sample; 0 for a single number that is not a list.
    pub size: usize,
    /// Integers below this number; 0 for floats between -1 and 1.
    pub below: u32,
}

const fn floats(name: &'static str, size: usize) -> Field {
    Field { name, size, below: 0 }
}

const fn integers(name: &'static str, size: usize, below: u32) -> Field {
    Field { name, size, below }
}

const X: Field = floats("x", 12);

/// The inputs of a model in `testdata/models`, by the name before the first dot; `None` if its samples are not JSON lines.
pub fn fields(model: &str) -> Option<Vec<Field>> {
    let name = model.split('.').next()?;
    Some(match name {
        "joined-loss" => vec![X, integers("labels", 0, 6), floats("targets", 3)],
        "parted-loss" => vec![X, integers("labels", 0, 6), floats("targets", 3), integers("weights", 0, 4)],
        "clamped-loss" | "quotient-loss" => {
            vec![integers("tokens", 6, 12), integers("labels", 6, 12), integers("mask", 6, 2)]
        }
        "smoothed-loss" | "weighted-loss" => vec![X, integers("labels", 0, 10)],
        "positives-loss" => vec![X, integers("labels", 4, 2)],
        "summed-loss" | "batch-loss" | "root-loss" => vec![X, floats("labels", 3)],
        "mlp" | "mlp-loss" => vec![floats("x", 64), integers("labels", 0, 10)],
        _ => return None,
    })
}

/// Makes `samples` samples with these fields.
pub fn lines(fields: &[Field], samples: u32, seed: u64) -> String {
    let number = |sample: u32, field: u32, place: u32, below: u32| {
        let bits = philox(seed, [sample, field, place, 5])[0];
        match below {
            0 => Value::from(f64::from(bits >> 8) / f64::from(1 << 23) - 1.0),
            below => Value::from(bits % below),
        }
    };
    let line = |sample: u32| {
        let value = |(index, field): (u32, &Field)| {
            let mut numbers =
                (0..field.size.max(1) as u32).map(|place| number(sample, index, place, field.below));
            let value = match field.size {
                0 => numbers.next_back().unwrap_or_default(),
                _ => Value::Array(numbers.collect()),
            };
            (field.name.to_owned(), value)
        };
        Value::Object((0..).zip(fields).map(value).collect::<Map<_, _>>()).to_string() + "\n"
    };
    (0..samples).map(line).collect()
}
