//! Reads a checkpoint, and gives its values to a program with the same states.

use super::compare::Differences;
use super::description::{Description, Document, FORMAT, NOT_SUMMED, StateRow, checksum_digits, is_summed};
use super::error::CheckpointError;
use super::fingerprint::{DataFiles, DataFingerprint, HashRule};
use super::folders::{folders, step_of};
use super::pending::PendingFingerprint;
use super::tensor_file::TensorFile;
use super::tensor_writer::Checksums;
use super::{DESCRIPTION, STATES, StateBytes, padding, shards};
use bytes::Bytes;
use ir::{Module, Role, State};
use ranks::Parts;
use serde::Deserialize;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// A checkpoint whose files are whole.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// The description of the checkpoint.
    pub description: Description,
    states: TensorFile,
}

/// Refuses a checkpoint whose step is not the one in the name of its folder: a copy in the place of another checkpoint.
fn check_name(path: &Path, description: &Description) -> Result<(), CheckpointError> {
    let named = path.file_name().and_then(|name| step_of(name.to_str()?));
    match named.filter(|&step| step != description.step()) {
        None => Ok(()),
        Some(_) => Err(CheckpointError::Malformed {
            path: path.to_owned(),
            reason: format!(
                "it holds the checkpoint of step {}, as `{DESCRIPTION}` says",
                description.step()
            ),
        }),
    }
}

/// The largest size of a description in bytes. Honest ones are smaller, since a row of the table takes a few hundred bytes.
const LONGEST_DESCRIPTION: u64 = 256 << 20;

