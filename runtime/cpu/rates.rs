//! Measures the rates of this machine's processor: memory bandwidth, the rates of several operators, and the time to start a kernel.

use super::{Cpu, cores, gemm};
use ir::machine::FlopRates;
use ir::ops::attention::Attention;
use ir::ops::contract::Contract;
use ir::ops::conv::Conv;
use ir::ops::elementwise::Unary;
use ir::{Builder, DType, Module, Op, Operator, Tensor, Type, random};
use program::device::{Device, DeviceError, ProgramId};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, Section};
use smallvec::smallvec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns the GFLOP/s of this machine, with `threads` threads or one for each core: the best of several products of two matrices of 1024 x
/// 1024 f32 numbers.
pub fn peak_gflops(threads: Option<usize>) -> f64 {
    let threads = threads.unwrap_or_else(cores);
    const SIZE: usize = 1024;
    let how = gemm::Multiply { factor: 1.0, add: false, parallel: true };
    let (lhs, rhs) = (vec![0.5f32; SIZE * SIZE], vec![0.25f32; SIZE * SIZE]);
    let mut out = vec![0.0f32; SIZE * SIZE];
    let matrix = gemm::Matrix::with_rows(SIZE);
    let mut once = || {
        let start = Instant::now();
        gemm::gemm([SIZE; 3], (&mut out, matrix), (&lhs, matrix), (&rhs, matrix), how);
        2.0 * (SIZE as f64).powi(3) / start.elapsed().as_secs_f64() / 1e9
    };
    let mut best = || (0..10).map(|_| once()).fold(0.0, f64::max);
    match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(best),
        Err(_) => best(),
    }
}

/// The sizes of the measured operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The number of elements that a kernel streams from memory.
    pub streamed: u64,
    /// The number of elements that a kernel computes in cache.
    pub computed: u64,
    /// The rows, columns and terms of a multiplication.
    pub matrices: u64,
    /// The batch, the channels, and the height and width of the images of a convolution with windows of 3 x 3.
    pub convolution: [u64; 3],
    /// The batch, heads, tokens, and width of a head of attention.
    pub attention: [u64; 4],
    /// The number of runs of each kernel; their median counts.
    pub runs: usize,
}

impl Default for Sizes {
    /// Returns sizes whose measurement takes some seconds. They are those of small models; larger sizes attain slightly more.
    fn default() -> Self {
        Self {
            streamed: 1 << 25,
            computed: 1 << 17,
            matrices: 512,
            convolution: [16, 64, 8],
            attention: [8, 8, 128, 64],
            runs: 9,
        }
    }
}

impl Sizes {
    /// Returns sizes that a test measures quickly.
    pub fn small() -> Self {
        Self {
            streamed: 1 << 12,
            computed: 1 << 10,
            matrices: 32,
            convolution: [1, 4, 8],
            attention: [1, 2, 32, 16],
            runs: 3,
        }
    }
}

/// Measured rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second to and from memory. An element that is read and written counts three times, since its line in the result is read
    /// before it is written.
    pub memory: f64,
    /// Operations per second of a multiplication of matrices.
    pub matrices: FlopRates,
    /// Operations per second of an elementwise operator, GELU by tanh.
    pub elements: FlopRates,
    /// Operations per second of a convolution in f32.
    pub convolution: f64,
    /// Operations per second of attention in f32.
    pub attention: f64,
    /// Seconds of a kernel with almost no elements.
    pub launch: f64,
}

/// Measures the rates with `threads` threads, or one for each core.
///
/// # Errors
/// No memory, no threads.
pub fn measure(sizes: &Sizes, threads: Option<usize>) -> Result<Rates, DeviceError> {
    let bench = Bench { runs: sizes.runs, threads };
    let of_types = |rate: &dyn Fn(DType) -> Result<f64, DeviceError>| {
        let [f64, f32, f16, bf16] = [DType::F64, DType::F32, DType::F16, DType::BF16].map(rate);
        Ok::<_, DeviceError>(FlopRates { f64: f64?, f32: f32?, f16: f16?, bf16: bf16? })
    };
    Ok(Rates {
        memory: bench.streaming(sizes.streamed)?,
        matrices: of_types(&|dtype| {
            let matrix = Type::of(dtype, &[sizes.matrices; 2]);
            bench.rate(Contract::new("mk,kn->mn"), &[matrix.clone(), matrix])
        })?,
        elements: of_types(&|dtype| bench.rate(Unary::GeluTanh, &[Type::of(dtype, &[sizes.computed])]))?,
        convolution: {
            let [batch, channels, size] = sizes.convolution;
            let types = [[batch, channels, size, size], [channels, channels, 3, 3]];
            let conv =
                Conv { strides: smallvec![1, 1], dilations: smallvec![1, 1], pads: smallvec![1, 1, 1, 1] };
            bench.rate(conv, &types.map(|sizes| Type::of(DType::F32, &sizes)))?
        },
        attention: {
            let width = sizes.attention[3] as f64;
            let ty = Type::of(DType::F32, &sizes.attention);
            bench.rate(
                Attention { scale: width.powf(-0.5).into(), causal: true },
                &[ty.clone(), ty.clone(), ty],
            )?
        },
        launch: bench.timed(&vec![(Unary::Neg.into(), vec![Type::of(DType::F32, &[8])]); 64])?.seconds / 64.0,
    })
}

