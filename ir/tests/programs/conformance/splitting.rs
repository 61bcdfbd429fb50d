//! Checks sharding rules: every factor is split in two and joined again. Also checks linearity.

use super::{Check, close, interp, partition};
use ir::factors::{DimFactors, FactorKind, Factors};
use ir::ops::{Interp, PartSpans};
use ir::samples::Sample;
use ir::tensor::{Elements, offsets, strides};
use ir::{Dim, Operator, PartialKind, Signature, Span, Tensor, Type};
use smallvec::SmallVec;

/// Checks that the rule names every dim, that splitting any factor that can be split gives the whole result, and that declared
/// linearity holds.
pub(crate) fn check(sample: &Sample, factors: &Factors) -> Check {
    checked(sample, factors, false)
}

/// Checks as [`check`] does, but `interp` is not told the places of the halves.
pub(crate) fn check_blindly(sample: &Sample, factors: &Factors) -> Check {
    checked(sample, factors, true)
}

fn checked(sample: &Sample, factors: &Factors, blind: bool) -> Check {
    let operands = sample.fill(1);
    let results = sample.result_types().map_err(|error| error.to_string())?;
    let rule =
        Rule { sample, factors, sizes: sizes(factors)?, operands: &operands, results: &results, blind };
    covers(factors, &Signature { operands: sample.operand_types(), results: results.clone() })?;
    let whole = interp(sample, &operands, &results);
    for factor in 0..factors.factors.len() {
        let (kind, size) = (factors.factors[factor].kind, rule.sizes[factor]);
        if kind != FactorKind::Whole && size > 1 && size % 2 != 0 {
            return Err(format!("factor {factor} of size {size} cannot be halved: give it an even size"));
        }
        match kind {
            FactorKind::Whole => {}
            _ if size == 1 => {}
            FactorKind::Free => rule.split(factor as u32, None, &whole)?,
            FactorKind::Reduced(kind) => rule.split(factor as u32, Some(kind), &whole)?,
            FactorKind::Custom => partition::check(sample, factors, factor as u32, &Operator::partition)?,
        }
    }
    factors.linear.iter().try_for_each(|set| rule.linear(set, &whole))
}

/// Checks that the rule has the right number of tensors, and that the factors of each dim multiply to its size.
pub(crate) fn covers(factors: &Factors, signature: &Signature) -> Check {
    if factors.operands.len() != signature.operands.len() || factors.results.len() != signature.results.len()
    {
        return Err("the rule is not for as many operands and results as there are".into());
    }
    let sizes = sizes(factors)?;
    let operands = factors.operands.iter().zip(&signature.operands);
    for (dims, ty) in operands.chain(factors.results.iter().zip(&signature.results)) {
        let product = |dim: &DimFactors| Dim::known(dim.iter().map(|&f| sizes[f as usize]).product());
        if !dims.iter().map(product).eq(ty.dims.iter().cloned()) {
            return Err(format!("the factors {dims:?} of sizes {sizes:?} do not make {ty}"));
        }
    }
    Ok(())
}

fn sizes(factors: &Factors) -> Result<Vec<u64>, String> {
    let size =
        |factor: &ir::factors::Factor| factor.size.size().ok_or_else(|| "a factor is unbound".to_string());
    factors.factors.iter().map(size).collect()
}

struct Rule<'a> {
    sample: &'a Sample,
    factors: &'a Factors,
    sizes: Vec<u64>,
    operands: &'a [Tensor],
    results: &'a [Type],
    blind: bool,
}

