//! The sectors of memory that packs touch, on shapes as in the benchmarks: a file of kernels has a budget, the sectors that
//! its warps touch over the fewest that hold as many bytes.
//!
//! The stand-in sees loads and stores of packs and asynchronous copies. It does not see plain accesses through a pointer.

use super::writer::Writer;
use ir::ops::Float;
use ir::ops::attention::Attention;
use ir::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics};
use ir::ops::dropout::Dropout;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::indexing::Gather;
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ir::ops::optimizer::{Adam, Sgd};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::rotary::Rotary;
use ir::ops::shape::Reshape;
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use ir::{DType, Type};
use runtime::cuda::device::Cuda;
use runtime::cuda::host::{Counts, Host, Order, Sectors};
use runtime::cuda::lower::lower as lower_for_cuda;
use runtime::cuda::program::{File, Kernel};
use runtime::device::{Device, ProgramId};
use runtime::program::Section;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TYPES: [DType; 2] = [DType::F32, DType::BF16];

fn elementwise(w: &mut Writer) {
    for dtype in TYPES {
        let [x, y] = [0, 1].map(|_| w.floats(dtype, &[8, 3072]));
        w.op(Binary::Add, &[x, y]);
        w.op(Unary::GeluTanh, &[x]);
        let row = w.floats(dtype, &[3072]);
        let row = w.built(|b| b.broadcast(row, Type::of(dtype, &[8, 3072]).dims).expect("a row"));
        w.op(Binary::Mul, &[x, row]);
    }
    let x = w.floats(DType::F32, &[8, 768]);
    w.built(|b| b.cast(x, DType::BF16).expect("a float"));
}

fn copies(w: &mut Writer) {
    for dtype in TYPES {
        for (sizes, permutation) in [(&[2, 16, 12, 64][..], &[0, 2, 1, 3][..]), (&[768, 128], &[1, 0])] {
            let x = w.floats(dtype, sizes);
            let x = w.transposed(x, permutation);
            w.typed(Reshape, &[x], &[Type::of(dtype, &[sizes.iter().product::<usize>() as u64])]);
        }
    }
}

fn softmaxes(w: &mut Writer) {
    for dtype in TYPES {
        for columns in [768, 1024, 4096] {
            let [x, dy] = [0, 1].map(|_| w.floats(dtype, &[8, columns]));
            w.op(Softmax { dim: 1 }, &[x]);
            w.op(LogSoftmax { dim: 1 }, &[x]);
            w.op(SoftmaxGrad { dim: 1 }, &[x, dy]);
        }
    }
}

fn norms(w: &mut Writer) {
    for dtype in TYPES {
        for columns in [768, 1600, 4096] {
            let [x, dy] = [0, 1].map(|_| w.floats(dtype, &[16, columns]));
            let [scale, bias] = [0, 1].map(|_| w.floats(dtype, &[columns]));
            let layer = w.op(LayerNorm { eps: 1e-5.into() }, &[x, scale, bias]);
            w.op(LayerNormGrad, &[x, scale, layer[1], layer[2], dy]);
            let rms = w.op(RmsNorm { eps: 1e-6.into() }, &[x, scale]);
            w.op(RmsNormGrad, &[x, scale, rms[1], dy]);
        }
    }
}

fn batch_norms(w: &mut Writer) {
    for dtype in TYPES {
        let [x, dy] = [0, 1].map(|_| w.floats(dtype, &[2, 8, 28, 28]));
        let [mean, variance, scale, bias] = [0, 1, 2, 3].map(|_| w.floats(dtype, &[8]));
        w.op(BatchStatistics, &[x]);
        w.op(BatchNorm { eps: 1e-5.into() }, &[x, mean, variance, scale, bias]);
        w.op(BatchNormGrad { eps: 1e-5.into() }, &[x, mean, variance, scale, dy]);
    }
}

/// A row of GPT-2's vocabulary, padded and not.
fn losses(w: &mut Writer) {
    for (dtype, classes) in [(DType::F32, 4096), (DType::BF16, 50_304), (DType::BF16, 50_257)] {
        let logits = w.floats(dtype, &[4, classes]);
        let labels = w.integers(DType::I64, &[4], 0..classes as i64);
        let (ignore_index, label_smoothing) = (-1, Float::new(0.0));
        let loss = w.op(CrossEntropy { ignore_index, label_smoothing }, &[logits, labels]);
        let factor = w.built(|b| b.splat_like(loss[0], 0.5).expect("a float"));
        w.op(CrossEntropyGrad { ignore_index, label_smoothing }, &[logits, labels, loss[2], factor]);
    }
}

