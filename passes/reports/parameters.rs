//! The roles of the tensors of a file. `inspect` prints them, an export writes weights back by them, and `verify` uses them.

use ir::{Claim, Type, View};
use serde::Serialize;

/// The role of a float tensor of the file, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterReport {
    /// The name in the file.
    pub data: String,
    /// The type in the file.
    pub ty: Type,
    /// Other names.
    pub aliases: Vec<String>,
    /// The role.
    pub role: RowRole,
    /// Whether it is a parameter that the user froze.
    pub frozen: bool,
    /// The reason in words.
    pub reason: String,
    /// The claim about the tensor, independent of its uses.
    pub claim: Option<Claim>,
    /// The states that hold the tensor. Written back through their views, they give the tensor again, as far as the program
    /// uses it. Empty for a constant.
    pub states: Vec<StateView>,
    /// The tensor that it is tied to, if another tensor has the same bytes. Then `states` are those of the other tensor.
    pub tied: Option<Tie>,
}

/// The role of a float tensor of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowRole {
    /// Trained, unless frozen.
    Parameter,
    /// Updated by the model itself, without training.
    Buffer,
    /// Neither of the two.
    Constant,
}

impl RowRole {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Buffer => "buffer",
            Self::Constant => "constant",
        }
    }
}

/// A state as a view of a tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct StateView {
    /// The name of the state.
    pub state: String,
    /// The view from the file's tensor to the state.
    pub view: View,
}

/// A tie of two tensors with the same elements, one of which stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tie {
    /// The name of the other tensor in the file.
    #[serde(rename = "to")]
    pub data: String,
    /// Dim `i` of the tied tensor is dim `permutation[i]` of the tensor that stays.
    pub permutation: Vec<u32>,
}
