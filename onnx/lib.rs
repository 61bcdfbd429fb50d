//! The ONNX format: reading a model file, and writing it back with new weights. Nothing else knows ONNX.
//!
//! - [`proto`]: the messages, as they are on the wire.
//! - [`model`]: a checked model: functions inlined, constants gathered, nodes sorted, types decoded.
//! - [`record`]: what PyTorch's exporters say of the module that the file was made from.
//! - [`mod@import`]: a checked model as a program.
//! - [`state_dict`]: the names and layouts that the author's module has for the file's tensors.
//! - [`tensor`]: tensors with their bytes, mapped and not copied.
//! - [`program`]: a program as a model, after passes have changed it.
//! - [`mod@write`]: a model back into a file, with new bytes for some tensors.
//!
//! A file is untrusted: loading never panics, external data stays in the model's folder, and sizes are checked
//! before anything is allocated. [`LoadError`] lists every problem of a file.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod checksum;
pub mod error;
pub mod import;
pub mod model;
pub mod program;
pub mod proto;
pub mod record;
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
