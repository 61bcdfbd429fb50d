//! The commands of a program on the processor, for the simulator: each instruction is one command, in order.

use super::beside::{Scheduled, Schedules};
use ir::Mesh;
use program::commands::work::bytes;
use program::commands::{Command, CommandClass, CommandList, Stream};
use program::{Instruction, Part, Program};

/// Returns the commands of a step of this number of microbatches.
pub(super) fn commands(program: &Program, microbatches: u64) -> CommandList {
    let command = |instruction: &Instruction| command(instruction, &program.mesh, microbatches > 1);
    let schedules = Schedules::of(program);
    let commands = |(part, _): (Part, _)| {
        let section = program.section(part.section());
        let scheduled = schedules.part(part);
        let one = |(number, own): (usize, &Scheduled)| {
            let command = command(&section[own.index]);
            // A collective that runs alone waits for the collectives before it.
            let is_alone = matches!(command.class, CommandClass::Collective(_)) && !own.is_beside;
            let waits_for = if is_alone {
                scheduled[..number].iter().rposition(|other| other.is_beside)
            } else {
                // A command names the command that it waits for by its number in the part.
                own.waits_for.and_then(|newest| scheduled.iter().position(|other| other.index == newest))
            };
            let stream = if own.is_beside { Stream::Exchange } else { Stream::Main };
            Command { stream, waits: waits_for.into_iter().collect(), ..command }
        };
        scheduled.iter().enumerate().map(one).collect()
    };
    CommandList { mesh: program.mesh.clone(), microbatches, parts: Part::ALL.map(commands) }
}

fn command(instruction: &Instruction, mesh: &Mesh, adds: bool) -> Command {
    let mut command = Command::of(instruction, mesh, adds);
    command.work.read += allocated(instruction, adds);
    command
}

/// Returns the bytes that a processor reads before it writes them: those of results that neither overwrite an operand nor are added to.
fn allocated(instruction: &Instruction, adds: bool) -> u64 {
    let is_read = |result: usize| {
        instruction.in_place.iter().any(|&(_, place)| place as usize == result)
            || instruction.accumulates && adds
    };
    let results = instruction.results.iter().enumerate();
    results.filter(|(index, _)| !is_read(*index)).map(|(_, view)| bytes(view)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::ops::elementwise::Unary;
    use ir::{At, Builder, DType, Module, Phase, Type};
    use program::Microbatches;
    use program::lower::{LowerOptions, lower};

    /// Returns the commands of `y = exp(-x)` and of `z = -y` with `x` of 1024 numbers, each an instruction.
    fn two() -> Vec<Command> {
        let mut module = Module::new("test");
        let x = module.add_input("x", Type::of(DType::F32, &[1024]), false);
        let mut b = Builder::new(&mut module, "test");
        b.at(At::End(Phase::Forward));
        let y = b.one(Unary::Exp, &[x]).expect("a float");
        let z = b.one(Unary::Neg, &[y]).expect("a float");
        b.tables().add_output("z", z);
        b.finish();
        let options = LowerOptions {
            unfused: true,
            microbatches: Microbatches::One,
            ..LowerOptions::of(crate::TARGET)
        };
        let program = lower(&module, &options).expect("it lowers");
        let [_, microbatch, ..] = commands(&program, 1).parts;
        microbatch
    }

    /// A collective that runs alone waits for the collectives that run beside other instructions.
    #[test]
    fn the_last_collective_of_a_part_waits_for_those_before_it() {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=2] {
              func @train(%0 "x" batched : f32[8, 4] {dp, -}) {
                %1 = reduce %0 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp)
                %2 = all_reduce %1 : f32[4]
                %3 = exp %0 : f32[8, 4] {dp, -}
                %4 = reduce %3 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp)
                %5 = all_reduce %4 : f32[4]
              }
              output "a" = %2
              output "b" = %5
            }"#;
        let program = lower(&ir::text::parse(text).expect("it parses"), &LowerOptions::of(crate::TARGET));
        let [_, microbatch, ..] = commands(&program.expect("it lowers"), 1).parts;
        let exchanges: Vec<usize> = (0..microbatch.len())
            .filter(|&number| matches!(microbatch[number].class, CommandClass::Collective(_)))
            .collect();
        let [first, last] = exchanges[..] else { panic!("{exchanges:?}") };
        assert_eq!((microbatch[first].stream, microbatch[last].stream), (Stream::Exchange, Stream::Main));
        assert_eq!(microbatch[last].waits.to_vec(), [first]);
    }

    #[test]
    fn a_result_is_read_before_it_is_written_unless_it_lies_in_place_of_an_operand() {
        let [exp, neg] = &two()[..] else { panic!("two commands") };
        let bytes = 4 * 1024;
        // `x` may not be overwritten; `y` dies where `z` is made.
        assert_eq!((exp.work.read, exp.work.written), (2 * bytes, bytes));
        assert_eq!((neg.work.read, neg.work.written), (bytes, bytes));
    }
}
