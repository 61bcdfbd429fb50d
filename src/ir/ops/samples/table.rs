//! The table of samples: at least one for every operator. Dims that an operator can split are even.

use super::super::attention::{Attention, AttentionGrad};
use super::super::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics, InTraining};
use super::super::collective::Collective;
use super::super::constant::{Constant, Iota, Splat};
use super::super::contract::Contract;
use super::super::conv::{Conv, ConvGradInput, ConvGradWeight};
use super::super::det::Det;
use super::super::dropout::Dropout;
use super::super::elementwise::{Binary, Bitcast, Bitwise, Cast, Compare, Logical, Select, Unary};
use super::super::experts::{Experts, ExpertsGrad};
use super::super::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use super::super::list::Kinds;
use super::super::loss::{CrossEntropy, CrossEntropyGrad};
use super::super::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use super::super::optimizer::{Adagrad, Adam, Sgd};
use super::super::pool::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolIndices, Window, Windows};
use super::super::reduce::{CumulativeSum, Reduce, ReduceKind};
use super::super::rotary::Rotary;
use super::super::scatter::{GatherElementsGrad, GatherNdGrad, ScatterElements, ScatterKind, ScatterNd};
use super::super::shape::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use super::super::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use super::super::step::Accumulate;
use super::*;
use smallvec::SmallVec;

/// The samples of every operator.
pub fn samples() -> Vec<Sample> {
    let families = [
        elementwise(),
        bits(),
        sources(),
        shapes(),
        contractions(),
        convolutions(),
        reductions(),
        softmaxes(),
        norms(),
        batch_norms(),
        pools(),
        indexing(),
        scatters(),
        determinants(),
        experts(),
        losses(),
        dropout(),
        optimizers(),
        attention(),
        rotary(),
        collectives(),
    ];
    families.into_iter().flatten().collect()
}

fn of(dtype: DType, dims: &[u64], fill: Fill) -> Operand {
    Operand { ty: Type::of(dtype, dims), fill }
}

/// A normal f32 operand.
fn float(dims: &[u64]) -> Operand {
    of(DType::F32, dims, Fill::Normal)
}

fn f32_type(dims: &[u64]) -> Type {
    Type::of(DType::F32, dims)
}

impl Sample {
    fn new(op: impl Into<Op>, operands: impl Into<Vec<Operand>>) -> Self {
        let (op, operands) = (op.into(), operands.into());
        let (declared, statistics, data) = (vec![], vec![], PrimaryMap::new());
        Self { op, operands, declared, data, differentiable: true, statistics, smooth: true }
    }

    fn declared(mut self, ty: Type) -> Self {
        self.declared.push(ty);
        self
    }

    /// Without a gradient.
    fn undifferentiable(mut self) -> Self {
        self.differentiable = false;
        self
    }

    fn statistics(mut self, results: &[usize]) -> Self {
        self.statistics = results.to_vec();
        self
    }
}

fn elementwise() -> Vec<Sample> {
    let mut samples: Vec<Sample> = Unary::NAMES.iter().map(|&(op, _)| unary(op)).collect();
    samples.extend(Binary::NAMES.iter().flat_map(|&(op, _)| binary(op)));
    for &(op, _) in Compare::NAMES {
        samples.push(Sample::new(op, [float(&[2, 4]), float(&[4])]));
        let integers = |dims: &[u64]| of(DType::I64, dims, Fill::Integers(-2, 3));
        samples.push(Sample::new(op, [integers(&[4, 2]), integers(&[4, 1])]));
    }
    for &(op, _) in Logical::NAMES {
        let bools = |dims: &[u64]| of(DType::Bool, dims, Fill::Normal);
        samples.push(Sample::new(op, [bools(&[2, 4]), bools(&[4])]));
    }
    let condition = |dims: &[u64]| of(DType::Bool, dims, Fill::Normal);
    samples.push(Sample::new(Select, [condition(&[2, 4]), float(&[2, 4]), float(&[2, 4])]));
    samples.push(Sample::new(Select, [condition(&[4, 1]), float(&[]), float(&[2, 1, 6])]));
    let numbers = of(DType::I64, &[4], Fill::Normal);
    samples.push(Sample::new(Select, [condition(&[4]), numbers.clone(), numbers]));
    for (from, to) in [
        (DType::F32, DType::F64),
        (DType::F64, DType::F32),
        (DType::F32, DType::BF16),
        (DType::F32, DType::F16),
        (DType::I64, DType::F32),
        (DType::F32, DType::I64),
        (DType::I64, DType::I32),
        (DType::I64, DType::Bool),
        (DType::Bool, DType::F32),
    ] {
        samples.push(Sample::new(Cast { to }, [of(from, &[2, 4], Fill::Normal)]));
    }
    samples.push(Sample::new(Accumulate, [float(&[2, 4])]).undifferentiable());
    samples
}

