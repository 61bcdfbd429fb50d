//! Parts of a check that a process runs by itself: their text on a command line, and the lines that the process writes.

use super::batch::{Batch, parse_ranges, ranges};
use super::rates::{Rate, Sizes, count, measure_one, measure_product, products};
use super::samples::{Verdict, all, run};
use super::{OfNumber, StandIn, Subject};
use crate::gpu::Options;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

/// The device that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedDevice {
    /// The GPU of a number.
    Gpu(usize),
    /// The stand-in for a GPU on the processor, for tests.
    StandIn,
}

/// The work of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Samples against the interpreter.
    Samples(Batch),
    /// Rates, by the numbers of their tasks.
    Rates(Vec<usize>),
    /// Rates of the products in the benchmark's models, by their numbers. `--check` leaves them out.
    Products(Vec<usize>),
}

/// A part of a check: `gpu:0/f16/inputs/0-3,7`, `gpu:0/rates/0-5`, `gpu:0/products/0-59`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckPart {
    /// The device.
    pub place: CheckedDevice,
    /// The work.
    pub work: Work,
}

/// The name of [`CheckedDevice::StandIn`] in text.
const STAND_IN: &str = "stand-in";

/// The text with which a GPU begins.
const GPU: &str = "gpu:";

/// The text with which rates begin.
const RATES: &str = "rates/";

/// The text with which products begin.
const PRODUCTS: &str = "products/";

impl fmt::Display for CheckedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(number) => write!(f, "{GPU}{number}"),
            Self::StandIn => f.write_str(STAND_IN),
        }
    }
}

impl FromStr for CheckedDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix(GPU).and_then(|number| number.parse().ok());
        match (text, number) {
            (STAND_IN, _) => Ok(Self::StandIn),
            (_, Some(number)) => Ok(Self::Gpu(number)),
            _ => Err(format!("`{text}` is not a device; write {GPU}0")),
        }
    }
}

impl fmt::Display for CheckPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            Work::Samples(batch) => write!(f, "{}/{batch}", self.place),
            Work::Rates(tasks) => write!(f, "{}/{RATES}{}", self.place, ranges(tasks)),
            Work::Products(numbers) => write!(f, "{}/{PRODUCTS}{}", self.place, ranges(numbers)),
        }
    }
}

impl FromStr for CheckPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, work) = text.split_once('/').ok_or_else(|| format!("`{text}` has no `/`"))?;
        let work = match (work.strip_prefix(RATES), work.strip_prefix(PRODUCTS)) {
            (Some(tasks), _) => Work::Rates(parse_ranges(tasks)?),
            (_, Some(numbers)) => Work::Products(parse_ranges(numbers)?),
            (None, None) => Work::Samples(work.parse()?),
        };
        Ok(Self { place: place.parse()?, work })
    }
}

/// A line of a process that runs a part, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The kernels are compiled, and run from now on, at this pace.
    Loaded(String),
    /// The verdict on a sample.
    Verdict(Verdict),
    /// The rates of the task with this number.
    Rates(usize, Vec<Rate>),
    /// Nothing more comes, because of this error.
    Error(String),
    /// Nothing more comes.
    Done,
}

impl CheckPart {
    /// Runs the part in this process, and writes each result as a line as soon as it is there. Returns whether all samples
    /// agree and all rates were measured.
    ///
    /// # Errors
    /// A part with indices that do not exist; lines that cannot be written.
    pub fn run(&self, out: &mut dyn Write) -> io::Result<bool> {
        match self.place {
            CheckedDevice::Gpu(number) => {
                run_on(&OfNumber::of_process(number), &Sizes::default(), &self.work, out)
            }
            CheckedDevice::StandIn => run_on(&StandIn::of_process(), &Sizes::small(), &self.work, out),
        }
    }
}

fn run_on(subject: &impl Subject, sizes: &Sizes, work: &Work, out: &mut dyn Write) -> io::Result<bool> {
    let (samples, is_good) = (all(), |rate: &Rate| rate.error.is_none());
    let (indices, count) = match work {
        Work::Samples(batch) => (&batch.samples, samples.len()),
        Work::Rates(tasks) => (tasks, count(sizes)),
        Work::Products(numbers) => (numbers, products(sizes)),
    };
    if let Some(absent) = indices.iter().find(|&&index| index >= count) {
        let message = format!("there is no sample {absent}: there are {count} samples");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut passed = true;
    match work {
        Work::Rates(tasks) => {
            for &task in tasks {
                let rates = measure_one(subject, task, sizes);
                passed &= rates.iter().all(is_good);
                write(out, &Line::Rates(task, rates))?;
            }
        }
        Work::Products(numbers) => {
            for &number in numbers {
                let rate = measure_product(subject, number, sizes);
                passed &= is_good(&rate);
                write(out, &Line::Rates(number, vec![rate]))?;
            }
        }
        Work::Samples(batch) => {
            let out = std::cell::RefCell::new(&mut *out);
            let pace = format!("{:?}", Options::of_process().pace);
            // If this line is lost, writing the next one fails too.
            let loaded = || drop(write(&mut **out.borrow_mut(), &Line::Loaded(pace.clone())));
            let lines = match run(subject, &samples, batch, &loaded) {
                Ok(verdicts) => verdicts.into_iter().map(Line::Verdict).collect(),
                Err(error) => vec![Line::Error(error.to_string())],
            };
            passed = lines.iter().all(|line| matches!(line, Line::Verdict(Verdict { problem: None, .. })));
            lines.iter().try_for_each(|line| write(&mut **out.borrow_mut(), line))?;
        }
    }
    write(out, &Line::Done)?;
    Ok(passed)
}

fn write(out: &mut dyn Write, line: &Line) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_is_written() {
        for text in
            ["gpu:0/f16/inputs/0-3,7", "stand-in/bf16/negations/5", "gpu:12/rates/0-5", "gpu:0/products/0-59"]
        {
            assert_eq!(text.parse::<CheckPart>().unwrap().to_string(), text);
        }
        for text in ["", "gpu:0", "gpu:/rates/0", "cpu/rates/0", "gpu:0/rates", "gpu:0/f16/inputs"] {
            assert!(text.parse::<CheckPart>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_part_with_an_unknown_sample_is_refused() {
        for text in ["stand-in/f32/inputs/99999", "stand-in/rates/99999", "stand-in/products/99999"] {
            let error = text.parse::<CheckPart>().unwrap().run(&mut Vec::new()).unwrap_err();
            assert!(error.to_string().starts_with("there is no sample 99999"), "{error}");
        }
    }
}
