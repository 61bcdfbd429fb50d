//! The CPU backend: one arena, one pool of threads, one kernel for each instruction. f16 and bf16 are only stored; kernels compute in f32.
//!
//! Results do not depend on the number of threads: where the division of work affects rounding, it depends on sizes alone.

mod arena;
mod backend;
mod beside;
mod bf16;
mod call;
mod commands;
mod element;
mod gemm;
mod host_memory;
mod kernel_contracts;
mod kernels;
mod math;
mod non_finite;
pub mod ranks;
pub mod rates;
mod scratch;
mod simd;
mod storage;
mod walk;

pub use backend::{AMX, AVX512, TARGET};
pub use bf16::Bf16Products;
pub use host_memory::{HostMemory, HostProgram, HostTask};
pub use kernels::copy::gather;
pub use non_finite::{Kind, kind_of, worst};
pub use ranks::Processor;

use ::ranks::platform::has_room;
use arena::{Arena, Constants, Memories, RawBytes, Sizes};
use beside::{Scheduled, Schedules};
use call::OnDevice;
use comm::queue::{ExchangeQueue, Job, Started};
use comm::{CommError, Communicator};
use ir::timetable::Task;
use program::device::{Device, DeviceError, NonFinite, ProgramId};
use program::profile::{DeviceProfiles, Profile};
use program::{Instruction, Kernel, Microbatches, Part, Program, Region, Section, Turn};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A CPU with programs that share one arena. It is the only device of its mesh, or one rank of a larger mesh. A rank reads and writes only
/// its part of every tensor.
pub struct Cpu {
    programs: Vec<Loaded>,
    arena: Arena,
    threads: rayon::ThreadPool,
    /// The exchanges with other ranks, if there are other ranks.
    queue: Option<ExchangeQueue>,
    profiles: DeviceProfiles,
}

struct Loaded {
    program: Arc<Program>,
    products: Bf16Products,
    constants: Arc<Constants>,
    schedules: Schedules,
    /// The number of microbatches that began in this step.
    microbatches: u64,
    /// In a pipeline, the places of the blocks of the present microbatch.
    bases: Arc<[u64]>,
}

impl Cpu {
    /// Allocates the arena (zeroed) and the constants of `programs`, and starts `threads` threads, or one for each core. The programs share
    /// their states if they were lowered so.
    ///
    /// # Errors
    /// No memory, no threads, a program for several devices.
    pub fn new(programs: Vec<Arc<Program>>, threads: Option<usize>) -> Result<Self, DeviceError> {
        Self::with_file(programs, threads, None)
    }

    /// Does the same as [`Self::new`]. Values on the disk are in a file in `folder`, or in the system's folder of temporary files without
    /// one.
    ///
    /// # Errors
    /// Those of [`Self::new`]; a folder in which no file of this size can be made.
    pub fn with_file(
        programs: Vec<Arc<Program>>,
        threads: Option<usize>,
        folder: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        if let Some(program) = programs.iter().find(|program| program.mesh.devices() != 1) {
            return Err(DeviceError::devices(program, 1));
        }
        has_room(&programs, 1)?;
        Self::with(programs, threads, None, folder)
    }

    /// Makes exchanges run one by one, in program order. This is for a rank that shares all cores with others: an exchange between threads
    /// is work for a core, so running it beside computation gains nothing.
    pub(crate) fn exchange_one_by_one(&mut self) {
        self.programs.iter_mut().for_each(|loaded| loaded.schedules.one_by_one());
    }

    fn with(
        programs: Vec<Arc<Program>>,
        threads: Option<usize>,
        communicator: Option<Arc<dyn Communicator>>,
        disk: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        let largest = |bytes: fn(&program::Memory) -> u64| {
            programs.iter().map(|program| bytes(&program.memory)).max().unwrap_or(0)
        };
        let sizes = Sizes {
            device: largest(|memory| memory.arena),
            host: largest(|memory| memory.host.total),
            disk: largest(|memory| memory.disk.total),
        };
        let arena = Arena::new(sizes, disk)?;
        let rank = communicator.as_ref().map_or(0, |own| own.rank());
        let load = |program: Arc<Program>| {
            let products = Bf16Products::of(program.target)
                .ok_or_else(|| DeviceError::Target { program: program.name.clone() })?;
            let program = program.on_rank(rank);
            let constants = Constants::new(&program)
                .map_err(|source| DeviceError::Memory { bytes: program.memory.constants, source })?;
            let (constants, schedules) = (Arc::new(constants), Schedules::of(&program));
            Ok(Loaded { program, products, constants, schedules, microbatches: 0, bases: Arc::from([]) })
        };
        let programs = programs.into_iter().map(load).collect::<Result<_, DeviceError>>()?;
        let threads = threads.unwrap_or_else(cores);
        let name = communicator.as_ref().map_or("cpu".to_owned(), |own| format!("rank-{}", own.rank()));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.thread_name(move |i| format!("{name}-{i}"));
        let error =
            |error: rayon::ThreadPoolBuildError| DeviceError::Threads { threads, message: error.to_string() };
        let threads = pool.build().map_err(error)?;
        let (queue, profiles) = (communicator.map(ExchangeQueue::new), DeviceProfiles::new());
        Ok(Self { programs, arena, threads, queue, profiles })
    }

