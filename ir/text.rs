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
//! - Line breaks and comments (`// …`) mean nothing. A name is bare when it is a word (letters, digits, `_`, `.`; no
//!   digit first), else a string with the escapes `\"`, `\\`, `\n`, `\r`, `\t` and `\u{…}`.
//! - `data`: elements in brackets, or more than 64 of them as `hex "…"` (little-endian bytes); without either the
//!   bytes are the file's. A float that is a NaN other than the usual one is written by its bits, `0x7fc00001`.
//! - `state`: type, role, `host` or `disk` if it rests there, initializer (`data @N`, `zeros`, `splat X`, `copy @STATE`,
//!   `normal STD [data @N]`, `fill X data @N`), and `view [reshape [..], transpose [..], slice DIM START LENGTH,
//!   pad DIM AFTER, cast TYPE]`.
//! - A type is `f32[8, 4*batch] {dp, -, tp*ep} partial(sum cp)`: a braced word a dim, left out when no dim is split.
//! - A pipeline opens the body: `pipeline 1f1b microbatches 4 stages [0, 1] { rank F0.0 … rank F1.0 … }` gives the pipeline rank
//!   of each stage, and for each rank its tasks in order: the phase, the stage, and the microbatch.
//! - A state and a node name their stage, `stage 1` or `every stage`; stage 0 is left out.
//! - A node ends with `!{phase, stage N, copy N, on host, origin "…", by PASS}`; numbers of 0 and empty texts are left out, and so is the device
//!   as the place where it computes.
//! - `update @STATE = %V` is the state's value when the step ends.
//!
//! Printing numbers values densely (inputs, states, results in program order) and leaves out dead nodes and rows of
//! the data table that nothing refers to, so equality of texts is structural equality of modules.

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

/// The version of the format, in the first line of every text.
pub const VERSION: u32 = 1;

/// Inline data of more elements is written in hexadecimal.
const TYPED_ELEMENTS: u64 = 64;

/// The program of a text. Every node's declared types are checked against its operator, so that the module is
/// well-formed; what a level demands beyond that is [`crate::verify`]'s.
///
/// Errors say the line and column, what stands there and what was expected.
pub fn parse(text: &str) -> Result<Module, Diagnostic> {
    parser::parse(text, true)
}

/// As [`parse`], but types are taken as they are declared: for the reproducer of a pass that broke a module, and for
/// planting faults that the verifier must find.
pub fn parse_unchecked(text: &str) -> Result<Module, Diagnostic> {
    parser::parse(text, false)
}

/// The name of the function of a module of that level.
fn function_name(level: Level) -> &'static str {
    if level == Level::Imported { "forward" } else { "train" }
}

const PARTIAL_KINDS: [(PartialKind, &str); 3] =
    [(PartialKind::Sum, "sum"), (PartialKind::Max, "max"), (PartialKind::Min, "min")];

/// Written after an axis whose name does not say its role.
const AXIS_ROLES: [(AxisRole, &str); 5] = [
    (AxisRole::Data, "data"),
    (AxisRole::Tensor, "tensor"),
    (AxisRole::Pipeline, "pipeline"),
    (AxisRole::Expert, "expert"),
    (AxisRole::Context, "context"),
];

/// The name of an item of such a table.
fn name_of<T: PartialEq>(table: &[(T, &'static str)], item: &T) -> &'static str {
    table.iter().find(|(t, _)| t == item).expect("the table is complete").1
}
