//! The path from a user's files to the batches of a training step.
//!
//! [`Loader::new`] goes through these steps, one file each: the contents of the data ([`DataSource`]: text, raw tokens, named arrays,
//! columns of numbers, or generated values); the source of each input ([`Decision`], with its reason); the columns with every sample's
//! values; and the order of the samples ([`Permutation`]). All checks of the data happen there, before step 0. After that only one kind of
//! error is possible: an index that the program computes from a batch may be out of range (`indices`).

mod array;
mod bounded;
mod column;
mod columns;
mod convention;
mod csv;
mod dataset;
mod decide;
mod element;
mod error;
mod features;
mod feed;
mod file;
mod indices;
mod json;
mod labels;
mod llmc;
mod loader;
mod npy;
mod npz;
mod order;
mod quiet;
mod records;
mod rows;
pub mod safetensors_types;
mod spec;
mod synthetic;
mod table;
mod table_array;
mod tables;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tokens;
mod unpack;

pub use array::{Array, Batch};
pub use error::{DataError, one_line};
pub use feed::{Decision, Feed};
pub use file::{bytes_of, regular_files};
pub use loader::{DataPosition, EvalBatch, Loader, common_batch};
pub use order::Permutation;
pub use spec::{
    DataSource, InputSpec, LabelSpec, LabelsFrom, LoaderOptions, ModelSpec, Source, Tokenizer, Unfillable,
};
pub use table::Table;
