//! The contraction: matrix multiplication over any dims, as in einsum.

use super::*;
use crate::Dim;
use crate::tensor::{offsets, strides};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// `out[o..] = Σ lhs[l..] · rhs[r..]`: dims with the same label have the same index; labels that `out` lacks are summed. Every
/// label is in at least two of the three tensors, and at most once in each, so that the gradient of a contraction is a
/// contraction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contract {
    /// Labels of the left operand's dims.
    pub lhs: Labels,
    /// Labels of the right operand's dims.
    pub rhs: Labels,
    /// Labels of the result's dims.
    pub out: Labels,
}

/// The labels of a contraction, by their role in a matrix multiplication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Labels in all three tensors: one multiplication for each of their indices.
    pub batch: Vec<u8>,
    /// Labels in `lhs` and `out`.
    pub rows: Vec<u8>,
    /// Labels in `rhs` and `out`.
    pub columns: Vec<u8>,
    /// Labels in `lhs` and `rhs` only: summed.
    pub summed: Vec<u8>,
}

impl Contract {
    /// Parses a contraction in the form of einsum, such as `"bsh,hk->bsk"`. Panics on invalid texts; meant for literals.
    pub fn new(text: &str) -> Self {
        let (operands, out) = text.split_once("->").expect("a contraction has an arrow");
        let (lhs, rhs) = operands.split_once(',').expect("a contraction has two operands");
        Self { lhs: lhs.into(), rhs: rhs.into(), out: out.into() }
    }

    /// Multiplies the last dim of the left operand (of `ndim` dims) with a matrix `[in, out]`, or `[out, in]` if `transposed`, as
    /// a linear layer does.
    pub fn linear(ndim: usize, transposed: bool) -> Self {
        let leading: Labels = Labels((0..ndim - 1).map(|i| b'a' + i as u8).collect());
        let with = |label: u8| Labels(leading.0.iter().copied().chain([label]).collect());
        Self { lhs: with(b'y'), rhs: if transposed { "zy".into() } else { "yz".into() }, out: with(b'z') }
    }

    /// Returns the labels by role. Each list is in the order of the result, the summed labels in the order of the left operand.
    pub fn roles(&self) -> Roles {
        let has = |labels: &Labels, label: &u8| labels.0.contains(label);
        let pick =
            |from: &Labels, keep: &dyn Fn(&u8) -> bool| from.0.iter().copied().filter(|l| keep(l)).collect();
        Roles {
            batch: pick(&self.out, &|l| has(&self.lhs, l) && has(&self.rhs, l)),
            rows: pick(&self.out, &|l| !has(&self.rhs, l)),
            columns: pick(&self.out, &|l| !has(&self.lhs, l)),
            summed: pick(&self.lhs, &|l| !has(&self.out, l)),
        }
    }

    /// Whether the contraction is a dot product, or a batch of dot products: it has neither rows nor columns.
    fn is_dot(&self) -> bool {
        self.out.0.iter().all(|label| self.lhs.0.contains(label) && self.rhs.0.contains(label))
    }

