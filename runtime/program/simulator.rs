//! The simulator: predicts a step of a program on a machine, which need not be this one.
//!
//! It runs the list of commands that a device gets ([`Backend::commands`](crate::backend::Backend::commands)), so it always describes the
//! program that really runs. All ranks of a mesh run the same list, so one rank stands for all of them. A command takes its latency, and
//! then its bytes at the attained bandwidth or its operations at the attained rate, whichever takes longer (`price`). Commands of one
//! stream run one after the other; commands that run at once share memory, arithmetic and links (`schedule`). [`ir::machine`] has the rates
//! and their sources. The prediction assumes that every kernel fills the device and is as good as the best of its kind. A measured time is
//! longer, and the difference says where to look.

pub mod pipeline;
mod price;
pub mod schedule;

use crate::Part;
use crate::commands::{Command, CommandList};
use ir::AxisId;
use ir::machine::Machine;
use ir::ops::collective::Collective;
use price::{Price, Prices};
use schedule::Span;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A step, simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedStep {
    /// Microbatches of the step.
    pub microbatches: u64,
    /// One run of each part, by [`Part`].
    pub parts: [SimulatedPart; 4],
}

/// One run of a part of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulatedPart {
    /// The commands, in order.
    pub commands: Vec<SimulatedCommand>,
    /// Seconds from the start of the part to the end of its last command.
    pub seconds: f64,
}

/// A command with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedCommand {
    /// The command.
    pub command: Command,
    /// The resource that limits its time.
    pub bound: Bound,
    /// Seconds that the command takes if nothing else runs.
    pub alone: f64,
    /// The start and end of the command, in seconds after the start of the part.
    pub span: Span,
}

/// The resource that limits a command's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// Bytes to and from the device's memory.
    Memory,
    /// Operations.
    Compute,
    /// Bytes to other devices, and between the device and its host.
    Link,
    /// Bytes to and from memory of the host.
    Host,
    /// Bytes to and from a file.
    Disk,
    /// The start of a kernel, and the latency of a collective.
    Launch,
}

impl Bound {
    /// Returns the resource's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Link => "link",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Launch => "launch",
        }
    }
}

/// Seconds of the collectives of one kind over one group of axes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExchangeTime {
    /// The number of collectives.
    pub count: u64,
    /// Seconds in which the collectives run.
    pub seconds: f64,
    /// Seconds of these in which the device does nothing else.
    pub not_hidden: f64,
}

impl SimulatedStep {
    /// Simulates a step on a machine.
    pub fn of(list: &CommandList, machine: &Machine) -> Self {
        let of = |(part, _)| SimulatedPart::on(list, part, machine);
        Self { microbatches: list.microbatches, parts: Part::ALL.map(of) }
    }

    /// Returns the number of runs of a part in a step.
    pub fn runs(&self, part: Part) -> u64 {
        part.runs(self.microbatches)
    }

    /// Returns the seconds of a step.
    pub fn seconds(&self) -> f64 {
        let seconds = |(part, _)| self.parts[part as usize].seconds * self.runs(part) as f64;
        Part::ALL.into_iter().map(seconds).sum()
    }

    /// Returns the collectives of a step, by their kind and axes.
    pub fn exchanges(&self) -> BTreeMap<(Collective, SmallVec<[AxisId; 2]>), ExchangeTime> {
        let mut times: BTreeMap<_, ExchangeTime> = BTreeMap::new();
        for (part, _) in Part::ALL {
            let runs = self.runs(part);
            let commands = &self.parts[part as usize].commands;
            for one in commands {
                let Some(exchange) = one.command.exchange() else { continue };
                let time = times.entry((exchange.kind, exchange.axes.clone())).or_default();
                time.count += runs;
                time.seconds += (one.span.end - one.span.begin) * runs as f64;
                time.not_hidden += not_hidden(one, commands) * runs as f64;
            }
        }
        times
    }
}

impl SimulatedPart {
    /// Simulates one run of a part on a machine.
    fn on(list: &CommandList, part: Part, machine: &Machine) -> Self {
        Self::of(&list.parts[part as usize], &Prices { machine, mesh: &list.mesh })
    }

    fn of(commands: &[Command], prices: &Prices) -> Self {
        let priced: Vec<Price> = commands.iter().map(|command| prices.of(command)).collect();
        let tasks: Vec<_> =
            commands.iter().zip(&priced).map(|(command, price)| price.task(command)).collect();
        let spans = schedule::run(&tasks);
        let seconds = spans.iter().map(|span| span.end).fold(0.0, f64::max);
        let priced = commands.iter().zip(priced).zip(tasks).zip(spans);
        let timed = priced.map(|(((command, price), task), span)| SimulatedCommand {
            command: command.clone(),
            bound: price.bound(),
            alone: task.latency + task.alone(),
            span,
        });
        Self { commands: timed.collect(), seconds }
    }
}

