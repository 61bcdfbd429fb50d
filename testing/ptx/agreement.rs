//! Compares the memory that a launch leaves by its PTX with the memory that it leaves on the stand-in.

use cuda::lower::stored;
use ir::DType;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Returns the largest error of a number, relative to its size and the root mean square of the numbers that were written.
///
/// In f16 and bf16 it is twice the distance between neighbouring numbers: one distance for the rounding of the result, and one for a
/// term of the result that a product takes in this type. Such a term is computed in f32; if it lies next to a tie, its last bit in f32
/// decides the rounding. For example: a gradient of attention adds up 35 terms to -0.0179, of which one is -0.36 and 4e-5 of a distance
/// beside a tie. The gradient is -0.0181 or -0.0177.
///
/// In f32 and f64 the bound leaves room for sums in another order and for approximations. A kernel that gets numbers in f32 or narrower
/// types computes in f32, also if it stores f64.
fn bound(dtype: DType, is_of_single: bool) -> f64 {
    match dtype {
        DType::F64 if is_of_single => bound(DType::F32, false),
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F32 => 2e-5,
        DType::F64 => 1e-12,
        _ => 0.0,
    }
}

/// Returns the type of the elements to which a pointer of CUDA C++ points: `const bf16*`. A structure has elements of one type:
/// `attention::Row<float>*`. `None` if the text is no pointer.
pub(super) fn pointed_to(text: &str) -> Option<DType> {
    let element = text.trim().trim_start_matches("const ").strip_suffix('*')?.trim_end();
    let element = match element.split_once('<') {
        Some((_, of_structure)) => of_structure.trim_end_matches('>'),
        // Two numbers in f32 (`kernels/attention.cuh`).
        None if element == "attention::Pair" => "float",
        None => element,
    };
    DType::ALL.into_iter().find(|dtype| *dtype != DType::Bool && stored(*dtype) == element)
}

/// The bytes of an operand: before a launch, and after it on the stand-in and by the PTX.
pub(super) struct Outcome<'a> {
    pub(super) before: &'a [u8],
    pub(super) stand_in: &'a [u8],
    pub(super) ptx: &'a [u8],
    /// Whether the kernel gets numbers in f32, f16 or bf16.
    pub(super) is_of_single: bool,
}

/// Numbers that differ.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    pub(super) dtype: DType,
    /// The index of the element with the largest error.
    pub(super) element: usize,
    pub(super) error: f64,
    /// The largest error that an element may have.
    pub(super) bound: f64,
    pub(super) values: [f64; 2],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, element, error, bound, values: [stand_in, ptx] } = self;
        write!(
            f,
            "element {element} in {dtype} is {ptx:?} by the PTX and {stand_in:?} on the stand-in, an error of {error:.1e} (bound {bound:.0e})"
        )
    }
}

impl Difference {
    /// Whether the error exceeds its bound.
    pub(super) fn is_beyond_bound(&self) -> bool {
        self.error > self.bound
    }
}

