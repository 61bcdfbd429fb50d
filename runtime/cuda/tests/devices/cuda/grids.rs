//! Grids go by the size of the GPU, and results agree on each.

use super::writer::Writer;
use cuda::lower::lower;
use cuda::program::Task;
use ir::DType;
use ir::ops::batch_norm::BatchStatistics;
use ir::ops::contract::Contract;
use ir::ops::norm::{LayerNorm, LayerNormGrad};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::softmax::Softmax;
use program::Multiprocessors;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operators whose blocks share rows, channels and sums.
fn operators(multiprocessors: u32) -> Writer {
    let mut w = Writer::default();
    w.multiprocessors = Multiprocessors(multiprocessors);
    let sum = |dim: u32| Reduce { kind: ReduceKind::Sum, dims: [dim].into_iter().collect(), keep: false };
    let wide = w.numbers(DType::F32, &[2, 100_000], |x| x / 16.0);
    w.op(sum(1), &[wide]);
    let tall = w.numbers(DType::F32, &[40_000, 6], |x| x / 16.0);
    w.op(sum(0), &[tall]);
    let line = w.numbers(DType::F32, &[70_000], |x| x / 16.0);
    w.op(Contract::new("a,a->"), &[line, line]);
    let x = w.floats(DType::F32, &[1000, 32]);
    w.op(Softmax { dim: 1 }, &[x]);
    let [scale, bias] = [0, 1].map(|_| w.floats(DType::F32, &[32]));
    let layer = w.op(LayerNorm { eps: 1e-5.into() }, &[x, scale, bias]);
    let dy = w.numbers(DType::F32, &[1000, 32], |x| x / 16.0);
    w.op(LayerNormGrad, &[x, scale, layer[1], layer[2], dy]);
    let images = w.floats(DType::F32, &[32, 4, 32, 32]);
    w.op(BatchStatistics, &[images]);
    w
}

/// The blocks of each kernel's launches, by the kernel's name without its hash.
fn grids(w: &Writer) -> BTreeMap<String, Vec<[u32; 3]>> {
    let cuda = lower(Arc::new(w.lowered())).expect("it has kernels");
    let mut grids: BTreeMap<String, Vec<[u32; 3]>> = BTreeMap::new();
    for command in cuda.sections.iter().flatten() {
        let Task::Launch(launch) = &command.task else { continue };
        let (name, _) = cuda.kernels[launch.kernel].name.rsplit_once('_').expect("a hash");
        grids.entry(name.to_owned()).or_default().push(launch.grid);
    }
    grids
}

#[test]
fn grids_go_by_the_size_of_the_gpu() {
    let [small, large] = [2, 132].map(|count| grids(&operators(count)));
    for name in ["dot", "reduce", "softmax", "layer_norm", "layer_norm_grad", "statistics_of_slices"] {
        let blocks = |grids: &[[u32; 3]]| grids.iter().map(|grid| grid.iter().product::<u32>()).sum::<u32>();
        assert!(blocks(&small[name]) < blocks(&large[name]), "{name}: {:?}, {:?}", small[name], large[name]);
    }
    assert_eq!(Writer::default().multiprocessors, Multiprocessors(132));
}

#[test]
#[ignore = "needs a C++ compiler"]
fn results_agree_on_gpus_of_every_size() {
    for (threads, multiprocessors) in [(0, 1), (1, 2), (2, 20), (3, 132)] {
        operators(multiprocessors).check(threads);
    }
}
