//! Views: the steps that cut a state out of its tensor in the file, and their inverse.

mod put_back;

pub use put_back::put_back;

use crate::tensor::{Elements, offsets, strides};
use crate::{DType, Tensor, ViewStep};

/// Returns the state's value, given the file's tensor. `None` when a step does not fit.
pub fn apply(view: &[ViewStep], tensor: &Tensor) -> Option<Tensor> {
    if view.is_empty() {
        return Some(tensor.clone());
    }
    let mut cut = gather(tensor, &positions(view, &tensor.sizes)?);
    cut.dtype = dtype(view, tensor.dtype);
    Some(cut)
}

/// Writes a state's value back to the elements that [`apply`] reads; the other elements of the file's tensor stay. `None` if the
/// value does not fit the view, or if the view repeats elements.
pub fn write_back(view: &[ViewStep], value: &Tensor, tensor: &mut Tensor) -> Option<()> {
    if view.is_empty() && tensor.sizes == value.sizes {
        tensor.elements = value.elements.clone();
        return Some(());
    }
    let positions = positions(view, &tensor.sizes)?;
    if positions.sizes != value.sizes || view.iter().any(|step| matches!(step, ViewStep::Repeat(_))) {
        return None;
    }
    let places = positions.offsets.iter().enumerate();
    let filled = places.filter_map(|(from, to)| Some((from, (*to)?)));
    match (&mut tensor.elements, &value.elements) {
        (Elements::Float(to), Elements::Float(from)) => filled.for_each(|(i, j)| to[j] = from[i]),
        (Elements::Int(to), Elements::Int(from)) => filled.for_each(|(i, j)| to[j] = from[i]),
        (Elements::Bool(to), Elements::Bool(from)) => filled.for_each(|(i, j)| to[j] = from[i]),
        _ => return None,
    }
    Some(())
}

/// Returns the padding at the end of a view, and the sizes before this padding, given the sizes after it. Drawn and filled values
/// cover only the sizes before the padding, so that they are the same with and without padding.
pub fn padding<'v>(view: &'v [ViewStep], sizes: &[u64]) -> (&'v [ViewStep], Vec<u64>) {
    let count = view.iter().rev().take_while(|step| matches!(step, ViewStep::Pad { .. })).count();
    let padding = &view[view.len() - count..];
    let mut sizes = sizes.to_vec();
    for step in padding {
        if let ViewStep::Pad { dim, after } = step
            && let Some(size) = sizes.get_mut(*dim as usize)
        {
            *size = size.saturating_sub(*after);
        }
    }
    (padding, sizes)
}

/// Returns the element type after a view.
pub fn dtype(view: &[ViewStep], from: DType) -> DType {
    let mut casts =
        view.iter().rev().filter_map(|step| if let ViewStep::Cast(to) = step { Some(*to) } else { None });
    casts.next().unwrap_or(from)
}

/// Returns the sizes after a view, or `None` when a step does not fit.
pub fn sizes(view: &[ViewStep], from: &[u64]) -> Option<Vec<u64>> {
    let mut sizes = from.to_vec();
    for step in view {
        match step {
            ViewStep::Reshape(to) => {
                let product = |sizes: &[u64]| sizes.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
                if product(&sizes)? != product(to)? {
                    return None;
                }
                sizes = to.to_vec();
            }
            ViewStep::Transpose(permutation) => {
                let mut sorted = permutation.to_vec();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..sizes.len() as u32) {
                    return None;
                }
                sizes = permutation.iter().map(|&i| sizes[i as usize]).collect();
            }
            ViewStep::Slice { dim, start, length } => {
                let size = sizes.get_mut(*dim as usize)?;
                if start.checked_add(*length)? > *size {
                    return None;
                }
                *size = *length;
            }
            ViewStep::Pad { dim, after } => {
                let size = sizes.get_mut(*dim as usize)?;
                *size = size.checked_add(*after)?;
            }
            ViewStep::Cast(_) => {}
            ViewStep::Repeat(count) => {
                let size = sizes.first_mut()?;
                *size = size.checked_mul(*count)?;
            }
        }
    }
    Some(sizes)
}

/// For each element of a view, in row-major order, its offset in the file's tensor; `None` for padding.
struct Positions {
    sizes: Vec<usize>,
    offsets: Vec<Option<usize>>,
}

