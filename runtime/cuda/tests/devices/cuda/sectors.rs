//! The sectors of memory that packs touch, on shapes as in the benchmarks: a file of kernels has a budget, the sectors that
//! its warps touch over the fewest that hold as many bytes.
//!
//! The stand-in sees loads and stores of packs and asynchronous copies. It does not see plain accesses through a pointer.

use super::writer::Writer;
use cuda::device::Cuda;
use cuda::host::{Counts, Host, Order, Sectors};
use cuda::lower::lower as lower_for_cuda;
use cuda::program::{File, Kernel};
use ir::ops::Float;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics};
use ir::ops::contract::Contract;
use ir::ops::dropout::Dropout;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::ops::indexing::{Gather, GatherGrad};
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ir::ops::optimizer::{Adam, Sgd};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::rotary::Rotary;
use ir::ops::shape::Reshape;
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use ir::{DType, Type};
use program::Section;
use program::device::{Device, ProgramId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::{fs, thread};

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
    let half = w.built(|b| b.cast(x, DType::BF16).expect("a float"));
    w.op(Unary::Neg, &[half]);
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

/// Tables of embeddings and their gradients.
fn embeddings(w: &mut Writer) {
    for dtype in TYPES {
        let [table, updates] = [64, 16].map(|rows| w.floats(dtype, &[rows, 768]));
        let places = w.integers(DType::I64, &[16], 0..64);
        w.op(Gather { dim: 0 }, &[table, places]);
        w.typed(GatherGrad { dim: 0 }, &[places, updates], &[Type::of(dtype, &[64, 768])]);
    }
}

fn contractions(w: &mut Writer) {
    for dtype in TYPES {
        let [x, y] = [0, 1].map(|_| w.floats(dtype, &[8, 768]));
        w.op(Contract::new("ab,ab->"), &[x, y]);
    }
}

fn attention(w: &mut Writer) {
    for (dtype, positions) in [(DType::F32, 64), (DType::BF16, 128)] {
        let heads = [0, 1, 2, 3].map(|_| w.floats(dtype, &[1, 1, positions, 64]));
        let (scale, causal) = (Float::new(0.125), true);
        let made = w.op(Attention { scale, causal }, &heads[..3]);
        w.op(AttentionGrad { scale, causal }, &[&heads[..3], &made, &heads[3..]].concat());
    }
}

fn experts(w: &mut Writer) {
    let index = w.integers(DType::I64, &[64], 0..2);
    let [x, dout] = [256, 128].map(|width| w.floats(DType::BF16, &[64, width]));
    let weights = w.floats(DType::BF16, &[2, 256, 128]);
    w.op(Experts { transposed: false }, &[x, weights, index]);
    w.op(Experts { transposed: true }, &[dout, weights, index]);
    w.typed(ExpertsGrad, &[index, x, dout], &[Type::of(DType::BF16, &[2, 256, 128])]);
}

/// Programs that take about as long, so that they run beside each other.
const PROGRAMS: [fn(&mut Writer); 4] = [
    |w| [norms, optimizers].iter().for_each(|write| write(w)),
    |w| [softmaxes, losses, rotations].iter().for_each(|write| write(w)),
    |w| [elementwise, copies, reductions, dropouts, embeddings].iter().for_each(|write| write(w)),
    |w| [batch_norms, contractions, attention, experts].iter().for_each(|write| write(w)),
];

/// The budgets of files whose kernels are run here: the sectors that a kernel touches, over the fewest. Rows of an odd
/// length begin within a sector: they take one more an access.
const BUDGETS: [(&str, f64); 18] = [
    ("attention.cuh", 1.1),
    ("attention_grad.cuh", 1.1),
    ("attention_mma.cuh", 1.1),
    ("attention_mma_grad.cuh", 1.1),
    ("batch_norm.cuh", 1.1),
    ("contract.cuh", 1.1),
    ("copy.cuh", 1.1),
    ("dropout.cuh", 1.1),
    ("elementwise.cuh", 1.1),
    ("experts_mma.cuh", 1.1),
    ("indexing.cuh", 1.1),
    ("loss.cuh", 1.1),
    ("norm.cuh", 1.1),
    ("optimizer.cuh", 1.1),
    ("reduce.cuh", 1.1),
    ("rotary.cuh", 1.1),
    ("scatter.cuh", 1.1),
    ("softmax.cuh", 1.1),
];

/// Files without kernels of their own: their packs are counted in the kernels of the files that come after them.
const INCLUDED: [&str; 3] = ["mma.cuh", "prelude.cuh", "rows.cuh"];

/// Files that have no packs: they read and write element by element, which is not seen.
const WITHOUT_PACKS: [&str; 9] = [
    "compression.cuh",
    "det.cuh",
    "halt.cuh",
    "optimizer_8bit.cuh",
    "packing.cuh",
    "pool.cuh",
    "ranking.cuh",
    "recurrent.cuh",
    "shape.cuh",
];

/// Files whose packs are all in shared memory.
const SHARED_PACKS: [&str; 1] = ["experts.cuh"];

/// The sectors of each kernel, by its last file and its name. Inputs are zeros.
type ByKernel = BTreeMap<(&'static str, String), Sectors>;

/// The sectors of the kernels of a program, whose kernels were changed.
fn count(write: fn(&mut Writer), change: fn(&mut Kernel)) -> ByKernel {
    let mut w = Writer::default();
    write(&mut w);
    let mut cuda = lower_for_cuda(Arc::new(w.lowered())).unwrap_or_else(|error| panic!("{error}"));
    cuda.kernels.iter_mut().for_each(change);
    let of_kernel = |kernel: &Kernel| Some((kernel.name.clone(), kernel.files.last()?.name));
    let files: BTreeMap<String, &str> = cuda.kernels.iter().filter_map(of_kernel).collect();
    let counts = Counts::default();
    let host = Host::new(Order::default()).counting(&counts);
    let mut device = Cuda::with(host, vec![cuda]).unwrap_or_else(|error| panic!("{error}"));
    for section in [Section::Prepare, Section::Microbatch] {
        device.run(ProgramId(0), section).unwrap_or_else(|error| panic!("{error}"));
    }
    device.finish().unwrap_or_else(|error| panic!("{error}"));
    let by_kernel = counts.by_kernel().into_iter();
    by_kernel.map(|(kernel, sectors)| ((files[&kernel], kernel), sectors)).collect()
}

/// The kernels that touch more sectors than the budgets of their files allow. A file without a budget may touch none.
fn excess(by_kernel: &ByKernel) -> Vec<String> {
    let mut excess = Vec::new();
    for ((file, kernel), Sectors { touched, fewest }) in by_kernel {
        let budget = BUDGETS.iter().find(|(name, _)| name == file).map_or(0.0, |(_, budget)| *budget);
        if *touched as f64 > budget * *fewest as f64 {
            excess.push(format!(
                "{kernel} of {file} touches {touched} sectors, where {fewest} hold its bytes: \
                 its budget is {budget} times these"
            ));
        }
    }
    excess
}

#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_stay_within_their_budgets_of_sectors() {
    let by_kernel: ByKernel = thread::scope(|scope| {
        let running = PROGRAMS.map(|write| scope.spawn(move || count(write, |_| ())));
        running.into_iter().flat_map(|running| running.join().expect("it runs")).collect()
    });
    assert_eq!(excess(&by_kernel), [""; 0]);
    let touches =
        |file: &str| by_kernel.iter().any(|((name, _), sectors)| *name == file && sectors.touched > 0);
    let untouched: Vec<&str> = BUDGETS.iter().map(|(file, _)| *file).filter(|file| !touches(file)).collect();
    assert_eq!(untouched, [""; 0], "these files have budgets, and no pack of them is counted");
}

/// A new file of kernels gets a budget, or a reason why it has none.
#[test]
fn every_file_of_kernels_has_a_budget_or_a_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let files = fs::read_dir(&folder).expect("it is there");
    let files = files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
    let known =
        BUDGETS.iter().map(|(file, _)| file).chain(&INCLUDED).chain(&WITHOUT_PACKS).chain(&SHARED_PACKS);
    assert_eq!(files.collect::<BTreeSet<_>>(), known.map(|file| file.to_string()).collect());
    for file in WITHOUT_PACKS {
        let text = fs::read_to_string(folder.join(file)).expect("it is there");
        assert!(!text.contains("load<") && !text.contains("store("), "{file} has packs");
    }
}