fn optimizers(w: &mut Writer) {
    for dtype in TYPES {
        let tensors = [0, 1, 2, 3].map(|_| w.numbers(dtype, &[32, 768], f64::abs));
        let scalars = [0.1, 0.01, 3.0].map(|number| w.scalar(DType::F64, number));
        let adam = Adam { beta1: 0.9.into(), beta2: 0.99.into(), eps: 1e-6.into(), decoupled: true };
        w.op(adam, &[&tensors[..], &scalars].concat());
        let sgd = Sgd { momentum: 0.8.into(), nesterov: false };
        w.op(sgd, &[&tensors[..3], &scalars[..2]].concat());
    }
}

fn rotations(w: &mut Writer) {
    for dtype in TYPES {
        let x = w.floats(dtype, &[1, 64, 4, 128]);
        let x = w.transposed(x, &[0, 2, 1, 3]);
        let [cos, sin] = [0, 1].map(|_| w.floats(DType::F32, &[64, 64]));
        for interleaved in [false, true] {
            w.op(Rotary { interleaved }, &[x, cos, sin]);
        }
    }
}

fn reductions(w: &mut Writer) {
    for dtype in TYPES {
        let x = w.floats(dtype, &[64, 1024]);
        for dims in [&[0][..], &[1], &[0, 1]] {
            w.op(Reduce { kind: ReduceKind::Sum, dims: dims.into(), keep: false }, &[x]);
        }
    }
}

fn dropouts(w: &mut Writer) {
    for dtype in TYPES {
        let x = w.floats(dtype, &[4, 16, 768]);
        let samples = w.integers(DType::I64, &[4], 0..100);
        w.op(Dropout { ratio: 0.1.into(), id: 0, seed: 5, dim: 0 }, &[x, samples]);
    }
}

fn embeddings(w: &mut Writer) {
    for dtype in TYPES {
        let table = w.floats(dtype, &[64, 768]);
        let places = w.integers(DType::I64, &[16], 0..64);
        w.op(Gather { dim: 0 }, &[table, places]);
    }
}

fn attention(w: &mut Writer) {
    for (dtype, positions) in [(DType::F32, 64), (DType::BF16, 128)] {
        let heads = [0, 1, 2].map(|_| w.floats(dtype, &[1, 1, positions, 64]));
        w.op(Attention { scale: 0.125.into(), causal: true }, &heads);
    }
}

/// The sectors of the last file of each kernel, of a program whose kernels were changed. Inputs are zeros.
fn by_file(write: fn(&mut Writer), change: fn(&mut Kernel)) -> BTreeMap<&'static str, Sectors> {
    let mut w = Writer::default();
    write(&mut w);
    let mut cuda = lower_for_cuda(Arc::new(w.lowered())).unwrap_or_else(|error| panic!("{error}"));
    cuda.kernels.iter_mut().for_each(change);
    let of_kernel = |kernel: &Kernel| Some((kernel.name.clone(), kernel.files.last()?.name));
    let files: BTreeMap<String, &str> = cuda.kernels.iter().filter_map(of_kernel).collect();
    let counts = Counts::default();
    let mut device = Cuda::with(Host::new(Order::default()).counting(&counts), vec![cuda])
        .unwrap_or_else(|error| panic!("{error}"));
    for section in [Section::Prepare, Section::Microbatch] {
        device.run(ProgramId(0), section).unwrap_or_else(|error| panic!("{error}"));
    }
    device.finish().unwrap_or_else(|error| panic!("{error}"));
    let mut by_file = BTreeMap::<&str, Sectors>::new();
    for (kernel, sectors) in counts.by_kernel() {
        println!("{kernel}: {:.3} {sectors:?}", sectors.touched as f64 / sectors.fewest as f64);
        *by_file.entry(files[&kernel]).or_default() += sectors;
    }
    by_file
}

#[test]
fn probe() {
    for write in [elementwise, copies, softmaxes, norms, batch_norms, losses, optimizers, rotations, reductions, dropouts, embeddings, attention] {
        let t = std::time::Instant::now();
        println!("{:?} {:?}", by_file(write, |_| ()), t.elapsed());
    }
}
