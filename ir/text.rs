//! The text form of a program: printer and parser, exact inverses of each other.
//!
//! ```text
//! trainyard-ir 1
//! module @gpt2 training mesh [dp=2, tp=2] {
//!   data @0 "val_3" : i64[2] = [-1, 32]
//!   data @1 "h.0.c_fc" : f32[256, 1024]
//!   state @h.0.c_fc.weight : f32[256, 1024] {-, tp} parameter = data @1
//!   func @train(
//!     %0 "x" batched : f32[8, 128, 256] {dp, -, -},
//!     %1 = @h.0.c_fc.weight,
//!   ) {
//!     %2 = contract %0, %1 {lhs = abk, rhs = kc, out = abc} : f32[8, 128, 1024] {dp, -, tp} !{fwd, origin "/h.0/mlp/c_fc", by import}
//!   }
//!   output "y" = %2
//! }
//! ```
//!
//! - Line breaks and comments (`// …`) have no meaning. A name that is a word (letters, digits, `_`, `.`; no digit first) is
//!   written bare, any other name as a string with the escapes `\"`, `\\`, `\n`, `\r`, `\t` and `\u{…}`.
//! - `data`: elements in brackets, or more than 64 of them as `hex "…"` (little-endian bytes). If neither is given, the bytes are
//!   in the model's file. A NaN other than the usual one is written by its bits, such as `0x7fc00001`.
//! - `state`: type, role, `host` or `disk` if it rests there, initializer (`data @N`, `zeros`, `splat X`, `copy @STATE`,
//!   `normal STD [data @N]`, `fill X data @N`), and `view [reshape [..], transpose [..], slice DIM START LENGTH,
//!   pad DIM AFTER, cast TYPE]`.
//! - A type is `f32[8, 4*batch] {dp, -, tp*ep} partial(sum cp)`: in braces one word for each dim; no braces if no dim is split.
//! - A pipeline is the first item of the body: `pipeline 1f1b microbatches 4 stages [0, 1] { rank F0.0 … rank F1.0 … }` has the
//!   pipeline rank of each stage, and for each rank its tasks in order, each with its phase, stage and microbatch.
//! - A state and a node name their stage, `stage 1` or `every stage`; stage 0 is left out.
//! - A node ends with `!{phase, stage N, copy N, on host, origin "…", by PASS}`. Zeros, empty texts and the device as the place
//!   are left out.
//! - `update @STATE = %V` is the state's value when the step ends.
//!
//! The printer numbers values densely (inputs, states, results in program order) and leaves out dead nodes and unused rows of the
//! data table. So two modules are structurally equal if their texts are equal.

mod function;
mod lexer;
mod literal;
mod numbering;
mod parser;
mod printer;
mod types;

pub use numbering::Numbering;
pub(crate) use numbering::data_of;
pub use printer::{print, type_text, view_text};

use crate::{AxisRole, Diagnostic, Level, Module, PartialKind};

/// The version of the format, which is in the first line of every text.
pub const VERSION: u32 = 1;

/// The most elements of inline data that are written as numbers. More are written in hexadecimal.
const TYPED_ELEMENTS: u64 = 64;

/// Parses a program. Every node's declared types are checked against its operator, so that the module is well-formed. The other
/// invariants of its level are checked by [`crate::verify`].
///
/// Errors have the line and column, the text found there and the expected text.
pub fn parse(text: &str) -> Result<Module, Diagnostic> {
    parser::parse(text, true)
}

/// Parses a program without checking the declared types. Used for the reproducer of a pass that broke a module, and to plant
/// faults that the verifier must find.
pub fn parse_unchecked(text: &str) -> Result<Module, Diagnostic> {
    parser::parse(text, false)
}

/// Returns the name of the function in a module of that level.
fn function_name(level: Level) -> &'static str {
    if level == Level::Imported { "forward" } else { "train" }
}

const PARTIAL_KINDS: [(PartialKind, &str); 3] =
    [(PartialKind::Sum, "sum"), (PartialKind::Max, "max"), (PartialKind::Min, "min")];

/// The words written after an axis whose name does not imply its role.
const AXIS_ROLES: [(AxisRole, &str); 5] = [
    (AxisRole::Data, "data"),
    (AxisRole::Tensor, "tensor"),
    (AxisRole::Pipeline, "pipeline"),
    (AxisRole::Expert, "expert"),
    (AxisRole::Context, "context"),
];

/// Returns the name of an item in a table of names.
fn name_of<T: PartialEq>(table: &[(T, &'static str)], item: &T) -> &'static str {
    table.iter().find(|(t, _)| t == item).expect("the table is complete").1
}
