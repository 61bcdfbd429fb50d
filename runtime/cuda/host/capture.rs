//! Records the commands of a capture, under CUDA's rules for captures: a capture that a device would refuse is refused here.

use super::Queued;
use crate::driver::DriverError;
use crate::program::{Event, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The kernels, multiplications and library calls that were given outside of a capture, by hash.
///
/// The first use of one of them may load a module, allocate memory or choose an algorithm, which CUDA refuses in a capture.
#[derive(Default)]
pub(super) struct Warm(BTreeSet<u64>);

impl Warm {
    /// Adds a command that is given outside of a capture.
    pub(super) fn add(&mut self, queued: &Queued) {
        self.0.extend(queued.loads().map(|(_, hash)| hash));
    }

    /// Refuses a command of a capture whose kernel, multiplication or library call is new.
    pub(super) fn check(&self, queued: &Queued) -> Result<(), DriverError> {
        match queued.loads() {
            Some((name, hash)) if !self.0.contains(&hash) => {
                Err(DriverError(format!("capturing: {name} was never run outside of a capture")))
            }
            _ => Ok(()),
        }
    }
}

impl Queued {
    /// Returns the thing that a driver or a library prepares for a command at its first use: a name for messages, and a hash of
    /// everything on which the choice of an algorithm may depend.
    fn loads(&self) -> Option<(String, u64)> {
        let mut hasher = DefaultHasher::new();
        let name = match self {
            Self::Launch { kernel, .. } => {
                kernel.name.hash(&mut hasher);
                kernel.name.clone()
            }
            Self::Multiply { multiply, places, add } => {
                format!("{multiply:?} {places:?} {add}").hash(&mut hasher);
                let [m, k, n] = multiply.sizes;
                format!("the multiplication [{m}, {k}] [{k}, {n}]")
            }
            Self::Library { instruction, .. } => {
                format!("{instruction:?}").hash(&mut hasher);
                instruction.name()
            }
            Self::Checked { command, .. } => return command.loads(),
            _ => return None,
        };
        Some((name, hasher.finish()))
    }
}

/// The commands of a capture, in the order in which they were given.
#[derive(Default)]
pub(super) struct Capture {
    commands: Vec<(Stream, Queued)>,
    /// The index of the command that recorded each event last.
    marks: BTreeMap<Event, usize>,
    /// The streams besides the main one that have joined the capture, with the last of their commands for which the main stream waits.
    joined: BTreeMap<Stream, Option<usize>>,
}

impl Capture {
    pub(super) fn push(&mut self, stream: Stream, queued: Queued) -> Result<(), DriverError> {
        let refused = |text: String| Err(DriverError(format!("capturing: {text}")));
        let index = self.commands.len();
        if let Queued::Wait(event, _) = queued {
            let Some(&mark) = self.marks.get(&event) else {
                return refused(format!("{stream:?} waits for event {}, marked before the capture", event.0));
            };
            let marked = self.commands[mark].0;
            if stream == Stream::Main && marked != Stream::Main {
                self.joined.insert(marked, Some(mark));
            }
            if stream != Stream::Main {
                self.joined.entry(stream).or_default();
            }
        } else if stream != Stream::Main && !self.joined.contains_key(&stream) {
            return refused(format!("{stream:?} gets a command before it waits for the main stream"));
        }
        if let Queued::Record(event) = queued {
            self.marks.insert(event, index);
        }
        self.commands.push((stream, queued));
        Ok(())
    }

    /// Returns the events that were recorded.
    pub(super) fn events(&self) -> BTreeSet<Event> {
        self.marks.keys().copied().collect()
    }

    /// Returns all commands, if the main stream waits for the last command of every other stream.
    pub(super) fn end(self) -> Result<Vec<(Stream, Queued)>, DriverError> {
        for (stream, awaited) in &self.joined {
            let last = self.commands.iter().rposition(|(own, queued)| {
                own == stream && !matches!(queued, Queued::Wait(..) | Queued::Record(_))
            });
            if last.is_some_and(|last| awaited.is_none_or(|awaited| awaited < last)) {
                let text = format!("capturing: the main stream does not wait for the end of {stream:?}");
                return Err(DriverError(text));
            }
        }
        Ok(self.commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Address, Driver, MultiplyPlaces};
    use crate::host::{Host, Order};
    use crate::program::{Epilogue, Matrices, Multiply};
    use ir::DType;
    use program::Region;

    /// An event of the main stream for which the other stream waits, so that it joins.
    const FORK: Event = Event(0);
    const END: Event = Event(1);

    fn capturing() -> Host {
        let mut host = Host::new(Order::default());
        host.record(Stream::Main, Event(2)).unwrap();
        host.begin_capture().unwrap();
        host
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, DriverError>, part: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    fn work() -> Queued {
        Queued::Feed { at: Address(0), bytes: vec![] }
    }

    #[test]
    fn streams_join_a_capture_and_come_back_to_the_main_one() {
        let mut host = capturing();
        host.record(Stream::Main, FORK).unwrap();
        host.wait(Stream::Side, FORK).unwrap();
        host.push(Stream::Side, work()).unwrap();
        host.record(Stream::Side, END).unwrap();
        host.wait(Stream::Main, END).unwrap();
        let graph = host.end_capture().unwrap();
        // An event has to be recorded outside of captures before a stream waits for it there.
        refused(host.wait(Stream::Side, FORK), "last marked in a capture");
        host.record(Stream::Main, FORK).unwrap();
        host.replay(graph).unwrap();
        host.wait(Stream::Side, FORK).unwrap();
        refused(host.wait(Stream::Main, END), "last marked in a capture");
    }

    /// Returns a multiplication of a matrix with this number of rows.
    fn multiplication(rows: usize, add: bool) -> Queued {
        let matrices = Matrices { region: Region::Arena, start: 0, strides: [4, 1], apart: 0 };
        let multiply = Multiply {
            sizes: [rows, 4, 4],
            batch: 1,
            lhs: matrices.clone(),
            rhs: matrices.clone(),
            out: matrices,
            dtype: DType::F32,
            out_dtype: DType::F32,
            accumulates: true,
            epilogue: Epilogue::default(),
        };
        let at = Address(0);
        let places =
            MultiplyPlaces { lhs: at, rhs: at, out: at, bias: None, addend: None, aux: None, sums: None };
        Queued::Multiply { multiply: Box::new(multiply), places, add }
    }

    #[test]
    fn a_multiplication_that_never_ran_is_not_captured() {
        let mut host = Host::new(Order::default());
        host.push(Stream::Main, multiplication(8, false)).unwrap();
        host.begin_capture().unwrap();
        host.push(Stream::Main, multiplication(8, false)).unwrap();
        refused(host.push(Stream::Main, multiplication(9, false)), "was never run outside of a capture");
        refused(host.push(Stream::Main, multiplication(8, true)), "[8, 4] [4, 4] was never run outside");
    }

    #[test]
    fn what_a_device_would_refuse_is_refused() {
        refused(capturing().wait(Stream::Main, Event(2)), "marked before the capture");
        refused(capturing().push(Stream::Side, work()), "before it waits for the main stream");
        refused(capturing().feed(Address(0), &[]), "which this call would spoil");
        refused(capturing().finish(), "which this call would spoil");
        refused(capturing().begin_capture(), "which this call would spoil");
        let mut host = capturing();
        host.record(Stream::Main, FORK).unwrap();
        host.wait(Stream::Side, FORK).unwrap();
        host.record(Stream::Side, END).unwrap();
        host.wait(Stream::Main, END).unwrap();
        host.push(Stream::Side, work()).unwrap();
        refused(host.end_capture(), "does not wait for the end of Side");
        host.finish().unwrap();
    }
}
