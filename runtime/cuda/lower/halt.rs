//! Protects the states of a device that runs ahead of the host, and so begins updates before the host has read their loss and gradient.
//!
//! A word in the device's memory says that a number was not finite. Once it is set, kernels of the update that write states return at
//! once. So the states stay unchanged until the host has read that number.

use super::source::{HALT, KernelDraft};
use super::{Draft, Step};
use crate::program::{Argument, TouchedBytes};
use ir::{Scalar, ScalarPart, StepOutput};
use program::{Instruction, OutputSlot, Program, Section};
use smallvec::{SmallVec, smallvec};

/// Whether an output can end a run: with a number that is not finite, or with a bool that is true. A program that skips steps checks
/// its gradient's norm itself.
fn is_watched(program: &Program, output: &OutputSlot) -> bool {
    let skips = program.output(&StepOutput::Skipped.to_string()).is_some();
    match StepOutput::of(&output.name) {
        Some(StepOutput::Part { scalar: Scalar::Loss, class: 0, part: ScalarPart::Sum })
        | Some(StepOutput::ScaleExhausted) => true,
        Some(StepOutput::GradientNorm) => !skips,
        Some(
            StepOutput::Loss
            | StepOutput::LearningRate
            | StepOutput::Gradient(_)
            | StepOutput::Part { .. }
            | StepOutput::UnsmoothedSum
            | StepOutput::Penalty
            | StepOutput::Objective
            | StepOutput::Metric(_)
            | StepOutput::Load(_)
            | StepOutput::Skipped
            | StepOutput::LossScale,
        )
        | None => false,
    }
}

/// Returns the kernels that watch the outputs that this instruction of a section makes; none in a program that has no update.
pub(super) fn watches(program: &Program, section: Section, index: usize) -> Vec<Draft> {
    if program.section(Section::Update).is_empty() {
        return vec![];
    }
    let made_last = |output: &&OutputSlot| {
        let place = TouchedBytes::of(&output.view);
        let makes = |instruction: &Instruction| {
            instruction.results.iter().any(|made| place.meets(&TouchedBytes::of(made)))
        };
        program.section(section).iter().rposition(makes) == Some(index)
    };
    let outputs = program.outputs.iter().filter(|output| output.section == section);
    let due = outputs.filter(|output| is_watched(program, output)).filter(made_last);
    due.map(|output| watch(output, index)).collect()
}

fn watch(output: &OutputSlot, index: usize) -> Draft {
    let mut run = KernelDraft::of("watch", &HALT);
    let value = run.reads(&output.view);
    let halt = run.parameter("u32*", Argument::Halt);
    run.line(format!("watch({value}, {halt});"));
    let reads = smallvec![TouchedBytes::of(&output.view)];
    let waves = smallvec![smallvec![index]];
    Draft { step: Step::Kernel(run.threads(1)), reads, writes: SmallVec::new(), waves }
}

/// Keeps a step from changing states on a device that has halted. Returns whether that can be done.
pub(super) fn guard(program: &Program, instruction: &Instruction, step: &mut Step) -> bool {
    let is_state =
        |place: &TouchedBytes| program.states.iter().any(|state| TouchedBytes::of(&state.view).meets(place));
    if !instruction.results.iter().map(TouchedBytes::of).any(|place| is_state(&place)) {
        return true;
    }
    match step {
        Step::Kernel(run) => {
            run.unless_halted();
            true
        }
        _ => false,
    }
}
