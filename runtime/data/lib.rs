//! Everything between a user's files and the batches that a training step eats.
//!
//! [`Loader::new`] goes through these steps, one file each: what the data offers ([`DataSource`]: text, raw tokens, named
//! arrays, columns of numbers, or made-up values), what feeds each input ([`Decision`], with its reason), the columns that give every
//! sample's values, and the order of the samples ([`Permutation`]). All checks of the data happen there, before step 0;
//! afterwards a batch can fail by indices alone that the program computes from it (`indices`).

mod array;
mod bounded;
mod column;
mod columns;
mod csv;
mod dataset;
mod decide;
mod element;
mod error;
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
mod tables;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tokens;
mod unpack;

pub use array::{Array, Batch};
pub use decide::{Decision, Feed};
pub use error::{DataError, one_line};
pub use file::{bytes_of, regular_files};
pub use loader::{DataPosition, EvalBatch, Loader, common_batch};
pub use order::Permutation;
pub use spec::{
    DataSource, InputSpec, LabelSpec, LabelsFrom, LoaderOptions, ModelSpec, SUFFIXES, Source, Tokenization,
    Unfillable,
};
pub use table::Table;