    /// Adds the times of instructions to the profiles of their programs from now on.
    pub fn record(&mut self, profiles: DeviceProfiles) {
        self.profiles = profiles;
    }

    /// Runs a section as [`Device::run`] does, and returns the time of each instruction.
    pub fn run_timed(&mut self, id: ProgramId, section: Section) -> Result<Vec<Duration>, DeviceError> {
        self.loaded(id)?;
        let Self { programs, arena, threads, queue, .. } = self;
        let loaded = &mut programs[id.0];
        loaded.begin(section)?;
        let first = loaded.microbatches <= 1;
        let communicator = queue.as_ref().map(ExchangeQueue::communicator);
        let timed = |instruction| {
            let start = Instant::now();
            loaded.issue(arena, instruction, first, communicator).map(|()| start.elapsed())
        };
        threads.install(|| loaded.program.section(section).iter().map(timed).collect())
    }

    fn loaded(&self, program: ProgramId) -> Result<&Loaded, DeviceError> {
        self.programs.get(program.0).ok_or(DeviceError::Unknown { what: "program", index: program.0 })
    }

    /// Tells communicators that keep a record of exchanges the task that the rank begins or leaves.
    fn turns_to(&self, task: Option<Task>) {
        if let Some(queue) = &self.queue {
            queue.communicator().turns_to(task);
        }
    }

    /// Runs these steps of a part.
    fn execute(&mut self, id: ProgramId, part: Part, steps: Range<usize>) -> Result<(), DeviceError> {
        self.loaded(id)?;
        let Self { programs, arena, threads, queue, profiles } = self;
        let loaded = &programs[id.0];
        let unknown = DeviceError::Unknown { what: "instruction", index: steps.end };
        let steps = loaded.schedules.part(part).get(steps).ok_or(unknown)?;
        let profile = profiles.get(&id);
        let start = profile.map(|_| Instant::now());
        let (first, started) = (loaded.microbatches <= 1, vec![]);
        let (queue, section) = (queue.as_mut(), part.section());
        let mut run = Run { loaded, arena, queue, profile, section, first, started };
        threads.install(|| {
            let done = steps.iter().try_for_each(|step| run.step(step));
            done.and(run.finish().map_err(DeviceError::from))
        })?;
        if let (Some(profile), Some(start)) = (profile, start) {
            profile.add_run(section, start.elapsed());
        }
        Ok(())
    }
}

/// A run of some steps of a part.
struct Run<'a> {
    loaded: &'a Loaded,
    arena: &'a mut Arena,
    queue: Option<&'a mut ExchangeQueue>,
    profile: Option<&'a Profile>,
    section: Section,
    /// Whether the run belongs to the first microbatch of a step.
    first: bool,
    /// The collectives that were started, by their place in the section.
    started: Vec<(usize, Started)>,
}

