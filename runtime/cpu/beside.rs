//! Which collectives run beside the instructions behind them, and which of them an instruction waits for.
//!
//! It follows from the bytes alone: an instruction waits for the collectives before it that write what it touches, or read what it
//! writes. Collectives are carried out in their order, so it waits for the newest of these, and no collective waits for another.

use crate::program::{Instruction, Kernel, Part, Program, Region, View};
use std::ops::Range;

/// An instruction of a part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Its place in the section.
    pub(super) index: usize,
    /// The place in the section of the newest collective that it waits for.
    pub(super) waits_for: Option<usize>,
    /// Whether it is a collective, and something runs beside it.
    pub(super) is_beside: bool,
}

/// The instructions of the parts of a step, in order: by [`Part`].
pub(super) struct Parts([Vec<Step>; 4]);

impl Parts {
    pub(super) fn of(program: &Program) -> Self {
        Self(Part::ALL.map(|(part, _)| steps(program.part(part))))
    }

    pub(super) fn steps(&self, part: Part) -> &[Step] {
        &self.0[part as usize]
    }
}

fn steps(instructions: Vec<(usize, &Instruction)>) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    // Collectives that nothing has waited for, by their place among the steps.
    let mut open: Vec<(usize, Touched)> = vec![];
    for (index, instruction) in instructions {
        let touched = Touched::by(instruction);
        let is_beside = matches!(instruction.kernel, Kernel::Collective(_));
        let newest = open.iter().rposition(|(_, other)| !is_beside && other.conflicts(&touched));
        let waits_for = newest.map(|newest| {
            let (number, _) = open[newest];
            open.drain(..=newest);
            // Nothing runs beside a collective that the next instruction waits for.
            steps[number].is_beside &= number + 1 < steps.len();
            steps[number].index
        });
        if is_beside {
            open.push((steps.len(), touched));
        }
        steps.push(Step { index, waits_for, is_beside });
    }
    if let Some(last) = steps.last_mut() {
        last.is_beside = false;
    }
    steps
}

/// The bytes of the arena that an instruction reads and writes.
struct Touched {
    reads: Vec<Range<u64>>,
    writes: Vec<Range<u64>>,
}

impl Touched {
    fn by(instruction: &Instruction) -> Self {
        let bytes = |view: &View| (view.region == Region::Arena).then(|| view.bytes());
        let written = instruction.results.iter().chain(&instruction.scratch);
        Self {
            reads: instruction.operands.iter().filter_map(bytes).collect(),
            writes: written.filter_map(bytes).collect(),
        }
    }

    fn conflicts(&self, later: &Self) -> bool {
        let meet = |these: &[Range<u64>], those: &[Range<u64>]| {
            these.iter().any(|this| those.iter().any(|that| this.start < that.end && that.start < this.end))
        };
        meet(&self.writes, &later.writes)
            || meet(&self.writes, &later.reads)
            || meet(&self.reads, &later.writes)
    }
}
