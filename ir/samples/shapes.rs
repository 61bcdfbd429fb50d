//! Samples: constants, shapes, reading and writing by index, collectives.

use super::table::{f32_type, float, of};
use super::*;
use crate::ops::Float;
use crate::ops::collective::Collective;
use crate::ops::constant::{Constant, Iota, Splat};
use crate::ops::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use crate::ops::list::Kinds;
use crate::ops::scatter::{GatherElementsGrad, GatherNdGrad, ScatterElements, ScatterKind, ScatterNd};
use crate::ops::shape::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use smallvec::SmallVec;

pub(super) fn sources() -> Vec<Sample> {
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

pub(super) fn shapes() -> Vec<Sample> {
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

pub(super) fn indexing() -> Vec<Sample> {
    let indices = |dims: &[u64], size: i64| of(DType::I64, dims, Fill::Integers(-size, size));
    // Some indices are outside, and read zeros.
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

pub(super) fn scatters() -> Vec<Sample> {
    let indices = |dims: &[u64], size: i64| of(DType::I64, dims, Fill::Integers(-size, size));
    // Some indices are outside, and their updates are dropped.
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
        // A single place.
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

/// Collectives on one device, where they change nothing.
pub(super) fn collectives() -> Vec<Sample> {
    let sample = |&(op, _): &(Collective, &str)| {
        Sample::new(op, [float(&[2, 4])]).declared(f32_type(&[2, 4])).undifferentiable()
    };
    Collective::NAMES.iter().map(sample).collect()
}