impl Rule<'_> {
    /// Checks that the results for the two halves of a factor combine to the whole result.
    fn split(&self, factor: u32, reduction: Option<PartialKind>, whole: &[Tensor]) -> Check {
        let has = |dims: &[DimFactors]| dims.iter().any(|dim| dim.contains(&factor));
        if let Some(i) = (0..whole.len()).find(|&i| reduction.is_none() && !has(&self.factors.results[i])) {
            return Err(format!("result {i} does not have the free factor {factor}"));
        }
        let halves = [self.half(factor, 0)?, self.half(factor, 1)?];
        for (i, whole) in whole.iter().enumerate() {
            let dims = &self.factors.results[i];
            let [first, second] = [&halves[0][i], &halves[1][i]];
            let together = match reduction {
                _ if has(dims) => {
                    let mut together = Tensor::splat(whole.dtype, whole.sizes.clone(), 0.0);
                    let kept = [0, 1].map(|half| self.kept(dims, &whole.sizes, factor, half));
                    write(&mut together, first, &kept[0]);
                    write(&mut together, second, &kept[1]);
                    together
                }
                Some(kind) => combine(kind, first, second),
                None => unreachable!("checked above"),
            };
            if !close(&together, whole) {
                return Err(format!(
                    "result {i}, put together from halves of factor {factor}, differs from the whole"
                ));
            }
        }
        Ok(())
    }

    /// Computes the results for one half, as a rank does.
    fn half(&self, factor: u32, half: usize) -> Result<Vec<Tensor>, String> {
        let (mut operands, mut parts) = (Vec::new(), PartSpans { operands: vec![], results: vec![] });
        for (dims, x) in self.factors.operands.iter().zip(self.operands) {
            let kept = self.kept(dims, &x.sizes, factor, half);
            parts.operands.push(spans(&x.sizes, &kept));
            operands.push(read(x, &kept));
        }
        let mut results = Vec::new();
        for (dims, ty) in self.factors.results.iter().zip(self.results) {
            let sizes: Vec<usize> =
                ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
            let kept = self.kept(dims, &sizes, factor, half);
            parts.results.push(spans(&sizes, &kept));
            results.push(Type::new(ty.dtype, kept.iter().map(|kept| Dim::known(kept.len() as u64))));
        }
        let operands: Vec<&Tensor> = operands.iter().collect();
        let parts = (!self.blind).then_some(&parts);
        let call = Interp { operands: &operands, results: &results, data: &self.sample.data, parts };
        // `interp` may also panic, if the halves do not fit together.
        let run = || self.sample.op.interp(&call);
        let tensors = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let tensors = tensors.map_err(|_| format!("half of factor {factor} stops interp"))?;
        match tensors.iter().zip(&results).find(|(tensor, ty)| !tensor.ty().same_shape(ty)) {
            Some((tensor, ty)) => Err(format!("half of factor {factor} gives {}, not {ty}", tensor.ty())),
            None => Ok(tensors),
        }
    }

    /// Returns, for each dim, the indices that belong to a half of a factor.
    fn kept(&self, dims: &[DimFactors], sizes: &[usize], factor: u32, half: usize) -> Vec<Vec<usize>> {
        let kept = |(dim, &size): (&DimFactors, &usize)| {
            let Some(position) = dim.iter().position(|&f| f == factor) else { return (0..size).collect() };
            // The factors of a merged dim are major first; the stride of a factor is the product of those after it.
            let stride: u64 = dim[position + 1..].iter().map(|&f| self.sizes[f as usize]).product();
            let steps = self.sizes[factor as usize];
            let belongs = |i: &usize| (*i as u64 / stride % steps) / (steps / 2) == half as u64;
            (0..size).filter(belongs).collect()
        };
        dims.iter().zip(sizes).map(kept).collect()
    }

    /// Checks `f(a + b) = f(a) + f(b)` in these operands together; the other operands are fixed.
    fn linear(&self, set: &[u32], of_a: &[Tensor]) -> Check {
        let b = self.sample.fill(2);
        let (mut only_b, mut both) = (self.operands.to_vec(), self.operands.to_vec());
        for &i in set {
            let i = i as usize;
            both[i] = combine(PartialKind::Sum, &self.operands[i], &b[i]);
            only_b[i] = b[i].clone();
        }
        let of_b = interp(self.sample, &only_b, self.results);
        let of_both = interp(self.sample, &both, self.results);
        for (i, ((a, b), both)) in of_a.iter().zip(&of_b).zip(&of_both).enumerate() {
            if !close(&combine(PartialKind::Sum, a, b), both) {
                return Err(format!("result {i} is not linear in operands {set:?}"));
            }
        }
        Ok(())
    }
}

/// Returns the first of these indices of every dim, with the size of the dim.
fn spans(sizes: &[usize], kept: &[Vec<usize>]) -> SmallVec<[Span; 4]> {
    let start = |kept: &Vec<usize>| kept.first().map_or(0, |&first| first as u64);
    kept.iter().zip(sizes).map(|(kept, &size)| Span { start: start(kept), size: size as u64 }).collect()
}

/// Returns the offsets of the elements at these indices of every dim.
fn at(sizes: &[usize], kept: &[Vec<usize>]) -> Vec<usize> {
    let own = strides(sizes);
    let mut at = offsets(&[], &[]);
    for (indices, stride) in kept.iter().zip(own) {
        at = at.iter().flat_map(|base| indices.iter().map(move |i| base + i * stride)).collect();
    }
    at
}

fn read(x: &Tensor, kept: &[Vec<usize>]) -> Tensor {
    let at = at(&x.sizes, kept);
    let elements = match &x.elements {
        Elements::Float(x) => Elements::Float(at.iter().map(|&i| x[i]).collect()),
        Elements::Int(x) => Elements::Int(at.iter().map(|&i| x[i]).collect()),
        Elements::Bool(x) => Elements::Bool(at.iter().map(|&i| x[i]).collect()),
    };
    Tensor { dtype: x.dtype, sizes: kept.iter().map(Vec::len).collect(), elements }
}

fn write(to: &mut Tensor, from: &Tensor, kept: &[Vec<usize>]) {
    let at = at(&to.sizes, kept);
    match (&mut to.elements, &from.elements) {
        (Elements::Float(to), Elements::Float(from)) => at.iter().zip(from).for_each(|(&i, &x)| to[i] = x),
        (Elements::Int(to), Elements::Int(from)) => at.iter().zip(from).for_each(|(&i, &x)| to[i] = x),
        (Elements::Bool(to), Elements::Bool(from)) => at.iter().zip(from).for_each(|(&i, &x)| to[i] = x),
        _ => panic!("{} is written to {}", from.ty(), to.ty()),
    }
}

/// Combines two partial values.
fn combine(kind: PartialKind, x: &Tensor, y: &Tensor) -> Tensor {
    let elements = match (&x.elements, &y.elements) {
        (Elements::Float(x), Elements::Float(y)) => {
            let combine = |(x, y): (&f64, &f64)| match kind {
                PartialKind::Sum => x + y,
                PartialKind::Max => x.max(*y),
                PartialKind::Min => x.min(*y),
            };
            Elements::Float(x.iter().zip(y).map(combine).collect())
        }
        (Elements::Int(x), Elements::Int(y)) => {
            let combine = |(x, y): (&i64, &i64)| match kind {
                PartialKind::Sum => x + y,
                PartialKind::Max => *x.max(y),
                PartialKind::Min => *x.min(y),
            };
            Elements::Int(x.iter().zip(y).map(combine).collect())
        }
        _ => panic!("{} and {} are not partial values", x.ty(), y.ty()),
    };
    Tensor { elements, ..x.clone() }
}
