//! Measures how fast a device copies, multiplies and attends: medians, after a warm-up.

use super::Subject;
use super::products::{Layer, Pass};
use crate::device::Cuda;
use crate::driver::Driver;
use crate::gpu::copies::{Copies, Direction};
use crate::lower::lower as lower_for_cuda;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::contract::Contract;
use ir::{Builder, DType, Module, Op, Tensor, Type, random};
use program::Section;
use program::device::{Device, DeviceError, ProgramId};
use program::lower::{LowerOptions, lower};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The sizes of the measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The bytes of a copy.
    pub copy: usize,
    /// The rows, columns and terms of a multiplication.
    pub matmul: u64,
    /// The batch, heads and tokens of an attention.
    pub attention: [u64; 3],
    /// The widths of a head.
    pub widths: Vec<u64>,
    /// The layers whose products are measured by themselves.
    pub layers: Vec<Layer>,
    /// The least time of a measurement.
    pub at_once: Duration,
    /// The number of measurements.
    pub repeats: usize,
}

impl Default for Sizes {
    /// Returns sizes that fill the largest GPU there is, in a few seconds.
    fn default() -> Self {
        Self {
            copy: 256 << 20,
            matmul: 8192,
            attention: [4, 16, 4096],
            widths: vec![64, 128],
            layers: Layer::of_benchmark(),
            at_once: Duration::from_millis(50),
            repeats: 9,
        }
    }
}

impl Sizes {
    /// Returns sizes that the stand-in measures in a second.
    pub fn small() -> Self {
        let at_once = Duration::from_micros(1);
        let layers = vec![Layer { name: "toy".into(), tokens: 32, input: 16, output: 24 }];
        let (attention, widths) = ([1, 2, 32], vec![64]);
        Self { copy: 1 << 16, matmul: 32, attention, widths, layers, at_once, repeats: 3 }
    }
}

/// A rate, or the reason why it is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The name of the measurement: `copy_to_device`, `copy_from_device`, `copy_within_device`, `matmul_bf16`,
    /// `attention_bf16_d64_forward`, `attention_bf16_d64_backward`, and so on.
    pub name: String,
    /// The sizes of the measurement.
    pub sizes: String,
    /// `GB/s` or `TFLOP/s`, by thousands.
    pub unit: Cow<'static, str>,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The reason why it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A task of the measurement, which can run by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Copy(Direction),
    Matmul,
    /// Attention with this width of a head, and its gradient.
    Attention(u64),
}

/// Returns the tasks of these sizes, in the order of their rates.
fn tasks(sizes: &Sizes) -> Vec<Task> {
    let copies = [Direction::ToDevice, Direction::FromDevice, Direction::WithinDevice].map(Task::Copy);
    let attention = sizes.widths.iter().map(|&width| Task::Attention(width));
    copies.into_iter().chain([Task::Matmul]).chain(attention).collect()
}

/// Returns the number of tasks. [`measure_one`] takes a task by its number.
pub fn count(sizes: &Sizes) -> usize {
    tasks(sizes).len()
}

/// Measures all tasks, one after the other.
pub fn measure(subject: &impl Subject, sizes: &Sizes) -> Vec<Rate> {
    (0..count(sizes)).flat_map(|task| measure_one(subject, task, sizes)).collect()
}

/// Measures the task with a number below [`count`].
pub fn measure_one(subject: &impl Subject, task: usize, sizes: &Sizes) -> Vec<Rate> {
    match tasks(sizes)[task] {
        Task::Copy(direction) => vec![copy(subject, direction, sizes)],
        Task::Matmul => vec![matmul(subject, sizes)],
        Task::Attention(width) => {
            let times = attention_seconds(subject, width, sizes);
            attention(width, sizes, times.as_ref()).into()
        }
    }
}

/// Returns the number of products of layers. [`measure_product`] takes a product by its number.
pub fn products(sizes: &Sizes) -> usize {
    sizes.layers.len() * Pass::ALL.len()
}

