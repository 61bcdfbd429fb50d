//! A stand-in for a GPU and its driver, on the processor: memory is the host's, a C++ compiler compiles the kernels (`host.cpp`), which
//! run thread by thread, multiplications compute in f32, and the CPU backend does the work of libraries. It is for tests, and slow.
//! Streams are kept apart as on a device: commands are queued and run when their results are asked for, in an order that only the
//! streams and their events restrict. So a missing wait shows. Functions of the host run on a further thread (`functions`).

mod builder;
mod capture;
mod checked;
mod compile;
mod exchange;
mod fault;
mod functions;
mod guarded;
mod lent;
mod multiply;
mod pages;
mod sectors;
mod state;

use super::driver::{
    Address, CollectiveTask, CopyTask, Driver, DriverError, Fetched, Graph, HostTask, LibraryTask, Loaded,
    Memories, MessageTask, MultiplyPlaces, Room, Touches, Workspace, check_library,
};
use super::program::{CudaProgram, Event, Kernel, Launch, Multiply, Stream};
use capture::{Capture, Warm};
use checked::Declared;
pub use checked::{CheckedLaunch, LaunchCheck};
use comm::Communicator;
use compile::{Compiled, Libraries, Stop};
use exchange::Exchange;
pub use exchange::Notes;
use functions::HostThread;
pub use guarded::Side;
use guarded::{Guards, Words};
use pages::PagedBytes;
use program::Instruction;
pub use sectors::{Counts, Sectors};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The orders that a device leaves open, as the stand-in takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The order of a block's threads: 0 is by number, 1 is the reverse, other numbers shuffle the threads. With an odd number, blocks
    /// run backwards, and a warp runs ahead of the others until it waits for its block. From 2 on, two or three blocks are alive at
    /// once, and take turns where their threads wait.
    pub threads: u32,
    /// The stream that is served first.
    pub first: Option<Stream>,
}

/// The stand-in.
pub struct Host {
    order: Order,
    /// The bytes that it can hold. `None` stands for the memory of this machine.
    size: Option<u64>,
    compiled: Vec<Arc<Compiled>>,
    /// For each loaded program, whether each entry of its tables is an address.
    tables: Vec<Arc<[bool]>>,
    libraries: Libraries,
    /// The communicator with the other ranks.
    communicator: Option<Arc<dyn Communicator>>,
    /// The list of the calls of NCCL that a GPU would make.
    notes: Option<Notes>,
    /// The present capture; `graphs` has the captures that ended.
    capture: Option<Capture>,
    graphs: Vec<Vec<(Stream, Queued)>>,
    /// The kernels, multiplications and library calls that were given outside of a capture.
    warm: Warm,
    /// The events whose last record was in a capture: no command outside may wait for them.
    inside: BTreeSet<Event>,
    /// The number of blocks that run at each end of a grid; 0: all blocks.
    corners: u32,
    /// Whether a command may touch only the memory that it declares.
    is_checked: bool,
    /// A second way of running the launches that are checked.
    second_way: Option<Arc<dyn LaunchCheck>>,
    /// Whether the stand-in refuses captures.
    refuses_captures: bool,
    /// The memory that the next command declares.
    declared: Vec<Declared>,
    functions: HostThread,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The allocated memory. Each piece begins at a multiple of 256.
    memory: Vec<PagedBytes>,
    /// The addresses of memory of the host that was lent.
    lent: Vec<Range<u64>>,
    queues: BTreeMap<Stream, VecDeque<Queued>>,
    /// The number of records of each event: in the commands given (`given`), and in the commands run (`marked`).
    given: BTreeMap<Event, u64>,
    marked: BTreeMap<Event, u64>,
    /// The fetched bytes that were not yet collected, by number; and the number of fetches.
    fetched: BTreeMap<usize, Vec<u8>>,
    fetches: usize,
    /// The number of kernels that still run before the stand-in fails, if it is to fail.
    left: Option<u64>,
    /// The hashes of the commands that were checked.
    checked: BTreeSet<u64>,
    /// The guards of the memory of a command that is being checked.
    guards: Guards,
    failed: Option<DriverError>,
    stamped: BTreeMap<usize, Instant>,
}