    fn check(&self) -> Result<(), TypeError> {
        let all = [&self.lhs, &self.rhs, &self.out];
        for labels in all {
            for (i, label) in labels.0.iter().enumerate() {
                let twice = labels.0[..i].contains(label);
                if twice || all.iter().filter(|labels| labels.0.contains(label)).count() < 2 {
                    let label = *label as char;
                    return Err(TypeError::new(format!(
                        "label `{label}` must occur in at least two of lhs, rhs and out, and at most once in \
                         each"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Operator for Contract {
    // Full precision for dot products: they are sums over many elements, which matrix units do not speed up.
    fn facts(&self) -> Facts {
        let class = if self.is_dot() { PrecisionClass::Full } else { PrecisionClass::Half };
        Operands::new(&[OperandRole::Lhs, OperandRole::Rhs]).anywhere(class)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [lhs, rhs] = types.operands()?;
        self.check()?;
        ensure!(
            lhs.dtype == rhs.dtype && lhs.dtype.is_float(),
            "takes two floats of one type, not {lhs} and {rhs}"
        );
        let mut sizes: BTreeMap<u8, &Dim> = BTreeMap::new();
        for (labels, ty) in [(&self.lhs, lhs), (&self.rhs, rhs)] {
            ensure!(labels.0.len() == ty.ndim(), "labels `{}` do not fit {ty}", labels.print());
            for (&label, size) in labels.0.iter().zip(&ty.dims) {
                if *sizes.entry(label).or_insert(size) != size {
                    let label = label as char;
                    return Err(TypeError::new(format!("`{label}` has two sizes in {lhs} and {rhs}")));
                }
            }
        }
        let dims = self.out.0.iter().map(|label| sizes[label].clone());
        Ok(vec![Type::new(lhs.dtype, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = |labels: &Labels| {
            let word = |label: &u8| {
                let summed = if self.out.0.contains(label) { "" } else { "+" };
                format!("{}{summed}", *label as char)
            };
            labels.0.iter().map(word).collect::<Vec<_>>().join(" ")
        };
        let line = format!("{}, {} -> {}", words(&self.lhs), words(&self.rhs), words(&self.out));
        Factors::rule(&line, signature).linear_in(&[0]).linear_in(&[1]).keeping_zeros()
    }

    /// d lhs = d out × rhs, d rhs = lhs × d out, summed over the labels that the operand lacks.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (lhs, rhs) = (node.operands[0], node.operands[1]);
        let Some(dout) = d[0] else { return Ok(vec![None, None]) };
        let dlhs = Self { lhs: self.out.clone(), rhs: self.rhs.clone(), out: self.lhs.clone() };
        let drhs = Self { lhs: self.lhs.clone(), rhs: self.out.clone(), out: self.rhs.clone() };
        Ok(vec![Some(b.one(dlhs, &[dout, rhs])?), Some(b.one(drhs, &[lhs, dout])?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let factors = self.factors(signature).factors;
        let multiplications = factors.iter().map(|f| f.size.size().unwrap_or(0)).fold(1, u64::saturating_mul);
        Cost::streaming(signature, multiplications.saturating_mul(2))
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let (lhs, rhs) = (cx.operands[0], cx.operands[1]);
        let mut size_of: BTreeMap<u8, usize> = BTreeMap::new();
        size_of.extend(self.lhs.0.iter().copied().zip(lhs.sizes.iter().copied()));
        size_of.extend(self.rhs.0.iter().copied().zip(rhs.sizes.iter().copied()));
        // The offsets of an operand for every index over some labels; a label that it lacks has stride 0.
        let offsets_of = |labels: &Labels, tensor_sizes: &[usize], over: &[u8]| {
            let own = strides(tensor_sizes);
            let stride = |label: &u8| labels.0.iter().position(|l| l == label).map_or(0, |i| own[i]);
            let over_sizes: Vec<usize> = over.iter().map(|label| size_of[label]).collect();
            offsets(&over_sizes, &over.iter().map(stride).collect::<Vec<_>>())
        };
        let roles = self.roles();
        let table = |labels, sizes: &[usize]| {
            [&roles.batch, &roles.rows, &roles.columns, &roles.summed]
                .map(|over| offsets_of(labels, sizes, over))
        };
        let [lhs_batch, lhs_rows, _, lhs_summed] = table(&self.lhs, &lhs.sizes);
        let [rhs_batch, _, rhs_columns, rhs_summed] = table(&self.rhs, &rhs.sizes);
        let [out_batch, out_rows, out_columns, _] = table(&self.out, &sizes);
        let mut out = vec![0.0; sizes.iter().product()];
        for ((&l0, &r0), &o0) in lhs_batch.iter().zip(&rhs_batch).zip(&out_batch) {
            let left = Matrix::new(&lhs.floats()[l0..], &lhs_rows, &lhs_summed);
            let right = Matrix::new(&rhs.floats()[r0..], &rhs_summed, &rhs_columns);
            match (step(&out_rows), step(&out_columns)) {
                (Some(row), Some(column)) => multiply(&left, &right, &mut out[o0..], [row, column]),
                _ => {
                    let mut product = vec![0.0; left.rows * right.columns];
                    multiply(&left, &right, &mut product, [right.columns, 1]);
                    for (row, products) in out_rows.iter().zip(product.chunks_exact(right.columns.max(1))) {
                        let places = out_columns.iter().zip(products);
                        places.for_each(|(column, product)| out[o0 + row + column] = *product);
                    }
                }
            }
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}

/// A matrix whose element (i, j) is at `i · row + j · column`.
struct Matrix<'a> {
    elements: Cow<'a, [f64]>,
    rows: usize,
    columns: usize,
    row: usize,
    column: usize,
}

impl<'a> Matrix<'a> {
    /// Makes the matrix whose element (i, j) is at `rows[i] + columns[j]`. Copies it only if these offsets are not evenly spaced.
    fn new(elements: &'a [f64], rows: &[usize], columns: &[usize]) -> Self {
        let (elements, [row, column]) = match (step(rows), step(columns)) {
            (Some(row), Some(column)) => (Cow::Borrowed(elements), [row, column]),
            _ => {
                let mut copied = Vec::with_capacity(rows.len() * columns.len());
                rows.iter()
                    .for_each(|row| copied.extend(columns.iter().map(|column| elements[row + column])));
                (Cow::Owned(copied), [columns.len(), 1])
            }
        };
        Self { elements, rows: rows.len(), columns: columns.len(), row, column }
    }
}

/// Returns the distance between offsets that start at 0, if they are evenly spaced.
fn step(offsets: &[usize]) -> Option<usize> {
    let step = offsets.get(1).copied().unwrap_or(1);
    offsets.iter().enumerate().all(|(i, &offset)| offset == i * step).then_some(step)
}

/// Multiplies two matrices in f64 into a matrix of zeros with the given distances between rows and between columns. Large products
/// use the `gemm` crate, small ones plain loops; a test compares the two.
fn multiply(left: &Matrix, right: &Matrix, out: &mut [f64], steps: [usize; 2]) {
    if left.rows * left.columns * right.columns < 32 * 32 * 32 {
        multiply_by_loops(left, right, out, steps);
    } else {
        multiply_by_gemm(left, right, out, steps);
    }
}

fn multiply_by_loops(left: &Matrix, right: &Matrix, out: &mut [f64], [row, column]: [usize; 2]) {
    for i in 0..left.rows {
        for p in 0..left.columns {
            let factor = left.elements[i * left.row + p * left.column];
            for j in 0..right.columns {
                out[i * row + j * column] += factor * right.elements[p * right.row + j * right.column];
            }
        }
    }
}

#[allow(unsafe_code)] // the only call of the gemm crate
fn multiply_by_gemm(left: &Matrix, right: &Matrix, out: &mut [f64], [row, column]: [usize; 2]) {
    let (m, k, n) = (left.rows, left.columns, right.columns);
    let last =
        |rows: usize, columns: usize, row: usize, column: usize| (rows - 1) * row + (columns - 1) * column;
    assert!(m > 0 && k > 0 && n > 0 && right.rows == k);
    assert!(last(m, k, left.row, left.column) < left.elements.len());
    assert!(last(k, n, right.row, right.column) < right.elements.len());
    // Elements of `out` do not overlap: a whole row, or a whole column, lies before the next.
    assert!(last(m, n, row, column) < out.len() && ((n - 1) * column < row.max(1) || (m - 1) * row < column));
    // SAFETY: the three pointers cover the matrices with the distances given (asserted above), and `out`, whose
    // elements do not overlap, is borrowed from nobody else.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            column as isize,
            row as isize,
            false,
            left.elements.as_ptr(),
            left.column as isize,
            left.row as isize,
            right.elements.as_ptr(),
            right.column as isize,
            right.row as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_and_loops_multiply_alike() {
        let (m, k, n) = (33, 47, 40);
        let left: Vec<f64> = (0..m * k).map(|i| (i as f64 * 0.37).sin()).collect();
        let right: Vec<f64> = (0..k * n).map(|i| (i as f64 * 0.91).cos()).collect();
        let matrix = |elements, rows, columns, steps: [usize; 2]| {
            let [row, column] = steps;
            Matrix { elements: Cow::Borrowed(elements), rows, columns, row, column }
        };
        for (left_steps, right_steps, steps) in [([k, 1], [n, 1], [n, 1]), ([1, m], [1, k], [1, m])] {
            let (left, right) = (matrix(&left[..], m, k, left_steps), matrix(&right[..], k, n, right_steps));
            let (mut by_loops, mut by_gemm) = (vec![0.0; m * n], vec![0.0; m * n]);
            multiply_by_loops(&left, &right, &mut by_loops, steps);
            multiply_by_gemm(&left, &right, &mut by_gemm, steps);
            assert!(by_loops.iter().zip(&by_gemm).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }
}