fn bits() -> Vec<Sample> {
    let of_bits = |from, to, fill| Sample::new(Bitcast { to }, [of(from, &[2, 4], fill)]);
    // Bits of floats between 1 and 4, which are no small numbers.
    let (double, brain) = (Fill::Integers(0x3ff0 << 48, 0x4010 << 48), Fill::Integers(0x3f80, 0x4080));
    let mut samples = vec![
        of_bits(DType::F64, DType::I64, Fill::Normal),
        of_bits(DType::F16, DType::I16, Fill::Normal),
        of_bits(DType::F16, DType::BF16, Fill::Normal).undifferentiable(),
        of_bits(DType::I64, DType::F64, double),
        of_bits(DType::U16, DType::BF16, brain),
        of_bits(DType::I32, DType::U32, Fill::Normal),
        of_bits(DType::Bool, DType::U8, Fill::Normal),
    ];
    for &(op, _) in Bitwise::NAMES {
        let pair = |dtype, fill: Fill, second: Fill| {
            Sample::new(op, [of(dtype, &[2, 4], fill), of(dtype, &[4], second)])
        };
        samples.push(pair(DType::I32, Fill::Integers(-1 << 31, 1 << 31), Fill::Integers(-2, 36)));
        samples.push(pair(DType::U8, Fill::Integers(0, 256), Fill::Integers(0, 12)));
        let [x, y] = [&[4u64, 1][..], &[2, 1, 6]].map(|dims| of(DType::I64, dims, Fill::Normal));
        samples.push(Sample::new(op, [x, y]));
    }
    samples
}

fn unary(op: Unary) -> Sample {
    Sample::new(
        op,
        [match op {
            Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal => {
                of(DType::F32, &[2, 4], Fill::Positive)
            }
            Unary::IsNan => of(DType::F32, &[2, 4], Fill::WithNan),
            Unary::Not => of(DType::Bool, &[2, 4], Fill::Normal),
            _ => float(&[2, 4]),
        }],
    )
}

fn binary(op: Binary) -> Vec<Sample> {
    let positive = |dims: &[u64]| of(DType::F32, dims, Fill::Positive);
    let mut samples = match op {
        Binary::Div => vec![
            Sample::new(op, [float(&[2, 4]), positive(&[2, 4])]),
            Sample::new(op, [float(&[]), positive(&[4, 2])]),
        ],
        Binary::Pow => vec![Sample::new(op, [positive(&[2, 4]), float(&[4])])],
        Binary::Mod => vec![Sample::new(op, [float(&[2, 4]), positive(&[4])])],
        _ => vec![
            Sample::new(op, [float(&[2, 4]), float(&[2, 4])]),
            Sample::new(op, [float(&[2, 1, 4]), float(&[6, 1])]),
        ],
    };
    if matches!(op, Binary::GeluGrad | Binary::GeluTanhGrad | Binary::SiluGrad | Binary::ReluGrad) {
        samples = samples.into_iter().map(Sample::undifferentiable).collect();
    } else {
        let [x, y] = [Fill::Normal, Fill::Positive].map(|fill| of(DType::I64, &[4], fill));
        samples.push(Sample::new(op, [x, y]));
    }
    samples
}

