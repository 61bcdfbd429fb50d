//! The writing of a model to a file: the same graph, names and metadata, with new bytes for some tensors. Invariant: the target is
//! either complete or untouched; files are written beside it and renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use files::Replacement;

use crate::checksum;
use crate::error::Problem;
use crate::model::Model;
use crate::proto::ModelProto;

mod encode;
mod inference;
mod place;
mod scalars;

#[cfg(test)]
mod inference_tests;
#[cfg(test)]
mod tests;

/// The size above which the tensors are written to a separate file: protobuf is limited to 2 GiB.
const EXTERNAL_ABOVE: usize = 1536 << 20;
/// The largest file that a protobuf reader accepts.
const PROTOBUF_LIMIT: usize = i32::MAX as usize;

/// The reason why a model was not written. An existing file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Some tensors cannot be replaced, or their data is missing.
    #[error("cannot write the model{}", .0.iter().map(|problem| format!("\n{problem}")).collect::<String>())]
    Tensors(Vec<Problem>),
    /// The model must name its data file, and the name of the file is not valid text.
    #[error("cannot write {}: its name is not UTF-8", .0.display())]
    Name(PathBuf),
    /// The file would exceed protobuf's limit even without the large tensors.
    #[error("cannot write {}: it would have {bytes} bytes without its tensors, and the limit of protobuf is \
         {PROTOBUF_LIMIT} bytes", path.display())]
    TooLarge {
        /// The target.
        path: PathBuf,
        /// The size of the file without the large tensors.
        bytes: usize,
    },
    /// The file system failed.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The form in which batch norms and dropouts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form<'a> {
    /// The form of the file, which may be the training form.
    OfFile,
    /// The inference form: nothing depends on the batch, nothing is random, and nothing needs labels.
    Inference {
        /// The scalar outputs, which may need labels.
        scalars: &'a BTreeSet<String>,
    },
}

/// The difference between a file and its inference form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InferenceForm {
    /// The number of nodes of the file in training form, such as batch norms and dropouts, and of outputs that need labels.
    pub changes: usize,
    /// The number of nodes that draw random numbers even in the inference form: noise that is not a mask of a known form.
    pub draws: usize,
}

impl Model {
    /// Writes the model to `path`, with the bytes in `replaced` (by the tensor's name) for some initializers and
    /// `Constant` nodes of the main graph: little-endian and row-major, of the tensor's own type and dims.
    ///
    /// A model above 1.5 GiB stores its tensors in `NAME.data` beside it. External data of the original is copied. The file is
    /// written under a temporary name and renamed, so that a failure leaves an existing file unchanged.
    pub fn write(&self, path: &Path, replaced: &BTreeMap<String, Bytes>) -> Result<(), WriteError> {
        self.write_with(path, replaced, Form::OfFile, EXTERNAL_ABOVE)
    }

    /// Returns the problems that would prevent [`Model::write`] from writing new bytes for some tensors, whatever the bytes:
    /// tensors that cannot be replaced, and missing data of other tensors.
    pub fn check_write(&self, replaced: &BTreeSet<String>) -> Result<(), WriteError> {
        let problems = place::problems(self, replaced);
        if problems.is_empty() { Ok(()) } else { Err(WriteError::Tensors(problems)) }
    }

    /// Writes the model in inference form, otherwise as [`Model::write`] does: batch norms normalise by their running statistics,
    /// dropouts drop nothing, and outputs in `scalars` that need inputs of their own are removed, such as a loss that needs
    /// labels. A model that has none of these is written unchanged.
    pub fn write_for_inference(
        &self,
        path: &Path,
        replaced: &BTreeMap<String, Bytes>,
        scalars: &BTreeSet<String>,
    ) -> Result<(), WriteError> {
        self.write_with(path, replaced, Form::Inference { scalars }, EXTERNAL_ABOVE)
    }

    /// Compares the file with its inference form.
    pub fn inference_form(&self, scalars: &BTreeSet<String>) -> InferenceForm {
        let mut proto = self.proto.clone();
        let changes = inference::to_inference_form(&mut proto) + scalars::cut(&mut proto, scalars);
        InferenceForm { changes, draws: inference::drawing_nodes(&proto) }
    }

    fn write_with(
        &self,
        path: &Path,
        replaced: &BTreeMap<String, Bytes>,
        form: Form<'_>,
        external_above: usize,
    ) -> Result<(), WriteError> {
        let mut proto = place::replaced(self, replaced).map_err(WriteError::Tensors)?;
        if let Form::Inference { scalars } = form {
            inference::to_inference_form(&mut proto);
            scalars::cut(&mut proto, scalars);
        }
        save_with(proto, path, external_above)
    }
}

/// Writes a model whose tensors are all in its messages, as [`Model::write`] does, with checksums.
pub(crate) fn save(proto: ModelProto, path: &Path) -> Result<(), WriteError> {
    save_with(proto, path, EXTERNAL_ABOVE)
}

fn save_with(mut proto: ModelProto, path: &Path, external_above: usize) -> Result<(), WriteError> {
    checksum::seal(&mut proto);
    let mut data = place::DataFile::default();
    if encode::encoded_len(&proto) > external_above {
        data = place::move_out(&mut proto, &data_name(path)?);
    }
    let bytes = encode::encoded_len(&proto);
    if bytes > PROTOBUF_LIMIT {
        return Err(WriteError::TooLarge { path: path.to_owned(), bytes });
    }
    if data.tensors.is_empty() {
        return replace_file(path, |out| encode::model(proto, out)).and_then(publish);
    }
    // Both files are complete before either is renamed.
    let data = replace_file(&path.with_file_name(data_name(path)?), |out| data.write(out))?;
    let model = replace_file(path, |out| encode::model(proto, out))?;
    publish(data)?;
    publish(model)
}

/// Returns the name of the data file beside `path`.
fn data_name(path: &Path) -> Result<String, WriteError> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(|name| format!("{name}.data")).ok_or_else(|| WriteError::Name(path.to_owned()))
}

/// Writes a complete file under a temporary name beside `target`. It is renamed when it is published.
fn replace_file(
    target: &Path,
    write: impl FnOnce(&mut Replacement) -> io::Result<()>,
) -> Result<Replacement, WriteError> {
    let complete = || {
        let mut file = Replacement::begin(target)?;
        write(&mut file)?;
        file.complete()?;
        Ok(file)
    };
    complete().map_err(|source| WriteError::Io { path: target.to_owned(), source })
}

fn publish(file: Replacement) -> Result<(), WriteError> {
    let path = file.target().to_owned();
    file.publish().map_err(|source| WriteError::Io { path, source })
}
