//! A multiplication as numbers for cuBLASLt, without a device.
//!
//! cuBLASLt stores matrices column after column. A matrix with contiguous rows is to it the transpose of such a matrix. So a result
//! with contiguous rows is computed as its transpose: `outᵀ = rhsᵀ · lhsᵀ`, with the right side first.

use crate::driver::{Address, DriverError, MultiplyPlaces};
use crate::program::{Epilogue, Matrices, Multiply};
use ir::DType;
use program::Activation;
use serde::{Deserialize, Serialize};

/// A call of cuBLASLt for a multiplication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Call {
    /// The part of the call on which the choice of an algorithm depends.
    pub(super) problem: Problem,
    /// The addresses of the first side, the second side, the addend and the result.
    pub(super) places: [Address; 4],
    /// The address of the bias or of the sums.
    pub(super) vector: Option<Address>,
    /// The address of the activation's inputs.
    pub(super) aux: Option<Address>,
    /// Whether the addend is added.
    pub(super) adds: bool,
}

/// The shape of a multiplication. Multiplications with the same problem have the same algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Problem {
    /// The first side, the second side, the addend and the result.
    pub(super) matrices: [Columns; 4],
    /// Whether the first and the second side are transposed before they are multiplied.
    pub(super) transposed: [bool; 2],
    /// The number of matrices of each.
    pub(super) batch: i32,
    /// The type of both sides, and the type of the addend and the result.
    #[serde(with = "type_names")]
    pub(super) types: [DType; 2],
    /// The epilogue.
    pub(super) finish: Finish,
    /// The largest powers of two that divide the six addresses of a call.
    pub(super) alignments: [u32; 6],
}

/// Matrices as cuBLASLt stores them: column after column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Columns {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// The elements from a column to the next.
    pub(super) leading: i64,
    /// The elements from a matrix to the next.
    pub(super) apart: i64,
}

/// The operations on a product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Finish {
    /// None, except perhaps a bias.
    Plain { bias: bool },
    /// GELU. Its inputs may be stored, with this number of elements from a column to the next.
    Gelu { bias: bool, aux: Option<i64> },
    /// GELU's gradient at the stored inputs.
    GeluGradient { aux: i64 },
    /// The terms of the first side, or of the second, are summed as well.
    Sums { of_first: bool },
}

/// Element types as their names, for a problem that is sent to another process.
mod type_names {
    use ir::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(types: &[DType; 2], serializer: S) -> Result<S::Ok, S::Error> {
        types.map(|dtype| dtype.to_string()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[DType; 2], D::Error> {
        let [first, second] = <[String; 2]>::deserialize(deserializer)?;
        let dtype = |name: &str| name.parse().map_err(|_| D::Error::custom(format!("the type {name}")));
        Ok([dtype(&first)?, dtype(&second)?])
    }
}

/// Matrices with contiguous columns, or the transposes of such matrices.
#[derive(Clone, Copy, Debug)]
struct Seen {
    columns: Columns,
    transposed: bool,
}

impl Call {
    /// Returns the call of a multiplication. `add` adds to the previous result.
    pub(super) fn of(multiply: &Multiply, places: &MultiplyPlaces, add: bool) -> Result<Self, DriverError> {
        Self::of_lines(multiply, places, add).ok_or_else(|| {
            DriverError(format!("cuBLASLt does not support this layout of matrices: {multiply:?}"))
        })
    }

    fn of_lines(multiply: &Multiply, places: &MultiplyPlaces, add: bool) -> Option<Self> {
        let [m, k, n] = multiply.sizes;
        let out = Seen::of(&multiply.out, [m, n])?;
        let sides = [Seen::of(&multiply.lhs, [m, k])?, Seen::of(&multiply.rhs, [k, n])?];
        // The transpose of a result has the sides in the other order, and each side transposed.
        let [first, second] = if out.transposed { [sides[1], sides[0]] } else { sides };
        let transposed = [first, second].map(|side| side.transposed != out.transposed);
        let epilogue = &multiply.epilogue;
        let added = epilogue.addend.as_ref().map_or(Some(out), |addend| Seen::of(addend, [m, n]))?;
        let mut matrices = [first, second, added, out].map(|seen| seen.columns);
        if multiply.batch == 1 {
            matrices.iter_mut().for_each(|columns| columns.apart = 0);
        }
        let [left, right] = [places.lhs, places.rhs];
        let [left, right] = if out.transposed { [right, left] } else { [left, right] };
        let places_in_order = [left, right, places.addend.unwrap_or(places.out), places.out];
        let vector = places.bias.or(places.sums);
        let of_all = places_in_order.map(Some).into_iter().chain([vector, places.aux]);
        let mut alignments = [0; 6];
        alignments.iter_mut().zip(of_all).for_each(|(to, place)| *to = place.map_or(0, alignment));
        let can_add = !add || epilogue.addend.is_none() && epilogue.activation == Activation::None;
        let problem = Problem {
            matrices,
            transposed,
            batch: i32::try_from(multiply.batch).ok()?,
            types: [multiply.dtype, multiply.out_dtype],
            finish: Finish::of(epilogue, [m, n], out.transposed)?,
            alignments,
        };
        let plain = *epilogue == Epilogue::default();
        let possible = can_add && added.transposed == out.transposed && (plain || multiply.batch == 1);
        let adds = add || epilogue.addend.is_some();
        possible.then_some(Self { problem, places: places_in_order, vector, aux: places.aux, adds })
    }
}

/// Returns the largest power of two up to 256 that divides an address.
fn alignment(at: Address) -> u32 {
    1 << at.0.trailing_zeros().min(8)
}

impl Seen {
    fn of(matrices: &Matrices, [rows, columns]: [usize; 2]) -> Option<Self> {
        let [down, right] = matrices.strides;
        // For a single line the distance to the next means nothing, but cuBLASLt requires one that is long enough.
        let across = |lines: usize, distance: i64, length: usize| {
            let least = i64::try_from(length).ok()?;
            if lines == 1 { Some(distance.max(least)) } else { (distance >= least).then_some(distance) }
        };
        let seen = |transposed, length: usize, lines: usize, distance| {
            let leading = across(lines, distance, length)?;
            let columns =
                Columns { rows: length as u64, columns: lines as u64, leading, apart: matrices.apart };
            Some(Self { columns, transposed })
        };
        let by_rows = || seen(true, columns, rows, down).filter(|_| right == 1);
        let by_columns = || seen(false, rows, columns, right).filter(|_| down == 1);
        by_rows().or_else(by_columns)
    }
}

impl Finish {
    fn of(epilogue: &Epilogue, sizes: [usize; 2], transposed: bool) -> Option<Self> {
        let bias = epilogue.bias.is_some();
        let aux = match &epilogue.aux {
            None => None,
            Some(aux) => {
                let seen = Seen::of(aux, sizes)?;
                Some((seen.transposed == transposed).then_some(seen.columns.leading)?)
            }
        };
        // cuBLASLt adds a bias to each of its columns, and has a single vector for the bias and the sums.
        if bias && (!transposed || epilogue.sums.is_some()) {
            return None;
        }
        match (epilogue.activation, epilogue.sums, aux) {
            (Activation::None, None, None) => Some(Self::Plain { bias }),
            (Activation::None, Some((side, _)), None) => {
                Some(Self::Sums { of_first: (side == 0) != transposed })
            }
            (Activation::GeluTanh, None, aux) => Some(Self::Gelu { bias, aux }),
            (Activation::GeluTanhGrad, None, Some(aux)) if !bias => Some(Self::GeluGradient { aux }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