impl Checkpoint {
    /// Opens the checkpoint in a folder `step-N`, and checks that it is whole, as far as possible without reading the values.
    /// [`Self::load`] reads the values and compares them with their checksums.
    ///
    /// # Errors
    /// Files are missing, damaged, or of another version of the format; the checkpoint is of another step than the folder's name says.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (description, checksums) = match read_description(&path.join(DESCRIPTION))? {
            Read::OneFile(description, checksums) => {
                check_name(path, &description)?;
                (*description, checksums)
            }
            Read::Shards(document) => {
                check_name(path, &document.description)?;
                let states = shards::open(path, &document)?;
                return Ok(Self { path: path.to_owned(), description: document.description, states });
            }
        };
        let states = TensorFile::open(&path.join(STATES))?;
        let malformed = |reason| CheckpointError::Malformed { path: path.join(STATES), reason };
        for row in &description.states {
            let ty = states.ty(&row.name).map(|ty| (ty.dtype.to_string(), ty.sizes().unwrap_or_default()));
            if ty.is_none_or(|(dtype, dims)| dtype != row.dtype || dims != row.dims) {
                return Err(malformed(format!("it does not contain the state {row} of `{DESCRIPTION}`")));
            }
        }
        if checksums.is_some() && checksums.as_ref() != states.checksums() {
            return Err(malformed(format!("its checksums differ from the checksums in `{DESCRIPTION}`")));
        }
        Ok(Self { path: path.to_owned(), description, states })
    }

    /// Opens a file of tensors, or the states of the checkpoint in a folder.
    ///
    /// # Errors
    /// Those of [`TensorFile::open`] and of [`Self::open`].
    pub fn tensors(path: &Path) -> Result<TensorFile, CheckpointError> {
        if path.is_dir() {
            Self::open(path).map(|checkpoint| checkpoint.states)
        } else {
            TensorFile::open(path)
        }
    }

    /// Returns an error if a program has another state table. Compression of gradients may begin or end here, so its states may be missing
    /// on either side: losing them costs at most one step of training progress.
    ///
    /// # Errors
    /// The tables differ; the error has the differences.
    pub fn check_table(&self, module: &Module) -> Result<(), CheckpointError> {
        let mut differences = Differences::between(&StateRow::table(module), &self.description.states);
        let is_needed = |row: &StateRow| row.role != Role::Compression.name();
        differences.missing.retain(is_needed);
        differences.unexpected.retain(is_needed);
        if differences.is_empty() {
            return Ok(());
        }
        let (path, module) = (self.path.clone(), self.description.module.clone());
        Err(CheckpointError::OtherModel { path, module, differences })
    }

    /// Returns the values of all states of `module`.
    ///
    /// # Errors
    /// The state table differs (the error has the differences); a file cannot be read; values do not match their checksums (the error names
    /// the newest whole checkpoint in the same folder).
    pub fn load(&self, module: &Module) -> Result<StateBytes, CheckpointError> {
        self.check_table(module)?;
        let mut values = StateBytes::new();
        for state in module.states.values() {
            let value = self.value_of(state)?.or_else(|| begun(state, state.ty.bytes()));
            values.extend(value.map(|value| (state.name.clone(), value)));
        }
        Ok(values)
    }

    /// Returns the value of a state of `module`, whose state table is the checkpoint's; `None` if there is no state of that name.
    ///
    /// # Errors
    /// Those of [`Self::load`], except for the table.
    pub fn value(&self, module: &Module, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        let state = module.states.values().find(|state| state.name == name);
        state.map_or(Ok(None), |state| self.value_of(state))
    }

    fn value_of(&self, state: &State) -> Result<Option<Bytes>, CheckpointError> {
        let Some(bytes) = self.read(&state.name)? else { return Ok(None) };
        Ok(if padding::is_padded(state) { padding::add(state, bytes) } else { Some(bytes) })
    }

    /// Returns a rank's parts of the states of `module`. Only the stored blocks that overlap a part are read.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_part(&self, module: &Module, rank: u64) -> Result<StateBytes, CheckpointError> {
        self.check_table(module)?;
        let mut values = StateBytes::new();
        let place = module.place_in_mesh(rank);
        for (state, row) in module.states.values().zip(StateRow::table(module)) {
            if !module.has_state(rank, state) {
                continue;
            }
            let unsized_state =
                || CheckpointError::State { name: state.name.clone(), found: 0, expected: u64::MAX };
            let parts = Parts::of(&state.name, &state.ty, &module.mesh).map_err(|_| unsized_state())?;
            let (start, sizes) = parts.within_sizes(place, &row.dims);
            let read = self.states.read_block(&state.name, &start, &sizes);
            let value = match read.map_err(|error| self.with_whole(error))? {
                Some(inner) => Some(parts.padded(&inner, &sizes).into()),
                None => begun(state, state.ty.local_bytes(&module.mesh)),
            };
            values.extend(value.map(|value| (state.name.clone(), value)));
        }
        Ok(values)
    }

    fn read(&self, state: &str) -> Result<Option<Bytes>, CheckpointError> {
        self.states.read(state).map_err(|error| self.with_whole(error))
    }

    /// Adds the newest whole checkpoint in the same folder to the error of a damaged value.
    fn with_whole(&self, error: CheckpointError) -> CheckpointError {
        match error {
            CheckpointError::Damaged { path, tensor, .. } => {
                let whole = self.path.parent().and_then(|folder| newest_verified(folder, &self.path));
                CheckpointError::Damaged { path, tensor, whole }
            }
            other => other,
        }
    }

    /// Checks that [`Self::load`] would succeed. Reads the values one after the other, and keeps none.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn verify(&self, module: &Module) -> Result<(), CheckpointError> {
        self.check_table(module)?;
        self.description.states.iter().try_for_each(|row| self.read(&row.name).map(drop))
    }

    /// Returns whether every value matches its checksum.
    fn is_verified(&self) -> bool {
        self.description.states.iter().all(|row| matches!(self.states.read(&row.name), Ok(Some(_))))
    }

    /// Returns an error if the training data has another size. This check is quick.
    ///
    /// # Errors
    /// The data has changed; a file cannot be found.
    pub fn check_data_size(&self, files: &DataFiles) -> Result<(), CheckpointError> {
        let then = &self.description.data;
        let bytes = files.bytes(then.rule)?;
        if bytes == then.bytes {
            return Ok(());
        }
        Err(self.other_data(DataFingerprint { bytes, hash: String::new(), ..DataFingerprint::synthetic() }))
    }

    /// Returns an error if the training data in `files` differs from the checkpoint's data of the same size; otherwise returns its
    /// fingerprint. Unchanged files are not read again. The data is compared by the rule of the checkpoint's fingerprint.
    ///
    /// # Errors
    /// The data has changed; a file cannot be read.
    pub fn check_data(&self, files: &DataFiles) -> Result<PendingFingerprint, CheckpointError> {
        let now = files.fingerprint_like(&self.description.data)?;
        if now.is_of_same_data(&self.description.data) {
            Ok(PendingFingerprint::whole(now, files))
        } else {
            Err(self.other_data(now))
        }
    }

    fn other_data(&self, now: DataFingerprint) -> CheckpointError {
        let (then, now) = (Box::new(self.description.data.clone()), Box::new(now));
        CheckpointError::OtherData { path: self.path.clone(), then, now }
    }
}