fn sources() -> Vec<Sample> {
    let ty = f32_type(&[2, 4]);
    let mut constant = Sample::new(Constant { data: DataId::from_u32(0) }, []).declared(ty.clone());
    constant.data.push(row(&ty, 1));
    vec![
        constant,
        Sample::new(Splat { value: Float::new(1.5) }, []).declared(ty),
        Sample::new(Splat { value: Float::new(-3.0) }, []).declared(Type::scalar(DType::I64)),
        Sample::new(Iota { dim: 1 }, []).declared(Type::of(DType::I64, &[2, 4])),
        Sample::new(Iota { dim: 0 }, []).declared(f32_type(&[6])),
    ]
}

fn shapes() -> Vec<Sample> {
    let slice = |dim, start, step| Slice { dim, start, step };
    let mut samples = vec![
        Sample::new(Broadcast, [float(&[4, 1])]).declared(f32_type(&[2, 4, 6])),
        Sample::new(Broadcast, [float(&[])]).declared(f32_type(&[2, 4])),
        Sample::new(Concat { dim: 1 }, [float(&[2, 3]), float(&[2, 1]), float(&[2, 4])]),
        Sample::new(Pad { dim: 1, before: 2, value: Float::new(0.0) }, [float(&[2, 3])])
            .declared(f32_type(&[2, 6])),
        Sample::new(Pad { dim: 0, before: 0, value: Float::new(-1.0) }, [float(&[2, 4])])
            .declared(f32_type(&[5, 4])),
        Sample::new(slice(1, 1, 1), [float(&[2, 5])]).declared(f32_type(&[2, 3])),
        Sample::new(slice(0, 5, -2), [float(&[6, 2])]).declared(f32_type(&[3, 2])),
        Sample::new(slice(0, 0, 2), [of(DType::I64, &[4, 2], Fill::Normal)])
            .declared(Type::of(DType::I64, &[2, 2])),
        Sample::new(Transpose { permutation: SmallVec::from_slice(&[2, 0, 1]) }, [float(&[2, 4, 6])]),
    ];
    for (from, to) in [
        (&[2, 4, 6][..], &[8, 6][..]),
        (&[8, 6], &[2, 4, 6]),
        (&[2, 12], &[2, 2, 6]),
        (&[4, 1, 6], &[4, 6]),
        (&[4, 6], &[6, 4]),
        (&[2, 2, 2, 4], &[2, 4, 2, 2]),
    ] {
        samples.push(Sample::new(Reshape, [float(from)]).declared(f32_type(to)));
    }
    samples
}

fn contractions() -> Vec<Sample> {
    let contract =
        |text: &str, lhs: &[u64], rhs: &[u64]| Sample::new(Contract::new(text), [float(lhs), float(rhs)]);
    vec![
        contract("mk,kn->mn", &[2, 4], &[4, 6]),
        contract("bsh,oh->bso", &[2, 4, 6], &[2, 6]),
        contract("bhsd,bhtd->bhst", &[2, 4, 6, 2], &[2, 4, 2, 2]),
        contract("bshd,hdo->bso", &[2, 4, 2, 6], &[2, 6, 4]),
        contract("ij,ij->", &[4, 6], &[4, 6]),
        contract("ij,ij->ji", &[4, 6], &[4, 6]),
        // Large enough for the gemm crate.
        contract("bmk,kn->bmn", &[2, 34, 36], &[36, 40]),
    ]
}

