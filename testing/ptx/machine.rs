//! Runs a launch by its PTX, block by block. The threads of a warp that are at the same instruction execute it together.
//!
//! A device promises little about order: warps run beside each other, threads of a warp may part and need not meet again by
//! themselves, and blocks come in any order. A [`Schedule`] chooses an order. A kernel that relies on more than its waits gives
//! another result in a different order, or has a race that [`super::memory`] finds in any order.
//!
//! A step of a warp takes the lanes that stand at one instruction. For example, lanes 0 to 15 of a warp branch to instruction 40
//! and the others go on at 20: the lanes at 20 go first, because their instruction comes first. When they come to a shuffle whose
//! mask names all lanes, they wait until the others stand there, too.

use super::instruction::{Code, Guard, Instruction, Operand, Operation};
use super::memory::{LaunchMemory, Region};

/// The order in which threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// A warp runs until it waits for its block; warps and blocks run in the order of their numbers.
    Forward,
    /// As `Forward`, with warps and blocks in reverse order.
    Backward,
    /// Warps take turns after each instruction.
    Turns,
    /// A random warp runs for a random number of instructions, each with a random part of its lanes.
    Random(u64),
}

impl Schedule {
    /// Returns the bits of registers before they are written: results that depend on them differ between orders.
    fn unset(self) -> u64 {
        match self {
            Self::Forward => u64::MAX,
            Self::Turns => 0,
            Self::Backward => 0xdead_beef_dead_beef,
            Self::Random(_) => 0x5555_5555_5555_5555,
        }
    }
}

/// The size of a launch, and the kernel's parameters.
pub(super) struct Launch<'a> {
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) parameters: &'a [u64],
    /// The most steps of a block's warps. A kernel that takes more is taken to run without end.
    pub(super) most_steps: u64,
}

/// The error of a launch.
pub(super) type Stop = String;

pub(super) const LANES: usize = 32;

/// A copy to shared memory that is under way.
#[derive(Clone, Copy)]
pub(super) struct Copy {
    pub(super) to: u64,
    /// The source; `None` if zeros are copied.
    pub(super) from: Option<u64>,
    /// The source when the copy began.
    pub(super) bytes: [u8; COPIED],
}

/// The bytes of the target of a copy, and of a row of a matrix.
pub(super) const COPIED: usize = 16;

/// A thread of the block that runs.
#[derive(Clone, Default)]
pub(super) struct Thread {
    /// The index of the next instruction.
    pub(super) next: usize,
    pub(super) has_ended: bool,
    /// The call of the function that the thread is in, and the calls around it, by the indices of their instructions.
    pub(super) calls: Vec<usize>,
    /// The parameters of functions.
    pub(super) slots: Vec<u64>,
    /// The closed groups of copies that have not arrived; `open` has the copies of no group yet.
    pub(super) groups: Vec<Vec<Copy>>,
    pub(super) open: Vec<Copy>,
}

/// A running launch.
pub(super) struct Machine<'a> {
    pub(super) code: &'a Code,
    pub(super) launch: &'a Launch<'a>,
    schedule: Schedule,
    random: u64,
    pub(super) memory: LaunchMemory,
    /// The number of the running block; `place` is its place in the grid.
    pub(super) block: u32,
    pub(super) place: [u32; 3],
    pub(super) threads: Vec<Thread>,
    /// The registers of each warp, one after the other. Each register has a number for each lane.
    pub(super) registers: Vec<[u64; LANES]>,
    pub(super) block_epoch: u32,
    pub(super) warp_epochs: Vec<u32>,
    steps: u64,
    left_out: Option<usize>,
    reached_left_out: bool,
}

/// Lanes of a warp, one bit for each.
pub(super) type Mask = u32;

pub(super) fn lanes(mask: Mask) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// The memory after a launch.
pub(super) struct Finished {
    pub(super) regions: Vec<Region>,
    /// Whether a thread came to the instruction that is left out.
    pub(super) reached_left_out: bool,
}

/// Runs a launch, and returns its memory. The instruction at the place `left_out` has no effect: a planted fault.
///
/// # Errors
/// The first fault of a thread, with the line of the PTX.
pub(super) fn run(
    code: &Code,
    launch: &Launch,
    regions: Vec<Region>,
    schedule: Schedule,
    left_out: Option<usize>,
) -> Result<Finished, Stop> {
    if launch.parameters.len() != code.parameters {
        return Err(format!(
            "the kernel has {} parameters, and {} are given",
            code.parameters,
            launch.parameters.len()
        ));
    }
    let own = code.variables.iter().map(|(address, bytes)| Region::new(*address, bytes.clone()));
    let count = regions.len();
    let mut machine = Machine {
        code,
        launch,
        schedule,
        random: if let Schedule::Random(seed) = schedule { seed } else { 0 },
        memory: LaunchMemory::new(regions.into_iter().chain(own).collect()),
        block: 0,
        place: [0; 3],
        threads: vec![],
        registers: vec![],
        block_epoch: 0,
        warp_epochs: vec![],
        steps: 0,
        left_out,
        reached_left_out: false,
    };
    let [x, y, z] = launch.grid;
    let blocks = x * y * z;
    for turn in 0..blocks {
        machine.run_block(if schedule == Schedule::Backward { blocks - 1 - turn } else { turn })?;
    }
    let mut regions = machine.memory.regions;
    regions.truncate(count);
    Ok(Finished { regions, reached_left_out: machine.reached_left_out })
}

