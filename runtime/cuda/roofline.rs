//! The roofline: a prediction of the time of each command of a program, and of a step, on a device that need not be here.
//!
//! A command takes as long as its bytes at the attained bandwidth or its operations at the attained rate, whichever is
//! longer, and then the launch of the next command. [`ir::machine`] has the rates and their sources, `work` counts. Streams
//! overlap: a section ends with its longest chain of commands that wait for each other (`timeline`), but no
//! earlier than memory has moved the bytes of all commands, or the arithmetic is done. The prediction assumes that every kernel fills
//! the device, and is as good as the best of its kind. A measured time is longer, and the difference says where to look.

#[cfg(test)]
mod tests;
mod timeline;
mod work;

pub use work::Work;

use super::program::{Command, CudaProgram, Stream, Task};
use crate::program::{Instruction, Section};
use ir::machine::Device;
use std::sync::Arc;
use work::Works;

/// A program on a device, command by command.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The device.
    pub device: Device,
    /// How many microbatches a step has.
    pub microbatches: u64,
    /// One run of each section, by [`Section`].
    pub sections: [SectionCost; 3],
}

/// One run of a section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SectionCost {
    /// The commands, in order.
    pub commands: Vec<CommandCost>,
    /// Seconds from its beginning to its end.
    pub seconds: f64,
}

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandCost {
    /// What it is: a kernel's name without what tells its instances apart, `multiply`, or a library's operator.
    pub kind: String,
    /// The sizes that it works on: of a multiplication `[batch, rows, terms, columns]`, else of its largest tensor.
    pub sizes: Vec<usize>,
    /// The ONNX node it came from, or the first of them.
    pub origin: Arc<str>,
    /// Where it runs.
    pub stream: Stream,
    /// How many launches are in this one.
    pub layers: u32,
    /// What it takes.
    pub work: Work,
    /// What takes longest.
    pub bound: Bound,
    /// Seconds, with its start.
    pub seconds: f64,
    /// Seconds after the section's beginning when it begins.
    pub begin: f64,
}

/// What a command waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// Bytes to and from memory.
    Memory,
    /// Operations.
    Compute,
    /// Bytes to other devices.
    Link,
    /// The start of a kernel.
    Launch,
}

impl Bound {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Link => "link",
            Self::Launch => "launch",
        }
    }
}

impl Roofline {
    /// What a program takes on a device, of a step of so many microbatches.
    pub fn of(cuda: &CudaProgram, device: Device, microbatches: u64) -> Self {
        let works = Works::new(cuda, microbatches > 1);
        let sections = Section::ALL.map(|(section, _)| {
            let commands = cuda.repeated(section);
            let cost = |command| cost(cuda, &device, section, command, works.of(section, command));
            SectionCost::of(commands, commands.iter().map(cost).collect(), &device)
        });
        Self { device, microbatches, sections }
    }

    /// How often a section runs in a step.
    pub fn runs(&self, section: Section) -> u64 {
        if section == Section::Microbatch { self.microbatches } else { 1 }
    }

    /// Seconds of a step.
    pub fn seconds(&self) -> f64 {
        let seconds = |(section, _)| self.sections[section as usize].seconds * self.runs(section) as f64;
        Section::ALL.into_iter().map(seconds).sum()
    }
}

impl SectionCost {
    fn of(commands: &[Command], mut costs: Vec<CommandCost>, device: &Device) -> Self {
        let seconds: Vec<f64> = costs.iter().map(|cost| cost.seconds).collect();
        let begins = timeline::begins(commands, &seconds);
        costs.iter_mut().zip(begins).for_each(|(cost, begin)| cost.begin = begin);
        let last = costs.iter().map(|cost| cost.begin + cost.seconds).fold(0.0, f64::max);
        let moved: f64 =
            costs.iter().map(|cost| cost.work.bytes() as f64).sum::<f64>() / device.memory_rate();
        let computed: f64 = costs.iter().map(|cost| computing(device, &cost.work)).sum();
        Self { commands: costs, seconds: last.max(moved).max(computed) }
    }
}

fn cost(cuda: &CudaProgram, device: &Device, section: Section, command: &Command, work: Work) -> CommandCost {
    let instruction = &cuda.program.section(section)[command.instructions.start];
    let times = [
        (Bound::Memory, work.bytes() as f64 / device.memory_rate()),
        (Bound::Compute, computing(device, &work)),
        (Bound::Link, work.sent as f64 / device.link.rate()),
    ];
    let longer = |a: (Bound, f64), b: (Bound, f64)| if b.1 > a.1 { b } else { a };
    let (bound, longest) = times.into_iter().fold((Bound::Launch, 0.0), longer);
    let launch = device.launch;
    CommandCost {
        kind: kind(cuda, instruction, &command.task),
        sizes: sizes(instruction, &command.task),
        origin: instruction.origin.clone(),
        stream: command.stream,
        layers: if let Task::Launch(launch) = &command.task { launch.grid[2] } else { 1 },
        work,
        bound: if longest < launch { Bound::Launch } else { bound },
        seconds: longest + launch,
        begin: 0.0,
    }
}

/// Seconds that the operations take.
fn computing(device: &Device, work: &Work) -> f64 {
    work.flops as f64 / device.rate(work.unit)
}

fn kind(cuda: &CudaProgram, instruction: &Instruction, task: &Task) -> String {
    match task {
        Task::Launch(launch) => {
            let name = &cuda.kernels[launch.kernel].name;
            let name = name.rsplit_once('_').map_or(&name[..], |(name, _hash)| name);
            name.strip_suffix("_many").unwrap_or(name).into()
        }
        Task::Multiply(_) => "multiply".into(),
        Task::Library | Task::Collective(_) => instruction.name(),
    }
}

fn sizes(instruction: &Instruction, task: &Task) -> Vec<usize> {
    if let Task::Multiply(multiply) = task {
        return [multiply.batch].into_iter().chain(multiply.sizes).collect();
    }
    let all = instruction.operands.iter().chain(&instruction.results);
    all.max_by_key(|view| view.layout.len()).map(|view| view.layout.sizes.to_vec()).unwrap_or_default()
}
