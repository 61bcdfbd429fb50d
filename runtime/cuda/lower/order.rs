//! Which stream a command runs on, and what it waits for.
//!
//! A command must come after those before it that touch the same memory, if either writes. On its own stream it does by
//! itself; for those of the other stream it waits for a mark, unless an earlier wait has seen to it.

use crate::cuda::program::{Command, CudaProgram, Event, Place, Stream, Task};
use crate::program::{Region, Section};
use std::collections::BTreeSet;

/// Chooses the streams and sets the marks. A section begins where all streams have ended the one before.
pub(super) fn order(cuda: &mut CudaProgram) {
    let mut events = 0;
    for (section, _) in Section::ALL {
        let commands = &mut cuda.sections[section as usize];
        streams(commands, section);
        events = marks(commands, events);
    }
    // One a stream, for where sections meet.
    cuda.events = events + Stream::ALL.len() as u32;
}

/// Multiplications whose results nothing in the section reads go aside: gradients of weights.
fn streams(commands: &mut [Command], section: Section) {
    if section != Section::Microbatch {
        return;
    }
    for index in 0..commands.len() {
        let (before, rest) = commands.split_at_mut(index + 1);
        let command = &mut before[index];
        let is_read = rest
            .iter()
            .any(|later| later.reads.iter().any(|read| command.writes.iter().any(|write| write.meets(read))));
        if matches!(command.task, Task::Multiply(_)) && !is_read {
            command.stream = Stream::Side;
        }
    }
}

/// What a command reads and writes.
pub(super) type Touches<'a> = [&'a [Place]; 2];

fn touches(command: &Command) -> Touches<'_> {
    [&command.reads, &command.writes]
}

/// Whether two commands may not change places.
pub(super) fn conflict([reads, writes]: Touches, [later_reads, later_writes]: Touches) -> bool {
    let meet = |these: &[Place], those: &[Place]| {
        these.iter().any(|this| this.region == Region::Arena && those.iter().any(|that| this.meets(that)))
    };
    meet(writes, later_writes) || meet(writes, later_reads) || meet(reads, later_writes)
}

/// Adds waits and marks, counting events from `next`; gives the next number.
fn marks(commands: &mut [Command], mut next: u32) -> u32 {
    // For each stream, up to which command of the other it has waited.
    let mut seen: [Option<usize>; 2] = [None; 2];
    for index in 0..commands.len() {
        let own = commands[index].stream as usize;
        let last = (0..index).rev().find(|&earlier| {
            commands[earlier].stream as usize != own
                && seen[own].is_none_or(|seen| earlier > seen)
                && conflict(touches(&commands[earlier]), touches(&commands[index]))
        });
        let Some(earlier) = last else { continue };
        seen[own] = Some(earlier);
        let event = *commands[earlier].records.get_or_insert_with(|| {
            next += 1;
            Event(next - 1)
        });
        commands[index].waits.push(event);
    }
    next
}

/// Pairs of commands of a section, by their places in it, that touch the same memory with nothing to keep their order.
pub fn races(commands: &[Command]) -> Vec<(usize, usize)> {
    // What has surely been done before each command begins.
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let mut done = BTreeSet::new();
        let marked =
            |event: &Event| (0..index).rev().find(|&earlier| commands[earlier].records == Some(*event));
        let previous = (0..index).rev().find(|&earlier| commands[earlier].stream == command.stream);
        for earlier in command.waits.iter().filter_map(marked).chain(previous) {
            done.extend(before[earlier].iter().copied());
            done.insert(earlier);
        }
        before.push(done);
    }
    let mut races = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let unordered = (0..index).filter(|earlier| !before[index].contains(earlier));
        races.extend(
            unordered
                .filter(|&earlier| conflict(touches(&commands[earlier]), touches(command)))
                .map(|earlier| (earlier, index)),
        );
    }
    races
}
