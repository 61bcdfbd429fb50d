//! Samples with more elements than a GPU's block has threads, and not a multiple of it, so that the last block is partial. Devices
//! are checked with them in addition to the other samples. Their sizes are the smallest that need a second block.

use super::table::{f32_type, float, of};
use super::*;
use crate::ops::Float;
use crate::ops::attention::{Attention, AttentionGrad};
use crate::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics};
use crate::ops::compression::Addends;
use crate::ops::contract::Contract;
use crate::ops::dropout::Dropout;
use crate::ops::elementwise::{Binary, Unary};
use crate::ops::experts::{Experts, ExpertsGrad};
use crate::ops::indexing::{Gather, GatherGrad};
use crate::ops::loss::{CrossEntropy, CrossEntropyGrad};
use crate::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use crate::ops::optimizer::{Adagrad, Adam, Adam8bit, Lion, Sgd};
use crate::ops::packing::{PackBits, UnpackBits};
use crate::ops::pool::{
    AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolGradAt, MaxPoolOffsets, Window, Windows,
};
use crate::ops::random::RandomUniform;
use crate::ops::ranking::TopK;
use crate::ops::recurrent::Cell;
use crate::ops::reduce::{CumulativeSum, Reduce, ReduceKind};
use crate::ops::rotary::Rotary;
use crate::ops::scatter::{ScatterElements, ScatterKind, ScatterNd};
use crate::ops::shape::{Concat, Pad, Reshape, Transpose};
use crate::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use crate::ops::step::Accumulate;
use smallvec::SmallVec;

/// Returns the samples whose last block is partial.
pub fn partial() -> Vec<Sample> {
    let families = [elements(), rows(), norms(), losses(), indices(), windows(), products(), layers()];
    families.into_iter().flatten().collect()
}

/// Kernels in which a thread computes one element or a few neighbours.
fn elements() -> Vec<Sample> {
    let scalar = |value| of(DType::F64, &[], Fill::Value(value));
    let numbers = || of(DType::I64, &[7], Fill::Integers(-3, 1 << 40));
    let (dropout, adam) = (
        Dropout { ratio: Float::new(0.5), id: 0, seed: 7, dim: 0 },
        Adam { beta1: Float::new(0.9), beta2: Float::new(0.99), eps: Float::new(1e-8), decoupled: true },
    );
    let moments = [float(&[1029]), float(&[1029]), float(&[1029]), of(DType::F32, &[1029], Fill::Positive)];
    let adam_operands: Vec<Operand> =
        moments.into_iter().chain([scalar(1e-2), scalar(0.1), scalar(3.0)]).collect();
    let optional = [of(DType::F32, &[], Fill::Value(0.25)), of(DType::Bool, &[], Fill::Value(0.0))];
    let adam_8bit = Adam8bit {
        beta1: Float::new(0.9),
        beta2: Float::new(0.99),
        eps: Float::new(1e-8),
        decoupled: true,
        block: 256,
    };
    let (codes, largest) =
        (of(DType::U8, &[3, 1029], Fill::Integers(0, 256)), of(DType::F32, &[3, 5], Fill::Positive));
    let in_8_bits = [float(&[3, 1029]), float(&[3, 1029]), codes.clone(), largest.clone(), codes, largest];
    let in_8_bits: Vec<Operand> =
        in_8_bits.into_iter().chain([scalar(1e-2), scalar(0.1), scalar(3.0)]).collect();
    let sgd = Sgd { momentum: Float::new(0.9), nesterov: true };
    let sum = of(DType::F32, &[1029], Fill::Positive);
    vec![
        Sample::new(Unary::Neg, [float(&[2404])]),
        Sample::new(Binary::Add, [float(&[3, 343]), float(&[343])]),
        Sample::new(Accumulate, [float(&[1029])]),
        Sample::new(Addends { count: 2 }, [float(&[602])]),
        Sample::new(Transpose { permutation: SmallVec::from_slice(&[1, 0]) }, [float(&[33, 47])]),
        Sample::new(Reshape, [float(&[3, 343])]).declared(f32_type(&[343, 3])),
        Sample::new(Pad { dim: 1, before: 2, value: Float::new(1.0) }, [float(&[3, 301])])
            .declared(f32_type(&[3, 305])),
        Sample::new(Concat { dim: 1 }, [float(&[3, 201]), float(&[3, 140]), float(&[3, 2])]),
        Sample::new(dropout, [float(&[7, 301]), numbers()]),
        Sample::new(RandomUniform { id: 0, seed: 7, dim: 0 }, [numbers()]).declared(f32_type(&[7, 301])),
        Sample::new(PackBits, [of(DType::Bool, &[3, 843], Fill::Normal)]),
        Sample::new(UnpackBits, [of(DType::U8, &[3, 106], Fill::Integers(0, 256))])
            .declared(Type::of(DType::Bool, &[3, 843])),
        Sample::new(adam.clone(), adam_operands.clone()),
        Sample::new(adam, [&adam_operands[..], &optional].concat()),
        Sample::new(adam_8bit, in_8_bits),
        Sample::new(sgd, [float(&[1029]), float(&[1029]), float(&[1029]), scalar(1e-2), scalar(0.1)]),
        Sample::new(
            Lion { beta1: Float::new(0.9), beta2: Float::new(0.99) },
            [float(&[1029]), float(&[1029]), float(&[1029]), scalar(1e-2), scalar(0.1)],
        ),
        Sample::new(
            Adagrad { eps: Float::new(1e-10) },
            [float(&[1029]), float(&[1029]), sum, scalar(1e-2), scalar(0.1)],
        ),
    ]
}

