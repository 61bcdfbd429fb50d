//! The identity of the values that an instruction reads and writes. Values share places, so a place alone does not tell which value lies
//! there. Running a program does not need these numbers: a replay uses them to check the plan of its memories.

use smallvec::SmallVec;

/// The values of a program, by numbers. Views of a value have its number, and so have the parts of a concatenation that are written in
/// place.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// The values of each instruction, as in [`super::Program::sections`].
    pub sections: [Vec<InstructionValues>; 3],
    /// The value of each state at the start of a step.
    pub states: Vec<u32>,
    /// The value of each input.
    pub inputs: Vec<u32>,
    /// The value of each output.
    pub outputs: Vec<u32>,
    /// The value of each constant.
    pub constants: Vec<u32>,
    /// The new values of states, each with the number of its state.
    pub renewals: Vec<(u32, u32)>,
}

/// The values of an instruction.
#[derive(Clone, Debug, Default)]
pub struct InstructionValues {
    /// The value of each operand.
    pub operands: SmallVec<[u32; 4]>,
    /// The value of each result.
    pub results: SmallVec<[u32; 2]>,
    /// The value of its scratch.
    pub scratch: Option<u32>,
    /// The last instruction of the section that may run while this one still runs: itself, unless it is a collective.
    pub last_beside: usize,
}
