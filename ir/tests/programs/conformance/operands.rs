//! Checks the declared operands of an operator against its samples: their number, the element types that their roles imply, and
//! the movement of their elements.

use super::{Check, interp};
use ir::samples::Sample;
use ir::tensor::Elements;
use ir::{DType, Movement, Op, OperandRole, Operands, Tensor};

/// A number of operands that no operator with a fixed number takes.
const MANY: usize = 64;

/// Checks that exactly the numbers of operands that occur in samples have roles, unless the operator takes any number.
fn numbers(declared: &Operands, samples: &[&Sample]) -> Check {
    for count in 0..MANY {
        let is_sampled = samples.iter().any(|sample| sample.operands.len() == count);
        match declared.roles(count) {
            Some(roles) if roles.len() != count => return Err(format!("{} roles of {count}", roles.len())),
            Some(_) if !is_sampled && declared.roles(MANY).is_none() => {
                return Err(format!("roles of {count} operands, of which there is no sample"));
            }
            None if is_sampled => return Err(format!("no roles of {count} operands")),
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// Whether an operand of this role can have elements of this type.
fn suits(role: OperandRole, dtype: DType) -> bool {
    match role {
        OperandRole::Data | OperandRole::Lhs | OperandRole::Rhs | OperandRole::Updates => true,
        OperandRole::Condition | OperandRole::Skip => dtype == DType::Bool,
        OperandRole::Mask => dtype == DType::Bool || dtype.is_float(),
        OperandRole::Indices | OperandRole::Labels | OperandRole::Samples | OperandRole::Lengths => {
            dtype.is_integer()
        }
        OperandRole::LearningRate | OperandRole::WeightDecay | OperandRole::Step => dtype == DType::F64,
        OperandRole::Codes => dtype == DType::U8,
        OperandRole::Weight
        | OperandRole::Scale
        | OperandRole::Bias
        | OperandRole::Mean
        | OperandRole::Variance
        | OperandRole::InverseDeviation
        | OperandRole::Query
        | OperandRole::Key
        | OperandRole::Value
        | OperandRole::Cosines
        | OperandRole::Sines
        | OperandRole::Output
        | OperandRole::LogSumExp
        | OperandRole::Gradient
        | OperandRole::GradientScale
        | OperandRole::State
        | OperandRole::Hidden
        | OperandRole::CellState
        | OperandRole::Gates
        | OperandRole::Cells
        | OperandRole::LastGradient
        | OperandRole::LastCellGradient => dtype.is_float(),
    }
}

fn types(declared: &Operands, sample: &Sample) -> Check {
    let roles = declared.roles(sample.operands.len()).unwrap_or_default();
    match roles.iter().zip(sample.operand_types()).find(|(role, ty)| !suits(**role, ty.dtype)) {
        Some((role, ty)) => Err(format!("{ty} is declared to be the operand `{role:?}`")),
        None => Ok(()),
    }
}

/// Returns the elements as numbers.
fn numbers_of(tensor: &Tensor) -> Vec<f64> {
    match &tensor.elements {
        Elements::Float(elements) => elements.clone(),
        Elements::Int(elements) => elements.iter().map(|&x| x as f64).collect(),
        Elements::Bool(elements) => elements.iter().map(|&x| f64::from(u8::from(x))).collect(),
    }
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// Whether `part` has each number at most as often as `whole`.
fn has_part(whole: &[f64], part: &[f64]) -> bool {
    let count = |all: &[f64], x: f64| all.iter().filter(|y| y.total_cmp(&x).is_eq()).count();
    part.iter().all(|&x| count(part, x) <= count(whole, x))
}

/// Checks that the elements of the results are those of the operands, moved as declared.
fn movement(declared: Movement, sample: &Sample) -> Check {
    let operands = sample.fill(1);
    let types = sample.result_types().expect("samples are well-typed");
    let results = interp(sample, &operands, &types);
    let elements = |tensors: &[Tensor]| tensors.iter().map(numbers_of).collect::<Vec<_>>();
    let (from, to) = (elements(&operands), elements(&results));
    let is_moved = match declared {
        Movement::Computed => return Ok(()),
        Movement::Same => operands[0] == results[0],
        Movement::Reshaped => from[0] == to[0] && operands[0].dtype == results[0].dtype,
        Movement::Permuted => sorted(from[0].clone()) == sorted(to[0].clone()),
        Movement::Cut => has_part(&from[0], &to[0]),
        Movement::Repeated => to[0].iter().all(|x| from[0].contains(x)),
        Movement::Converted | Movement::Reinterpreted => {
            operands[0].sizes == results[0].sizes && operands[0].dtype != results[0].dtype
        }
        Movement::Joined => sorted(from.concat()) == sorted(to[0].clone()),
        Movement::Padded => has_part(&to[0], &from[0]),
        Movement::Resharded => from == to,
    };
    let is_one_type = !declared.is_unchanged() || operands.iter().all(|x| x.dtype == results[0].dtype);
    if is_moved && is_one_type { Ok(()) } else { Err(format!("the elements are not {declared:?}")) }
}

/// Runs all checks on the declaration for one sample.
pub(super) fn check(declared: &Operands, sample: &Sample) -> Check {
    types(declared, sample)?;
    movement(declared.movement(), sample)
}

/// Checks the numbers of operands of every operator that has samples. An operator whose attributes decide which operands it has is checked for
/// each declaration.
pub(super) fn check_numbers(samples: &[Sample]) -> Vec<String> {
    let mut failures = Vec::new();
    for name in Op::names() {
        let mut own: Vec<&Sample> = samples.iter().filter(|sample| sample.op.name() == name).collect();
        while let Some(first) = own.first() {
            let declared = first.op.operands();
            let alike: Vec<&Sample> = own.extract_if(.., |sample| sample.op.operands() == declared).collect();
            failures.extend(
                numbers(&declared, &alike).err().map(|message| format!("operands of {name}: {message}")),
            );
        }
    }
    failures
}

/// Returns the first sample of the operator with this name.
fn sample(name: &str) -> Sample {
    let mut samples = ir::samples::samples().into_iter();
    samples.find(|sample| sample.op.name() == name).expect("every operator has a sample")
}

#[test]
fn a_wrong_number_of_roles_is_caught() {
    let attention = sample("attention");
    let roles = &[OperandRole::Query, OperandRole::Key, OperandRole::Value, OperandRole::Mask];
    let samples: Vec<Sample> = ir::samples::samples();
    let own: Vec<&Sample> = samples.iter().filter(|s| s.op.name() == "attention").collect();
    assert_eq!(numbers(&attention.op.operands(), &own), Ok(()));
    assert!(numbers(&Operands::new(roles), &own).is_err(), "the mask is optional");
    assert!(numbers(&Operands::any(&[OperandRole::Data]), &own).is_ok(), "any number has roles");
    assert!(
        numbers(&Operands::new(roles).optional(OperandRole::Mask), &own[..1]).is_err(),
        "one number is missing"
    );
}

#[test]
fn exchanged_roles_are_caught() {
    let exchanged = Operands::new(&[OperandRole::Indices, OperandRole::Data]);
    assert!(types(&exchanged, &sample("gather")).is_err());
}

#[test]
fn a_wrong_movement_is_caught() {
    let wrong = [
        ("neg", Movement::Same),
        ("transpose", Movement::Reshaped),
        ("neg", Movement::Permuted),
        ("broadcast", Movement::Cut),
        ("neg", Movement::Repeated),
        ("reshape", Movement::Converted),
        ("slice", Movement::Joined),
        ("slice", Movement::Padded),
        ("neg", Movement::Resharded),
    ];
    for (name, declared) in wrong {
        assert!(movement(declared, &sample(name)).is_err(), "{name} is declared {declared:?}");
    }
}
