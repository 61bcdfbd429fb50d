//! Merges matrices with equal bytes into one parameter: exporters write a tied head twice, or transpose it.

use super::{Parameters, readers};
use crate::pass::{PassContext, Transform};
use ir::ops::constant::Constant;
use ir::{At, Builder, Changed, Data, DataId, Definition, Module, TypeError};
use std::collections::BTreeMap;

/// A matrix that equals another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiedRow {
    /// The matrix that is replaced.
    pub data: DataId,
    /// The matrix that stays.
    pub to: DataId,
    /// Dim `i` of the replaced matrix is dim `permutation[i]` of the matrix that stays.
    pub permutation: Vec<u32>,
}

/// Finds every matrix that has the bytes of an earlier one, also transposed. Matrices of equal elements, and identities, are left alone:
/// they are equal because they were initialised so. If the exporter recorded the owners of two matrices, their names decide: copied
/// layers have equal weights, and are not tied.
pub(super) fn decide(module: &Module, cx: &PassContext) -> Vec<TiedRow> {
    let mut groups: BTreeMap<(u64, u64), Vec<DataId>> = BTreeMap::new();
    for id in readers(module).into_keys() {
        let data = &module.data[id];
        if let Some(bytes) = data.bytes().filter(|_| data.ty.ndim() >= 2) {
            let width = data.ty.dtype.bytes() as usize;
            if !ir::is_initial(bytes, width) {
                groups.entry((bytes.len() as u64, sum_of_elements(bytes, width))).or_default().push(id);
            }
        }
    }
    let author = |data: DataId| cx.authors.get(&module.data[data].name);
    let may_be_one =
        |a: DataId, b: DataId| author(a).is_none() || author(b).is_none() || author(a) == author(b);
    let mut ties = Vec::new();
    for group in groups.values() {
        let mut kept: Vec<DataId> = Vec::new();
        for &data in group {
            let tie = kept.iter().filter(|&&to| may_be_one(data, to)).find_map(|&to| {
                let permutation = permutation(&module.data[data], &module.data[to])?;
                Some(TiedRow { data, to, permutation })
            });
            match tie {
                Some(tie) => ties.push(tie),
                None => kept.push(data),
            }
        }
    }
    ties.sort_by_key(|tie| tie.data);
    ties
}

/// Returns the sum of all elements' bits, which does not depend on their order.
fn sum_of_elements(bytes: &[u8], width: usize) -> u64 {
    let bits = |element: &[u8]| element.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    bytes.chunks(width).map(bits).fold(0, u64::wrapping_add)
}

/// Returns the permutation of a tensor's dims in another tensor with the same elements.
fn permutation(data: &Data, other: &Data) -> Option<Vec<u32>> {
    let (bytes, others) = (data.bytes()?, other.bytes()?);
    if data.ty.dtype != other.ty.dtype {
        return None;
    }
    if data.ty.dims == other.ty.dims && bytes == others {
        return Some((0..data.ty.ndim() as u32).collect());
    }
    let ([rows, columns], [other_rows, other_columns]) = (&data.ty.sizes()?[..], &other.ty.sizes()?[..])
    else {
        return None;
    };
    if rows != other_columns || columns != other_rows {
        return None;
    }
    let (rows, columns, width) = (*rows as usize, *columns as usize, data.ty.dtype.bytes() as usize);
    let equal = |i: usize, j: usize| {
        let (here, there) = ((i * columns + j) * width, (j * rows + i) * width);
        bytes[here..here + width] == others[there..there + width]
    };
    (0..rows).all(|i| (0..columns).all(|j| equal(i, j))).then(|| vec![1, 0])
}

/// Makes every reader of a tied matrix read the matrix that stays.
pub(super) fn apply(module: &mut Module, ties: &[TiedRow]) -> Result<Changed, TypeError> {
    let readers = readers(module);
    let mut b = Builder::new(module, Parameters::NAME);
    for tie in ties {
        for &value in &readers[&tie.data] {
            let Definition::Node(node, _) = b.module().value(value).definition else { continue };
            let ty = b.module().data[tie.to].ty.clone();
            b.at(At::Before(node));
            let stays = b.one_typed(Constant { data: tie.to }, &[], ty)?;
            let read = b.transpose(stays, &tie.permutation)?;
            let read = b.reshape(read, b.ty(value).dims.clone())?;
            b.replace(value, read);
            b.remove(node);
        }
    }
    Ok(b.finish())
}
