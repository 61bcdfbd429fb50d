//! A kernel as a list of instructions whose operands are resolved: registers and labels are numbers, variables are addresses.

use super::arithmetic::Evaluate;
use super::types::Type;

/// A kernel, with the functions that it calls.
pub(super) struct Code {
    /// The instructions of all functions, one function after the other.
    pub(super) instructions: Vec<Instruction>,
    /// The index of the kernel's first instruction.
    pub(super) start: usize,
    /// The number of registers of a thread.
    pub(super) registers: usize,
    /// The number of parameters of all functions, the kernel's first; each takes 8 bytes.
    pub(super) slots: usize,
    /// The number of the kernel's parameters.
    pub(super) parameters: usize,
    /// Bytes of a block's shared memory.
    pub(super) shared: usize,
    /// Bytes of a thread's variables.
    pub(super) local: usize,
    /// Variables of the module: their addresses and their first bytes.
    pub(super) variables: Vec<(u64, Vec<u8>)>,
}

impl Code {
    /// Returns the indices of the waits: for the block, for the warp, and for copies.
    pub(super) fn waits(&self) -> Vec<usize> {
        let is_wait = |instruction: &Instruction| {
            use Operation::{Barrier, WaitForAllCopies, WaitForCopies, WarpBarrier};
            matches!(
                instruction.operation,
                Barrier | WarpBarrier { .. } | WaitForCopies { .. } | WaitForAllCopies
            )
        };
        let all = self.instructions.iter().enumerate();
        all.filter(|(_, instruction)| is_wait(instruction)).map(|(place, _)| place).collect()
    }
}

/// An instruction, and the condition under which a thread executes it.
pub(super) struct Instruction {
    pub(super) operation: Operation,
    pub(super) guard: Option<Guard>,
    /// Its line in the text.
    pub(super) line: usize,
    pub(super) text: String,
}

/// A predicate that has to be true, or false if it is negated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) predicate: Register,
    pub(super) is_negated: bool,
}

/// The number of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) usize);

/// A number that an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Register(Register),
    Number(u64),
    Special(Special),
}

/// A register that the processor sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Thread,
    Block(usize),
    /// Threads of a block.
    Threads,
    /// Blocks of the grid.
    Blocks(usize),
    Lane,
    Warp,
}

/// An address: a register or a number, and a distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) base: Operand,
    pub(super) distance: i64,
}

/// The memory that an instruction addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// The memory follows from the address.
    Generic,
    Global,
    Shared,
    Local,
}

/// The source of a shuffled value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Butterfly,
    Index,
}

/// The effect of an instruction.
pub(super) enum Operation {
    /// Computes a number from up to three numbers.
    Compute {
        to: Register,
        of: [Operand; 3],
        evaluate: Evaluate,
    },
    /// Joins numbers of `bits` bits, the lowest first.
    Join {
        to: Register,
        parts: Vec<Operand>,
        bits: u32,
    },
    /// Splits a number into numbers of `bits` bits, the lowest first.
    Split {
        to: Vec<Option<Register>>,
        of: Operand,
        bits: u32,
    },
    Load {
        space: Space,
        ty: Type,
        to: Vec<Option<Register>>,
        from: Address,
    },
    Store {
        space: Space,
        ty: Type,
        to: Address,
        of: Vec<Operand>,
    },
    /// Reads a parameter of a function, from a byte on.
    LoadParameter {
        ty: Type,
        to: Register,
        slot: usize,
        byte: usize,
    },
    StoreParameter {
        slot: usize,
        of: Operand,
    },
    Branch(usize),
    /// Calls the function that begins at a place. Parameters are copied from the caller's slots to the function's.
    Call {
        start: usize,
        copied: Vec<[usize; 2]>,
        returned: Vec<[usize; 2]>,
    },
    /// Ends a function; in the kernel, ends the thread.
    Return,
    Trap,
    /// Waits for the block.
    Barrier,
    /// Waits for lanes of the warp.
    WarpBarrier {
        mask: Operand,
    },
    Shuffle {
        kind: Shuffle,
        to: Register,
        is_within: Option<Register>,
        of: Operand,
        by: Operand,
        clamp: Operand,
        mask: Operand,
    },
    /// Loads four matrices of 8 x 8 numbers of 16 bits, one row for each lane.
    LoadMatrices {
        to: [Register; 4],
        from: Address,
        is_transposed: bool,
    },
    /// Multiplies matrices of 16 x 16 and 16 x 8 numbers of a type, and adds a matrix of f32.
    MultiplyMatrices {
        ty: Type,
        to: [Register; 4],
        lhs: [Operand; 4],
        rhs: [Operand; 2],
        addend: [Operand; 4],
    },
    /// Begins a copy of 16 bytes to shared memory: `bytes` of them come from memory, and the others are zeros.
    CopyLater {
        to: Address,
        from: Address,
        bytes: Operand,
    },
    /// Closes a group of copies.
    CloseCopies,
    /// Waits for all groups of copies except the last `but`.
    WaitForCopies {
        but: usize,
    },
    /// Waits for all copies.
    WaitForAllCopies,
}

impl Operation {
    /// Whether lanes of a warp execute the instruction together.
    pub(super) fn is_together(&self) -> bool {
        matches!(
            self,
            Self::WarpBarrier { .. }
                | Self::Shuffle { .. }
                | Self::LoadMatrices { .. }
                | Self::MultiplyMatrices { .. }
        )
    }
}