/// The excess of softmax with changed kernels.
fn excess_of_packs(change: fn(&mut Kernel)) -> String {
    let write = |w: &mut Writer| {
        for dtype in TYPES {
            let x = w.floats(dtype, &[8, 4096]);
            w.op(Softmax { dim: 1 }, &[x]);
        }
    };
    excess(&count(write, change)).join("\n")
}

/// Gives the threads of `rows.cuh` other packs, by their numbers in the row.
fn number_packs(kernel: &mut Kernel, number: &str) {
    const OLD: &str = "const int pack = i * GROUP + lane;";
    for file in kernel.files.iter_mut().filter(|file| file.name == "rows.cuh") {
        assert!(file.text.contains(OLD), "no `{OLD}` in rows.cuh");
        let new = format!("const int pack = {number};");
        let text = Box::leak(file.text.replace(OLD, &new).into_boxed_str());
        *file = Box::leak(Box::new(File { text, ..**file }));
    }
}

/// Neighbouring threads take packs of 16 bytes that are 128 bytes apart: each pack is half a sector.
#[test]
#[ignore = "needs a C++ compiler"]
fn packs_that_are_apart_exceed_a_budget() {
    let excess = excess_of_packs(|kernel| {
        number_packs(kernel, "(i * GROUP + lane) * 8 % PACKS + (i * GROUP + lane) * 8 / PACKS");
    });
    let parts = ["touches 16384 sectors, where 8192 hold", "touches 8192 sectors, where 4096 hold"];
    for part in parts {
        assert!(excess.contains(part) && excess.contains(" of softmax.cuh"), "{excess}");
    }
}

/// Each thread takes a run of packs, one after the other. All of a row is touched, but the packs of one access of a warp are
/// apart.
#[test]
#[ignore = "needs a C++ compiler"]
fn packs_in_runs_of_a_thread_exceed_a_budget() {
    let excess = excess_of_packs(|kernel| number_packs(kernel, "lane * OWN + i"));
    assert!(excess.contains("touches 16384 sectors, where 8192 hold"), "{excess}");
}

/// Each thread takes a pack of every second 16 bytes, and after a wait the packs between them. The same calls lead to both
/// accesses; the wait makes two of them, of which each touches half a sector a pack.
#[test]
#[ignore = "needs a C++ compiler"]
fn packs_that_a_wait_keeps_apart_exceed_a_budget() {
    let write = |w: &mut Writer| {
        let x = w.floats(DType::F32, &[2048]);
        w.op(Unary::Exp, &[x]);
    };
    let by_kernel = count(write, |kernel| {
        let start = kernel.text.find("{\n").expect("a body") + 2;
        let body = "for (int i = 0; i < 2; i++) {\nconst int at = (2 * threadIdx.x + i) * 4;\n\
            store(a1 + at, load<4>(a0 + at));\n__syncthreads();\n}\n}\n";
        kernel.text.replace_range(start.., body);
    });
    let excess = excess(&by_kernel).join("\n");
    assert!(excess.contains("touches 2048 sectors, where 1024 hold"), "{excess}");
}