impl Run<'_> {
    /// Runs an instruction, or starts it as an exchange beside the following instructions.
    fn step(&mut self, step: &Scheduled) -> Result<(), DeviceError> {
        if let (Some(newest), Some(queue)) = (step.waits_for, &self.queue)
            && let Some((_, started)) = self.started.iter().rev().find(|(index, _)| *index <= newest)
        {
            queue.wait(*started)?;
        }
        if step.is_beside {
            let exchange = self.exchange(step.index);
            if let Some(queue) = &mut self.queue {
                self.started.push((step.index, queue.start(exchange)));
                return Ok(());
            }
        }
        let instruction = &self.loaded.program.section(self.section)[step.index];
        // A rank communicates on one thread at a time.
        if matches!(instruction.kernel, Kernel::Collective(_) | Kernel::Message(_)) {
            self.finish()?;
        }
        let communicator = self.queue.as_ref().map(|queue| queue.communicator());
        let start = self.profile.map(|_| Instant::now());
        self.loaded.issue(self.arena, instruction, self.first, communicator)?;
        if let (Some(profile), Some(start)) = (self.profile, start) {
            profile.add(self.section, step.index, instruction, start.elapsed());
        }
        Ok(())
    }

    /// Returns the job of a collective that runs beside the following instructions.
    fn exchange(&self, index: usize) -> Job {
        let Loaded { program, constants, .. } = self.loaded;
        let (program, constants, arena) = (program.clone(), constants.clone(), self.arena.clone());
        let (section, first, profile) = (self.section, self.first, self.profile.cloned());
        let (bases, products) = (self.loaded.bases.clone(), self.loaded.products);
        Box::new(move |communicator| {
            let start = Instant::now();
            let instruction = &program.section(section)[index];
            let device = OnDevice { mesh: &program.mesh, rank: communicator.rank(), products, bases: &bases };
            // SAFETY: `beside` makes every instruction that conflicts with the operands and results of this exchange wait for it.
            // `Run` waits for the exchange before anything else can touch the arena.
            #[allow(unsafe_code)]
            let call = unsafe { arena.borrow(&constants, instruction, first, device) };
            kernels::run(call, Some(communicator))?;
            if let Some(profile) = profile {
                profile.add(section, index, instruction, start.elapsed());
            }
            Ok(())
        })
    }

    /// Waits for all exchanges.
    fn finish(&self) -> Result<(), CommError> {
        self.queue.as_ref().map_or(Ok(()), |queue| queue.finish())
    }
}

impl Drop for Run<'_> {
    /// Waits for the exchanges that still run if a kernel panics, since they use the arena.
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.settle();
        }
    }
}

impl Device for Cpu {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        &self.programs[program.0].program
    }

    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let program = self.loaded(program)?.program.clone();
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        DeviceError::check_size(&slot.name, &slot.ty, &program.mesh, bytes)?;
        self.arena.write_dense(&slot.view, bytes)
    }

    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        let program = &self.loaded(program)?.program;
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        self.arena.read_dense(&slot.view)
    }

    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let loaded = self.loaded(program)?;
        let (program, bases) = (loaded.program.clone(), loaded.bases.clone());
        let slot = program.inputs.get(input).ok_or(DeviceError::Unknown { what: "input", index: input })?;
        DeviceError::check_size(&slot.name, &slot.ty, &program.mesh, bytes)?;
        if let Some(view) = &slot.view {
            self.arena.write(view, &bases, bytes);
        }
        Ok(())
    }

    fn run(&mut self, id: ProgramId, section: Section) -> Result<(), DeviceError> {
        let count = self.loaded(id)?.program.section(section).len();
        if section == Section::Prepare
            && let Some(profile) = self.profiles.get(&id)
        {
            profile.begin_step();
        }
        self.programs[id.0].begin(section)?;
        self.turns_to(None);
        self.execute(id, section.into(), 0..count)
    }

    fn begin_turn(&mut self, id: ProgramId, turn: usize) -> Result<(), DeviceError> {
        let turn = self.loaded(id)?.turn(turn)?.clone();
        let loaded = &mut self.programs[id.0];
        (loaded.bases, loaded.microbatches) = (turn.bases.into(), u64::from(turn.task.microbatch) + 1);
        self.turns_to(Some(turn.task));
        if let Some(profile) = self.profiles.get(&id) {
            profile.begin_turn(turn.task);
        }
        Ok(())
    }

    fn run_turn(&mut self, id: ProgramId, turn: usize) -> Result<(), DeviceError> {
        let instructions = self.loaded(id)?.turn(turn)?.instructions.clone();
        self.execute(id, Part::Microbatch, instructions)?;
        if let Some(profile) = self.profiles.get(&id) {
            profile.end_turn();
        }
        self.turns_to(None);
        Ok(())
    }

    fn end_microbatch(&mut self, id: ProgramId) -> Result<(), DeviceError> {
        let count = self.loaded(id)?.schedules.part(Part::RestOfMicrobatch).len();
        self.execute(id, Part::RestOfMicrobatch, 0..count)
    }

    fn run_update(&mut self, id: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.turns_to(None);
        self.execute(id, Part::Update, instructions)
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        let loaded = self.loaded(program)?;
        let outputs = &loaded.program.outputs;
        let slot = outputs.get(output).ok_or(DeviceError::Unknown { what: "output", index: output })?;
        self.arena.read(&loaded.constants, &slot.view, &loaded.bases)
    }

    /// Returns the bytes of the arena and of all constants.
    fn allocated(&self) -> u64 {
        let constants: u64 = self.programs.iter().map(|loaded| loaded.program.memory.constants).sum();
        self.arena.len() + self.arena.host_len() + constants
    }

    fn first_non_finite_of_turn(
        &mut self,
        id: ProgramId,
        turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        let turn = self.loaded(id)?.turn(turn)?.clone();
        let Self { programs, arena, threads, queue, .. } = self;
        let loaded = &programs[id.0];
        let communicator = queue.as_ref().map(ExchangeQueue::communicator);
        let found = threads.install(|| non_finite::first_of_turn(loaded, &turn, arena, communicator))?;
        self.turns_to(None);
        Ok(found)
    }

    fn first_non_finite(&mut self, id: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        self.loaded(id)?;
        let Self { programs, arena, threads, queue, .. } = self;
        let loaded = &programs[id.0];
        let communicator = queue.as_ref().map(ExchangeQueue::communicator);
        threads.install(|| non_finite::first(loaded, arena, communicator))
    }
}

