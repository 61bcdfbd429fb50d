//! Types come from untrusted files: `infer` must return for any types, and types that it accepts must have a rule and a cost.

use ir::ops::Inference;
use ir::samples::{Sample, samples};
use ir::{DType, Dim, Operator, Signature, Type};

/// Returns dims that often break arithmetic, and symbols.
fn dims() -> Vec<Dim> {
    let numbers = [0, 1, 2, 3, u64::MAX].map(Dim::known);
    let symbols = [Dim::symbol("batch"), Dim::symbol("batch").product(&Dim::known(2)).expect("small")];
    numbers.into_iter().chain(symbols).collect()
}

/// Returns types similar to an operand's: one dim changed, removed or added, or another element type.
fn near(ty: &Type) -> Vec<Type> {
    let mut types = vec![Type::scalar(ty.dtype)];
    types.extend(
        [DType::F64, DType::F16, DType::I32, DType::U8, DType::Bool].map(|dtype| ty.with_dtype(dtype)),
    );
    for i in 0..=ty.ndim() {
        for dim in dims() {
            let (mut changed, mut added) = (ty.clone(), ty.clone());
            added.dims.insert(i, dim.clone());
            types.push(added);
            if i < ty.ndim() {
                changed.dims[i] = dim;
                types.push(changed);
            }
        }
        if i < ty.ndim() {
            let mut removed = ty.clone();
            removed.dims.remove(i);
            types.push(removed);
        }
    }
    types
}

/// Infers the result types. If they are accepted, also calls everything that a compiler would call.
fn infer(sample: &Sample, operands: &[Type], declared: &[Type]) -> bool {
    let Ok(results) = sample.op.infer(&Inference { operands, declared }) else { return false };
    let signature = Signature { operands: operands.to_vec(), results };
    sample.op.factors(&signature);
    sample.op.cost(&signature);
    true
}

#[test]
fn no_types_make_an_operator_panic() {
    let (mut refused, mut accepted) = (0, 0);
    for sample in samples() {
        let mut tried = vec![];
        let operands = sample.operand_types();
        for i in 0..operands.len() {
            for ty in near(&operands[i]) {
                let mut changed = operands.clone();
                changed[i] = ty.clone();
                tried.push((changed, sample.declared.clone()));
                // The same change for all operands of that type, so that they still agree.
                let all = operands
                    .iter()
                    .map(|other| if *other == operands[i] { ty.clone() } else { other.clone() });
                tried.push((all.collect(), sample.declared.clone()));
            }
            tried.push((operands[..i].to_vec(), sample.declared.clone()));
        }
        for declared in sample.declared.iter().flat_map(near) {
            tried.push((operands.clone(), vec![declared.clone()]));
            tried.push((operands.iter().map(|_| declared.clone()).collect(), vec![declared]));
        }
        tried.push((operands, vec![]));
        for (operands, declared) in tried {
            if infer(&sample, &operands, &declared) { accepted += 1 } else { refused += 1 }
        }
    }
    assert!(refused > 1000 && accepted > 1000, "{refused} refused, {accepted} accepted");
}

#[test]
fn errors_name_the_operator_and_the_types() {
    for sample in samples() {
        let wrong = vec![Type::of(DType::Bool, &[7, 9, 2, 3, 5]); sample.operands.len()];
        if let Err(error) = sample.op.infer(&Inference { operands: &wrong, declared: &sample.declared }) {
            let message = error.to_string();
            assert!(message.starts_with(sample.op.name()), "{message}");
            assert!(message.contains("bool[7, 9, 2, 3, 5]") || message.contains("7"), "{message}");
        }
    }
}
