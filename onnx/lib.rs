//! The ONNX format: reads model files, and writes them with new weights. Only this package knows ONNX.
//!
//! - [`proto`]: the messages, as they are encoded.
//! - [`model`]: a checked model: functions inlined, constants gathered, nodes sorted, types decoded.
//! - [`record`]: the exporters' record of the PyTorch module from which the file was made.
//! - [`mod@import`]: the conversion of a checked model to a program.
//! - [`state_dict`]: the names and layouts of the file's tensors in the author's module.
//! - [`tensor`]: tensors with their bytes, mapped and not copied.
//! - [`program`]: the writing of a program as a model, after passes have changed it.
//! - [`mod@write`]: the writing of a model, with new bytes for some tensors.
//!
//! A file is untrusted: loading never panics, external data stays in the model's folder, and sizes are checked
//! before anything is allocated. [`LoadError`] lists every problem of a file.

// The printing macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod checksum;
pub mod error;
pub mod import;
pub mod model;
pub mod program;
pub mod proto;
pub mod record;
mod recorded;
pub mod state_dict;
pub mod tensor;
pub mod write;

pub use error::{LoadError, Problem};
pub use import::{ImportOptions, Imported, cache_hint, import, tensor_names};
pub use model::{Attribute, Dim, Graph, Model, Node, TensorType, Value, ValueType};
pub use record::{Record, RecordedTensor};
pub use state_dict::{StateDict, StateDictEntry, TensorPart};
pub use tensor::{ElementType, Tensor, TensorBytes, TensorSource};
pub use write::{InferenceForm, WriteError};
