//! The reference convolution. The windows of an image, side by side, are a matrix ("im2col"), to which a contraction is applied.

use super::{Geometry, Windows};
use crate::ops::contract::Contract;
use crate::ops::{Interp, Operator};
use crate::{DType, Tensor, Type};
use cranelift_entity::PrimaryMap;

/// A convolution of tensors, one image at a time.
pub(super) struct Reference {
    pub(super) geometry: Geometry,
    /// For every element of a window and every window: its place in a channel of the image; `None` if it is outside.
    places: Vec<Option<usize>>,
}

impl Geometry {
    /// Returns the place in a channel of the image of element `tap` of the window at `position`; both are row-major numbers.
    fn place(&self, mut tap: usize, mut position: usize) -> Option<usize> {
        let (mut place, mut stride) = (0, 1);
        for side in self.sides.iter().rev() {
            place += stride * side.at(tap % side.kernel, position % side.positions)?;
            stride *= side.image;
            tap /= side.kernel;
            position /= side.positions;
        }
        Some(place)
    }
}

impl Reference {
    /// Prepares a convolution of `x` and `weight` with these sizes.
    pub(super) fn new(windows: Windows, x: &[usize], weight: &[usize]) -> Self {
        let geometry = Geometry::new(windows, x, weight);
        let positions = geometry.positions();
        let row = |tap| (0..positions).map(move |position| (tap, position));
        let places = (0..geometry.taps()).flat_map(row);
        let places = places.map(|(tap, position)| geometry.place(tap, position)).collect();
        Self { geometry, places }
    }

    /// `y = weight · windows of x`
    pub(super) fn convolve(&self, x: &Tensor, weight: &Tensor) -> Vec<f64> {
        let weight = self.matrices(weight);
        let image = |sample| contract("gop,gpt->got", [&weight, &self.unfold(x, sample)]);
        (0..self.geometry.batch).flat_map(image).collect()
    }

    /// `d x = weightᵀ · d y`; every element of a window is added to the place from which it was read.
    pub(super) fn input_gradient(&self, weight: &Tensor, dy: &Tensor) -> Vec<f64> {
        let weight = self.matrices(weight);
        let image = |sample| self.fold(&contract("gop,got->gpt", [&weight, &self.outputs(dy, sample)]));
        (0..self.geometry.batch).flat_map(image).collect()
    }

    /// `d weight = d y · windowsᵀ`, summed over the images.
    pub(super) fn weight_gradient(&self, x: &Tensor, dy: &Tensor) -> Vec<f64> {
        let Geometry { batch, groups, outputs, .. } = self.geometry;
        let mut sum = vec![0.0; groups * outputs * self.geometry.terms()];
        for sample in 0..batch {
            let image = contract("got,gpt->gop", [&self.outputs(dy, sample), &self.unfold(x, sample)]);
            sum.iter_mut().zip(image).for_each(|(sum, x)| *sum += x);
        }
        sum
    }

    /// Returns the weight as a matrix for each group: `[g, o, p]`.
    fn matrices(&self, weight: &Tensor) -> Tensor {
        let Geometry { groups, outputs, .. } = self.geometry;
        Tensor::float(DType::F64, vec![groups, outputs, self.geometry.terms()], weight.floats().to_vec())
    }

    /// Returns an image's part of `y` as a matrix for each group: `[g, o, t]`.
    fn outputs(&self, y: &Tensor, sample: usize) -> Tensor {
        let Geometry { groups, outputs, .. } = self.geometry;
        let sizes = vec![groups, outputs, self.geometry.positions()];
        let len = sizes.iter().product::<usize>();
        Tensor::float(DType::F64, sizes, y.floats()[sample * len..][..len].to_vec())
    }

    /// Returns the windows of an image, side by side: `[g, p, t]`.
    fn unfold(&self, x: &Tensor, sample: usize) -> Tensor {
        let Geometry { groups, inputs, .. } = self.geometry;
        let (area, channels) = (self.geometry.area(), groups * inputs);
        let image = &x.floats()[sample * channels * area..][..channels * area];
        let mut windows = Vec::with_capacity(channels * self.places.len());
        for channel in 0..channels {
            let channel = &image[channel * area..][..area];
            windows.extend(self.places.iter().map(|place| place.map_or(0.0, |place| channel[place])));
        }
        Tensor::float(DType::F64, vec![groups, self.geometry.terms(), self.geometry.positions()], windows)
    }

