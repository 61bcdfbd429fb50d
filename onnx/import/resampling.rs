//! The elements that an element of a resized tensor reads along a dim, and their weights, as in ONNX's Resize.

/// The mapping from places in the result to places in the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coordinates {
    AlignCorners,
    Asymmetric,
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    TfCropAndResize,
}

impl Coordinates {
    /// Returns the mapping with ONNX's name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "align_corners" => Self::AlignCorners,
            "asymmetric" => Self::Asymmetric,
            "half_pixel" => Self::HalfPixel,
            "half_pixel_symmetric" => Self::HalfPixelSymmetric,
            "pytorch_half_pixel" => Self::PytorchHalfPixel,
            "tf_crop_and_resize" => Self::TfCropAndResize,
            _ => return None,
        })
    }
}

/// The choice of the nearest of two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

impl Nearest {
    /// Returns the choice with ONNX's name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "round_prefer_floor" => Self::RoundPreferFloor,
            "round_prefer_ceil" => Self::RoundPreferCeil,
            "floor" => Self::Floor,
            "ceil" => Self::Ceil,
            _ => return None,
        })
    }
}

/// The filter that gives neighbours their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Filter {
    Nearest(Nearest),
    Linear,
    /// Cubic, with its coefficient (Keys, IEEE TASSP 29(6), 1981).
    Cubic(f64),
}

/// The parameters of a resampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Resampling {
    pub(super) coordinates: Coordinates,
    pub(super) filter: Filter,
    /// Whether the filter widens when the result shrinks.
    pub(super) antialias: bool,
    /// Whether places outside have weight 0 and the weights of the others are normalised.
    pub(super) exclude_outside: bool,
}

/// For each neighbour and each element of the result, a place and a weight; and whether the element lies outside of the operand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Weighted {
    pub(super) places: Vec<Vec<i64>>,
    pub(super) weights: Vec<Vec<f64>>,
    pub(super) outside: Vec<bool>,
}

impl Resampling {
    /// Returns the neighbours of `size` elements resampled from `from` elements. `region` is the region that TfCropAndResize cuts
    /// out.
    pub(super) fn along(self, from: u64, size: u64, scale: f64, region: [f64; 2]) -> Weighted {
        let mut weighted = Weighted::default();
        for i in 0..size {
            let place = self.place(i as f64, from as f64, size as f64, scale, region);
            let crops = self.coordinates == Coordinates::TfCropAndResize;
            weighted.outside.push(crops && !(0.0..=(from as f64 - 1.0)).contains(&place));
            // Beyond the border all places read the border, so they can be clamped; the region of a file may lie anywhere.
            let place = place.clamp(-1.0, from as f64);
            let mut weights = self.weights(place, scale);
            let count = weights.len() as i64;
            // The place lies between the two middle neighbours, or on the right one of them.
            let first = place.ceil() as i64 - count / 2;
            if self.exclude_outside {
                for (weight, j) in weights.iter_mut().zip(first..) {
                    *weight = if (0..from as i64).contains(&j) { *weight } else { 0.0 };
                }
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            weighted.add(first, from as i64 - 1, weights);
        }
        weighted.picked(matches!(self.filter, Filter::Nearest(_)))
    }

    /// Returns the place in the operand of an element of the result.
    fn place(self, i: f64, from: f64, size: f64, scale: f64, [start, end]: [f64; 2]) -> f64 {
        let wide = scale * from;
        match self.coordinates {
            Coordinates::AlignCorners if wide == 1.0 => 0.0,
            Coordinates::AlignCorners => i * (from - 1.0) / (wide - 1.0),
            Coordinates::Asymmetric => i / scale,
            Coordinates::HalfPixel => (i + 0.5) / scale - 0.5,
            Coordinates::HalfPixelSymmetric => from / 2.0 * (1.0 - size / wide) + (i + 0.5) / scale - 0.5,
            Coordinates::PytorchHalfPixel if wide == 1.0 => -0.5,
            Coordinates::PytorchHalfPixel => (i + 0.5) / scale - 0.5,
            Coordinates::TfCropAndResize if wide == 1.0 => {
                (end - start) * (from - 1.0) / 2.0 + start * (from - 1.0)
            }
            Coordinates::TfCropAndResize => {
                i * (end - start) * (from - 1.0) / (wide - 1.0) + start * (from - 1.0)
            }
        }
    }

    /// Returns the weights of the neighbours of a place. Their number is even.
    fn weights(self, place: f64, scale: f64) -> Vec<f64> {
        // The distance from the left neighbour, in (0, 1].
        let ratio = if place.fract() == 0.0 { 1.0 } else { place - place.floor() };
        let scale = if self.antialias { scale.min(1.0) } else { 1.0 };
        let reach = match self.filter {
            Filter::Nearest(nearest) => {
                let right = match nearest {
                    _ if ratio == 1.0 => true,
                    Nearest::RoundPreferFloor => ratio > 0.5,
                    Nearest::RoundPreferCeil => ratio >= 0.5,
                    Nearest::Floor => false,
                    Nearest::Ceil => true,
                };
                return if right { vec![0.0, 1.0] } else { vec![1.0, 0.0] };
            }
            Filter::Linear => 1.0,
            Filter::Cubic(_) => 2.0,
        };
        let first = (-reach / scale).floor() as i64 + 1;
        let weights = (first..2 - first).map(|j| self.kernel(scale * (j as f64 - ratio)));
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        if self.antialias { weights.into_iter().map(|weight| weight / sum).collect() } else { weights }
    }

    /// Returns the filter's value at a distance.
    fn kernel(self, x: f64) -> f64 {
        let x = x.abs();
        match self.filter {
            Filter::Cubic(a) if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Filter::Cubic(a) if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Filter::Cubic(_) => 0.0,
            _ => (1.0 - x).max(0.0),
        }
    }
}

impl Weighted {
    /// Adds an element of the result. Places outside are moved to the border.
    fn add(&mut self, first: i64, last: i64, weights: Vec<f64>) {
        self.places.resize(weights.len(), Vec::new());
        self.weights.resize(weights.len(), Vec::new());
        for (j, weight) in weights.into_iter().enumerate() {
            self.places[j].push((first + j as i64).clamp(0, last));
            self.weights[j].push(weight);
        }
    }

    /// If `one`, keeps for each element only the neighbour with weight 1.
    fn picked(self, one: bool) -> Self {
        if !one {
            return self;
        }
        let pick = |i: usize| {
            let hit = (0..self.places.len()).find(|&j| self.weights[j][i] != 0.0).unwrap_or(0);
            self.places[hit][i]
        };
        let places: Vec<i64> = (0..self.outside.len()).map(pick).collect();
        let weights = vec![1.0; places.len()];
        Self { places: vec![places], weights: vec![weights], outside: self.outside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_wide_lies_a_quarter_between() {
        let how = Resampling {
            coordinates: Coordinates::HalfPixel,
            filter: Filter::Linear,
            antialias: false,
            exclude_outside: false,
        };
        let Weighted { places, weights, .. } = how.along(2, 4, 2.0, [0.0, 1.0]);
        assert_eq!(places, [[0, 0, 0, 1], [0, 1, 1, 1]]);
        assert_eq!(weights, [[0.25, 0.75, 0.25, 0.75], [0.75, 0.25, 0.75, 0.25]]);
    }
}