#[derive(Clone)]
enum Queued {
    Launch {
        function: compile::Function,
        kernel: Arc<Kernel>,
        sizes: [u32; 4],
        words: Words,
    },
    Multiply {
        multiply: Box<Multiply>,
        places: MultiplyPlaces,
        add: bool,
    },
    Library {
        instruction: Box<Instruction>,
        memories: Memories,
    },
    Exchange(Box<Exchange>),
    Send(MessageTask),
    Receive(MessageTask),
    Copy(CopyTask),
    OnHost(HostTask),
    /// A command that may touch only the memory that it declares.
    Checked {
        declared: Vec<Declared>,
        command: Box<Queued>,
    },
    Record(Event),
    Wait(Event, u64),
    Stamp(usize),
    Feed {
        at: Address,
        bytes: Vec<u8>,
    },
    Fetch {
        places: Vec<(Address, usize)>,
        number: usize,
    },
}

/// The events before and after a feed or a fetch.
const FENCES: [Event; 2] = [Event(u32::MAX - 1), Event(u32::MAX)];

impl Host {
    /// Returns the number of bytes that can be allocated.
    fn free(&self) -> u64 {
        let taken: u64 = self.state.borrow().memory.iter().map(|memory| memory.bytes).sum();
        match self.size {
            Some(size) => size.saturating_sub(taken),
            None => files::memory::available().unwrap_or(u64::MAX),
        }
    }

    fn push(&mut self, stream: Stream, queued: Queued) -> Result<(), DriverError> {
        let declared = std::mem::take(&mut self.declared);
        let queued = if declared.is_empty() { queued } else { queued.checked(declared) };
        match &mut self.capture {
            Some(capture) => self.warm.check(&queued).and_then(|()| capture.push(stream, queued))?,
            None => {
                self.warm.add(&queued);
                self.state.get_mut().queues.entry(stream).or_default().push_back(queued);
            }
        }
        Ok(())
    }

    /// Gives the main stream a command that runs after all earlier commands of every stream and before all later ones.
    fn push_apart(&mut self, queued: Queued) -> Result<(), DriverError> {
        self.outside()?;
        let [before, after] = FENCES;
        let others = || Stream::ALL.into_iter().filter(|stream| *stream != Stream::Main);
        for other in others() {
            self.record(other, before)?;
            self.wait(Stream::Main, before)?;
        }
        self.push(Stream::Main, queued)?;
        self.record(Stream::Main, after)?;
        others().try_for_each(|other| self.wait(other, after))
    }

    /// Refuses a call that would spoil a capture.
    fn outside(&self) -> Result<(), DriverError> {
        let spoilt = || DriverError("a capture goes on, which this call would spoil".into());
        if self.capture.is_some() { Err(spoilt()) } else { Ok(()) }
    }