/// Measures the product with a number below [`products`], in less time than a task, because there are many.
pub fn measure_product(subject: &impl Subject, number: usize, sizes: &Sizes) -> Rate {
    let layer = &sizes.layers[number / Pass::ALL.len()];
    let (pass, name) = Pass::ALL[number % Pass::ALL.len()];
    let (contract, [lhs, rhs]) = layer.product(pass);
    let types = [("lhs", Type::of(DType::BF16, &lhs)), ("rhs", Type::of(DType::BF16, &rhs))];
    let shorter = Sizes { at_once: sizes.at_once / 2, repeats: sizes.repeats.min(5), ..sizes.clone() };
    let described = format!("{contract} of {lhs:?} and {rhs:?}");
    let runs = Runs::new(subject, Contract::new(&contract).into(), &types);
    let seconds = runs.and_then(|mut runs| runs.seconds(&shorter));
    let rate = seconds.map(|seconds| layer.flops() / seconds / 1e12);
    Rate::of(format!("{}_{name}", layer.name), described, "TFLOP/s", rate)
}

/// Returns the rates of a task that could not be measured, with this reason.
pub fn unmeasured(task: usize, sizes: &Sizes, error: &str) -> Vec<Rate> {
    match tasks(sizes)[task] {
        Task::Copy(direction) => vec![copy_rate(direction, sizes, Err(error))],
        Task::Matmul => vec![matmul_rate(sizes, Err(error))],
        Task::Attention(width) => attention(width, sizes, Err(&error)).into(),
    }
}

impl Rate {
    fn of<E: Display>(
        name: impl Into<String>,
        sizes: String,
        unit: &'static str,
        value: Result<f64, E>,
    ) -> Self {
        let (value, error) = match value {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { name: name.into(), sizes, unit: unit.into(), value, error }
    }
}

/// Returns the number of copies that are timed together.
fn together(direction: Direction) -> usize {
    match direction {
        Direction::ToDevice | Direction::FromDevice => 4,
        // A copy within the device's memory is much faster, so more of them are timed together.
        Direction::WithinDevice => 100,
    }
}

fn copy(subject: &impl Subject, direction: Direction, sizes: &Sizes) -> Rate {
    let together = together(direction);
    let copies = Copies { direction, bytes: sizes.copy, together, repeats: sizes.repeats };
    copy_rate(direction, sizes, subject.copy(copies))
}

/// Returns the bytes copied by time. Within a device each byte is read and written, and counts once.
fn copy_rate<E: Display>(direction: Direction, sizes: &Sizes, times: Result<Vec<Duration>, E>) -> Rate {
    let name = match direction {
        Direction::ToDevice => "copy_to_device",
        Direction::FromDevice => "copy_from_device",
        Direction::WithinDevice => "copy_within_device",
    };
    let rate = |times: Vec<Duration>| (together(direction) * sizes.copy) as f64 / median(times) / 1e9;
    Rate::of(name, format!("{} bytes", sizes.copy), "GB/s", times.map(rate))
}

fn matmul(subject: &impl Subject, sizes: &Sizes) -> Rate {
    let operands = ["lhs", "rhs"].map(|name| (name, Type::of(DType::BF16, &[sizes.matmul; 2])));
    let runs = Runs::new(subject, Contract::new("ab,bc->ac").into(), &operands);
    matmul_rate(sizes, runs.and_then(|mut runs| runs.seconds(sizes)))
}

fn matmul_rate<E: Display>(sizes: &Sizes, seconds: Result<f64, E>) -> Rate {
    let size = sizes.matmul;
    let rate = seconds.map(|seconds| 2.0 * (size as f64).powi(3) / seconds / 1e12);
    Rate::of("matmul_bf16", format!("[{size}, {size}] x [{size}, {size}]"), "TFLOP/s", rate)
}

/// Returns the rates of causal attention and its gradient, from the seconds of each. Half of the scores are hidden, and count for
/// nothing; the gradient has five multiplications, and the forward has two.
fn attention<E: Display>(width: u64, sizes: &Sizes, seconds: Result<&[f64; 2], &E>) -> [Rate; 2] {
    let [batch, heads, tokens] = sizes.attention;
    let forward = 2.0 * (batch * heads * tokens * tokens * width) as f64;
    let shape = format!("[{batch}, {heads}, {tokens}, {width}], causal");
    [("forward", 0, forward), ("backward", 1, 2.5 * forward)].map(|(part, index, operations)| {
        let rate = seconds.map(|seconds| operations / seconds[index] / 1e12);
        Rate::of(format!("attention_bf16_d{width}_{part}"), shape.clone(), "TFLOP/s", rate)
    })
}

/// Returns the seconds of the forward, and of the gradient at its results.
fn attention_seconds(subject: &impl Subject, width: u64, sizes: &Sizes) -> Result<[f64; 2], DeviceError> {
    let [batch, heads, tokens] = sizes.attention;
    let scale = (width as f64).powf(-0.5).into();
    let ty = || Type::of(DType::BF16, &[batch, heads, tokens, width]);
    let inputs = ["q", "k", "v"].map(|name| (name, ty()));
    let mut runs = Runs::new(subject, Attention { scale, causal: true }.into(), &inputs)?;
    let forward = runs.seconds(sizes)?;
    let [out, logsumexp] = [0, 1].map(|output| runs.device.read_output(ProgramId(0), output));
    let (out, logsumexp) = (out?, logsumexp?);
    drop(runs);
    let sums = ("logsumexp", Type::of(DType::F32, &[batch, heads, tokens]));
    let inputs: Vec<_> = inputs.into_iter().chain([("out", ty()), sums, ("dout", ty())]).collect();
    let mut runs = Runs::new(subject, AttentionGrad { scale, causal: true }.into(), &inputs)?;
    runs.device.write_input(ProgramId(0), 3, &out)?;
    runs.device.write_input(ProgramId(0), 4, &logsumexp)?;
    Ok([forward, runs.seconds(sizes)?])
}

/// An operator on a device.
struct Runs<D> {
    device: Cuda<D>,
}

impl<D: Driver> Runs<D> {
    /// Prepares an operator with made-up numbers.
    fn new(
        subject: &impl Subject<Driver = D>,
        op: Op,
        operands: &[(&str, Type)],
    ) -> Result<Self, DeviceError> {
        let mut module = Module::new("rate");
        let values: Vec<_> =
            operands.iter().map(|(name, ty)| module.add_input(*name, ty.clone(), false)).collect();
        let mut b = Builder::new(&mut module, "rate");
        let results = b.push(op, &values).expect("its operands fit");
        b.finish();
        for (index, result) in results.into_iter().enumerate() {
            module.add_output(format!("result.{index}"), result);
        }
        let options = LowerOptions::of(crate::TARGET);
        let lowered = lower(&module, &options).and_then(|program| lower_for_cuda(Arc::new(program)));
        let mut device = subject.as_trained(lowered.map_err(DeviceError::kernel)?)?;
        device.run(ProgramId(0), Section::Prepare)?;
        for (index, (_, ty)) in operands.iter().enumerate() {
            device.write_input(ProgramId(0), index, &numbers(ty, index as u64))?;
        }
        Ok(Self { device })
    }