fn convolutions() -> Vec<Sample> {
    [
        convolve([&[2, 4, 7], &[2, 4, 3], &[1], &[1], &[1, 1]]),
        convolve([&[2, 2, 9], &[4, 2, 4], &[3], &[1], &[0, 2]]),
        // Elements that no window reads.
        convolve([&[2, 2, 7], &[2, 2, 1], &[4], &[1], &[0, 0]]),
        convolve([&[2, 2, 5, 7], &[2, 2, 3, 3], &[1, 1], &[1, 1], &[0, 0, 0, 0]]),
        convolve([&[2, 2, 7, 9], &[4, 2, 3, 2], &[2, 3], &[2, 1], &[1, 0, 2, 3]]),
        convolve([&[2, 4, 3, 4], &[6, 4, 1, 1], &[1, 1], &[1, 1], &[0, 0, 0, 0]]),
        // Groups, also of one channel each.
        convolve([&[2, 4, 5, 5], &[4, 2, 3, 3], &[2, 2], &[1, 1], &[1, 1, 1, 1]]),
        convolve([&[2, 4, 4, 5], &[8, 1, 3, 3], &[1, 2], &[1, 1], &[0, 1, 2, 1]]),
        convolve([&[2, 2, 3, 4, 5], &[2, 2, 2, 3, 2], &[1, 2, 1], &[2, 1, 1], &[1, 1, 0, 0, 2, 1]]),
        // Large enough for the gemm crate.
        convolve([&[2, 2, 13, 13], &[12, 2, 3, 3], &[1, 1], &[1, 1], &[1, 1, 1, 1]]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A convolution of an image and a weight with these strides, dilations and pads, and its gradients.
fn convolve([x, weight, strides, dilations, pads]: [&[u64]; 5]) -> [Sample; 3] {
    let (strides, dilations) = (SmallVec::from_slice(strides), SmallVec::from_slice(dilations));
    let pads = SmallVec::from_slice(pads);
    let conv = Conv { strides: strides.clone(), dilations: dilations.clone(), pads: pads.clone() };
    let grad_input =
        ConvGradInput { strides: strides.clone(), dilations: dilations.clone(), pads: pads.clone() };
    let grad_weight = ConvGradWeight { strides, dilations, pads };
    let forward = Sample::new(conv, [float(x), float(weight)]);
    let ty = forward.result_types().expect("samples are well-typed").remove(0);
    let dy = Operand { ty, fill: Fill::Normal };
    [
        forward,
        Sample::new(grad_input, [float(weight), dy.clone()]).declared(f32_type(x)),
        Sample::new(grad_weight, [float(x), dy]).declared(f32_type(weight)),
    ]
}

fn reductions() -> Vec<Sample> {
    let mut samples = vec![];
    for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min] {
        for (dims, keep) in [(&[1u32][..], false), (&[0, 2], true), (&[0, 1, 2], false)] {
            samples.push(Sample::new(
                Reduce { kind, dims: SmallVec::from_slice(dims), keep },
                [float(&[2, 4, 6])],
            ));
        }
        if kind != ReduceKind::Mean {
            let op = Reduce { kind, dims: SmallVec::from_slice(&[0]), keep: false };
            samples.push(Sample::new(op, [of(DType::I64, &[4, 2], Fill::Normal)]));
        }
    }
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        let op = CumulativeSum { dim: 1, exclusive, reverse };
        samples.push(Sample::new(op.clone(), [float(&[2, 3, 4])]));
        samples.push(Sample::new(op, [of(DType::I64, &[2, 4], Fill::Normal)]));
    }
    samples
}

fn softmaxes() -> Vec<Sample> {
    let mut samples = vec![];
    for (dim, dims) in [(2, &[2u64, 4, 6][..]), (0, &[6, 4])] {
        samples.push(Sample::new(Softmax { dim }, [float(dims)]));
        let probabilities = of(DType::F32, dims, Fill::Probability);
        samples.push(Sample::new(SoftmaxGrad { dim }, [probabilities, float(dims)]).undifferentiable());
        samples.push(Sample::new(LogSoftmax { dim }, [float(dims)]));
    }
    samples
}

fn norms() -> Vec<Sample> {
    let mut samples = vec![];
    for (x, n) in [(&[2u64, 4, 6][..], 6), (&[4, 5], 5)] {
        let (layer, rms) = (LayerNorm { eps: Float::new(1e-5) }, RmsNorm { eps: Float::new(1e-6) });
        let statistic = |op: Op, operands: &[usize], result| Operand {
            ty: f32_type(&x[..x.len() - 1]),
            fill: Fill::Result(op, operands.to_vec(), result),
        };
        let (mean, rstd) =
            (statistic(layer.clone().into(), &[0, 1, 1], 1), statistic(layer.clone().into(), &[0, 1, 1], 2));
        let root = statistic(rms.clone().into(), &[0, 1], 1);
        samples.push(Sample::new(layer, [float(x), float(&[n]), float(&[n])]).statistics(&[1, 2]));
        samples.push(
            Sample::new(LayerNormGrad, [float(x), float(&[n]), mean, rstd, float(x)]).undifferentiable(),
        );
        samples.push(Sample::new(rms, [float(x), float(&[n])]).statistics(&[1]));
        samples.push(Sample::new(RmsNormGrad, [float(x), float(&[n]), root, float(x)]).undifferentiable());
    }
    samples
}

fn batch_norms() -> Vec<Sample> {
    let eps = Float::new(1e-5);
    let mut samples = vec![Sample::new(InTraining, [float(&[4]), float(&[4])])];
    for (x, c) in [(&[4u64, 2, 6][..], 2), (&[6, 4], 4), (&[2, 4, 2, 4], 4), (&[2, 2, 1, 2, 4], 2)] {
        let (x, c) = (float(x), float(&[c]));
        let variance = Operand { fill: Fill::Positive, ..c.clone() };
        samples.push(Sample::new(BatchStatistics, [x.clone()]).statistics(&[2]));
        let operands = [x.clone(), c.clone(), variance.clone(), c.clone(), c.clone()];
        samples.push(Sample::new(BatchNorm { eps }, operands));
        let operands = [x.clone(), c.clone(), variance, c, x];
        samples.push(Sample::new(BatchNormGrad { eps }, operands).undifferentiable());
    }
    samples
}

fn pools() -> Vec<Sample> {
    let window = |size, stride, dilation, before, after| Window { size, stride, dilation, before, after };
    let plain = window(2, 1, 1, 0, 0);
    // A window of nothing but padding.
    let mut outside = pool(&[2, 4], &[window(2, 3, 1, 3, 1)]);
    outside[0].smooth = false;
    [
        outside,
        pool(&[2, 4, 7], &[window(3, 2, 1, 0, 0)]),
        pool(&[2, 2, 6], &[window(3, 2, 2, 2, 3)]),
        // Elements that no window covers.
        pool(&[2, 9], &[window(2, 5, 1, 1, 1)]),
        pool(&[2, 2, 5, 6], &[plain, plain]),
        pool(&[2, 2, 7, 8], &[window(3, 2, 1, 1, 1), window(2, 3, 3, 0, 2)]),
        pool(&[2, 4, 3, 5], &[window(3, 1, 1, 0, 0), window(5, 1, 1, 0, 0)]),
        pool(&[2, 2, 4, 3, 5], &[window(2, 2, 1, 0, 0), window(3, 1, 1, 1, 1), window(2, 2, 2, 1, 0)]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Pooling an operand of these sizes, and its gradients; the largest also where elements are equal.
fn pool(sizes: &[u64], windows: &[Window]) -> Vec<Sample> {
    let windows = Windows::from_slice(windows);
    let largest = Sample::new(MaxPool { windows: windows.clone() }, [float(sizes)]);
    let ty = largest.result_types().expect("samples are well-typed").remove(0);
    let dy = Operand { ty, fill: Fill::Normal };
    let indices =
        |fill| Sample::new(MaxPoolIndices { windows: windows.clone() }, [of(DType::F32, sizes, fill)]);
    let mut samples = vec![largest, indices(Fill::Normal), indices(Fill::Integers(-1, 2))];
    for fill in [Fill::Normal, Fill::Integers(-1, 2)] {
        let grad = MaxPoolGrad { windows: windows.clone() };
        samples.push(Sample::new(grad, [of(DType::F32, sizes, fill), dy.clone()]).undifferentiable());
    }
    for count_padding in [false, true] {
        samples.push(Sample::new(AvgPool { windows: windows.clone(), count_padding }, [float(sizes)]));
        let grad = AvgPoolGrad { windows: windows.clone(), count_padding };
        samples.push(Sample::new(grad, [dy.clone()]).declared(f32_type(sizes)).undifferentiable());
    }
    samples
}

fn indexing() -> Vec<Sample> {
    let indices = |dims: &[u64], size: i64| of(DType::I64, dims, Fill::Integers(-size, size));
    // Some of them outside, which read zeros.
    let wild = |dims: &[u64], size: i64| of(DType::I32, dims, Fill::Integers(-size - 2, size + 2));
    vec![
        Sample::new(Gather { dim: 0 }, [float(&[6, 2]), indices(&[2, 4], 6)]),
        Sample::new(Gather { dim: 1 }, [float(&[2, 4, 2]), wild(&[6], 4)]),
        Sample::new(Gather { dim: 0 }, [float(&[4, 2]), indices(&[], 4)]),
        Sample::new(Gather { dim: 0 }, [indices(&[6], 9), indices(&[4], 6)]),
        Sample::new(Gather { dim: 0 }, [of(DType::Bool, &[6], Fill::Normal), indices(&[4], 6)]),
        Sample::new(GatherGrad { dim: 0 }, [indices(&[2, 4], 6), float(&[2, 4, 2])])
            .declared(f32_type(&[6, 2]))
            .undifferentiable(),
        Sample::new(GatherGrad { dim: 1 }, [wild(&[6], 4), float(&[2, 6, 4])])
            .declared(f32_type(&[2, 4, 4]))
            .undifferentiable(),
        Sample::new(GatherElements { dim: 1 }, [float(&[2, 6, 4]), indices(&[2, 4, 4], 6)]),
        Sample::new(GatherElements { dim: 0 }, [float(&[4, 4]), wild(&[2, 4], 4)]),
        Sample::new(GatherNd { batch_dims: 0 }, [float(&[3, 5, 4]), indices(&[6, 2], 3)]),
        Sample::new(GatherNd { batch_dims: 1 }, [float(&[2, 3, 4]), wild(&[2, 6, 1], 3)]),
        Sample::new(GatherNd { batch_dims: 0 }, [float(&[3, 5]), wild(&[4, 2], 3)]),
    ]
}

fn experts() -> Vec<Sample> {
    let index = of(DType::I64, &[8], Fill::Integers(-4, 4));
    let wild = of(DType::I32, &[8], Fill::Integers(-6, 6));
    let calls = [(false, [4, 6, 2], index), (true, [4, 2, 6], wild)];
    let forward = |(transposed, weights, index): (bool, [u64; 3], Operand)| {
        Sample::new(Experts { transposed }, [float(&[8, 6]), float(&weights), index])
    };
    let gradient = |(_, weights, index): (bool, [u64; 3], Operand)| {
        let operands = [index, float(&[8, weights[1]]), float(&[8, weights[2]])];
        Sample::new(ExpertsGrad, operands).declared(f32_type(&weights)).undifferentiable()
    };
    calls.clone().into_iter().map(forward).chain(calls.into_iter().map(gradient)).collect()
}

fn scatters() -> Vec<Sample> {
    let indices = |dims: &[u64], size: i64| of(DType::I64, dims, Fill::Integers(-size, size));
    // Some of them outside, which goes nowhere.
    let wild = |dims: &[u64], size: i64| of(DType::I32, dims, Fill::Integers(-size - 2, size + 2));
    let bools = |dims: &[u64]| of(DType::Bool, dims, Fill::Normal);
    let numbers = |dims: &[u64]| of(DType::I16, dims, Fill::Normal);
    let set = ScatterKind::Set;
    let mut samples = vec![
        Sample::new(GatherElementsGrad { dim: 1 }, [indices(&[2, 4, 4], 6), float(&[2, 4, 4])])
            .declared(f32_type(&[2, 6, 4])),
        Sample::new(GatherElementsGrad { dim: 0 }, [wild(&[2, 4], 4), float(&[2, 4])])
            .declared(f32_type(&[4, 4])),
        Sample::new(GatherNdGrad { batch_dims: 0 }, [indices(&[6, 2], 3), float(&[6, 4])])
            .declared(f32_type(&[3, 5, 4])),
        Sample::new(GatherNdGrad { batch_dims: 1 }, [wild(&[2, 6, 1], 3), float(&[2, 6, 4])])
            .declared(f32_type(&[2, 3, 4])),
        Sample::new(ScatterElements { dim: 0, kind: set }, [bools(&[4]), indices(&[6], 4), bools(&[6])]),
        // One place alone.
        Sample::new(ScatterNd { batch_dims: 0, kind: set }, [float(&[3, 4]), indices(&[1], 3), float(&[4])]),
    ];
    for kind in [set, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min] {
        let (elements, nd) =
            (|dim| ScatterElements { dim, kind }, |batch_dims| ScatterNd { batch_dims, kind });
        let floats = [
            Sample::new(elements(1), [float(&[2, 6, 4]), indices(&[2, 4, 4], 6), float(&[2, 4, 4])]),
            Sample::new(nd(0), [float(&[3, 5, 4]), indices(&[6, 2], 3), float(&[6, 4])]),
            Sample::new(nd(1), [float(&[2, 3, 4]), wild(&[2, 6, 1], 3), float(&[2, 6, 4])]),
        ];
        samples.extend(floats);
        samples.push(Sample::new(elements(0), [numbers(&[4, 4]), wild(&[2, 4], 4), numbers(&[2, 4])]));
    }
    samples
}

fn determinants() -> Vec<Sample> {
    let of = |dims: &[u64]| Sample::new(Det, [float(dims)]);
    vec![of(&[2, 4, 3, 3]), of(&[6, 1, 1]), of(&[2, 5, 5])]
}

fn losses() -> Vec<Sample> {
    let mut samples = vec![];
    // Positions, classes, smoothing, and what is ignored, which may be a class.
    let calls = [(&[2u64, 4][..], 6, 0.0, -100), (&[6], 4, 0.1, -1), (&[2, 6], 4, 0.1, 1)];
    for (positions, classes, smoothing, ignore_index) in calls {
        let label_smoothing = Float::new(smoothing);
        let loss = CrossEntropy { ignore_index, label_smoothing };
        let logits = float(&[positions, &[classes]].concat());
        let labels = of(DType::I64, positions, Fill::Labels(classes as i64, ignore_index));
        let logsumexp =
            Operand { ty: f32_type(positions), fill: Fill::Result(loss.clone().into(), vec![0, 1], 2) };
        samples.push(Sample::new(loss, [logits.clone(), labels.clone()]).statistics(&[2]));
        let grad = CrossEntropyGrad { ignore_index, label_smoothing };
        samples.push(Sample::new(grad, [logits, labels, logsumexp, float(&[])]).undifferentiable());
    }
    samples
}

fn optimizers() -> Vec<Sample> {
    let scalar = |value| of(DType::F64, &[], Fill::Value(value));
    let mut samples = vec![];
    for decoupled in [false, true] {
        let adam = Adam { beta1: Float::new(0.9), beta2: Float::new(0.99), eps: Float::new(1e-8), decoupled };
        let tensors =
            [float(&[2, 4]), float(&[2, 4]), float(&[2, 4]), of(DType::F32, &[2, 4], Fill::Positive)];
        let scalars = [scalar(1e-2), scalar(0.1), scalar(3.0)];
        samples.push(
            Sample::new(adam, tensors.into_iter().chain(scalars).collect::<Vec<_>>()).undifferentiable(),
        );
    }
    for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
        let sgd = Sgd { momentum: Float::new(momentum), nesterov };
        let operands = [float(&[2, 4]), float(&[2, 4]), float(&[2, 4]), scalar(1e-2), scalar(0.1)];
        samples.push(Sample::new(sgd, operands).undifferentiable());
    }
    let sum = of(DType::F32, &[2, 4], Fill::Positive);
    let operands = [float(&[2, 4]), float(&[2, 4]), sum, scalar(1e-2), scalar(0.1)];
    samples.push(Sample::new(Adagrad { eps: Float::new(1e-10) }, operands).undifferentiable());
    samples
}

fn attention() -> Vec<Sample> {
    let mut samples = vec![];
    // Batch, query heads, key-value heads, queries, keys, widths of q and v.
    let plain = [2, 4, 4, 6, 5, 2, 3];
    let grouped = [2, 8, 2, 4, 4, 3, 2];
    let masks = [
        of(DType::Bool, &[2, 1, 6, 5], Fill::Mask),
        of(DType::F32, &[1, 1, 6, 5], Fill::Mask),
        of(DType::F32, &[2, 4, 6, 5], Fill::HugeMask),
        of(DType::Bool, &[2, 1, 1, 5], Fill::Normal),
    ];
    samples.extend(attend(plain, false, None));
    samples.extend(attend(grouped, false, None));
    samples.extend(attend(grouped, true, None));
    samples.extend(attend(grouped, true, Some(of(DType::F32, &[2, 8, 1, 4], Fill::Mask))));
    samples.extend(masks.into_iter().flat_map(|mask| attend(plain, false, Some(mask))));
    samples
}

/// Attention on these sizes, and its gradient.
fn attend([b, h, g, s, t, d, e]: [u64; 7], causal: bool, mask: Option<Operand>) -> [Sample; 2] {
    let scale = Float::new(0.7);
    let op = Attention { scale, causal };
    let smooth = !mask.as_ref().is_some_and(|mask| matches!(mask.fill, Fill::HugeMask));
    let operands: Vec<Operand> =
        [float(&[b, h, s, d]), float(&[b, g, t, d]), float(&[b, g, t, e])].into_iter().chain(mask).collect();
    let result = |dims: &[u64], result| Operand {
        ty: f32_type(dims),
        fill: Fill::Result(op.clone().into(), (0..operands.len()).collect(), result),
    };
    let more = [result(&[b, h, s, e], 0), result(&[b, h, s], 1), float(&[b, h, s, e])];
    let backward = operands.iter().cloned().chain(more).collect::<Vec<_>>();
    let forward = Sample::new(op.clone(), operands.clone()).statistics(&[1]);
    [Sample { smooth, ..forward }, Sample::new(AttentionGrad { scale, causal }, backward).undifferentiable()]
}

/// The samples alone in a dim, before others in one, and after others; one for all; none, as in an evaluation.
fn dropout() -> Vec<Sample> {
    let op = |ratio, id, seed, dim| Dropout { ratio: Float::new(ratio), id, seed, dim };
    let numbers = |samples| of(DType::I64, &[samples], Fill::Integers(-3, 1 << 40));
    vec![
        Sample::new(op(0.5, 0, 7, 0), [float(&[2, 4, 6]), numbers(2)]),
        Sample::new(op(0.25, 3, u64::MAX, 0), [float(&[4, 6]), numbers(2)]),
        Sample::new(op(0.1, 1, 0, 1), [float(&[4, 2, 10]), numbers(2)]),
        Sample::new(op(0.5, u32::MAX, 0, 0), [float(&[4, 2]), numbers(1)]),
        Sample::new(op(0.5, 2, 0, 0), [float(&[4])]).undifferentiable(),
    ]
}

fn rotary() -> Vec<Sample> {
    let tables = [&[2u64, 1, 4, 3][..], &[4, 3]];
    let sample = |interleaved, table: &[u64]| {
        Sample::new(Rotary { interleaved }, [float(&[2, 2, 4, 6]), float(table), float(table)])
    };
    [false, true].into_iter().flat_map(|interleaved| tables.map(|table| sample(interleaved, table))).collect()
}

/// On one device: nothing changes.
fn collectives() -> Vec<Sample> {
    let sample = |&(op, _): &(Collective, &str)| {
        Sample::new(op, [float(&[2, 4])]).declared(f32_type(&[2, 4])).undifferentiable()
    };
    Collective::NAMES.iter().map(sample).collect()
}
