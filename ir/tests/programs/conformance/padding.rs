//! Checks the claims on zeros: padding operands with zeros along a factor must only pad the results with zeros.

use super::{Check, close, interp};
use ir::factors::{DimFactors, FactorId, FactorKind, Factors};
use ir::samples::Sample;
use ir::{Dim, Op, PartialKind, Type, View, ViewStep, view};

/// The number of steps that are added to a factor.
const ADDED: u64 = 2;

/// Checks every factor along which the operation is declared to keep zeros.
pub(crate) fn check(sample: &Sample, factors: &Factors) -> Check {
    let operands = sample.fill(1);
    let results = sample.result_types().map_err(|error| error.to_string())?;
    let whole = interp(sample, &operands, &results);
    for factor in (0..factors.factors.len() as FactorId).filter(|&factor| is_claimed(sample, factors, factor))
    {
        let fit = "a factor that stands alone can be padded";
        let padded = operands.iter().zip(&factors.operands);
        let padded: Vec<_> =
            padded.map(|(x, dims)| view::apply(&padding(dims, factor), x).expect(fit)).collect();
        let types: Vec<Type> = results
            .iter()
            .zip(&factors.results)
            .map(|(ty, dims)| {
                let dim = |(size, own): (&Dim, &DimFactors)| match (size.size(), own.contains(&factor)) {
                    (Some(size), true) => Dim::known(size + ADDED),
                    _ => size.clone(),
                };
                Type::new(ty.dtype, ty.dims.iter().zip(dims).map(dim))
            })
            .collect();
        let given = interp(sample, &padded, &types);
        for (i, (given, whole)) in given.iter().zip(&whole).enumerate() {
            let expected = view::apply(&padding(&factors.results[i], factor), whole).expect(fit);
            if !close(given, &expected) {
                return Err(format!("zeros along factor {factor} do not stay zeros in result {i}"));
            }
        }
    }
    Ok(())
}

/// Returns the padding of the dims that have the factor.
fn padding(dims: &[DimFactors], factor: FactorId) -> View {
    let has = dims.iter().enumerate().filter(|(_, dim)| dim.contains(&factor));
    has.map(|(dim, _)| ViewStep::Pad { dim: dim as u32, after: ADDED }).collect()
}

/// Whether the operation claims to keep zeros along a factor that can be split and is not merged with another.
fn is_claimed(sample: &Sample, factors: &Factors, factor: FactorId) -> bool {
    let splits = matches!(
        factors.factors[factor as usize].kind,
        FactorKind::Free | FactorKind::Reduced(PartialKind::Sum)
    );
    let mut all = factors.operands.iter().chain(&factors.results).flatten();
    let alone = all.all(|dim| dim.len() == 1 || !dim.contains(&factor));
    // An index may count from the end of the dim, and the end moves when the dim is padded.
    let looked_up =
        matches!(sample.op, Op::Gather(_)) && !factors.results[0].iter().any(|dim| dim.contains(&factor));
    splits && alone && !looked_up && factors.keeps_zeros_along(factor)
}