    /// Runs the operator this many times, one after the other, and returns the time.
    fn times(&mut self, count: usize) -> Result<Duration, DeviceError> {
        let start = Instant::now();
        for _ in 0..count {
            self.device.run(ProgramId(0), Section::Prepare)?;
            self.device.run(ProgramId(0), Section::Microbatch)?;
        }
        self.device.finish()?;
        Ok(start.elapsed())
    }

    /// Returns the median of the time of a single run.
    fn seconds(&mut self, sizes: &Sizes) -> Result<f64, DeviceError> {
        self.times(2)?;
        let once = self.times(1)?.as_secs_f64().max(1e-6);
        let together = ((sizes.at_once.as_secs_f64() / once).ceil() as usize).clamp(1, 10_000);
        let times = (0..sizes.repeats).map(|_| self.times(together)).collect::<Result<_, _>>()?;
        Ok(median(times) / together as f64)
    }
}

/// Returns numbers as in training, which take more power than zeros: normal numbers that repeat after a period.
fn numbers(ty: &Type, seed: u64) -> Vec<u8> {
    const PERIOD: usize = 65_537;
    let normal = (0..PERIOD as u64).map(|i| random::normal(1, seed, i)).collect();
    let period = Tensor::float(ty.dtype, vec![PERIOD], normal).to_bytes();
    let bytes = ty.bytes().expect("its dims are bound") as usize;
    let mut numbers = Vec::with_capacity(bytes);
    while numbers.len() < bytes {
        numbers.extend_from_slice(&period[..period.len().min(bytes - numbers.len())]);
    }
    numbers
}

/// Returns the median, in seconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}