fn positions(view: &[ViewStep], from: &[usize]) -> Option<Positions> {
    let wide: Vec<u64> = from.iter().map(|&size| size as u64).collect();
    let mut positions =
        Positions { sizes: from.to_vec(), offsets: (0..from.iter().product()).map(Some).collect() };
    for (i, step) in view.iter().enumerate() {
        let after: Vec<usize> = sizes(&view[..=i], &wide)?.into_iter().map(|size| size as usize).collect();
        let own = strides(&positions.sizes);
        let picked: Vec<usize> = match step {
            ViewStep::Reshape(_) | ViewStep::Cast(_) => {
                positions.sizes = after;
                continue;
            }
            ViewStep::Transpose(p) => {
                offsets(&after, &p.iter().map(|&i| own[i as usize]).collect::<Vec<_>>())
            }
            ViewStep::Slice { dim, start, .. } => {
                let base = *start as usize * own[*dim as usize];
                offsets(&after, &own).into_iter().map(|offset| offset + base).collect()
            }
            ViewStep::Pad { .. } => {
                let mut padded = vec![None; after.iter().product()];
                let places = offsets(&positions.sizes, &strides(&after));
                places.into_iter().zip(&positions.offsets).for_each(|(place, from)| padded[place] = *from);
                positions = Positions { sizes: after, offsets: padded };
                continue;
            }
            ViewStep::Repeat(count) => {
                let offsets = positions.offsets.repeat(*count as usize);
                positions = Positions { sizes: after, offsets };
                continue;
            }
        };
        let moved = picked.into_iter().map(|i| positions.offsets[i]).collect();
        positions = Positions { sizes: after, offsets: moved };
    }
    Some(positions)
}

fn gather(tensor: &Tensor, positions: &Positions) -> Tensor {
    fn pick<T: Copy + Default>(from: &[T], offsets: &[Option<usize>]) -> Vec<T> {
        offsets.iter().map(|offset| offset.map_or_else(T::default, |i| from[i])).collect()
    }
    let elements = match &tensor.elements {
        Elements::Float(from) => Elements::Float(pick(from, &positions.offsets)),
        Elements::Int(from) => Elements::Int(pick(from, &positions.offsets)),
        Elements::Bool(from) => Elements::Bool(pick(from, &positions.offsets)),
    };
    Tensor { dtype: tensor.dtype, sizes: positions.sizes.clone(), elements }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn what_a_view_cuts_out_is_written_back_to_its_place() {
        let file = Tensor::float(DType::F32, vec![4, 6], (0..24).map(f64::from).collect());
        let slice = ViewStep::Slice { dim: 1, start: 2, length: 3 };
        let view = [ViewStep::Transpose(smallvec![1, 0]), ViewStep::Slice { dim: 0, start: 2, length: 3 }];
        let cut = apply(&view, &file).unwrap();
        assert_eq!((cut.sizes.clone(), cut.floats()[..4].to_vec()), (vec![3, 4], vec![2.0, 8.0, 14.0, 20.0]));
        let mut back = Tensor::float(DType::F32, vec![4, 6], vec![-1.0; 24]);
        write_back(&view, &cut, &mut back).unwrap();
        assert_eq!(apply(std::slice::from_ref(&slice), &back), apply(std::slice::from_ref(&slice), &file));
        assert_eq!(back.floats()[0], -1.0);
    }

    #[test]
    fn what_a_view_repeats_is_not_written_back() {
        let file = Tensor::float(DType::F32, vec![2], vec![1.0, 2.0]);
        let view = [ViewStep::Reshape(smallvec![1, 2]), ViewStep::Repeat(3)];
        let repeated = apply(&view, &file).unwrap();
        assert_eq!(
            (&repeated.sizes[..], repeated.floats()),
            (&[3, 2][..], &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0][..])
        );
        assert_eq!(write_back(&view, &repeated, &mut file.clone()), None);
    }

    #[test]
    fn padding_is_zero_and_is_not_written_back() {
        let file = Tensor::float(DType::F32, vec![3], vec![1.0, 2.0, 3.0]);
        let view = [ViewStep::Pad { dim: 0, after: 2 }];
        let mut padded = apply(&view, &file).unwrap();
        assert_eq!(padded.floats(), [1.0, 2.0, 3.0, 0.0, 0.0]);
        padded.elements = Elements::Float(vec![4.0, 5.0, 6.0, 7.0, 8.0]);
        let mut back = file;
        write_back(&view, &padded, &mut back).unwrap();
        assert_eq!(back.floats(), [4.0, 5.0, 6.0]);
    }
}
