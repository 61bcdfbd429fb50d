//! A stand-in for a GPU and its driver, on the processor: memory is the host's, kernels are compiled by a C++ compiler
//! (`host.h`) and run thread by thread, multiplications are done in f32, what goes to a library the CPU backend does.
//!
//! It is for tests, and slow. Streams are kept apart as on a device: what is given to them is queued, and done when it is
//! asked for, in an order that nothing but the streams and their marks restrict; so a missing wait shows.

mod compile;
mod multiply;

use super::driver::{Address, Driver, DriverError, LibraryTask, Loaded, MultiplyPlaces};
use super::program::{CudaProgram, Event, Launch, Multiply, Stream};
use crate::cpu;
use crate::program::{Instruction, Region};
use compile::{Compiled, compile};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// How the stand-in does what a device leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The order of a block's threads: 0 by number, 1 the reverse, others are shuffled by it. Of an odd one blocks run
    /// backwards.
    pub threads: u32,
    /// The stream that is served first.
    pub first: Option<Stream>,
}

/// The stand-in.
pub struct Host {
    order: Order,
    compiled: Vec<Compiled>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Each begins at an address of 256.
    memory: Vec<Memory>,
    queues: BTreeMap<Stream, VecDeque<Queued>>,
    /// How often each event was marked: as it was given, and as far as it has come.
    given: BTreeMap<Event, u64>,
    marked: BTreeMap<Event, u64>,
    failed: Option<DriverError>,
}

struct Memory {
    words: Vec<Aligned>,
    bytes: u64,
}

#[derive(Clone, Copy)]
#[repr(align(256))]
struct Aligned(#[allow(dead_code)] [u8; 256]);

enum Queued {
    Launch { kernel: compile::Function, sizes: [u32; 4], words: Vec<u64>, name: String },
    Multiply { multiply: Box<Multiply>, places: MultiplyPlaces, add: bool },
    Library { instruction: Box<Instruction>, arena: Address, constants: Address, add: bool },
    Record(Event),
    Wait(Event, u64),
}

impl Host {
    /// A device without memory.
    pub fn new(order: Order) -> Self {
        Self { order, compiled: vec![], state: RefCell::default() }
    }

    fn push(&mut self, stream: Stream, queued: Queued) {
        self.state.get_mut().queues.entry(stream).or_default().push_back(queued);
    }

    /// Does everything that was given.
    fn drain(&self) -> Result<(), DriverError> {
        let mut state = self.state.borrow_mut();
        let streams = match self.order.first {
            Some(Stream::Side) => [Stream::Side, Stream::Main],
            _ => [Stream::Main, Stream::Side],
        };
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
            Queued::Launch { kernel, sizes, words, name } => {
                if kernel.run(&sizes, &words, self.order.threads) {
                    return Ok(());
                }
                return Err(DriverError(format!("{name}: threads wait for others that do not come")));
            }
            Queued::Multiply { multiply, places, add } => {
                let memory = |at: Address| state.bytes(at, None);
                let part = |at: Option<Address>| at.map(memory).transpose();
                let matrices = multiply::Memory {
                    lhs: memory(places.lhs)?,
                    rhs: memory(places.rhs)?,
                    out: memory(places.out)?,
                    bias: part(places.bias)?,
                    addend: part(places.addend)?,
                    aux: part(places.aux)?,
                    sums: part(places.sums)?,
                };
                multiply::multiply(&multiply, matrices, add);
            }
            Queued::Library { instruction, arena, constants, add } => {
                let at = |region: Region| match region {
                    Region::Arena => arena,
                    Region::Constants => constants,
                };
                let memory = |region: Region| state.bytes(at(region), None);
                cpu::run_alone(&instruction, memory(Region::Arena)?, memory(Region::Constants)?, add);
            }
            Queued::Record(event) => *state.marked.entry(event).or_default() += 1,
            Queued::Wait(..) => {}
        }
        Ok(())
    }
}

impl State {
    /// The next of a stream, unless it waits for a mark.
    fn take(&mut self, stream: Stream) -> Option<Queued> {
        let queue = self.queues.get_mut(&stream)?;
        if let Queued::Wait(event, count) = queue.front()?
            && self.marked.get(event).copied().unwrap_or_default() < *count
        {
            return None;
        }
        queue.pop_front()
    }

    /// The memory from an address on: so many bytes, or all there are.
    #[allow(unsafe_code)]
    fn bytes<'a>(&self, at: Address, bytes: Option<usize>) -> Result<&'a mut [u8], DriverError> {
        for memory in &self.memory {
            let start = memory.words.as_ptr() as u64;
            let Some(offset) = at.0.checked_sub(start).filter(|&offset| offset <= memory.bytes) else {
                continue;
            };
            let left = (memory.bytes - offset) as usize;
            let count = bytes.unwrap_or(left);
            if count <= left {
                // SAFETY: the range lies in an allocation that is never moved nor freed before the driver is; slices of
                // it are used one command at a time.
                return Ok(unsafe { std::slice::from_raw_parts_mut(at.0 as *mut u8, count) });
            }
        }
        Err(DriverError(format!("{bytes:?} bytes at {:#x} are not in the device's memory", at.0)))
    }
}

impl Driver for Host {
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let words = vec![Aligned([0; 256]); bytes.div_ceil(256) as usize + 1];
        let address = Address(words.as_ptr() as u64);
        self.state.get_mut().memory.push(Memory { words, bytes });
        Ok(address)
    }

    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError> {
        self.compiled.push(compile(&program.kernels)?);
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

    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        let compiled = &self.compiled[loaded.0];
        let [x, y, z] = launch.grid;
        let queued = Queued::Launch {
            kernel: compiled.function(launch.kernel),
            sizes: [x, y, z, launch.block],
            words: arguments.to_vec(),
            name: compiled.name(launch.kernel).to_owned(),
        };
        self.push(stream, queued);
        Ok(())
    }

    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError> {
        self.push(stream, Queued::Multiply { multiply: Box::new(multiply.clone()), places, add });
        Ok(())
    }

    fn library(&mut self, stream: Stream, task: LibraryTask) -> Result<(), DriverError> {
        let LibraryTask { instruction, arena, constants, add } = task;
        let instruction = Box::new(instruction.clone());
        self.push(stream, Queued::Library { instruction, arena, constants, add });
        Ok(())
    }

    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        *self.state.get_mut().given.entry(event).or_default() += 1;
        self.push(stream, Queued::Record(event));
        Ok(())
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        // The last mark that was given: an event that never was is passed, as on a device.
        let count = self.state.get_mut().given.get(&event).copied().unwrap_or_default();
        self.push(stream, Queued::Wait(event, count));
        Ok(())
    }

    fn finish(&self) -> Result<(), DriverError> {
        self.drain()
    }
}