    /// Returns an image whose elements are the sums of the window elements at their places. This is the transpose of `unfold`.
    fn fold(&self, windows: &[f64]) -> Vec<f64> {
        let (area, channels) = (self.geometry.area(), self.geometry.groups * self.geometry.inputs);
        let mut image = vec![0.0; channels * area];
        for (channel, windows) in windows.chunks_exact(self.places.len()).enumerate() {
            let inside = self.places.iter().zip(windows).filter_map(|(place, x)| Some(((*place)?, x)));
            inside.for_each(|(place, x)| image[channel * area + place] += x);
        }
        image
    }
}

/// Computes a contraction of two tensors of f64.
fn contract(text: &str, [lhs, rhs]: [&Tensor; 2]) -> Vec<f64> {
    let contract = Contract::new(text);
    let size = |label: &u8| {
        let of = |labels: &[u8], tensor: &Tensor| Some(tensor.sizes[labels.iter().position(|l| l == label)?]);
        of(&contract.lhs.0, lhs).or_else(|| of(&contract.rhs.0, rhs)).unwrap_or(1)
    };
    let sizes: Vec<u64> = contract.out.0.iter().map(|label| size(label) as u64).collect();
    let results = [Type::of(DType::F64, &sizes)];
    let data = PrimaryMap::new();
    let product =
        contract.interp(&Interp { operands: &[lhs, rhs], results: &results, data: &data, parts: None });
    product[0].floats().to_vec()
}

#[cfg(test)]
mod tests {
    use crate::Tensor;
    use crate::ops::conv::Conv;
    use crate::ops::{Interp, Op, Operator};
    use crate::samples::samples;
    use crate::tensor::strides;

    /// Returns the index with this row-major number.
    fn index(number: usize, sizes: &[usize]) -> Vec<usize> {
        sizes.iter().zip(strides(sizes)).map(|(size, stride)| number / stride % size).collect()
    }

    /// Returns an element; zero outside of the tensor.
    fn element(tensor: &Tensor, index: &[i64]) -> f64 {
        if index.iter().zip(&tensor.sizes).any(|(&i, &size)| i < 0 || i >= size as i64) {
            return 0.0;
        }
        let at = index.iter().zip(strides(&tensor.sizes)).map(|(&i, stride)| i as usize * stride);
        tensor.floats()[at.sum::<usize>()]
    }

    /// Computes an element of `y` from the definition.
    fn by_definition(conv: &Conv, x: &Tensor, weight: &Tensor, at: &[usize]) -> f64 {
        let (image, channel, position) = (at[0], at[1], &at[2..]);
        let (terms, kernel) = (&weight.sizes[1..], &weight.sizes[2..]);
        let outputs = weight.sizes[0] * weight.sizes[1] / x.sizes[1]; // the number of output channels of a group
        let term = |term: usize| {
            let tap = index(term, terms);
            let input = channel / outputs * weight.sizes[1] + tap[0];
            let spatial = (0..kernel.len()).map(|d| {
                let padded = position[d] * conv.strides[d] as usize + tap[d + 1] * conv.dilations[d] as usize;
                padded as i64 - conv.pads[d] as i64
            });
            let read: Vec<i64> = [image as i64, input as i64].into_iter().chain(spatial).collect();
            let of: Vec<i64> = [channel].iter().chain(&tap).map(|&i| i as i64).collect();
            element(x, &read) * element(weight, &of)
        };
        (0..terms.iter().product()).map(term).sum()
    }

    #[test]
    fn windows_side_by_side_give_what_the_definition_gives() {
        let mut tried = 0;
        for sample in samples() {
            let Op::Conv(conv) = &sample.op else { continue };
            let operands = sample.fill(3);
            let operands: Vec<&Tensor> = operands.iter().collect();
            let results = sample.result_types().expect("samples are well-typed");
            let cx = Interp { operands: &operands, results: &results, data: &sample.data, parts: None };
            let y = conv.interp(&cx).remove(0);
            for (i, &given) in y.floats().iter().enumerate() {
                let expected = by_definition(conv, operands[0], operands[1], &index(i, &y.sizes));
                assert!((given - expected).abs() < 1e-12, "{conv:?}, element {i}: {given}, not {expected}");
            }
            tried += 1;
        }
        assert!(tried >= 8, "{tried}");
    }
}