/// Returns the seconds of a collective in which no computing command runs.
fn not_hidden(collective: &SimulatedCommand, commands: &[SimulatedCommand]) -> f64 {
    let computing = commands.iter().filter(|other| other.command.is_computed());
    collective.span.uncovered(computing.map(|other| other.span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::work::Work;
    use crate::commands::{CommandClass, Exchange, Stream};
    use ir::machine::{Cluster, Preset, Unit};
    use ir::{Axis, AxisRole, DType, Mesh};
    use smallvec::smallvec;

    fn command(stream: Stream, waits: &[usize], read: u64, exchange: Option<Exchange>) -> Command {
        let work = Work { read, written: 0, flops: 0, unit: Unit::Elements(DType::F32) };
        let class = exchange.map_or(CommandClass::Kernel, CommandClass::Collective);
        Command {
            class,
            kind: String::new(),
            sizes: vec![],
            origin: "".into(),
            stream,
            waits: waits.into(),
            layers: 1,
            work,
        }
    }

    /// An H100 whose kernels start in no time, in nodes of two, with 1 GB/s between nodes, and no latency.
    fn cluster() -> Cluster {
        let mut cluster = Preset::H100.cluster(2);
        cluster.node.devices = 2;
        cluster.node.device.launch = 0.0;
        cluster.network = ir::machine::Link { bandwidth: 1e9, attained: 1.0, latency: 0.0 };
        cluster.node.device.link = ir::machine::Link { bandwidth: 4e9, attained: 1.0, latency: 0.0 };
        cluster
    }

    fn simulated(microbatch: Vec<Command>) -> SimulatedStep {
        let mut mesh = Mesh::default();
        for name in ["dp", "tp"] {
            mesh.axes.push(Axis {
                name: name.into(),
                role: Mesh::role(name).unwrap_or(AxisRole::Data),
                size: 2,
            });
        }
        let list = CommandList { mesh, microbatches: 3, parts: [vec![], microbatch, vec![], vec![]] };
        SimulatedStep::of(&list, &Machine::Cluster(cluster()))
    }

    fn reduce(axis: u32, group_bytes: u64) -> Option<Exchange> {
        let axes = smallvec![AxisId::from_u32(axis)];
        Some(Exchange { kind: Collective::AllReduce, axes, group_bytes })
    }

    #[test]
    fn axes_lie_on_their_links_and_microbatches_repeat_their_section() {
        // Each of two devices sends all bytes of an all_reduce once: 1 GB between nodes, 4 GB within a node.
        let step = simulated(vec![
            command(Stream::Main, &[], 0, reduce(0, 1_000_000_000)),
            command(Stream::Main, &[], 0, reduce(1, 4_000_000_000)),
        ]);
        assert!((step.seconds() - 3.0 * 2.0).abs() < 1e-9, "{}", step.seconds());
        let times = step.exchanges();
        assert_eq!(times.values().map(|time| time.count).collect::<Vec<_>>(), [3, 3]);
        assert!(times.values().all(|time| (time.not_hidden - 3.0).abs() < 1e-9));
    }

    #[test]
    fn a_collective_is_hidden_where_the_device_computes() {
        let rate = cluster().node.device.memory_rate();
        let kernel = command(Stream::Side, &[], (0.25 * rate) as u64, None);
        let step = simulated(vec![kernel, command(Stream::Main, &[], 0, reduce(0, 1_000_000_000))]);
        let [time] = step.exchanges().into_values().collect::<Vec<_>>()[..] else { panic!("one kind") };
        assert!((time.seconds - 3.0).abs() < 1e-6 && (time.not_hidden - 2.25).abs() < 1e-6, "{time:?}");
        assert_eq!(step.parts[1].commands[1].bound, Bound::Link);
    }

    #[test]
    fn collectives_over_different_links_do_not_slow_each_other() {
        let both = vec![
            command(Stream::Main, &[], 0, reduce(0, 1_000_000_000)),
            command(Stream::Side, &[], 0, reduce(1, 4_000_000_000)),
        ];
        assert!((simulated(both).seconds() - 3.0).abs() < 1e-9);
        let same = vec![
            command(Stream::Main, &[], 0, reduce(0, 1_000_000_000)),
            command(Stream::Side, &[], 0, reduce(0, 1_000_000_000)),
        ];
        assert!((simulated(same).seconds() - 6.0).abs() < 1e-9);
    }
}
