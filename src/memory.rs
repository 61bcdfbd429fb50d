//! Whether this machine has the memory that the interpreter needs. The check comes before anything is allocated.

use files::memory::available;
use ir::interp::{self, LargestValue, StepMemory};
use ir::units::bytes;
use ir::{Diagnostic, Module};

/// Refuses a step of `microbatches` microbatches in the interpreter that does not fit into this machine's memory. `remedy` is the advice of
/// the command.
///
/// # Errors
/// The bytes that the step takes, the bytes that are free, and the largest value with its bytes and its node.
pub fn check_step(module: &Module, microbatches: usize, remedy: &str) -> Result<(), Diagnostic> {
    check(&interp::memory(module, microbatches), available(), remedy)
}

/// Refuses tensors of `needed` bytes that do not fit into this machine's memory. `tensors` names them with a verb: `the inputs of 4
/// microbatches take`. `remedy` is the advice of the command.
///
/// # Errors
/// The bytes that the tensors take, and the bytes that are free.
pub fn check_tensors(tensors: &str, needed: u64, remedy: &str) -> Result<(), Diagnostic> {
    match available().filter(|&available| needed > available) {
        None => Ok(()),
        Some(available) => {
            let (needed, available) = (bytes(needed), bytes(available));
            let message =
                format!("{tensors} {needed} of memory in the interpreter; this machine has {available} free");
            Err(Diagnostic::new(message).note(remedy))
        }
    }
}

fn check(memory: &StepMemory, available: Option<u64>, remedy: &str) -> Result<(), Diagnostic> {
    let Some(available) = available.filter(|&available| memory.peak > available) else { return Ok(()) };
    let message = format!(
        "a step of the program needs {} of memory in the interpreter; this machine has {} free",
        bytes(memory.peak),
        bytes(available)
    );
    let error = Diagnostic::new(message);
    let Some(LargestValue { described, ty, bytes: size, origin }) = &memory.largest else {
        return Err(error.note(remedy));
    };
    let error = if origin.is_empty() { error } else { error.at(origin.clone()) };
    let largest = format!("the largest value is {described}, {ty}, which needs {}", bytes(*size));
    Err(error.note(largest).note(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use ir::{DType, Type};

    fn expand(peak: u64) -> StepMemory {
        let largest = LargestValue {
            described: "the result of `broadcast`".into(),
            ty: Type::of(DType::F32, &[1 << 40]),
            bytes: 1 << 43,
            origin: "node \"/Expand\" (Expand, opset 20)".into(),
        };
        StepMemory { peak, largest: Some(largest) }
    }

    #[test]
    fn a_step_that_fits_passes() {
        assert_eq!(check(&expand(1 << 44), Some(1 << 44), ""), Ok(()));
        assert_eq!(check(&expand(1 << 44), None, ""), Ok(()));
    }

    #[test]
    fn a_step_that_does_not_fit_is_refused_with_its_largest_value() {
        expect![[r#"
            a step of the program needs 16.0 TiB of memory in the interpreter; this machine has 1.00 GiB free
              --> node "/Expand" (Expand, opset 20)
              = the largest value is the result of `broadcast`, f32[1099511627776], which needs 8.00 TiB
              = take less"#]]
        .assert_eq(&check(&expand(1 << 44), Some(1 << 30), "take less").unwrap_err().to_string());
    }
}
