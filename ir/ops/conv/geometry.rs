//! The sizes of a convolution as numbers: what its loops run over.

use super::Windows;

/// The sizes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Images.
    pub batch: usize,
    /// Groups of channels, convolved apart.
    pub groups: usize,
    /// Channels of the image in a group.
    pub inputs: usize,
    /// Channels that a group makes.
    pub outputs: usize,
    /// The spatial dims; one of a single element where there is none.
    pub sides: Vec<Side>,
}

/// A spatial dim of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Elements of the image.
    pub image: usize,
    /// Elements of a window.
    pub kernel: usize,
    /// Windows.
    pub positions: usize,
    /// From window to window.
    pub stride: usize,
    /// From element to element of a window.
    pub dilation: usize,
    /// Zeros before the image.
    pub before: usize,
}

impl Geometry {
    /// Of `x[n, g·i, s..]` and `weight[g·o, i, k..]`, whose types `infer` has accepted.
    pub fn new(windows: Windows, x: &[usize], weight: &[usize]) -> Self {
        let groups = x[1] / weight[1].max(1);
        let side = |dim: usize| Side::new(windows, dim, x[dim + 2], weight[dim + 2]);
        let mut sides: Vec<Side> = (0..windows.strides.len()).map(side).collect();
        if sides.is_empty() {
            sides.push(Side { image: 1, kernel: 1, positions: 1, stride: 1, dilation: 1, before: 0 });
        }
        Self { batch: x[0], groups, inputs: weight[1], outputs: weight[0] / groups.max(1), sides }
    }

    /// Elements of a channel of the image.
    pub fn area(&self) -> usize {
        self.sides.iter().map(|side| side.image).product()
    }

    /// Elements of a window of one channel.
    pub fn taps(&self) -> usize {
        self.sides.iter().map(|side| side.kernel).product()
    }

    /// Windows, each of which makes an element of every output channel.
    pub fn positions(&self) -> usize {
        self.sides.iter().map(|side| side.positions).product()
    }

    /// Elements of a window of all channels of a group: terms of an element of `y`.
    pub fn terms(&self) -> usize {
        self.inputs * self.taps()
    }

    /// Whether windows are single elements, each its own: a multiplication over channels and nothing else.
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

    /// Where an element of a window stands in the image; `None`: among the zeros around it.
    pub fn at(&self, tap: usize, position: usize) -> Option<usize> {
        let padded = position * self.stride + tap * self.dilation;
        padded.checked_sub(self.before).filter(|&at| at < self.image)
    }
}