    /// Runs all commands that were given.
    fn drain(&self) -> Result<(), DriverError> {
        self.outside()?;
        let mut state = self.state.borrow_mut();
        let mut streams = Stream::ALL;
        streams.sort_by_key(|stream| self.order.first != Some(*stream));
        while state.failed.is_none() {
            let Some(queued) = streams.iter().find_map(|stream| state.take(*stream)) else {
                if state.queues.values().any(|queue| !queue.is_empty()) {
                    state.failed = Some(DriverError("streams wait for each other".into()));
                }
                break;
            };
            if let Err(error) = self.run(&mut state, queued) {
                state.failed = Some(error);
            }
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    fn run(&self, state: &mut State, queued: Queued) -> Result<(), DriverError> {
        match queued {
            Queued::Launch { function, kernel, sizes: [x, y, z, threads], words } => {
                let name = &kernel.name;
                let sizes = [x, y, z, threads, self.corners];
                let failed = || DriverError(format!("{name}: its memory failed, as it was asked to"));
                state.left = state.left.map(|left| left.checked_sub(1).ok_or_else(failed)).transpose()?;
                function.run(&sizes, &words.values, self.order.threads).map_err(|stop| match stop {
                    Stop::Text(text) => DriverError(format!("{name}: {text}")),
                    Stop::Fault(fault) => DriverError(format!("{name} {}", state.described(fault))),
                })?;
            }
            Queued::Multiply { multiply, places, add } => {
                if let Some(refusal) = multiply.refused_epilogue() {
                    return Err(DriverError(refusal.into()));
                }
                let memory = |at: Address| state.bytes(at, None);
                let part = |at: Option<Address>| at.map(memory).transpose();
                let matrices = multiply::MatrixMemory {
                    lhs: memory(places.lhs)?,
                    rhs: memory(places.rhs)?,
                    out: memory(places.out)?,
                    bias: part(places.bias)?,
                    addend: part(places.addend)?,
                    aux: part(places.aux)?,
                    sums: part(places.sums)?,
                };
                multiply::check_bounds(&multiply, &matrices)?;
                multiply::multiply(&multiply, matrices, add);
            }
            Queued::Library { instruction, memories } => {
                let memory = |at: Address| state.bytes(at, None);
                let (arena, constants) = (memory(memories.arena)?, memory(memories.constants)?);
                cpu::run_alone(&instruction, arena, constants, &memories.blocks);
            }
            Queued::Checked { declared, command } => self.run_checked(state, &declared, &command)?,
            Queued::Exchange(exchange) => exchange.run(state, self.communicator.as_deref())?,
            Queued::Send(task) => self.send_now(state, task)?,
            Queued::Receive(task) => self.receive_now(state, task)?,
            Queued::Copy(task) => state.copy(task)?,
            Queued::OnHost(task) => self.functions.run(task)?,
            Queued::Record(event) => *state.marked.entry(event).or_default() += 1,
            Queued::Wait(..) => {}
            Queued::Stamp(number) => drop(state.stamped.insert(number, Instant::now())),
            Queued::Feed { at, bytes } => state.bytes(at, Some(bytes.len()))?.copy_from_slice(&bytes),
            Queued::Fetch { places, number } => {
                let part = |(at, count)| match state.lent(at, count) {
                    Some(lent) => Ok(&*lent),
                    None => Ok(&*state.bytes(at, Some(count))?),
                };
                let parts = places.into_iter().map(part);
                let parts = parts.collect::<Result<Vec<&[u8]>, DriverError>>()?;
                state.fetched.insert(number, parts.concat());
            }
        }
        Ok(())
    }
}

impl Driver for Host {
    fn room(&self, _programs: &[CudaProgram]) -> Result<Room, DriverError> {
        Ok(Room { free: self.free(), reserve: 0, device: "the stand-in of a GPU".into() })
    }

    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.outside()?;
        let free = self.free();
        if bytes > free {
            return Err(DriverError(format!("cannot allocate {bytes} bytes: {free} are free")));
        }
        let memory = PagedBytes::new(bytes)?;
        let address = memory.start();
        self.state.get_mut().memory.push(memory);
        Ok(address)
    }

    fn lend(&mut self, memory: *mut u8, bytes: usize) -> Result<Address, DriverError> {
        let start = memory.expose_provenance() as u64;
        self.state.get_mut().lent.push(start..start + bytes as u64);
        Ok(Address(start))
    }

    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError> {
        self.compiled.push(self.libraries.of(&program.kernels)?);
        self.tables.push(program.tables.iter().map(guarded::is_address).collect());
        Ok(Loaded(self.compiled.len() - 1))
    }

    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.drain()?;
        self.state.borrow().bytes(at, Some(bytes.len()))?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.drain()?;
        bytes.copy_from_slice(self.state.borrow().bytes(at, Some(bytes.len()))?);
        Ok(())
    }

    fn feed(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.push_apart(Queued::Feed { at, bytes: bytes.to_vec() })
    }

    fn fetch(&mut self, places: &[(Address, usize)]) -> Result<Fetched, DriverError> {
        let state = self.state.get_mut();
        let number = state.fetches;
        state.fetches += 1;
        self.push_apart(Queued::Fetch { places: places.to_vec(), number })?;
        Ok(Fetched(number))
    }

    fn collect(&mut self, Fetched(number): Fetched) -> Result<Vec<u8>, DriverError> {
        self.drain()?;
        let gone = || DriverError("the fetched bytes were already collected".into());
        self.state.get_mut().fetched.remove(&number).ok_or_else(gone)
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.outside()?;
        self.capture = Some(Capture::default());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        let capture = self.capture.take().ok_or_else(|| DriverError("no capture goes on".into()))?;
        self.inside.extend(capture.events());
        if self.refuses_captures {
            return Err(DriverError("the stand-in refuses captures".into()));
        }
        self.graphs.push(capture.end()?);
        Ok(Graph(self.graphs.len() - 1))
    }

