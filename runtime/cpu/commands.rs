//! The instructions of a program on the processor as the simulator sees them: each is one command, in order.

use crate::program::{self, Instruction, Kernel, Program, Section, View};
use crate::simulator::work::{Work, bytes, largest_sizes};
use crate::simulator::{Command, CommandClass, CommandList, Exchange, Queue};
use ir::{Mesh, Op};
use smallvec::SmallVec;

/// The commands of a step of so many microbatches.
pub(super) fn commands(program: &Program, microbatches: u64) -> CommandList {
    let command = |instruction: &Instruction| command(instruction, &program.mesh, microbatches > 1);
    let sections = Section::ALL.map(|(section, _)| program.section(section).iter().map(command).collect());
    CommandList { mesh: program.mesh.clone(), microbatches, sections }
}

fn command(instruction: &Instruction, mesh: &Mesh, adds: bool) -> Command {
    let mut work = Work::of(instruction, adds);
    work.read += allocated(instruction, adds);
    let exchange = match &instruction.kernel {
        Kernel::Collective(kernel) => Some(exchange(kernel, instruction, mesh)),
        Kernel::Op(_)
        | Kernel::Elementwise(_)
        | Kernel::Contract(_)
        | Kernel::Copy
        | Kernel::Accumulate
        | Kernel::Part(_) => None,
    };
    if let Some(Exchange { kind, axes, group_bytes }) = &exchange {
        work.sent = kind.bytes_sent(*group_bytes, mesh.size(axes));
    }
    let kind = if let Kernel::Elementwise(_) = &instruction.kernel {
        "elementwise".into()
    } else {
        instruction.name()
    };
    Command {
        class: class(instruction),
        kind,
        sizes: largest_sizes(instruction),
        origin: instruction.origin.clone(),
        queue: Queue::Main,
        waits: SmallVec::new(),
        layers: 1,
        work,
        exchange,
    }
}

/// The bytes that a processor reads because it is about to write them: of results that lie in the place of no operand.
fn allocated(instruction: &Instruction, adds: bool) -> u64 {
    let is_read = |result: usize| {
        instruction.in_place.iter().any(|&(_, place)| place as usize == result)
            || instruction.accumulates && adds
    };
    let results = instruction.results.iter().enumerate();
    results.filter(|(index, _)| !is_read(*index)).map(|(_, view)| bytes(view)).sum()
}

fn class(instruction: &Instruction) -> CommandClass {
    match &instruction.kernel {
        Kernel::Contract(_) | Kernel::Op(Op::Contract(_)) => CommandClass::Multiplication,
        Kernel::Collective(_) => CommandClass::Collective,
        Kernel::Op(_) | Kernel::Elementwise(_) | Kernel::Copy | Kernel::Accumulate | Kernel::Part(_) => {
            CommandClass::Kernel
        }
    }
}

fn exchange(kernel: &program::Exchange, instruction: &Instruction, mesh: &Mesh) -> Exchange {
    let (kind, devices) = (kernel.collective, mesh.size(&kernel.axes));
    let of_pair = |(from, to): (&View, &View)| kind.group_bytes(bytes(from), bytes(to), devices);
    let group_bytes = instruction.operands.iter().zip(&instruction.results).map(of_pair).sum();
    Exchange { kind, axes: kernel.axes.clone(), group_bytes }
}