/// Kernels in which a group of threads computes a row, or neighbouring threads compute neighbouring rows.
fn rows() -> Vec<Sample> {
    let mut samples = vec![];
    for (dim, dims) in [(1, &[302u64, 7][..]), (1, &[1, 13, 47])] {
        samples.push(Sample::new(Softmax { dim }, [float(dims)]));
        let probabilities = of(DType::F32, dims, Fill::Probability);
        samples.push(Sample::new(SoftmaxGrad { dim }, [probabilities, float(dims)]));
        samples.push(Sample::new(LogSoftmax { dim }, [float(dims)]));
        let reduce = Reduce { kind: ReduceKind::Sum, dims: SmallVec::from_slice(&[dim]), keep: false };
        samples.push(Sample::new(reduce, [float(dims)]));
    }
    for (dim, dims) in [(1, &[301u64, 7][..]), (1, &[1, 13, 301])] {
        samples.push(Sample::new(TopK { dim, count: 3, largest: true }, [float(dims)]));
    }
    // Rows that several blocks share.
    let shared = Reduce { kind: ReduceKind::Max, dims: SmallVec::from_slice(&[0]), keep: false };
    samples.push(Sample::new(shared, [float(&[131, 257])]));
    for (dim, dims) in [(1, &[1u64, 4099]), (0, &[65, 301])] {
        let op = CumulativeSum { dim, exclusive: false, reverse: false };
        samples.push(Sample::new(op, [float(dims)]));
    }
    samples
}

fn norms() -> Vec<Sample> {
    let (layer, rms) = (LayerNorm { eps: Float::new(1e-5) }, RmsNorm { eps: Float::new(1e-6) });
    let statistic = |op: Op, operands: &[usize], result| Operand {
        ty: f32_type(&[302]),
        fill: Fill::Result(op, operands.to_vec(), result),
    };
    let (x, scale) = (|| float(&[302, 7]), || float(&[7]));
    // The gradient's sums over rows use one thread per column.
    let (wide, of_column) = (|| float(&[5, 301]), || float(&[301]));
    let of_row = |fill: Fill| Operand { ty: f32_type(&[5]), fill };
    let (mean, rstd) =
        (statistic(layer.clone().into(), &[0, 1, 1], 1), statistic(layer.clone().into(), &[0, 1, 1], 2));
    let root = statistic(rms.clone().into(), &[0, 1], 1);
    let eps = Float::new(1e-5);
    let (channels, plane) = (|| float(&[5]), || float(&[3, 5, 1031]));
    let variance = || of(DType::F32, &[5], Fill::Positive);
    vec![
        Sample::new(layer, [x(), scale(), scale()]),
        Sample::new(LayerNormGrad, [x(), scale(), mean, rstd, x()]),
        Sample::new(rms, [x(), scale()]),
        Sample::new(RmsNormGrad, [x(), scale(), root, x()]),
        Sample::new(
            LayerNormGrad,
            [wide(), of_column(), of_row(Fill::Normal), of_row(Fill::Positive), wide()],
        ),
        Sample::new(RmsNormGrad, [wide(), of_column(), of_row(Fill::Positive), wide()]),
        Sample::new(BatchStatistics, [plane()]),
        Sample::new(BatchNorm { eps }, [plane(), channels(), variance(), channels(), channels()]),
        Sample::new(BatchNormGrad { eps }, [plane(), channels(), variance(), channels(), plane()]),
    ]
}

fn losses() -> Vec<Sample> {
    let (ignore_index, label_smoothing) = (-1, Float::new(0.1));
    let loss = CrossEntropy { ignore_index, label_smoothing };
    let logits = || float(&[9, 7]);
    let labels = || of(DType::I64, &[9], Fill::Labels(7, ignore_index));
    let logsumexp = Operand { ty: f32_type(&[9]), fill: Fill::Result(loss.clone().into(), vec![0, 1], 2) };
    let gradient = CrossEntropyGrad { ignore_index, label_smoothing };
    vec![
        Sample::new(loss, [logits(), labels()]),
        Sample::new(gradient, [logits(), labels(), logsumexp, float(&[])]),
    ]
}

