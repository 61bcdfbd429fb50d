//! The identity of the values that an instruction reads and writes. Values share places, so a place alone does not say which value lies
//! there. Nothing that runs a program needs these numbers: they are for a replay that checks the plan of its memories.

use smallvec::SmallVec;

/// The values of a program, by numbers. Views of a value have its number, and so have the parts of a concatenation that are written
/// where they belong.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// For each instruction, as in [`super::Program::sections`].
    pub sections: [Vec<InstructionValues>; 3],
    /// For each state, the value that a step begins with.
    pub states: Vec<u32>,
    /// For each input.
    pub inputs: Vec<u32>,
    /// For each output.
    pub outputs: Vec<u32>,
    /// For each constant.
    pub constants: Vec<u32>,
    /// The new values of states, each with the number of its state.
    pub renewals: Vec<(u32, u32)>,
}

/// The values of an instruction.
#[derive(Clone, Debug, Default)]
pub struct InstructionValues {
    /// For each operand.
    pub operands: SmallVec<[u32; 4]>,
    /// For each result.
    pub results: SmallVec<[u32; 2]>,
    /// Its scratch.
    pub scratch: Option<u32>,
    /// The last instruction of the section that may run while this one is still carried out: itself, unless it is a collective.
    pub last_beside: usize,
}
