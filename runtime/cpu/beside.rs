//! Finds the collectives that run beside the instructions behind them, and for each instruction the collective that it waits for.
//!
//! Only the bytes decide: an instruction waits for every collective before it that writes bytes that the instruction reads or writes, or
//! reads bytes that it writes. Collectives run in their order, so it waits for the newest of these, and no collective waits for another.

use program::{Instruction, Kernel, Part, Program, Region, View};
use std::ops::Range;

/// An instruction of a part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Its place in the section.
    pub(super) index: usize,
    /// The place in the section of the newest collective that it waits for.
    pub(super) waits_for: Option<usize>,
    /// Whether the instruction is a collective that runs beside other instructions.
    pub(super) is_beside: bool,
}

/// The instructions of each part of a step, in order, indexed by [`Part`].
pub(super) struct Schedules([Vec<Scheduled>; 4]);

impl Schedules {
    pub(super) fn of(program: &Program) -> Self {
        Self(Part::ALL.map(|(part, _)| schedule(program.part(part))))
    }

    /// Makes every collective run alone.
    pub(super) fn one_by_one(&mut self) {
        self.0.iter_mut().flatten().for_each(|scheduled| scheduled.is_beside = false);
    }

    pub(super) fn part(&self, part: Part) -> &[Scheduled] {
        &self.0[part as usize]
    }
}

fn schedule(instructions: Vec<(usize, &Instruction)>) -> Vec<Scheduled> {
    let mut steps: Vec<Scheduled> = vec![];
    // Collectives that no instruction has waited for, by their place among the steps.
    let mut open: Vec<(usize, Touched)> = vec![];
    for (index, instruction) in instructions {
        let touched = Touched::by(instruction);
        let is_collective = matches!(instruction.kernel, Kernel::Collective(_));
        let newest = open.iter().rposition(|(_, other)| !is_collective && other.conflicts(&touched));
        let waits_for = newest.map(|newest| {
            let (number, _) = open[newest];
            open.drain(..=newest);
            // A collective that the next instruction waits for has nothing to run beside.
            steps[number].is_beside &= number + 1 < steps.len();
            steps[number].index
        });
        if is_collective {
            open.push((steps.len(), touched));
        }
        steps.push(Scheduled { index, waits_for, is_beside: is_collective });
    }
    if let Some(last) = steps.last_mut() {
        last.is_beside = false;
    }
    steps
}

/// The bytes of the memories that an instruction reads and writes.
struct Touched {
    reads: Vec<(Region, Range<u64>)>,
    writes: Vec<(Region, Range<u64>)>,
}

impl Touched {
    fn by(instruction: &Instruction) -> Self {
        let bytes = |view: &View| (view.region != Region::Constants).then(|| (view.region, view.bytes()));
        let written = instruction.results.iter().chain(&instruction.scratch);
        Self {
            reads: instruction.operands.iter().filter_map(bytes).collect(),
            writes: written.filter_map(bytes).collect(),
        }
    }

