//! Lines of a tensor in the planes of a depthwise convolution, and copies between the two.

use crate::math::Float;
use crate::simd::vectorized;
use program::convolution::depthwise::Alignment;

/// The lines along the last side that a channel of a tensor and a plane have in common.
pub(super) struct Lines {
    /// The places of the first element of each line: in the tensor and in the plane.
    starts: Vec<[usize; 2]>,
    /// The number of elements of a line.
    count: usize,
    /// The distance between these elements in the tensor. In the plane they are neighbours.
    stride: usize,
}

impl Lines {
    /// Returns the lines of a channel with these sides. `first` has the places of the channel and the plane; `pitches` has the distances
    /// in the plane between neighbours along each side.
    pub(super) fn new(sides: &[Alignment], pitches: &[usize], first: [usize; 2]) -> Self {
        let (mut starts, mut count, mut stride) = (vec![first], 0, 1);
        let mut distance: usize = sides.iter().map(|side| side.size).product();
        for (i, (side, pitch)) in sides.iter().zip(pitches).enumerate() {
            distance /= side.size;
            let mut inside = side.inside();
            if i + 1 == sides.len() {
                (count, stride) = (inside.len(), side.stride);
                inside.end = inside.end.min(inside.start + 1);
            }
            let extend = |&[tensor, plane]: &[usize; 2]| {
                let place = move |column| [tensor + side.element(column) * distance, plane + column * pitch];
                inside.clone().map(place)
            };
            starts = starts.iter().flat_map(extend).collect();
        }
        Self { starts, count, stride }
    }

    /// Returns the places in the plane of all elements.
    pub(super) fn in_plane(&self) -> impl Iterator<Item = usize> {
        self.starts.iter().flat_map(|&[_, start]| start..start + self.count)
    }
}

vectorized! {
    /// Copies lines from a tensor into planes.
    pub(super) fn read<'a; S: Float>(lines: &'a [Lines], tensor: &'a [S], planes: &'a mut [S::Real]) {
        for Lines { starts, count, stride } in lines {
            for &[from, to] in starts {
                let (from, to) = (&tensor[from..], &mut planes[to..to + count]);
                match stride {
                    1 => convert(&from[..*count], to, S::widen),
                    2 => {
                        let (last, to) = to.split_last_mut().expect("a line has elements");
                        to.iter_mut().zip(from.chunks_exact(2)).for_each(|(to, from)| *to = from[0].widen());
                        *last = from[2 * to.len()].widen();
                    }
                    _ => to.iter_mut().zip(from.iter().step_by(*stride)).for_each(|(to, from)| *to = from.widen()),
                }
            }
        }
    }

    /// Rounds lines from a plane into a tensor.
    pub(super) fn write<'a; S: Float>(lines: &'a Lines, plane: &'a [S::Real], tensor: &'a mut [S]) {
        let Lines { starts, count, stride } = lines;
        for &[to, from] in starts {
            let (from, to) = (&plane[from..from + count], &mut tensor[to..]);
            match stride {
                1 => convert(from, &mut to[..*count], S::narrow),
                2 => {
                    let (last, from) = from.split_last().expect("a line has elements");
                    to.chunks_exact_mut(2).zip(from).for_each(|(to, from)| to[0] = S::narrow(*from));
                    to[2 * from.len()] = S::narrow(*last);
                }
                _ => to.iter_mut().step_by(*stride).zip(from).for_each(|(to, from)| *to = S::narrow(*from)),
            }
        }
    }
}

/// Converts neighbouring elements. Most lines are so short that a call of `memcpy`, which a plain loop would become, takes longer.
#[inline(always)]
fn convert<A: Copy, B>(from: &[A], to: &mut [B], of: impl Fn(A) -> B) {
    match to.len() {
        0 => {}
        1 => to[0] = of(from[0]),
        2..4 => convert_blocks::<A, B, 2>(from, to, of),
        4..8 => convert_blocks::<A, B, 4>(from, to, of),
        _ => convert_blocks::<A, B, 8>(from, to, of),
    }
}

/// Converts at least `N` elements. The last block may overlap the previous one.
#[inline(always)]
fn convert_blocks<A: Copy, B, const N: usize>(from: &[A], to: &mut [B], of: impl Fn(A) -> B) {
    let last = to.len() - N;
    let mut start = 0;
    loop {
        let (from, to) = (&from[start..start + N], &mut to[start..start + N]);
        for i in 0..N {
            to[i] = of(from[i]);
        }
        if start == last {
            return;
        }
        start = (start + N).min(last);
    }
}
