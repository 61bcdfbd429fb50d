//! Samples that are checked together, and their text on a command line: `f16/transposes/0-3,7`.

use super::samples::SampleVariant;
use ir::DType;
use ir::samples::Through;
use std::fmt;
use std::str::FromStr;

/// Samples that run as one program, all in one type and one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The layout of the samples.
    pub way: SampleVariant,
    /// The type of their numbers.
    pub dtype: DType,
    /// Their indices in the list of samples, in ascending order.
    pub samples: Vec<usize>,
}

impl Batch {
    /// Returns the first and the second half of the samples.
    pub fn halves(&self) -> [Self; 2] {
        let (first, second) = self.samples.split_at(self.samples.len() / 2);
        [first, second].map(|samples| Self { samples: samples.to_vec(), ..*self })
    }
}

/// The names of [`SampleVariant::ALL`] in text, in that order.
const WAYS: [&str; 3] = ["inputs", "transposes", "negations"];

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way.through {
            Through::Inputs => WAYS[0],
            Through::Transposes => WAYS[1],
            Through::Negations => WAYS[2],
        };
        write!(f, "{}/{way}/{}", self.dtype.name(), ranges(&self.samples))
    }
}

impl FromStr for Batch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let [dtype, way, samples] = parts[..] else {
            return Err(format!("`{text}` is not TYPE/WAY/SAMPLES, such as f16/inputs/0-3,7"));
        };
        let index = WAYS.iter().position(|name| *name == way);
        let index = index.ok_or_else(|| format!("`{way}` is not one of {}", WAYS.join(", ")))?;
        Ok(Self { way: SampleVariant::ALL[index], dtype: dtype.parse()?, samples: parse_ranges(samples)? })
    }
}

/// Returns ascending indices as text: `0-3,7`.
pub(super) fn ranges(indices: &[usize]) -> String {
    let is_next = |a: &usize, b: &usize| *b == a + 1;
    let range = |run: &[usize]| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    indices.chunk_by(is_next).map(range).collect::<Vec<_>>().join(",")
}

/// The largest index in text.
const LAST: usize = 99_999;

/// Reads [`ranges`].
pub(super) fn parse_ranges(text: &str) -> Result<Vec<usize>, String> {
    let mut indices = Vec::new();
    for range in text.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let parsed = from.parse::<usize>().ok().zip(to.parse::<usize>().ok());
        let (from, to) = parsed
            .filter(|(from, to)| from <= to && *to <= LAST && indices.last().is_none_or(|last| last < from))
            .ok_or_else(|| format!("`{text}` is not a list of ascending numbers, such as 0-3,7"))?;
        indices.extend(from..=to);
    }
    Ok(indices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_as_it_is_written() {
        for text in ["f32/inputs/0", "f16/transposes/0-3,7,9-10", "bf16/negations/12"] {
            assert_eq!(text.parse::<Batch>().unwrap().to_string(), text);
        }
        let batch: Batch = "f16/inputs/0-3,7".parse().unwrap();
        assert_eq!(batch.samples, [0, 1, 2, 3, 7]);
        assert_eq!(batch.halves().map(|half| half.to_string()), ["f16/inputs/0-1", "f16/inputs/2-3,7"]);
    }

    #[test]
    fn wrong_batches_are_refused() {
        for text in ["", "f16", "f16/inputs", "f17/inputs/0", "f16/input/0", "f16/inputs/", "f16/inputs/3-1"]
        {
            assert!(text.parse::<Batch>().is_err(), "{text}");
        }
        for samples in ["1,1", "0-99999999999", "0-100000", "-", "a"] {
            assert!(parse_ranges(samples).is_err(), "{samples}");
        }
    }
}
