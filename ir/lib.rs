//! Trainyard's intermediate representation.
//!
//! One IR carries a program from the ONNX import to the last pass; a pass makes it more concrete and never
//! translates it into another representation. The modules, in the order in which a newcomer should read them: [`types`] and
//! [`module`] (the parts of a program), [`ops`] (the operators), [`edit`] (changes of a program), [`verify`] (its invariants),
//! [`text`] (its printed form), [`interp`] (its meaning).

// The printing macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod analysis;
pub mod block;
pub mod data;
pub mod diagnostic;
pub mod dim;
pub mod dtype;
pub mod edit;
pub mod entity;
pub mod factors;
mod graphviz;
pub mod interp;
pub mod kernels;
mod lowered;
pub mod machine;
pub mod mesh;
pub mod module;
pub mod ops;
pub mod phase;
pub mod random;
pub mod relative_error;
pub mod rounding;
#[doc(hidden)]
pub mod samples;
pub mod stage_table;
mod stages;
pub mod state;
pub mod step_output;
mod sugar;
pub mod tensor;
#[doc(hidden)]
pub mod testing;
pub mod text;
pub mod timetable;
pub mod types;
pub mod units;
pub mod verify;
pub mod view;
pub mod visible;

pub use data::{Blob, Claim, Data, is_initial};
pub use diagnostic::Diagnostic;
pub use dim::{Dim, Dims};
pub use dtype::DType;
pub use edit::{At, Builder, Changed, Formula};
pub use entity::{DataId, NodeId, StateId, ValueId};
pub use factors::Factors;
pub use graphviz::graphviz;
pub use kernels::Kernels;
pub use mesh::{Axis, AxisId, AxisRole, Mesh};
pub use module::{Definition, Input, Level, Module, Node, Output, Value};
pub use ops::{
    Cost, GradientError, Gradients, Inference, Movement, NodeRef, Op, OperandRole, Operands, Operator,
};
pub use phase::Phase;
pub use stage_table::{EVERY_STAGE, StageTable};
pub use state::{Initializer, Role, State, Tier, View, ViewStep};
pub use step_output::{Scalar, ScalarPart, StepOutput};
pub use tensor::Tensor;
pub use timetable::{ChunkPhase, Dependency, Task, Timeline, Timetable, TimetableError};
pub use types::{PartialKind, Sharding, Signature, Span, Type, TypeError};
pub use visible::{is_hidden, visible};
