//! Executes instructions, lane by lane. [`super::warp`] has the instructions that the lanes of a warp execute together.

use super::instruction::{Address, Operand, Operation, Register, Space, Special};
use super::machine::{COPIED, Copy, LANES, Machine, Mask, lanes};
use super::memory::{Accessor, Problem};
use super::types::Type;
use std::fmt;

impl Machine<'_> {
    pub(super) fn get(&self, warp: usize, lane: usize, operand: Operand) -> u64 {
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

    pub(super) fn set(&mut self, warp: usize, lane: usize, Register(register): Register, value: u64) {
        self.registers[self.code.registers * warp + register][lane] = value;
    }

    pub(super) fn address(&self, warp: usize, lane: usize, Address { base, distance }: Address) -> u64 {
        self.get(warp, lane, base).wrapping_add_signed(distance)
    }

    pub(super) fn accessor(&self, warp: usize, lane: usize) -> Accessor {
        let thread = (LANES * warp + lane) as u32;
        let (block_epoch, warp_epoch) = (self.block_epoch, self.warp_epochs[warp]);
        Accessor { block: self.block, thread, block_epoch, warp_epoch }
    }

    /// Returns the bytes that a lane accesses.
    pub(super) fn access(
        &mut self,
        warp: usize,
        lane: usize,
        at: (Space, u64, usize),
        writes: bool,
    ) -> Result<&mut [u8], Problem> {
        let by = self.accessor(warp, lane);
        let (space, address, count) = at;
        self.memory.access(space, address, count, writes, by)
    }

    /// Executes an instruction for these lanes. `at_fault` becomes the thread at fault.
    pub(super) fn execute(
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
                let loaded = self.access(warp, lane, (*space, address, bytes * to.len()), false)?;
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
                let target = self.access(warp, lane, (*space, address, bytes * of.len()), true)?;
                for (target, word) in target.chunks_exact_mut(bytes).zip(words) {
                    target.copy_from_slice(&word.to_le_bytes()[..bytes]);
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
                let from = match self.get(warp, lane, *bytes) as usize {
                    0 => None,
                    COPIED => Some(from),
                    _ => return Err("a copy of a part of its 16 bytes is not modelled".into()),
                };
                let bytes = self.source(warp, lane, from)?;
                let by = self.accessor(warp, lane);
                self.memory.begin_copy(to, COPIED, by)?;
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

    /// Returns the bytes at the source of a copy.
    fn source(&mut self, warp: usize, lane: usize, from: Option<u64>) -> Result<[u8; COPIED], Problem> {
        let mut bytes = [0; COPIED];
        if let Some(from) = from {
            bytes.copy_from_slice(self.access(warp, lane, (Space::Global, from, COPIED), false)?);
        }
        Ok(bytes)
    }

    /// Lets a thread's copies arrive, except for those of its last `but` groups.
    fn make_copies(&mut self, warp: usize, lane: usize, but: usize) -> Result<(), LaneProblem> {
        let groups = &mut self.threads[LANES * warp + lane].groups;
        let arrived = groups.len().saturating_sub(but);
        let copies: Vec<Copy> = groups.drain(..arrived).flatten().collect();
        for Copy { to, from, bytes } in copies {
            // A device reads the source at any time until now.
            if self.source(warp, lane, from)? != bytes {
                return Err(Problem::Changed(from.unwrap_or_default()).into());
            }
            let by = self.accessor(warp, lane);
            self.memory.end_copy(to, &bytes, by)?;
        }
        Ok(())
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

impl fmt::Display for LaneProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(problem) => problem.fmt(f),
            Self::Other(problem) => f.write_str(problem),
        }
    }
}

/// Returns the register of a number in memory. A signed integer is extended.
fn word_of(ty: Type, bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    if ty.is_integer() { ty.register(ty.integer(word)) } else { word }
}
