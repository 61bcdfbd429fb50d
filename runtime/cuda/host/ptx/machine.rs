//! Runs a launch by its PTX, block by block. The threads of a warp execute an instruction together where they stand at the same one.
//!
//! A device promises little about order: warps run beside each other, threads of a warp may part and need not meet again by
//! themselves, and blocks come in any order. A [`Schedule`] chooses an order. A kernel that relies on more than its waits gives
//! another result in a different order, or has a race that [`super::memory`] finds in any order.
//!
//! A step of a warp takes the lanes that stand at one instruction. For example, lanes 0 to 15 of a warp branch to instruction 40
//! and the others go on at 20: the lanes at 20 go first, because their instruction comes first. When they come to a shuffle whose
//! mask names all lanes, they wait until the others stand there, too.

use super::instruction::{
    Code, Guard, Instruction, Operand, Operation, Place, Register, Shuffle, Space, Special, Vote,
};
use super::memory::{Accessor, Memory, Problem, Region};
use super::types::Type;

/// The order in which threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// A warp runs until it waits for its block; warps and blocks by their numbers.
    Forward,
    /// The same in reverse.
    Backward,
    /// Warps take turns after each instruction.
    Turns,
    /// A random warp runs for a random number of instructions, each with a random part of its lanes.
    Random(u64),
}

impl Schedule {
    /// The bits that registers have before they are written: results that depend on them differ between orders.
    fn unset(self) -> u64 {
        match self {
            Self::Forward => u64::MAX,
            Self::Turns => 0,
            _ => 0xdead_beef_dead_beef,
        }
    }
}

/// The size of a launch, and the kernel's parameters.
pub(super) struct Launch<'a> {
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) parameters: &'a [u64],
}

/// The end of a launch that did not come to its end.
pub(super) type Stop = String;

/// Steps of a block's warps: a kernel that takes more hangs.
const MOST_STEPS: u64 = 50_000_000;

const LANES: usize = 32;

/// A thread of the block that runs.
#[derive(Clone, Default)]
struct Thread {
    /// The number of the instruction that comes next.
    next: usize,
    has_ended: bool,
    /// The call in whose function it is, and the calls around it, by the numbers of their instructions.
    calls: Vec<usize>,
    /// Parameters of functions.
    slots: Vec<u64>,
    /// Closed groups of copies that have not arrived, and the copies of no group yet.
    groups: Vec<Vec<Copy>>,
    open: Vec<Copy>,
}

/// A copy to shared memory that is under way.
#[derive(Clone, Copy)]
struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
}

/// Bytes of a copy's target.
const COPIED: usize = 16;

/// A launch that runs.
pub(super) struct Machine<'a> {
    code: &'a Code,
    launch: &'a Launch<'a>,
    schedule: Schedule,
    random: u64,
    memory: Memory,
    /// The block that runs: its number, and its place in the grid.
    block: u32,
    place: [u32; 3],
    threads: Vec<Thread>,
    /// The registers of each warp, one after the other; each has a number for each lane.
    registers: Vec<[u64; LANES]>,
    block_epoch: u32,
    warp_epochs: Vec<u32>,
    steps: u64,
}

/// Lanes of a warp, a bit each.
type Mask = u32;

fn lanes(mask: Mask) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// Runs a launch, and returns its memory.
///
/// # Errors
/// The first fault of a thread, with the line of the PTX.
pub(super) fn run(
    code: &Code,
    launch: &Launch,
    regions: Vec<Region>,
    schedule: Schedule,
) -> Result<Vec<Region>, Stop> {
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
        memory: Memory::new(regions.into_iter().chain(own).collect()),
        block: 0,
        place: [0; 3],
        threads: vec![],
        registers: vec![],
        block_epoch: 0,
        warp_epochs: vec![],
        steps: 0,
    };
    let [x, y, z] = launch.grid;
    let blocks = x * y * z;
    for turn in 0..blocks {
        machine.run_block(if schedule == Schedule::Backward { blocks - 1 - turn } else { turn })?;
    }
    let mut regions = machine.memory.regions;
    regions.truncate(count);
    Ok(regions)
}

/// The lanes of a warp that can go on, or the reason why there are none.
enum Ready {
    Lanes(Mask),
    /// All lanes have ended, wait for the block, or wait for lanes that do.
    None,
}