    fn conflicts(&self, later: &Self) -> bool {
        type Places = [(Region, Range<u64>)];
        let meet = |these: &Places, those: &Places| {
            these.iter().any(|(of, this)| {
                those
                    .iter()
                    .any(|(region, that)| of == region && this.start < that.end && that.start < this.end)
            })
        };
        meet(&self.writes, &later.writes)
            || meet(&self.writes, &later.reads)
            || meet(&self.reads, &later.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;
    use comm::disturbed::Disturbed;
    use comm::local::{AtWork, Local};
    use program::device::{Device, ProgramId};
    use program::lower::{LowerOptions, lower};
    use program::{Microbatches, Section};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    /// Two gradients, each reduced as soon as it is made, followed by updates.
    fn program() -> Program {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=2] {
              state @w : f32[4] parameter = zeros
              state @v : f32[4] parameter = zeros
              func @train(%0 = @w, %1 = @v, %2 "x" batched : f32[8, 4] {dp, -}) {
                %3 = exp %2 : f32[8, 4] {dp, -} !{bwd}
                %4 = reduce %3 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
                %5 = tanh %2 : f32[8, 4] {dp, -} !{bwd}
                %6 = reduce %5 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
                %7 = accumulate %4 : f32[4] partial(sum dp) !{update}
                %8 = accumulate %6 : f32[4] partial(sum dp) !{update}
                %9 = all_reduce %7 : f32[4] !{update}
                %10 = all_reduce %8 : f32[4] !{update}
                %11 = add %0, %9 : f32[4] !{update}
                %12 = add %1, %10 : f32[4] !{update}
              }
              update @w = %11
              update @v = %12
            }"#;
        let module = ir::text::parse(text).unwrap();
        let options = LowerOptions {
            microbatches: Microbatches::One,
            unfused: true,
            ..LowerOptions::of(crate::TARGET)
        };
        lower(&module, &options).unwrap()
    }

    #[test]
    fn an_instruction_waits_for_the_collective_whose_result_it_reads() {
        let program = program();
        let schedules = Schedules::of(&program);
        let steps = schedules.part(Part::Update);
        let told: Vec<_> = steps
            .iter()
            .map(|step| {
                (program.section(Part::Update.section())[step.index].name(), step.waits_for, step.is_beside)
            })
            .collect();
        let expected = [
            ("all_reduce", None, true),
            ("tanh", None, false),
            ("reduce", None, false),
            ("all_reduce", None, true),
            ("add", Some(0), false),
            ("add", Some(3), false),
        ];
        assert_eq!(told, expected.map(|(name, waits, beside)| (name.to_owned(), waits, beside)));
    }

    #[test]
    fn nothing_runs_beside_a_collective_that_the_next_instruction_waits_for() {
        let mut program = program();
        let update = &mut program.sections[Section::Update as usize];
        update.remove(4);
        let schedules = Schedules::of(&program);
        let second = schedules.part(Part::Update)[3];
        assert_eq!((second.waits_for, second.is_beside), (None, false));
        assert_eq!(schedules.part(Part::Update)[4].waits_for, Some(3));
    }

    #[test]
    fn an_instruction_that_writes_what_a_collective_reads_waits_for_it() {
        let mut program = program();
        let update = &mut program.sections[Section::Update as usize];
        // As if the memory plan had freed the memory of the first operand too early.
        let operand = update[0].operands[0].clone();
        update[2].results[0] = operand;
        assert_eq!(Schedules::of(&program).part(Part::Update)[2].waits_for, Some(0));
    }

    /// Returns the states of both ranks after three steps in which each exchange is late. `change` edits the schedules of each rank before
    /// the first step. Without waits this is a race.
    fn states(change: fn(&mut Schedules)) -> Vec<Vec<u8>> {
        let (program, local) = (Arc::new(program()), Local::new(2));
        let rank = |at_work: AtWork| {
            let rank = at_work.rank();
            let late = Disturbed::late(Arc::new(local.communicator(rank)), Duration::from_millis(20));
            let mut cpu = Cpu::with(vec![program.clone()], Some(1), Some(late), None).unwrap();
            change(&mut cpu.programs[0].schedules);
            move || {
                let x: Vec<u8> = (0..16).flat_map(|i| ((i + rank) as f32 / 16.0).to_le_bytes()).collect();
                for _ in 0..3 {
                    for (section, _) in Section::ALL {
                        cpu.write_input(ProgramId(0), 0, &x).unwrap();
                        cpu.run(ProgramId(0), section).unwrap();
                    }
                }
                drop(at_work);
                [0, 1].map(|state| cpu.read_state(ProgramId(0), state).unwrap().into_owned()).concat()
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = local.begin().into_iter().map(|own| scope.spawn(rank(own))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn states_are_those_of_exchanges_one_by_one_and_a_missing_wait_shows() {
        let expected = states(Schedules::one_by_one);
        assert_eq!(expected[0], expected[1]);
        assert!(states(|_| {}) == expected);
        let without_waits = |schedules: &mut Schedules| {
            schedules.0.iter_mut().flatten().for_each(|scheduled| scheduled.waits_for = None);
        };
        assert!(states(without_waits) != expected);
    }
}
