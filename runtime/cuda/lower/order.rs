//! Chooses the stream of each command, and its waits.
//!
//! A command must run after all earlier commands that touch the same memory, if either of the two writes. Its own stream keeps that
//! order. For a command of another stream it waits for an event, unless an earlier wait covers it.

use crate::program::{Command, CudaProgram, Event, Stream, Task, TouchedBytes};
use program::{Kernel, Part, Program, Region, Section};
use std::collections::BTreeSet;

/// Chooses the streams and sets the events. A section begins when all streams have ended the section before. Without a side stream, its
/// commands run on the main stream.
pub(super) fn order(cuda: &mut CudaProgram, has_side_stream: bool) {
    let mut events = 0;
    let program = cuda.program.clone();
    for (part, _) in Part::ALL {
        let commands = match part {
            Part::RestOfMicrobatch => &mut cuda.rest_of_microbatch,
            _ => &mut cuda.sections[part.section() as usize],
        };
        streams(&program, part.section(), commands);
        if !has_side_stream {
            let aside = commands.iter_mut().filter(|command| command.stream == Stream::Side);
            aside.for_each(|command| command.stream = Stream::Main);
        }
        events = marks(commands, events);
    }
    // One more event for each stream, for the end of a section.
    cuda.events = events + Stream::ALL.len() as u32;
}

/// Chooses the stream of each command of a section.
///
/// Copies from and to the host have a stream for each direction. Instructions on the host have a stream of their own, and so have
/// copies between the host and a file, which take longer. Collectives run on the exchange stream, with the copies before and after
/// them. A kernel that only watches a result stays on the main stream, with the update that it can stop. A multiplication of a
/// microbatch goes to the side stream if no instruction of the microbatch reads its result: it computes the gradient of a weight.
fn streams(program: &Program, section: Section, commands: &mut [Command]) {
    let instruction = |command: &Command| &program.section(section)[command.instructions.start];
    let of_microbatch =
        |command: &Command| section == Section::Microbatch || instruction(command).of_microbatch;
    for index in 0..commands.len() {
        let (before, rest) = commands.split_at_mut(index + 1);
        let command = &mut before[index];
        match &command.task {
            Task::Host => command.stream = Stream::Host,
            Task::Disk => command.stream = Stream::Disk,
            Task::Copy(copy) if copy.to.region.is_on_host() => command.stream = Stream::Download,
            Task::Copy(_) => command.stream = Stream::Upload,
            _ => {}
        }
        if matches!(instruction(command).kernel, Kernel::Collective(_)) && !command.writes.is_empty() {
            command.stream = Stream::Exchange;
        }
        if !matches!(command.task, Task::Multiply(_)) || !of_microbatch(command) {
            continue;
        }
        let reads = |later: &Command| {
            later.reads.iter().any(|read| command.writes.iter().any(|write| write.meets(read)))
        };
        if !rest.iter().any(|later| of_microbatch(later) && reads(later)) {
            command.stream = Stream::Side;
        }
    }
}

/// The memory that a command reads, and the memory that it writes.
pub(super) type Touches<'a> = [&'a [TouchedBytes]; 2];

fn touches(command: &Command) -> Touches<'_> {
    [&command.reads, &command.writes]
}

/// Whether two commands must keep their order.
pub(super) fn conflict([reads, writes]: Touches, [later_reads, later_writes]: Touches) -> bool {
    let meet = |these: &[TouchedBytes], those: &[TouchedBytes]| {
        these.iter().any(|this| this.region != Region::Constants && those.iter().any(|that| this.meets(that)))
    };
    meet(writes, later_writes) || meet(writes, later_reads) || meet(reads, later_writes)
}

/// Adds waits and events, whose numbers begin at `next`. Returns the next number.
fn marks(commands: &mut [Command], mut next: u32) -> u32 {
    const STREAMS: usize = Stream::ALL.len();
    // For each stream, the last command of each other stream that it has waited for.
    let mut seen: [[Option<usize>; STREAMS]; STREAMS] = [[None; STREAMS]; STREAMS];
    for index in 0..commands.len() {
        let own = commands[index].stream as usize;
        for other in (0..STREAMS).filter(|other| *other != own) {
            let last = (0..index).rev().find(|&earlier| {
                commands[earlier].stream as usize == other
                    && seen[own][other].is_none_or(|seen| earlier > seen)
                    && conflict(touches(&commands[earlier]), touches(&commands[index]))
            });
            let Some(earlier) = last else { continue };
            seen[own][other] = Some(earlier);
            let event = *commands[earlier].records.get_or_insert_with(|| {
                next += 1;
                Event(next - 1)
            });
            commands[index].waits.push(event);
        }
    }
    next
}

/// Returns the pairs of commands of a section, by their indices, that touch the same memory without anything that keeps their order.
pub fn races(commands: &[Command]) -> Vec<(usize, usize)> {
    // The commands that have surely run before each command begins.
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
