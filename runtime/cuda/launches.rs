//! Counts the commands that a device gets. Each takes some time, so a step's number of commands bounds its time from below,
//! however small its tensors are.

use super::program::{Command, CudaProgram, Task};
use program::{Part, Section};
use std::fmt;
use std::ops::Add;

/// The numbers of commands, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// Our kernels. Several that are launched as one count once.
    pub kernels: usize,
    /// Multiplications by cuBLASLt.
    pub multiplications: usize,
    /// Calls of cuDNN.
    pub libraries: usize,
    /// Exchanges with other devices, by NCCL.
    pub collectives: usize,
    /// Messages between pipeline ranks.
    pub messages: usize,
    /// Copies from the host and to it.
    pub copies: usize,
    /// Instructions that run on the host.
    pub on_host: usize,
    /// Copies between the host and a file.
    pub with_file: usize,
}

impl CudaProgram {
    /// Returns the commands of a part that every step runs: all but the casts of weights that the previous step's update has
    /// renewed.
    pub fn repeated(&self, part: Part) -> &[Command] {
        let all = self.part(part);
        let renewed = if part == Part::Prepare { self.program.renewed } else { 0 };
        &all[all.partition_point(|command| command.instructions.end <= renewed)..]
    }

    /// Returns the launches of one run of a section, in any step but the first.
    pub fn launches(&self, section: Section) -> Launches {
        self.repeated(section.into()).iter().map(Launches::of).fold(Launches::default(), Add::add)
    }
}

impl Launches {
    fn of(command: &Command) -> Self {
        let mut one = Self::default();
        match command.task {
            Task::Launch(_) => one.kernels = 1,
            Task::Multiply(_) => one.multiplications = 1,
            Task::Library => one.libraries = 1,
            Task::Collective(_) => one.collectives = 1,
            Task::Message(_) => one.messages = 1,
            Task::Copy(_) => one.copies = 1,
            Task::Host => one.on_host = 1,
            Task::Disk => one.with_file = 1,
        }
        one
    }

    /// Returns the number of all commands.
    pub fn total(&self) -> usize {
        let Self { kernels, multiplications, libraries, collectives, messages, copies, on_host, with_file } =
            self;
        kernels + multiplications + libraries + collectives + messages + copies + on_host + with_file
    }
}

impl Add for Launches {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            kernels: self.kernels + other.kernels,
            multiplications: self.multiplications + other.multiplications,
            libraries: self.libraries + other.libraries,
            collectives: self.collectives + other.collectives,
            messages: self.messages + other.messages,
            copies: self.copies + other.copies,
            on_host: self.on_host + other.on_host,
            with_file: self.with_file + other.with_file,
        }
    }
}

/// `12 kernels, 8 multiplications`
impl fmt::Display for Launches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.kernels, ["kernel", "kernels"]),
            (self.multiplications, ["multiplication", "multiplications"]),
            (self.libraries, ["call of cuDNN", "calls of cuDNN"]),
            (self.collectives, ["collective", "collectives"]),
            (self.messages, ["message", "messages"]),
            (self.copies, ["copy with the host", "copies with the host"]),
            (self.on_host, ["instruction on the host", "instructions on the host"]),
            (self.with_file, ["copy with a file", "copies with a file"]),
        ];
        let present = parts.into_iter().filter(|(count, _)| *count > 0);
        let text: Vec<String> =
            present.map(|(count, names)| format!("{count} {}", names[usize::from(count > 1)])).collect();
        f.write_str(if text.is_empty() { "nothing" } else { "" })?;
        f.write_str(&text.join(", "))
    }
}
