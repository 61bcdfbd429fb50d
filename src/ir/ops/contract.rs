//! The contraction: matrix multiplication over any dims, as in einsum.

use super::*;
use crate::Dim;
use crate::tensor::{offsets, strides};
use std::collections::BTreeMap;

/// `out[o..] = Σ lhs[l..] · rhs[r..]`: dims with the same label are the same index; labels that `out` lacks are
/// summed. Every label stands in at least two of the three, and in each at most once, so that the gradient of a
/// contraction is a contraction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contract {
    /// Labels of the left operand's dims.
    pub lhs: Labels,
    /// Labels of the right operand's dims.
    pub rhs: Labels,
    /// Labels of the result's dims.
    pub out: Labels,
}

/// The labels of a contraction by the role they play in a matrix multiplication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// In all three: one multiplication for each.
    pub batch: Vec<u8>,
    /// In `lhs` and `out`.
    pub rows: Vec<u8>,
    /// In `rhs` and `out`.
    pub columns: Vec<u8>,
    /// In `lhs` and `rhs` alone: summed.
    pub summed: Vec<u8>,
}

impl Contract {
    /// The contraction of an einsum-like text, such as `"bsh,hk->bsk"`. Panics on texts that are not one; meant for
    /// literals.
    pub fn new(text: &str) -> Self {
        let (operands, out) = text.split_once("->").expect("a contraction has an arrow");
        let (lhs, rhs) = operands.split_once(',').expect("a contraction has two operands");
        Self { lhs: lhs.into(), rhs: rhs.into(), out: out.into() }
    }

    /// Multiplication of the last dim of the left operand (of `ndim` dims) with a matrix `[in, out]`, or
    /// `[out, in]` if `transposed`: what a linear layer does.
    pub fn linear(ndim: usize, transposed: bool) -> Self {
        let leading: Labels = Labels((0..ndim - 1).map(|i| b'a' + i as u8).collect());
        let with = |label: u8| Labels(leading.0.iter().copied().chain([label]).collect());
        Self { lhs: with(b'y'), rhs: if transposed { "zy".into() } else { "yz".into() }, out: with(b'z') }
    }

    /// The labels by role, each list in the order of the result, or of the left operand for those summed.
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

    fn check(&self) -> Result<(), TypeError> {
        let all = [&self.lhs, &self.rhs, &self.out];
        for labels in all {
            for (i, label) in labels.0.iter().enumerate() {
                let twice = labels.0[..i].contains(label);
                if twice || all.iter().filter(|labels| labels.0.contains(label)).count() < 2 {
                    let label = *label as char;
                    return Err(TypeError::new(format!(
                        "label `{label}` must stand once, in two of the three"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Operator for Contract {
    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [lhs, rhs] = types.operands()?;
        self.check()?;
        if lhs.dtype != rhs.dtype || !lhs.dtype.is_float() {
            return Err(TypeError::new(format!("takes two floats of one type, not {lhs} and {rhs}")));
        }
        let mut sizes: BTreeMap<u8, &Dim> = BTreeMap::new();
        for (labels, ty) in [(&self.lhs, lhs), (&self.rhs, rhs)] {
            if labels.0.len() != ty.ndim() {
                return Err(TypeError::new(format!("labels `{}` do not fit {ty}", labels.print())));
            }
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
        Factors::rule(&line, signature).linear_in(&[0]).linear_in(&[1])
    }

    /// d lhs = d out × rhs, d rhs = lhs × d out, summed over what the operand lacks.
    fn gradient(
        &self,
        b: &mut Builder,
        node: NodeRef,
        d: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>, GradientError> {
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
        // Offsets of an operand for every index over some labels; a label it lacks has stride 0.
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
            let left = gather_matrix(&lhs.floats()[l0..], &lhs_rows, &lhs_summed);
            let right = gather_matrix(&rhs.floats()[r0..], &rhs_summed, &rhs_columns);
            let product = multiply(&left, &right, lhs_rows.len(), lhs_summed.len(), rhs_columns.len());
            for (i, &row) in out_rows.iter().enumerate() {
                for (j, &column) in out_columns.iter().enumerate() {
                    out[o0 + row + column] = product[i * out_columns.len() + j];
                }
            }
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}

/// The matrix whose element (i, j) stands at `rows[i] + columns[j]`.
fn gather_matrix(elements: &[f64], rows: &[usize], columns: &[usize]) -> Vec<f64> {
    rows.iter().flat_map(|&row| columns.iter().map(move |&column| elements[row + column])).collect()
}

/// Row-major `[m, k] × [k, n]` in f64. Large products go to the `gemm` crate, small ones through plain loops; a test
/// holds one against the other.
fn multiply(left: &[f64], right: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    if m * n * k < 32 * 32 * 32 {
        multiply_by_loops(left, right, m, k, n)
    } else {
        multiply_by_gemm(left, right, m, k, n)
    }
}

fn multiply_by_loops(left: &[f64], right: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                out[i * n + j] += left[i * k + p] * right[p * n + j];
            }
        }
    }
    out
}

#[allow(unsafe_code)] // the only door to the gemm crate
fn multiply_by_gemm(left: &[f64], right: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    assert!(left.len() == m * k && right.len() == k * n);
    // SAFETY: the three pointers cover m·n, m·k and k·n elements (asserted above), row-major with the strides given,
    // and `out` is borrowed from nobody else.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            left.as_ptr(),
            1,
            k as isize,
            right.as_ptr(),
            1,
            n as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_and_loops_multiply_alike() {
        let (m, k, n) = (33, 47, 40);
        let left: Vec<f64> = (0..m * k).map(|i| (i as f64 * 0.37).sin()).collect();
        let right: Vec<f64> = (0..k * n).map(|i| (i as f64 * 0.91).cos()).collect();
        let by_loops = multiply_by_loops(&left, &right, m, k, n);
        let by_gemm = multiply_by_gemm(&left, &right, m, k, n);
        assert!(by_loops.iter().zip(&by_gemm).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}