fn indices() -> Vec<Sample> {
    let indices = |dims: &[u64], size: i64| of(DType::I64, dims, Fill::Integers(-size, size));
    let set = ScatterKind::Set;
    vec![
        Sample::new(Gather { dim: 0 }, [float(&[6, 3]), indices(&[301], 6)]),
        // More keys than one block sorts.
        Sample::new(GatherGrad { dim: 0 }, [indices(&[4099], 301), float(&[4099, 7])])
            .declared(f32_type(&[301, 7])),
        Sample::new(
            ScatterElements { dim: 0, kind: set },
            [float(&[301]), indices(&[307], 301), float(&[307])],
        ),
        Sample::new(
            ScatterNd { batch_dims: 0, kind: ScatterKind::Add },
            [float(&[301, 3]), indices(&[307, 1], 301), float(&[307, 3])],
        ),
    ]
}

fn windows() -> Vec<Sample> {
    let windows = Windows::from_slice(&[Window { size: 3, stride: 2, dilation: 1, before: 1, after: 0 }]);
    let x = || float(&[1, 5, 403]);
    let largest = Sample::new(MaxPool { windows: windows.clone() }, [x()]);
    let ty = largest.result_types().expect("samples are well-typed").remove(0);
    let dy = || Operand { ty: ty.clone(), fill: Fill::Normal };
    let offsets = Operand { ty: Type::new(DType::U8, ty.dims.clone()), fill: Fill::Integers(0, 3) };
    let mean = AvgPool { windows: windows.clone(), count_padding: true };
    let mean_gradient = AvgPoolGrad { windows: windows.clone(), count_padding: true };
    vec![
        largest,
        Sample::new(MaxPoolOffsets { windows: windows.clone() }, [x()]),
        Sample::new(MaxPoolGradAt { windows: windows.clone() }, [offsets, dy()])
            .declared(f32_type(&[1, 5, 403])),
        Sample::new(MaxPoolGrad { windows }, [x(), dy()]),
        Sample::new(mean, [x()]),
        Sample::new(mean_gradient, [dy()]).declared(f32_type(&[1, 5, 403])),
    ]
}

fn products() -> Vec<Sample> {
    let table = || float(&[301, 3]);
    let mut samples = vec![
        Sample::new(Contract::new("ij,ij->ji"), [float(&[37, 41]), float(&[37, 41])]),
        Sample::new(Contract::new("i,i->"), [float(&[5003]), float(&[5003])]),
        Sample::new(Rotary { interleaved: false }, [float(&[1, 1, 301, 6]), table(), table()]),
    ];
    samples.extend(experts());
    // Prime numbers of queries and keys, which no tile divides; widths with and without tensor cores, and a mask.
    samples.extend(attend([1, 1, 1, 79, 73, 3], false, Some(of(DType::F32, &[1, 1, 79, 73], Fill::Mask))));
    samples.extend(attend([1, 2, 1, 79, 79, 3], true, None));
    samples.extend(attend([1, 1, 1, 151, 149, 64], false, None));
    samples
}

/// Recurrent layers. A thread computes the gradient of a unit for four entries.
fn layers() -> Vec<Sample> {
    let layer = |(cell, _)| super::recurrent::layer(cell, (false, true), [2, 5, 131]);
    Cell::ALL.into_iter().flat_map(layer).collect()
}

/// Experts whose number of rows is not a multiple of the tile.
fn experts() -> [Sample; 3] {
    let index = || of(DType::I64, &[71], Fill::Integers(0, 2));
    // Whole 16-byte packs of a half type, and three tiles of rows.
    let packs = [of(DType::I64, &[9], Fill::Integers(0, 2)), float(&[9, 136]), float(&[9, 8])];
    let gradient = [index(), float(&[71, 21]), float(&[71, 67])];
    [
        Sample::new(Experts { transposed: false }, [float(&[71, 21]), float(&[2, 21, 67]), index()]),
        Sample::new(ExpertsGrad, gradient).declared(f32_type(&[2, 21, 67])),
        Sample::new(ExpertsGrad, packs).declared(f32_type(&[2, 136, 8])),
    ]
}

/// Attention with these sizes (batch, query heads, key-value heads, queries, keys, width), and its gradient.
fn attend([b, h, g, s, t, d]: [u64; 6], causal: bool, mask: Option<Operand>) -> [Sample; 2] {
    let scale = Float::new(0.3);
    let op = Attention { scale, causal };
    let operands: Vec<Operand> =
        [float(&[b, h, s, d]), float(&[b, g, t, d]), float(&[b, g, t, d])].into_iter().chain(mask).collect();
    let result = |dims: &[u64], result| Operand {
        ty: f32_type(dims),
        fill: Fill::Result(op.clone().into(), (0..operands.len()).collect(), result),
    };
    let more = [result(&[b, h, s, d], 0), result(&[b, h, s], 1), float(&[b, h, s, d])];
    let backward = operands.iter().cloned().chain(more).collect::<Vec<_>>();
    [Sample::new(op.clone(), operands), Sample::new(AttentionGrad { scale, causal }, backward)]
}