impl Outcome<'_> {
    /// Returns the largest error of an operand that begins at an address, in the type of a pointer into it. If pointers of several
    /// types point into it, the type that fits best is taken. `None` if nothing was written.
    pub(super) fn least_difference(&self, address: u64, pointers: &[(u64, DType)]) -> Option<Difference> {
        if self.before == self.stand_in && self.before == self.ptx {
            return None;
        }
        let offset =
            |pointer: u64| pointer.checked_sub(address).filter(|offset| *offset < self.before.len() as u64);
        let own: Vec<(u64, DType)> =
            pointers.iter().filter_map(|(pointer, dtype)| Some((offset(*pointer)?, *dtype))).collect();
        // The bits of an integer make a tiny number in a floating-point type, and two of them differ by next to nothing.
        let is_ambiguous = own.iter().any(|(_, dtype)| *dtype != own[0].1);
        let differences =
            own.iter().map(|(offset, dtype)| self.difference(*dtype, *offset as usize, is_ambiguous));
        let order = |difference: &Difference| (difference.is_beyond_bound(), difference.error);
        let least =
            differences.min_by(|one, other| order(one).partial_cmp(&order(other)).unwrap_or(Ordering::Equal));
        Some(least.unwrap_or_else(|| self.difference(DType::U8, 0, false)))
    }

    /// Returns the largest error of the elements, which begin `start` bytes after the first byte. With `tiny_are_equal`, tiny numbers
    /// have to be equal.
    fn difference(&self, dtype: DType, start: usize, tiny_are_equal: bool) -> Difference {
        // An f64 does not hold all integers of 64 bits, so their halves are compared.
        let dtype = if matches!(dtype, DType::I64 | DType::U64) { DType::U32 } else { dtype };
        let bound = bound(dtype, self.is_of_single);
        let size = dtype.bytes() as usize;
        let elements = |bytes: &[u8]| -> Vec<f64> {
            bytes[(start % size).min(bytes.len())..]
                .chunks_exact(size)
                .map(|bytes| number(dtype, bytes))
                .collect()
        };
        let [before, stand_in, ptx] = [self.before, self.stand_in, self.ptx].map(elements);
        let written = stand_in.iter().zip(&before).filter(|(new, old)| new != old);
        let mean = typical_size(written.map(|(new, _)| new.abs()));
        let error = |(wanted, found): (&f64, &f64)| match () {
            () if wanted == found || wanted.is_nan() && found.is_nan() => 0.0,
            () if !wanted.is_finite() || !found.is_finite() || bound == 0.0 => f64::INFINITY,
            () if tiny_are_equal && wanted.abs() < f64::from(f32::MIN_POSITIVE) => f64::INFINITY,
            () => (wanted - found).abs() / (wanted.abs() + mean),
        };
        let errors = stand_in.iter().zip(&ptx).map(error);
        let (element, error) =
            errors.enumerate().fold((0, 0.0), |most, other| if other.1 > most.1 { other } else { most });
        let values = [&stand_in, &ptx].map(|all| all.get(element).copied().unwrap_or(0.0));
        Difference { dtype, element, error, bound, values }
    }
}

/// Returns the root mean square of the finite numbers that are not zero, without those above a thousand times their median: a masked
/// score (the least f32) must not hide the errors of the other numbers.
fn typical_size(sizes: impl Iterator<Item = f64>) -> f64 {
    let mut sizes: Vec<f64> = sizes.filter(|size| size.is_finite() && *size != 0.0).collect();
    sizes.sort_by(f64::total_cmp);
    let most = sizes.get(sizes.len() / 2).map_or(0.0, |median| 1e3 * median);
    sizes.retain(|size| *size <= most);
    (sizes.iter().map(|size| size * size).sum::<f64>() / sizes.len().max(1) as f64).sqrt()
}

/// Returns an element as an f64, which holds every integer of 32 bits.
fn number(dtype: DType, bytes: &[u8]) -> f64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    match dtype {
        DType::F64 => f64::from_bits(word),
        DType::F32 => f32::from_bits(word as u32).into(),
        DType::F16 => half::f16::from_bits(word as u16).into(),
        DType::BF16 => half::bf16::from_bits(word as u16).into(),
        _ => word as f64,
    }
}

/// The results of a family of kernels in elements of a type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The kernels.
    pub kernels: BTreeSet<String>,
    /// The number of results that were compared: each operand that a launch wrote, in each order of each launch.
    pub results: usize,
    /// The largest error, relative to the number and the typical size of the numbers that were written.
    pub error: f64,
}

/// The families of kernels that were run by their PTX, by the types of the elements that they wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(pub BTreeMap<String, BTreeMap<&'static str, Row>>);