/// Returns the newest checkpoint of a folder, except the one at `except`, whose values all match their checksums.
fn newest_verified(folder: &Path, except: &Path) -> Option<PathBuf> {
    let folders = folders(folder).ok()?;
    let mut others = folders.into_iter().rev().map(|(_, path)| path).filter(|path| path != except);
    others.find(|path| Checkpoint::open(path).is_ok_and(|checkpoint| checkpoint.is_verified()))
}

/// Returns zeros for a state of this number of bytes with which compression of gradients begins: there is no error yet, and the first
/// factors need no start.
fn begun(state: &State, bytes: Option<u64>) -> Option<Bytes> {
    let bytes = bytes.filter(|_| state.role == Role::Compression)?;
    Some(vec![0; bytes as usize].into())
}

/// The contents of `checkpoint.json`.
enum Read {
    /// The description, and the checksums of the states. `None` in a file of version 1, which has none.
    OneFile(Box<Description>, Option<Checksums>),
    /// The document of a checkpoint of several ranks.
    Shards(Box<Document>),
}

fn read_description(path: &Path) -> Result<Read, CheckpointError> {
    #[derive(Deserialize)]
    struct Versioned {
        format: u64,
    }
    let read = |source| CheckpointError::Read { path: path.to_owned(), source };
    let malformed = |reason: String| CheckpointError::Malformed { path: path.to_owned(), reason };
    let file = files::open_regular(path).map_err(read)?;
    let mut text = Vec::new();
    file.take(LONGEST_DESCRIPTION).read_to_end(&mut text).map_err(read)?;
    // The version is read first, because other fields differ between versions. A damaged file may have any version.
    let versioned: Versioned = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    match versioned.format {
        // Files of version 1 have no checksum. If there is one, the version is damaged.
        1 if checksum_digits(&text).is_none() => {
            let mut description: Description =
                serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
            description.data.rule = HashRule::SamplesOfFormat1;
            Ok(Read::OneFile(Box::new(description), None))
        }
        1..=FORMAT => {
            let document = Document::of_bytes(&text).map_err(malformed)?;
            check_files(path, &document)?;
            Ok(match versioned.format {
                FORMAT => Read::Shards(Box::new(document)),
                _ => Read::OneFile(Box::new(document.description), Some(document.checksums)),
            })
        }
        // If the checksum does not match, the version is damaged as well.
        _ if checksum_digits(&text).is_some() && !is_summed(&text) => Err(malformed(NOT_SUMMED.to_owned())),
        found => Err(CheckpointError::Version { path: path.to_owned(), found }),
    }
}

/// Compares the files of a checkpoint with its list of them.
fn check_files(description: &Path, document: &Document) -> Result<(), CheckpointError> {
    for (name, &bytes) in &document.files {
        let path = description.with_file_name(name);
        let found = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(source) => return Err(CheckpointError::Read { path, source }),
        };
        if found != bytes {
            let reason = format!(
                "`{name}` in the same folder has {found} bytes and should have {bytes}: was it truncated?"
            );
            return Err(CheckpointError::Malformed { path: description.to_owned(), reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
