//! The sizes of a convolution as numbers, which are the bounds of its loops.

use super::Windows;
use std::ops::Range;

/// The sizes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The number of images.
    pub batch: usize,
    /// The number of groups of channels, which are convolved separately.
    pub groups: usize,
    /// The number of channels of the image in a group.
    pub inputs: usize,
    /// The number of output channels of a group.
    pub outputs: usize,
    /// The spatial dims. A convolution without spatial dims has one of a single element.
    pub sides: Vec<Side>,
}

/// A spatial dim of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The number of elements of the image.
    pub image: usize,
    /// The number of elements of a window.
    pub kernel: usize,
    /// The number of windows.
    pub positions: usize,
    /// The distance between windows.
    pub stride: usize,
    /// The distance between the elements of a window.
    pub dilation: usize,
    /// The number of zeros before the image.
    pub before: usize,
}

impl Geometry {
    /// Makes the sizes for `x[n, g·i, s..]` and `weight[g·o, i, k..]`, whose types `infer` has accepted.
    pub fn new(windows: Windows, x: &[usize], weight: &[usize]) -> Self {
        let groups = x[1] / weight[1].max(1);
        let side = |dim: usize| Side::new(windows, dim, x[dim + 2], weight[dim + 2]);
        let mut sides: Vec<Side> = (0..windows.strides.len()).map(side).collect();
        if sides.is_empty() {
            sides.push(Side { image: 1, kernel: 1, positions: 1, stride: 1, dilation: 1, before: 0 });
        }
        Self { batch: x[0], groups, inputs: weight[1], outputs: weight[0] / groups.max(1), sides }
    }

    /// Returns the number of elements of a channel of the image.
    pub fn area(&self) -> usize {
        self.sides.iter().map(|side| side.image).product()
    }

    /// Returns the number of elements of a window of one channel.
    pub fn taps(&self) -> usize {
        self.sides.iter().map(|side| side.kernel).product()
    }

    /// Returns the number of windows. Each window gives one element of every output channel.
    pub fn positions(&self) -> usize {
        self.sides.iter().map(|side| side.positions).product()
    }

    /// Returns the number of elements of a window over all channels of a group: the number of terms of an element of `y`.
    pub fn terms(&self) -> usize {
        self.inputs * self.taps()
    }

    /// Whether each window is a single, separate element, so that the convolution only multiplies over channels.
    pub fn is_pointwise(&self) -> bool {
        self.sides.iter().all(|side| side.kernel == 1 && side.stride == 1 && side.positions == side.image)
    }
}

impl Side {
    fn new(windows: Windows, dim: usize, image: usize, kernel: usize) -> Self {
        let number = |x: u64| usize::try_from(x).unwrap_or(usize::MAX);
        let (stride, dilation) = (number(windows.strides[dim]), number(windows.dilations[dim]));
        let (before, after) = (number(windows.pads[dim]), number(windows.pads[dim + windows.strides.len()]));
        let window = kernel.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        let room = image.saturating_add(before).saturating_add(after).saturating_sub(window);
        Self { image, kernel, positions: room / stride.max(1) + 1, stride, dilation, before }
    }

    /// Returns the place in the image of element `tap` of a window; `None` if it lies in the zeros around the image.
    pub fn at(&self, tap: usize, position: usize) -> Option<usize> {
        let padded = position * self.stride + tap * self.dilation;
        padded.checked_sub(self.before).filter(|&at| at < self.image)
    }

    /// Returns the positions whose windows have element `tap` in the image.
    pub fn inside(&self, tap: usize) -> Range<usize> {
        let tap = tap * self.dilation;
        let before = |zeros: usize| zeros.saturating_sub(tap).div_ceil(self.stride).min(self.positions);
        before(self.before)..before(self.before + self.image)
    }
}