impl Table {
    pub(super) fn add(&mut self, kernel: &str, difference: &Difference) {
        let row =
            self.0.entry(family(kernel).to_owned()).or_default().entry(difference.dtype.name()).or_default();
        row.kernels.insert(kernel.to_owned());
        row.results += 1;
        row.error = row.error.max(difference.error);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| family | kernels | results | largest errors |\n| --- | --- | --- | --- |")?;
        for (family, rows) in &self.0 {
            let kernels: BTreeSet<&String> = rows.values().flat_map(|row| &row.kernels).collect();
            let results: usize = rows.values().map(|row| row.results).sum();
            let errors = rows.iter().map(|(dtype, Row { error, .. })| match error {
                0.0 => format!("{dtype} 0"),
                _ => format!("{dtype} {error:.0e}"),
            });
            writeln!(
                f,
                "| `{family}` | {} | {results} | {} |",
                kernels.len(),
                errors.collect::<Vec<_>>().join(", ")
            )?;
        }
        Ok(())
    }
}

/// Returns the name of a kernel without the hash of its text.
pub fn family(kernel: &str) -> &str {
    match kernel.rsplit_once('_') {
        Some((family, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            family
        }
        _ => kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Returns the difference of two results in f32, in memory that was zeros.
    fn difference(stand_in: &[f32], ptx: &[f32], pointers: &[(u64, DType)]) -> Option<Difference> {
        let [before, stand_in, ptx] = [bytes(&vec![0.0; ptx.len()]), bytes(stand_in), bytes(ptx)];
        let outcome = Outcome { before: &before, stand_in: &stand_in, ptx: &ptx, is_of_single: true };
        outcome.least_difference(64, pointers)
    }

    #[test]
    fn errors_are_relative_to_what_was_written() {
        let pointers = [(64, DType::F32)];
        assert_eq!(difference(&[0.0; 2], &[0.0; 2], &pointers), None);
        let equal = difference(&[1.0, f32::NAN], &[1.0, f32::NAN], &pointers).expect("it was written");
        assert!(!equal.is_beyond_bound() && equal.error == 0.0);
        let near = difference(&[1.0, 1000.0], &[1.0 + 1e-3, 1000.0], &pointers).expect("it was written");
        assert!(!near.is_beyond_bound() && near.error > 1e-6, "{near}");
        for wrong in [[1.1, 1000.0], [f32::NAN, 1000.0], [1.0, f32::INFINITY], [1.0, 0.0]] {
            let wrong = difference(&[1.0, 1000.0], &wrong, &pointers).expect("it was written");
            assert!(wrong.is_beyond_bound(), "{wrong}");
        }
    }

    #[test]
    fn a_number_that_is_much_larger_hides_no_error() {
        let masked = [1.0, 2.0, 3.0, f32::MIN];
        let near = difference(&masked, &[1.0 + 1e-6, 2.0, 3.0, f32::MIN], &[(64, DType::F32)]);
        assert!(!near.expect("it was written").is_beyond_bound());
        let wrong = difference(&masked, &[1.001, 2.0, 3.0, f32::MIN], &[(64, DType::F32)]);
        assert!(wrong.expect("it was written").is_beyond_bound());
    }

    #[test]
    fn integers_are_not_taken_for_tiny_numbers() {
        let [count, other] = [1_000_000, 1_000_001].map(f32::from_bits);
        let wrong = difference(&[count], &[other], &[(64, DType::F32), (64, DType::I32)]);
        assert!(wrong.expect("it was written").is_beyond_bound());
    }

    /// Bytes for which no pointer has a type have to be equal.
    #[test]
    fn bytes_without_a_type_are_equal() {
        let near = difference(&[1.0], &[1f32.next_up()], &[(0, DType::F32)]).expect("it was written");
        assert!(near.is_beyond_bound() && near.dtype == DType::U8);
    }

    #[test]
    fn types_of_pointers_are_read() {
        let types =
            ["const float*", "bf16*", "attention::Row<double>*", "attention::Pair*", "i64", "const u64*"]
                .map(pointed_to);
        use DType::{BF16, F32, F64, U64};
        assert_eq!(types, [Some(F32), Some(BF16), Some(F64), Some(F32), None, Some(U64)]);
        assert_eq!([family("adam_many_0123456789abcdef"), family("other")], ["adam_many", "other"]);
    }
}
