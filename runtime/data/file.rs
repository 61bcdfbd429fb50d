//! Files and folders: the format that a name stands for, and the mapping of files into memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::DataError;

/// The contents of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Text, each byte of which is a token.
    Text,
    /// Raw tokens.
    Tokens,
    /// Named arrays, as NumPy writes them.
    Npz,
    /// Named arrays.
    Safetensors,
    /// Columns of numbers.
    Csv,
    /// Records with fields.
    Json,
}

/// Extensions of files that are neither text nor supported. If they were taken for text, a model would train on garbage.
const UNREADABLE: [&str; 25] = [
    "arrow", "bz2", "feather", "gz", "h5", "hdf5", "idx", "jpeg", "jpg", "json", "npy", "onnx", "parquet",
    "pb", "pdf", "pickle", "pkl", "png", "pt", "pth", "tar", "tfrecord", "xz", "zip", "zst",
];

impl Format {
    /// Returns the format of `path`. Unknown extensions are text.
    ///
    /// # Errors
    /// The extension of another well-known format.
    pub(super) fn of(path: &Path) -> Result<Self, DataError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if [".csv", ".csv.gz", ".tsv", ".tsv.gz"].iter().any(|suffix| name.ends_with(suffix)) {
            return Ok(Self::Csv);
        }
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("bin") => Ok(Self::Tokens),
            Some("npz") => Ok(Self::Npz),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("jsonl" | "ndjson") => Ok(Self::Json),
            Some(other) if UNREADABLE.contains(&other) => {
                Err(DataError::UnknownFormat { path: path.to_owned(), extension: other.to_owned() })
            }
            _ => Ok(Self::Text),
        }
    }
}

pub(super) fn read_error(path: &Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    |source| DataError::Read { path: path.to_owned(), source }
}

/// Returns the contents of `path`, mapped and not copied. [`files::changes`] detects a file that changes during the run.
pub(super) fn map(path: &Path) -> Result<Bytes, DataError> {
    files::map(path).map_err(read_error(path))
}

/// Returns the files of a path and their format: the file itself, or the files of a folder sorted by name, without hidden files and
/// subfolders.
///
/// # Errors
/// A folder without files, or with files of several kinds.
pub(super) fn files(path: &Path) -> Result<(Vec<PathBuf>, Format), DataError> {
    // This comes before the check of the name, because the name of a pipe tells nothing.
    let files = regular_files(path)?;
    if fs::metadata(path).map_err(read_error(path))?.is_dir() {
        of_one_format(path, files)
    } else {
        Ok((files, Format::of(path)?))
    }
}

/// Returns the file itself, or the files of a folder sorted by name, without hidden files and subfolders.
///
/// # Errors
/// A file that cannot be read, or is no regular file. Without it, training would use other data.
pub fn regular_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !fs::metadata(path).map_err(read_error(path))?.is_dir() {
        files::open_regular(path).map_err(read_error(path))?;
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(read_error(path))? {
        let entry = entry.map_err(read_error(path))?;
        let (hidden, file) = (entry.file_name().to_string_lossy().starts_with('.'), entry.path());
        if hidden || fs::metadata(&file).map_err(read_error(&file))?.is_dir() {
            continue;
        }
        files::open_regular(&file).map_err(read_error(&file))?;
        files.push(file);
    }
    files.sort();
    Ok(files)
}

/// Returns the bytes of a file, or of all files of a folder, or 0 if they cannot be read. Opening them reports why.
pub fn bytes_of(path: &Path) -> u64 {
    let files = regular_files(path).unwrap_or_default();
    files.iter().filter_map(|file| fs::metadata(file).ok()).map(|metadata| metadata.len()).sum()
}

fn of_one_format(path: &Path, files: Vec<PathBuf>) -> Result<(Vec<PathBuf>, Format), DataError> {
    let refuse = |reason: String| Err(DataError::Folder { path: path.to_owned(), reason });
    let Some(first) = files.first() else { return refuse("has no files in it".to_owned()) };
    let format = Format::of(first)?;
    for file in &files {
        let other = Format::of(file)?;
        if other != format {
            return refuse(format!("has both `{}` and `{}` in it", first.display(), file.display()));
        }
    }
    Ok((files, format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let error = map(Path::new("/nowhere/corpus.txt")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read `/nowhere/corpus.txt`"), "{error}");
    }

    #[test]
    fn a_folder_of_several_kinds_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = super::files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("has no files in it"), "{error}");
        fs::write(folder.path().join(".hidden.npz"), "").unwrap();
        fs::write(folder.path().join("a.bin"), "four").unwrap();
        assert_eq!([folder.path(), &folder.path().join("a.bin")].map(bytes_of), [4, 4]);
        assert_eq!(super::files(folder.path()).unwrap().0.len(), 1);
        fs::write(folder.path().join("b.txt"), "").unwrap();
        let error = super::files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("a.bin` and `") && error.contains("b.txt"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_and_not_waited_for() {
        use std::os::unix::net::UnixListener;

        let folder = tempfile::tempdir().unwrap();
        let [pipe, socket, link] =
            ["pipe.txt", "socket.txt", "link.txt"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, kind) in
            [(pipe.as_path(), "a pipe"), (&socket, "a socket"), (Path::new("/dev/zero"), "a device")]
        {
            let expected =
                format!("cannot read `{}`: it is {kind}, and a regular file is needed", path.display());
            let error = map(path).unwrap_err().to_string();
            assert!(error.starts_with(&expected), "{error}");
            let error = super::files(path).unwrap_err().to_string();
            assert!(error.starts_with(&expected), "{error}");
        }
        // If a file of a folder were skipped, its data would be lost silently.
        assert!(super::files(folder.path()).unwrap_err().to_string().contains("a regular file is needed"));
        fs::remove_file(&pipe).unwrap();
        fs::remove_file(&socket).unwrap();
        std::os::unix::fs::symlink(folder.path().join("gone.txt"), &link).unwrap();
        let error = super::files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("link.txt`: No such file"), "{error}");
    }

    #[test]
    fn other_formats_are_not_read_as_text() {
        assert!(
            Format::of(Path::new("x.parquet"))
                .unwrap_err()
                .to_string()
                .contains(".parquet files cannot be read")
        );
        assert_eq!(Format::of(Path::new("README")).unwrap(), Format::Text);
        assert_eq!(Format::of(Path::new("a.BIN")).unwrap(), Format::Tokens);
        assert_eq!(Format::of(Path::new("digits.csv.gz")).unwrap(), Format::Csv);
        assert_eq!(Format::of(Path::new("records.JSONL")).unwrap(), Format::Json);
        assert!(Format::of(Path::new("corpus.txt.gz")).is_err());
        assert!(Format::of(Path::new("records.json")).is_err());
    }
}
