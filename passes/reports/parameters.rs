//! The roles of the tensors of a file, for `inspect`, for an export, which writes weights back, and for `verify`.

use ir::{Claim, Type, View};

/// The role of a float tensor of the file, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterReport {
    /// The file's name of it.
    pub data: String,
    /// Its type in the file.
    pub ty: Type,
    /// Other names.
    pub aliases: Vec<String>,
    /// Its role.
    pub role: RowRole,
    /// Whether it is a parameter that the user froze.
    pub frozen: bool,
    /// Why, in words.
    pub reason: String,
    /// The claim about the tensor, apart from its uses.
    pub claim: Option<Claim>,
    /// The states that hold it; written back through their views they make the tensor again, as far as the program
    /// uses it. Empty for a constant.
    pub states: Vec<StateView>,
    /// The tensor it is tied to, if its bytes were found in another: then `states` are that one's.
    pub tied: Option<Tie>,
}

/// The role of a float tensor of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowRole {
    /// Trained, unless frozen.
    Parameter,
    /// Kept by the model without being trained.
    Buffer,
    /// Neither.
    Constant,
}

/// A state as a view of a tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct StateView {
    /// The state's name.
    pub state: String,
    /// From the file's tensor to the state.
    pub view: View,
}

/// A tensor that is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The file's name of the other tensor.
    pub data: String,
    /// Dim `i` of the one is dim `permutation[i]` of the other.
    pub permutation: Vec<u32>,
}
