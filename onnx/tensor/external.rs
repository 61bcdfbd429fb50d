//! The external data files of a model, mapped into memory and never copied. Invariant: a location inside a model cannot name a
//! file outside of the model's folder. The cache of a hub is an exception: its folders `snapshots/REVISION/…` hold links to files
//! in `blobs` beside `snapshots`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;

use super::data::tensor;
use super::{TensorBytes, TensorSource};
use crate::error::{Problem, quoted};
use crate::proto::TensorProto;

/// The external data files of one model, each mapped once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExternalFiles {
    folder: Option<PathBuf>,
    mapped: BTreeMap<String, Result<Option<Bytes>, String>>,
    /// The locations that are links into the cache of a hub, with their targets.
    linked: BTreeMap<String, PathBuf>,
}

impl ExternalFiles {
    /// Starts without mapped files. `folder` is the model's folder; without it every file is absent.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, mapped: BTreeMap::new(), linked: BTreeMap::new() }
    }

    /// Returns the bytes of a tensor, or a problem if its file is missing.
    pub(crate) fn load(&mut self, proto: &TensorProto) -> Result<Bytes, Problem> {
        let name = proto.name.as_deref().unwrap_or_default();
        let tensor = tensor(proto, name, TensorSource::Inner, self)?;
        match &tensor.bytes {
            TensorBytes::Present(bytes) => Ok(bytes.clone()),
            TensorBytes::Strings(_) => {
                Err(Problem::new("strings cannot be external data").at(tensor.label()))
            }
            TensorBytes::Absent { location, .. } => {
                let message = format!("the data file {} does not exist", quoted(location));
                Err(Problem::new(message).at(tensor.label()))
            }
        }
    }

    /// Returns the bytes of the file at `location`; `None` if there is no such file.
    pub(super) fn get(&mut self, location: &str) -> Result<Option<Bytes>, String> {
        if let Some(known) = self.mapped.get(location) {
            return known.clone();
        }
        let found = check(location).and_then(|()| match &self.folder {
            Some(folder) => find_inside(folder, location),
            None => Ok(None),
        });
        let found = found.and_then(|found| {
            let Some(ExternalFile { target, is_in_cache }) = found else { return Ok(None) };
            let bytes = files::map(&target)
                .map_err(|error| format!("cannot read external data {}: {error}", target.display()))?;
            if is_in_cache {
                self.linked.insert(location.to_owned(), target);
            }
            Ok(Some(bytes))
        });
        self.mapped.insert(location.to_owned(), found.clone());
        found
    }

    /// Returns a warning for each location that was read through a link into the cache of a hub.
    pub(crate) fn warnings(&self) -> Vec<Problem> {
        let warning = |(location, target): (&String, &PathBuf)| {
            let (location, target) = (quoted(location), target.display());
            Problem::new(format!(
                "the external data {location} are read from {target}, in the cache that the model is in"
            ))
        };
        self.linked.iter().map(warning).collect()
    }
}

/// Refuses locations that are not plain relative paths.
fn check(location: &str) -> Result<(), String> {
    let shown = quoted(location);
    if location.is_empty() || location.contains('\0') {
        return Err(format!("external data location {shown} is not a path"));
    }
    let path = Path::new(location);
    // Windows paths are refused on every system, so that a model has the same meaning everywhere.
    let windows =
        location.starts_with('\\') || location.get(1..3).is_some_and(|text| text == ":\\" || text == ":/");
    if path.is_absolute() || windows {
        return Err(format!(
            "external data location {shown} is absolute; it must be relative to the model's folder"
        ));
    }
    let up = location.split(['/', '\\']).any(|part| part == "..");
    if up || path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(format!("external data location {shown} leaves the model's folder by `..`"));
    }
    Ok(())
}

/// A file of external data.
struct ExternalFile {
    target: PathBuf,
    /// Whether the file is outside of the model's folder, in the hub's cache to which the folder belongs.
    is_in_cache: bool,
}

/// Returns whether a file lies in the hub's cache to which a folder belongs: `blobs/…` beside `snapshots/REVISION/…`.
fn is_in_cache(folder: &Path, target: &Path) -> bool {
    let is_snapshots = |path: &&Path| path.file_name().is_some_and(|name| name == "snapshots");
    // The folder is within a revision, so `snapshots` is one of its ancestors.
    let snapshots = folder.ancestors().skip(1).find(is_snapshots);
    let blobs = snapshots.and_then(Path::parent).map(|cache| cache.join("blobs"));
    blobs.is_some_and(|blobs| target.parent() == Some(&blobs))
}

/// Finds `folder/location`. A symbolic link must not lead out of the folder, except into the cache of its hub.
fn find_inside(folder: &Path, location: &str) -> Result<Option<ExternalFile>, String> {
    let failed =
        |path: &Path, error: io::Error| format!("cannot read external data {}: {error}", path.display());
    let folder = folder.canonicalize().map_err(|error| failed(folder, error))?;
    let path = folder.join(location);
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&path, error)),
    };
    if target.starts_with(&folder) {
        return Ok(Some(ExternalFile { target, is_in_cache: false }));
    }
    if !is_in_cache(&folder, &target) {
        return Err(format!(
            "external data location {} leads to {}, outside the model's folder; copy the file there",
            quoted(location),
            target.display()
        ));
    }
    Ok(Some(ExternalFile { target, is_in_cache: true }))
}