/// The lanes of a warp that can go on, or the reason why there are none.
enum Ready {
    Lanes(Mask),
    /// All lanes have ended, wait for the block, or wait for lanes that wait for the block.
    None,
}

impl Machine<'_> {
    fn warps(&self) -> usize {
        self.threads.len().div_ceil(LANES)
    }

    /// Returns the lanes of a warp that have threads.
    pub(super) fn all_lanes(&self, warp: usize) -> Mask {
        let count = (self.threads.len() - LANES * warp).min(LANES);
        Mask::MAX >> (LANES - count)
    }

    fn random(&mut self) -> u64 {
        // Knuth's MMIX generator; its high bits are the random ones.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn run_block(&mut self, block: u32) -> Result<(), Stop> {
        let [x, y, _] = self.launch.grid;
        self.block = block;
        self.place = [block % x, block / x % y, block / (x * y)];
        let count = self.launch.threads as usize;
        let mut slots = vec![0; self.code.slots];
        slots[..self.code.parameters].copy_from_slice(self.launch.parameters);
        let first = Thread { next: self.code.start, slots, ..Thread::default() };
        self.threads = vec![first; count];
        self.registers = vec![[self.schedule.unset(); LANES]; self.code.registers * self.warps()];
        self.warp_epochs = vec![0; self.warps()];
        self.block_epoch = 0;
        self.steps = 0;
        self.memory.begin_block(self.code.shared, self.code.local, count, self.schedule.unset() as u8);
        loop {
            let went_on = self.run_warps()?;
            if self.threads.iter().all(|thread| thread.has_ended) {
                return Ok(());
            }
            if !went_on {
                self.pass_barrier()?;
            }
        }
    }

    /// Gives each warp a turn, and returns whether a lane went on.
    fn run_warps(&mut self) -> Result<bool, Stop> {
        let (warps, mut went_on) = (self.warps(), false);
        for turn in 0..warps {
            let (warp, most) = match self.schedule {
                Schedule::Forward => (turn, u64::MAX),
                Schedule::Backward => (warps - 1 - turn, u64::MAX),
                Schedule::Turns => (turn, 1),
                Schedule::Random(_) => {
                    let warp = self.random() as usize % warps;
                    let runs_long = self.random().is_multiple_of(4);
                    (warp, 1 + self.random() % if runs_long { 200 } else { 5 })
                }
            };
            for _ in 0..most {
                let Ready::Lanes(lanes) = self.ready(warp)? else { break };
                self.step(warp, lanes)?;
                went_on = true;
            }
        }
        // Random turns may have missed the warps that can go on.
        for warp in 0..if went_on { 0 } else { warps } {
            if let Ready::Lanes(lanes) = self.ready(warp)? {
                self.step(warp, lanes)?;
                return Ok(true);
            }
        }
        Ok(went_on)
    }

    /// Lets the block go on if all its threads wait at one barrier.
    fn pass_barrier(&mut self) -> Result<(), Stop> {
        let at = |thread: &Thread| &self.code.instructions[thread.next];
        let waits = |thread: &Thread| !thread.has_ended && matches!(at(thread).operation, Operation::Barrier);
        let Some(first) = self.threads.iter().position(waits) else {
            let stuck = self.threads.iter().position(|thread| !thread.has_ended).unwrap_or_default();
            return Err(self.fault("threads wait for each other without end", stuck));
        };
        let place = self.threads[first].next;
        if let Some(other) = self.threads.iter().position(|thread| thread.has_ended) {
            return Err(self.fault(&format!("the block waits, and thread {other} has ended"), first));
        }
        if let Some(other) = self.threads.iter().position(|thread| thread.next != place) {
            let line = at(&self.threads[other]).line;
            return Err(
                self.fault(&format!("the block waits, and thread {other} waits at line {line}"), first)
            );
        }
        self.threads.iter_mut().for_each(|thread| thread.next += 1);
        self.block_epoch += 1;
        Ok(())
    }

    /// Returns a fault of a thread, with its instruction.
    fn fault(&self, problem: &str, thread: usize) -> Stop {
        let next = self.threads[thread].next;
        let Instruction { line, text, .. } = &self.code.instructions[next];
        format!("{problem} (thread {thread} of block {}, line {line} of the PTX: `{text}`)", self.block)
    }

    /// Returns the lanes of a warp that execute the next instruction together. Lanes inside of more calls come first, then lanes that
    /// are earlier in the code, so that lanes that parted meet again.
    fn ready(&mut self, warp: usize) -> Result<Ready, Stop> {
        let threads = &self.threads[LANES * warp..(LANES * warp + LANES).min(self.threads.len())];
        let mut live: Mask = 0;
        // Groups of lanes by their place in the code. Most of the time there is one group.
        let mut groups: Vec<((usize, usize), Mask)> = Vec::new();
        for (lane, thread) in threads.iter().enumerate().filter(|(_, thread)| !thread.has_ended) {
            live |= 1 << lane;
            let place = (usize::MAX - thread.calls.len(), thread.next);
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, mask)) => *mask |= 1 << lane,
                None => groups.push((place, 1 << lane)),
            }
        }
        groups.sort_unstable();
        let mut ready: Vec<Mask> = Vec::new();
        for ((_, next), mask) in groups {
            let operation = &self.code.instructions[next].operation;
            let has_effect = self.left_out != Some(next);
            if has_effect && matches!(operation, Operation::Barrier) {
                continue;
            }
            if has_effect && operation.is_together() {
                let first = mask.trailing_zeros() as usize;
                let wanted = self.wanted(warp, first, operation) & self.all_lanes(warp);
                let thread = LANES * warp + first;
                if wanted & !live != 0 {
                    return Err(
                        self.fault("an instruction of the warp waits for lanes that have ended", thread)
                    );
                }
                let is_other =
                    |lane: usize| self.wanted(warp, lane, operation) & self.all_lanes(warp) != wanted;
                if lanes(mask).any(is_other) {
                    return Err(self.fault("lanes execute an instruction with different masks", thread));
                }
                if mask & !wanted != 0 {
                    return Err(self.fault("a lane executes an instruction whose mask leaves it out", thread));
                }
                if mask != wanted {
                    continue;
                }
            }
            if !matches!(self.schedule, Schedule::Random(_)) {
                return Ok(Ready::Lanes(mask));
            }
            ready.push(mask);
        }
        if ready.is_empty() {
            return Ok(Ready::None);
        }
        let chosen = ready[self.random() as usize % ready.len()];
        let next = self.threads[LANES * warp + chosen.trailing_zeros() as usize].next;
        let is_together = self.code.instructions[next].operation.is_together();
        if is_together || !self.random().is_multiple_of(3) {
            return Ok(Ready::Lanes(chosen));
        }
        let part = chosen & (self.random() as Mask | (self.random() as Mask) << 31);
        Ok(Ready::Lanes(if part == 0 { chosen } else { part }))
    }

    /// Returns the lanes that an instruction of the warp names.
    fn wanted(&self, warp: usize, lane: usize, operation: &Operation) -> Mask {
        match operation {
            Operation::WarpBarrier { mask } | Operation::Shuffle { mask, .. } => {
                self.get(warp, lane, *mask) as Mask
            }
            _ => Mask::MAX,
        }
    }

    /// Executes the next instruction of these lanes, which is the same for all of them.
    fn step(&mut self, warp: usize, group: Mask) -> Result<(), Stop> {
        let code = self.code;
        self.steps += 1;
        let first = LANES * warp + group.trailing_zeros() as usize;
        let place = self.threads[first].next;
        if self.left_out == Some(place) {
            self.reached_left_out = true;
            lanes(group).for_each(|lane| self.threads[LANES * warp + lane].next = place + 1);
            return Ok(());
        }
        if self.steps > self.launch.most_steps {
            return Err(self.fault("the block does not come to its end", first));
        }
        let Instruction { operation, guard, .. } = &code.instructions[place];
        let mut mask = group;
        if let Some(Guard { predicate, is_negated }) = *guard {
            let holds =
                |lane: &usize| (self.get(warp, *lane, Operand::Register(predicate)) & 1 == 1) != is_negated;
            mask = lanes(group).filter(holds).fold(0, |mask, lane| mask | 1 << lane);
        }
        if operation.is_together() && mask != 0 && mask != group {
            return Err(self.fault("only a part of the lanes executes an instruction of the warp", first));
        }
        let mut at_fault = first;
        let result = self.execute(operation, warp, mask, place, &mut at_fault);
        if let Err(problem) = result {
            return Err(self.fault(&problem, at_fault));
        }
        let branches = matches!(operation, Operation::Branch(_) | Operation::Call { .. } | Operation::Return);
        for lane in lanes(if branches { group & !mask } else { group }) {
            self.threads[LANES * warp + lane].next = place + 1;
        }
        Ok(())
    }
}