impl Machine<'_> {
    fn warps(&self) -> usize {
        self.threads.len().div_ceil(LANES)
    }

    /// The lanes of a warp that have threads.
    fn all_lanes(&self, warp: usize) -> Mask {
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
        self.memory.begin_block(self.code.shared, self.code.local, count);
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
                    let runs_long = self.random() % 4 == 0;
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

    /// Lets the block go on, whose threads all wait at one barrier.
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

    /// A fault of a thread, with its instruction.
    fn fault(&self, problem: &str, thread: usize) -> Stop {
        let next = self.threads[thread].next;
        let Instruction { line, text, .. } = &self.code.instructions[next];
        format!("{problem} (thread {thread} of block {}, line {line} of the PTX: `{text}`)", self.block)
    }

    /// The lanes of a warp that execute the next instruction together. Those inside of more calls come first, then those that stand
    /// earlier in the code: so lanes that parted meet again.
    fn ready(&mut self, warp: usize) -> Result<Ready, Stop> {
        let threads = &self.threads[LANES * warp..(LANES * warp + LANES).min(self.threads.len())];
        let mut live: Mask = 0;
        // Groups of lanes by where they stand. Most of the time there is one.
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
            if matches!(operation, Operation::Barrier) {
                continue;
            }
            if operation.is_together() {
                let first = mask.trailing_zeros() as usize;
                let wanted = self.wanted(warp, first, operation) & self.all_lanes(warp);
                let thread = LANES * warp + first;
                if wanted & !live != 0 {
                    return Err(
                        self.fault("an instruction of the warp waits for lanes that have ended", thread)
                    );
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
        if is_together || self.random() % 3 != 0 {
            return Ok(Ready::Lanes(chosen));
        }
        let part = chosen & (self.random() as Mask | (self.random() as Mask) << 31);
        Ok(Ready::Lanes(if part == 0 { chosen } else { part }))
    }

    /// The lanes that an instruction of the warp names.
    fn wanted(&self, warp: usize, lane: usize, operation: &Operation) -> Mask {
        match operation {
            Operation::WarpBarrier { mask }
            | Operation::Shuffle { mask, .. }
            | Operation::Vote { mask, .. } => self.get(warp, lane, *mask) as Mask,
            _ => Mask::MAX,
        }
    }

    fn get(&self, warp: usize, lane: usize, operand: Operand) -> u64 {
        match operand {
            Operand::Register(Register(register)) => {
                self.registers[self.code.registers * warp + register][lane]
            }
            Operand::Number(number) => number,
            Operand::Special(special) => match special {
                Special::Thread => (LANES * warp + lane) as u64,
                Special::Threads => self.launch.threads.into(),
                Special::Block(dim) => self.place[dim].into(),
                Special::Blocks(dim) => self.launch.grid[dim].into(),
                Special::Lane => lane as u64,
                Special::Warp => warp as u64,
            },
        }
    }

    fn set(&mut self, warp: usize, lane: usize, Register(register): Register, value: u64) {
        self.registers[self.code.registers * warp + register][lane] = value;
    }

    fn address(&self, warp: usize, lane: usize, Place { base, distance }: Place) -> u64 {
        self.get(warp, lane, base).wrapping_add_signed(distance)
    }

    fn accessor(&self, warp: usize, lane: usize, is_atomic: bool) -> Accessor {
        let thread = (LANES * warp + lane) as u32;
        let (block_epoch, warp_epoch) = (self.block_epoch, self.warp_epochs[warp]);
        Accessor { block: self.block, thread, block_epoch, warp_epoch, is_atomic }
    }

    /// The bytes that a lane accesses.
    fn access(
        &mut self,
        warp: usize,
        lane: usize,
        at: (Space, u64, usize),
        writes: bool,
        is_atomic: bool,
    ) -> Result<&mut [u8], Problem> {
        let by = self.accessor(warp, lane, is_atomic);
        let (space, address, count) = at;
        self.memory.access(space, address, count, writes, by)
    }

    /// Executes the next instruction of these lanes, which is the same.
    fn step(&mut self, warp: usize, group: Mask) -> Result<(), Stop> {
        let code = self.code;
        self.steps += 1;
        let first = LANES * warp + group.trailing_zeros() as usize;
        let place = self.threads[first].next;
        if self.steps > MOST_STEPS {
            return Err(self.fault("the block does not come to its end", first));
        }
        let Instruction { operation, guard, .. } = &code.instructions[place];
        let mut mask = group;
        if let Some(Guard { predicate, is_negated }) = *guard {
            let holds =
                |lane: &usize| (self.get(warp, *lane, Operand::Register(predicate)) & 1 == 1) != is_negated;
            mask = lanes(group).filter(holds).fold(0, |mask, lane| mask | 1 << lane);
        }
        if operation.is_together() && mask != group {
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

    /// Executes an instruction for these lanes. `at_fault` is the thread at fault.
    fn execute(
        &mut self,
        operation: &Operation,
        warp: usize,
        mask: Mask,
        place: usize,
        at_fault: &mut usize,
    ) -> Result<(), String> {
        match operation {
            Operation::Shuffle { kind, to, is_within, of, by, clamp, .. } => {
                return self.shuffle(warp, mask, (*kind, *to, *is_within), [*of, *by, *clamp]);
            }
            Operation::Vote { kind, to, of, .. } => {
                let holds = lanes(mask)
                    .filter(|lane| self.get(warp, *lane, *of) & 1 == 1)
                    .fold(0, |all, lane| all | 1 << lane);
                let result = match kind {
                    Vote::All => u64::from(holds == mask),
                    Vote::Any => u64::from(holds != 0),
                    Vote::Ballot => u64::from(holds),
                };
                lanes(mask).for_each(|lane| self.set(warp, lane, *to, result));
                return Ok(());
            }
            Operation::WarpBarrier { mask: wanted } => {
                let wanted = self.get(warp, mask.trailing_zeros() as usize, *wanted) as Mask;
                let all = self.all_lanes(warp);
                if wanted & all != all {
                    return Err("a wait of a part of the warp is not modelled".into());
                }
                self.warp_epochs[warp] += 1;
                return Ok(());
            }
            Operation::LoadMatrices { to, from, is_transposed } => {
                return self.load_matrices(warp, mask, *to, *from, *is_transposed, at_fault);
            }
            Operation::MultiplyMatrices { ty, to, lhs, rhs, addend } => {
                if mask != Mask::MAX {
                    return Err("a part of a warp multiplies matrices".into());
                }
                self.multiply_matrices(warp, *ty, *to, (*lhs, *rhs, *addend));
                return Ok(());
            }
            _ => {}
        }
        for lane in lanes(mask) {
            *at_fault = LANES * warp + lane;
            self.execute_lane(operation, warp, lane, place).map_err(|problem| problem.to_string())?;
        }
        Ok(())
    }

    /// Executes an instruction of one lane.
    fn execute_lane(
        &mut self,
        operation: &Operation,
        warp: usize,
        lane: usize,
        place: usize,
    ) -> Result<(), LaneProblem> {
        let thread = LANES * warp + lane;
        match operation {
            Operation::Compute { to, of, evaluate } => {
                let result = evaluate(of.map(|operand| self.get(warp, lane, operand)));
                self.set(warp, lane, *to, result);
            }
            Operation::Join { to, parts, bits } => {
                let field = u64::MAX >> (64 - bits);
                let joined = parts
                    .iter()
                    .rev()
                    .fold(0, |all, part| all << (bits % 64) | self.get(warp, lane, *part) & field);
                self.set(warp, lane, *to, joined);
            }
            Operation::Split { to, of, bits } => {
                let all = self.get(warp, lane, *of);
                for (part, to) in (0..).zip(to) {
                    if let Some(to) = to {
                        self.set(warp, lane, *to, all >> (bits * part) & u64::MAX >> (64 - bits));
                    }
                }
            }
            Operation::Load { space, ty, to, from } => {
                let bytes = ty.bytes();
                let address = self.address(warp, lane, *from);
                let loaded = self.access(warp, lane, (*space, address, bytes * to.len()), false, false)?;
                let mut words = [0; 4];
                for (word, bytes) in words.iter_mut().zip(loaded.chunks_exact(bytes)) {
                    *word = word_of(*ty, bytes);
                }
                for (to, word) in to.iter().zip(words) {
                    if let Some(to) = to {
                        self.set(warp, lane, *to, word);
                    }
                }
            }
            Operation::Store { space, ty, to, of } => {
                let bytes = ty.bytes();
                let address = self.address(warp, lane, *to);
                let mut words = [0; 4];
                words.iter_mut().zip(of).for_each(|(word, of)| *word = self.get(warp, lane, *of));
                let target = self.access(warp, lane, (*space, address, bytes * of.len()), true, false)?;
                for (target, word) in target.chunks_exact_mut(bytes).zip(words) {
                    target.copy_from_slice(&word.to_le_bytes()[..bytes]);
                }
            }
            Operation::Atomic { space, ty, to, at, of, evaluate } => {
                let bytes = ty.bytes();
                let address = self.address(warp, lane, *at);
                let [first, second] = of.map(|operand| self.get(warp, lane, operand));
                let target = self.access(warp, lane, (*space, address, bytes), true, true)?;
                let old = word_of(*ty, target);
                target.copy_from_slice(&evaluate([old, first, second]).to_le_bytes()[..bytes]);
                if let Some(to) = to {
                    self.set(warp, lane, *to, old);
                }
            }
            Operation::LoadParameter { ty, to, slot, byte } => {
                let value = self.threads[thread].slots[*slot].to_le_bytes();
                let bytes =
                    value.get(*byte..byte + ty.bytes()).ok_or("a parameter is read beyond its 8 bytes")?;
                let word = word_of(*ty, bytes);
                self.set(warp, lane, *to, word);
            }
            Operation::StoreParameter { slot, of } => {
                let value = self.get(warp, lane, *of);
                self.threads[thread].slots[*slot] = value;
            }
            Operation::Branch(to) => self.threads[thread].next = *to,
            Operation::Call { start, copied, .. } => {
                let thread = &mut self.threads[thread];
                copied.iter().for_each(|[from, to]| thread.slots[*to] = thread.slots[*from]);
                thread.calls.push(place);
                thread.next = *start;
            }
            Operation::Return => {
                let thread = &mut self.threads[thread];
                let Some(call) = thread.calls.pop() else {
                    thread.has_ended = true;
                    let is_under_way =
                        thread.groups.iter().chain([&thread.open]).any(|group| !group.is_empty());
                    return if is_under_way {
                        Err("the thread ends with copies under way".into())
                    } else {
                        Ok(())
                    };
                };
                if let Operation::Call { returned, .. } = &self.code.instructions[call].operation {
                    returned.iter().for_each(|[from, to]| thread.slots[*to] = thread.slots[*from]);
                }
                thread.next = call + 1;
            }
            Operation::Trap => return Err("a trap".into()),
            Operation::CopyLater { to, from, bytes } => {
                let [to, from] = [*to, *from].map(|place| self.address(warp, lane, place));
                let bytes = self.get(warp, lane, *bytes) as usize;
                if from % COPIED as u64 != 0 {
                    return Err(Problem::Misaligned(from).into());
                }
                if bytes > 0 && !self.memory.contains(from, COPIED) {
                    return Err(Problem::Outside(Space::Global, from).into());
                }
                let by = self.accessor(warp, lane, false);
                self.memory.expect_copy(to, COPIED, by)?;
                self.threads[thread].open.push(Copy { to, from, bytes });
            }
            Operation::CloseCopies => {
                let thread = &mut self.threads[thread];
                thread.groups.push(std::mem::take(&mut thread.open));
            }
            Operation::WaitForCopies { but } => self.make_copies(warp, lane, *but)?,
            Operation::WaitForAllCopies => {
                let thread = &mut self.threads[thread];
                thread.groups.push(std::mem::take(&mut thread.open));
                self.make_copies(warp, lane, 0)?;
            }
            _ => unreachable!("`execute` has the instructions of a warp, and `ready` those of a block"),
        }
        Ok(())
    }

    /// Makes a thread's copies but those of its last groups.
    fn make_copies(&mut self, warp: usize, lane: usize, but: usize) -> Result<(), LaneProblem> {
        let groups = &mut self.threads[LANES * warp + lane].groups;
        let arrived = groups.len().saturating_sub(but);
        let copies: Vec<Copy> = groups.drain(..arrived).flatten().collect();
        for Copy { to, from, bytes } in copies {
            let mut copied = [0; COPIED];
            if bytes > 0 {
                copied[..bytes].copy_from_slice(self.access(
                    warp,
                    lane,
                    (Space::Global, from, bytes),
                    false,
                    false,
                )?);
            }
            self.access(warp, lane, (Space::Shared, to, COPIED), true, false)?.copy_from_slice(&copied);
        }
        Ok(())
    }

    /// `shfl.sync`, as the PTX ISA's table of source lanes has it: a segment is a part of the warp that `clamp` bounds.
    fn shuffle(
        &mut self,
        warp: usize,
        mask: Mask,
        (kind, to, is_within): (Shuffle, Register, Option<Register>),
        [of, by, clamp]: [Operand; 3],
    ) -> Result<(), String> {
        let mut all = [0; LANES];
        lanes(mask).for_each(|lane| all[lane] = self.get(warp, lane, of));
        for lane in lanes(mask) {
            let by = (self.get(warp, lane, by) & 31) as usize;
            let clamp = self.get(warp, lane, clamp) as usize;
            let (segment, clamp) = (clamp >> 8 & 31, clamp & 31);
            let [first, last] = [lane & segment, lane & segment | clamp & !segment];
            let (source, within) = match kind {
                Shuffle::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= last),
                Shuffle::Down => (lane + by, lane + by <= last),
                Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
                Shuffle::Index => (first | by & !segment, first | by & !segment <= last),
            };
            let source = if within { source } else { lane };
            if mask >> source & 1 == 0 {
                return Err(format!("lane {lane} takes a number of lane {source}, which is not there"));
            }
            self.set(warp, lane, to, all[source]);
            if let Some(is_within) = is_within {
                self.set(warp, lane, is_within, within.into());
            }
        }
        Ok(())
    }

    /// `ldmatrix.x4`: lane `8 i + r` names row r of matrix i; lane l gets the numbers `2 (l % 4)` and the next of row `l / 4` of
    /// each, or those of the column if they are transposed.
    fn load_matrices(
        &mut self,
        warp: usize,
        mask: Mask,
        to: [Register; 4],
        from: Place,
        is_transposed: bool,
        at_fault: &mut usize,
    ) -> Result<(), String> {
        if mask != Mask::MAX {
            return Err("a part of a warp loads matrices".into());
        }
        let mut matrices = [[[0_u16; 8]; 8]; 4];
        for lane in 0..LANES {
            *at_fault = LANES * warp + lane;
            let address = self.address(warp, lane, from);
            let row = self
                .access(warp, lane, (Space::Shared, address, COPIED), false, false)
                .map_err(|problem| problem.to_string())?;
            for (number, bytes) in matrices[lane / 8][lane % 8].iter_mut().zip(row.chunks_exact(2)) {
                *number = u16::from_le_bytes([bytes[0], bytes[1]]);
            }
        }
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for (matrix, to) in matrices.iter().zip(to) {
                let pair = if is_transposed {
                    [matrix[column][row], matrix[column + 1][row]]
                } else {
                    [matrix[row][column], matrix[row][column + 1]]
                };
                self.set(warp, lane, to, u64::from(pair[0]) | u64::from(pair[1]) << 16);
            }
        }
        Ok(())
    }

    /// `mma.m16n8k16`, with the places of the PTX ISA, 9.7.15.5.8: sums in f64 are rounded once to f32, where a device rounds or cuts
    /// each term in its own way.
    fn multiply_matrices(
        &mut self,
        warp: usize,
        ty: Type,
        to: [Register; 4],
        (lhs, rhs, addend): ([Operand; 4], [Operand; 2], [Operand; 4]),
    ) {
        let (mut a, mut b, mut sums) = ([[0.0; 16]; 16], [[0.0; 8]; 16], [[0.0; 8]; 16]);
        let half = |word: u64, high: usize| ty.real(word >> (16 * high)).unwrap_or(f64::NAN);
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for i in 0..4 {
                let word = self.get(warp, lane, lhs[i]);
                for high in [0, 1] {
                    a[row + 8 * (i % 2)][column + 8 * (i / 2) + high] = half(word, high);
                }
                sums[row + 8 * (i / 2)][column + i % 2] =
                    f64::from(f32::from_bits(self.get(warp, lane, addend[i]) as u32));
            }
            for (i, rhs) in rhs.into_iter().enumerate() {
                let word = self.get(warp, lane, rhs);
                for high in [0, 1] {
                    b[column + 8 * i + high][row] = half(word, high);
                }
            }
        }
        for (row, sums) in a.iter().zip(&mut sums) {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum += row.iter().zip(&b).map(|(x, y)| x * y[column]).sum::<f64>();
            }
        }
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for (i, to) in to.into_iter().enumerate() {
                let sum = sums[row + 8 * (i / 2)][column + i % 2] as f32;
                self.set(warp, lane, to, sum.to_bits().into());
            }
        }
    }
}

/// The reason why a lane cannot go on.
enum LaneProblem {
    Memory(Problem),
    Other(&'static str),
}

impl From<Problem> for LaneProblem {
    fn from(problem: Problem) -> Self {
        Self::Memory(problem)
    }
}

impl From<&'static str> for LaneProblem {
    fn from(problem: &'static str) -> Self {
        Self::Other(problem)
    }
}

impl std::fmt::Display for LaneProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(problem) => problem.fmt(f),
            Self::Other(problem) => f.write_str(problem),
        }
    }
}

/// The register of a number in memory: a signed integer is extended.
fn word_of(ty: Type, bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    if ty.is_integer() { ty.register(ty.integer(word)) } else { word }
}
