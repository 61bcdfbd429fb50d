//! Writing a model back into a file: the same graph, names and metadata, with new bytes for some tensors.
//! Invariant: the target is either complete or untouched; files are written beside it and renamed.

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

/// Files above this size keep their tensors in a file beside them: protobuf ends at 2 GiB.
const EXTERNAL_ABOVE: usize = 1536 << 20;
/// No protobuf reader takes more.
const PROTOBUF_LIMIT: usize = i32::MAX as usize;

/// Why a model was not written. The file that stood there before still does.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Tensors that cannot be replaced, or whose data is not there.
    #[error("cannot write the model{}", .0.iter().map(|problem| format!("\n{problem}")).collect::<String>())]
    Tensors(Vec<Problem>),
    /// The name of the file cannot be written into the model, which must name its data file.
    #[error("cannot write {}: its name is not UTF-8", .0.display())]
    Name(PathBuf),
    /// More than protobuf holds, even without the large tensors.
    #[error("cannot write {}: it would have {bytes} bytes without its tensors, and the limit of protobuf is \
         {PROTOBUF_LIMIT} bytes", path.display())]
    TooLarge {
        /// The target.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
    /// The file system.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The form in which batch norms and dropouts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form<'a> {
    /// That of the file, which may be the training form.
    OfFile,
    /// Nothing depends on the batch, nothing is random, and nothing needs labels.
    Inference {
        /// The scalar outputs, which may need labels.
        scalars: &'a BTreeSet<String>,
    },
}

/// The difference between a file and its inference form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InferenceForm {
    /// The nodes of the file that are in training form, such as batch norms and dropouts, and the outputs that need labels.
    pub changes: usize,
    /// The nodes that draw random numbers in the inference form too: noise that is no mask of a known form.
    pub draws: usize,
}

impl Model {
    /// Writes the model to `path`, with the bytes in `replaced` (by the tensor's name) for some initializers and
    /// `Constant` nodes of the main graph: little-endian and row-major, of the tensor's own type and dims.
    ///
    /// A model above 1.5 GiB gets its tensors in `NAME.data` beside it. External data of the original is copied.
    /// The file is written under another name and renamed, so that a failure leaves what was there before.
    pub fn write(&self, path: &Path, replaced: &BTreeMap<String, Bytes>) -> Result<(), WriteError> {
        self.write_with(path, replaced, Form::OfFile, EXTERNAL_ABOVE)
    }

    /// Says what would keep [`Model::write`] from writing new bytes for some tensors, whatever those bytes are: tensors that
    /// cannot be replaced, and data of others that are not there.
    pub fn check_write(&self, replaced: &BTreeSet<String>) -> Result<(), WriteError> {
        let problems = place::problems(self, replaced);
        if problems.is_empty() { Ok(()) } else { Err(WriteError::Tensors(problems)) }
    }

    /// Writes the model in inference form, otherwise as [`Model::write`] does: batch norms normalise by their running
    /// statistics, dropouts drop nothing, and those of the outputs `scalars` are gone that need inputs of their own, such as a
    /// loss that needs labels. A model without any of that is written as it is.
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

/// Writes a model whose tensors are all in its messages: as [`Model::write`] does, with checksums.
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
    // Both files are complete before either takes its name.
    let data = replace_file(&path.with_file_name(data_name(path)?), |out| data.write(out))?;
    let model = replace_file(path, |out| encode::model(proto, out))?;
    publish(data)?;
    publish(model)
}

/// The name of the data file beside `path`.
fn data_name(path: &Path) -> Result<String, WriteError> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(|name| format!("{name}.data")).ok_or_else(|| WriteError::Name(path.to_owned()))
}

/// Writes a file under a temporary name beside `target`. It is complete, and takes its name when it is published.
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