impl Loaded {
    /// Returns a turn of a pipeline rank.
    fn turn(&self, turn: usize) -> Result<&Turn, DeviceError> {
        let turns = self.program.pipeline.as_ref().map_or(&[][..], |pipeline| &pipeline.turns);
        turns.get(turn).ok_or(DeviceError::Unknown { what: "turn", index: turn })
    }

    /// Returns the device with the places of blocks with which the program runs.
    fn device(&self, communicator: Option<&dyn Communicator>) -> OnDevice<'_> {
        let rank = communicator.map_or(0, Communicator::rank);
        OnDevice { mesh: &self.program.mesh, rank, products: self.products, bases: &self.bases }
    }

    /// Runs an instruction.
    fn issue(
        &self,
        arena: &mut Arena,
        instruction: &Instruction,
        first: bool,
        communicator: Option<&dyn Communicator>,
    ) -> Result<(), DeviceError> {
        let touched = || instruction.operands.iter().chain(&instruction.results);
        if touched().any(|view| view.region == Region::Disk) {
            // SAFETY: as below.
            #[allow(unsafe_code)]
            let copied = unsafe { arena.copy_with_file(&self.constants, instruction, &self.bases) };
            return copied.map_err(DeviceError::Disk);
        }
        // SAFETY: instructions run one after the other, except exchanges, and `beside` keeps those apart.
        #[allow(unsafe_code)]
        let call = unsafe { arena.borrow(&self.constants, instruction, first, self.device(communicator)) };
        Ok(kernels::run(call, communicator)?)
    }

    /// Counts microbatches: the first microbatch of a step overwrites the sums of the step before.
    fn begin(&mut self, section: Section) -> Result<(), DeviceError> {
        match section {
            Section::Prepare => self.microbatches = 0,
            Section::Microbatch
                if self.microbatches >= 1 && self.program.microbatches == Microbatches::One =>
            {
                return Err(DeviceError::OneMicrobatch);
            }
            Section::Microbatch => self.microbatches += 1,
            Section::Update => {}
        }
        Ok(())
    }
}

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs one instruction on memory that the caller has: the arena and the constants in which the instruction has its places and, in a
/// pipeline, the places of the blocks in the arena.
pub fn run_alone(instruction: &Instruction, arena: &mut [u8], constants: &[u8], bases: &[u64]) {
    let mesh = ir::Mesh::default();
    let device = OnDevice { mesh: &mesh, rank: 0, products: Bf16Products::Widened, bases };
    let memories = Memories { device: RawBytes::of(arena), host: RawBytes::of(&mut []), constants };
    // SAFETY: the memory is the caller's alone.
    #[allow(unsafe_code)]
    let call = unsafe { arena::borrow(memories, instruction, false, device) };
    // Only collectives fail, and a program for one device has none.
    let _ = kernels::run(call, None);
}

/// Returns `lhs[m, k] · rhs[k, n]`, row-major, in f32.
pub fn product_f32(sizes: [usize; 3], lhs: &[f32], rhs: &[f32]) -> Vec<f32> {
    product(sizes, lhs, rhs)
}

/// Returns `lhs[m, k] · rhs[k, n]`, row-major, in f64.
pub fn product_f64(sizes: [usize; 3], lhs: &[f64], rhs: &[f64]) -> Vec<f64> {
    product(sizes, lhs, rhs)
}

fn product<T: math::Real>([m, k, n]: [usize; 3], lhs: &[T], rhs: &[T]) -> Vec<T> {
    let mut out = vec![T::ZERO; m * n];
    let how = gemm::Multiply { factor: T::ONE, add: false, parallel: true };
    let [lhs_rows, rhs_rows] = [k, n].map(gemm::Matrix::with_rows);
    gemm::gemm([m, k, n], (&mut out, rhs_rows), (lhs, lhs_rows), (rhs, rhs_rows), how);
    out
}