/// Measures only the bytes per second to and from memory, as [`measure`] does.
///
/// # Errors
/// Those of [`measure`].
pub fn memory(sizes: &Sizes, threads: Option<usize>) -> Result<f64, DeviceError> {
    Bench { runs: sizes.runs, threads }.streaming(sizes.streamed)
}

/// Operators that are run and timed.
struct Bench {
    runs: usize,
    threads: Option<usize>,
}

impl Bench {
    /// Returns the bytes per second of an elementwise kernel.
    fn streaming(&self, elements: u64) -> Result<f64, DeviceError> {
        let ty = Type::of(DType::F32, &[elements]);
        let seconds = self.timed(&[(Unary::Neg.into(), vec![ty])])?.seconds;
        Ok(3.0 * DType::F32.bytes() as f64 * elements as f64 / seconds)
    }

    /// Returns the operations per second of an operator, with its cost as the number of operations.
    fn rate(&self, op: impl Into<Op>, operands: &[Type]) -> Result<f64, DeviceError> {
        let Timed { flops, seconds } = self.timed(&[(op.into(), operands.to_vec())])?;
        Ok(flops as f64 / seconds)
    }

    /// Returns the median time of all instructions of these operators, each with operands of its own.
    fn timed(&self, operators: &[(Op, Vec<Type>)]) -> Result<Timed, DeviceError> {
        let mut module = Module::new("rate");
        let mut operands = Vec::new();
        for (index, ty) in operators.iter().flat_map(|(_, types)| types).enumerate() {
            operands.push(module.add_input(format!("x{index}"), ty.clone(), false));
        }
        let mut b = Builder::new(&mut module, "rate");
        let (mut results, mut next) = (Vec::new(), operands.iter().copied());
        for (op, types) in operators {
            let own: Vec<_> = next.by_ref().take(types.len()).collect();
            results.extend(b.push(op.clone(), &own).expect("its operands fit"));
        }
        b.finish();
        for (index, result) in results.into_iter().enumerate() {
            module.add_output(format!("y{index}"), result);
        }
        let flops = module.nodes().map(|(_, node)| node.op.cost(&module.signature(node)).flops).sum();
        let options = LowerOptions { microbatches: Microbatches::Many, ..LowerOptions::of(crate::TARGET) };
        let program = lower(&module, &options).map_err(DeviceError::kernel)?;
        let mut cpu = Cpu::new(vec![Arc::new(program)], self.threads)?;
        for (index, ty) in operators.iter().flat_map(|(_, types)| types).enumerate() {
            cpu.write_input(ProgramId(0), index, &numbers(ty))?;
        }
        // The first run meets pages that were never touched.
        let mut once =
            || Ok::<_, DeviceError>(cpu.run_timed(ProgramId(0), Section::Microbatch)?.iter().sum());
        once()?;
        let mut times: Vec<Duration> = (0..self.runs).map(|_| once()).collect::<Result<_, _>>()?;
        times.sort_unstable();
        Ok(Timed { flops, seconds: times[times.len() / 2].as_secs_f64().max(1e-9) })
    }
}

/// Operators that were timed.
struct Timed {
    flops: u64,
    seconds: f64,
}

/// Returns normal numbers for a type; they repeat after a period.
fn numbers(ty: &Type) -> Vec<u8> {
    const PERIOD: usize = 4_099;
    let normal = (0..PERIOD as u64).map(|i| random::normal(1, 0, i)).collect();
    let period = Tensor::float(ty.dtype, vec![PERIOD], normal).to_bytes();
    let bytes = ty.bytes().expect("its dims are bound") as usize;
    period.iter().copied().cycle().take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_measured() {
        let Rates { memory, matrices, elements, convolution, attention, launch } =
            measure(&Sizes::small(), Some(1)).expect("it is measured");
        let all = [matrices, elements].map(|rates| [rates.f64, rates.f32, rates.f16, rates.bf16]);
        let rates = all.iter().flatten().chain([&memory, &convolution, &attention, &launch]);
        assert!(rates.into_iter().all(|rate| rate.is_finite() && *rate > 0.0));
    }
}