    fn replay(&mut self, Graph(graph): Graph) -> Result<(), DriverError> {
        self.outside()?;
        let inside = self.inside.clone();
        let unknown = || DriverError("a CUDA graph that was not captured".into());
        for (stream, queued) in self.graphs.get(graph).ok_or_else(unknown)?.clone() {
            match queued {
                Queued::Record(event) => self.record(stream, event)?,
                Queued::Wait(event, _) => self.wait(stream, event)?,
                queued => self.push(stream, queued)?,
            }
        }
        self.inside = inside;
        Ok(())
    }

    fn declare(&mut self, touches: Touches) {
        if self.is_checked {
            self.declared = Declared::of(&touches);
        }
    }

    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        let unloaded = || DriverError("a kernel that was not loaded".into());
        let compiled = self.compiled.get(loaded.0).ok_or_else(unloaded)?;
        let kernel = compiled.kernel(launch.kernel).clone();
        launch.refusal().map_or(Ok(()), |refusal| Err(DriverError(format!("{}: {refusal}", kernel.name))))?;
        let [x, y, z] = launch.grid;
        let queued = Queued::Launch {
            function: compiled.function(launch.kernel),
            kernel,
            sizes: [x, y, z, launch.block],
            words: Words::of(launch, arguments, &self.tables[loaded.0]),
        };
        self.push(stream, queued)
    }

    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError> {
        Workspace::of(stream)?;
        self.push(stream, Queued::Multiply { multiply: Box::new(multiply.clone()), places, add })
    }

    fn library(&mut self, stream: Stream, task: LibraryTask) -> Result<(), DriverError> {
        check_library(stream, &task)?;
        let LibraryTask { instruction, memories } = task;
        let (instruction, memories) = (Box::new(instruction.clone()), memories.clone());
        self.push(stream, Queued::Library { instruction, memories })
    }

    fn collective(&mut self, stream: Stream, task: CollectiveTask) -> Result<(), DriverError> {
        self.note(stream, &task)?;
        self.push(stream, Queued::Exchange(Box::new(Exchange::of(task))))
    }

    /// A real device sends by itself as soon as it can. The stand-in sends at once, because the other rank may wait while this rank
    /// asks for no result.
    fn send(&mut self, task: MessageTask) -> Result<(), DriverError> {
        self.note_message("send", &task);
        self.push(Stream::Main, Queued::Send(task))?;
        self.drain()
    }

    fn receive(&mut self, task: MessageTask, _another: bool) -> Result<(), DriverError> {
        self.note_message("receive", &task);
        self.push(Stream::Main, Queued::Receive(task))
    }

    fn copy(&mut self, stream: Stream, task: CopyTask) -> Result<(), DriverError> {
        self.push(stream, Queued::Copy(task))
    }

    fn on_host(&mut self, stream: Stream, task: HostTask) -> Result<(), DriverError> {
        self.push(stream, Queued::OnHost(task))
    }

    /// Runs all commands, because other ranks may wait for this rank's part in them.
    fn settle(&mut self) -> Result<(), DriverError> {
        self.drain()
    }

    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        if self.capture.is_none() {
            *self.state.get_mut().given.entry(event).or_default() += 1;
            self.inside.remove(&event);
        }
        self.push(stream, Queued::Record(event))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        if self.capture.is_none() && self.inside.contains(&event) {
            return Err(DriverError(format!("event {} was last marked in a capture", event.0)));
        }
        // The wait is for the last record so far. An event without a record does not block, as on a device.
        let count = self.state.get_mut().given.get(&event).copied().unwrap_or_default();
        self.push(stream, Queued::Wait(event, count))
    }

    fn stamp(&mut self, stream: Stream, number: usize) -> Result<(), DriverError> {
        self.push(stream, Queued::Stamp(number))
    }

    fn seconds(&self, from: usize, to: usize) -> Result<f64, DriverError> {
        let state = self.state.borrow();
        let at = |number| {
            let unknown = || DriverError(format!("there is no time stamp {number}"));
            state.stamped.get(&number).ok_or_else(unknown)
        };
        Ok(at(to)?.duration_since(*at(from)?).as_secs_f64())
    }

    fn has_failed(&self) -> bool {
        self.state.borrow().failed.is_some()
    }

    fn finish(&self) -> Result<(), DriverError> {
        self.drain()
    }
}

#[cfg(test)]
mod tests;
