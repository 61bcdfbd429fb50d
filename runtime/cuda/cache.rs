//! Keeps compiled kernels on disk, so that a program starts at once the second time.
//!
//! A file is written under a temporary name, renamed, and checked when it is read. Whatever a file has, and however many
//! processes use the folder at once, the worst result is that a kernel is compiled again.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable with the folder that replaces the user's folder for caches.
pub const FOLDER: &str = "TRAINYARD_CACHE";

/// A folder of compiled kernels.
#[derive(Debug, Default)]
pub struct Cache {
    /// The folder. `None` if nothing is kept.
    folder: Option<PathBuf>,
    trouble: OnceLock<String>,
    /// The first kernel that could not be kept.
    unkept: OnceLock<String>,
}

/// The key of a compiled kernel: a hash of everything that the kernel depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u128);

impl Key {
    /// Returns the key of a kernel that is made from these texts.
    pub fn of(texts: &[&str]) -> Self {
        // FNV-1a, 128 bits; each text's length keeps it apart from the next.
        let bytes =
            texts.iter().flat_map(|text| (text.len() as u64).to_le_bytes().into_iter().chain(text.bytes()));
        let hash =
            |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        Self(bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, hash))
    }
}

/// The first bytes of a file. A changed file format gets another number.
const MAGIC: [u8; 8] = *b"cubin 1\n";

/// The bytes of magic, key, length and checksum.
const HEADER: usize = 8 + 16 + 8 + 8;

impl Cache {
    /// Returns the cache of this process: in [`FOLDER`], else in `trainyard` in the user's folder for caches.
    pub fn of_process() -> Self {
        Self { folder: folder(|name| env::var_os(name)), trouble: OnceLock::new(), unkept: OnceLock::new() }
    }

    /// Returns a cache in a folder, which is created when needed.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), trouble: OnceLock::new(), unkept: OnceLock::new() }
    }

    /// Returns the bytes that are kept for the key. If there are none, makes them, and keeps them if possible.
    ///
    /// # Errors
    /// Only the errors of `make`.
    pub fn get_or<E>(&self, key: Key, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let Some(folder) = &self.folder else {
            self.unkept.get_or_init(|| {
                format!("compiled kernels are not kept: neither {FOLDER} nor HOME names a folder")
            });
            return make();
        };
        let path = folder.join(format!("{:032x}.cubin", key.0));
        match fs::read(&path) {
            Ok(file) => match unpacked(key, &file) {
                Some(bytes) => return Ok(bytes.to_vec()),
                None => self.note(&path, "was damaged and is written again"),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.note(&path, &error.to_string()),
        }
        let bytes = make()?;
        if let Err(error) = write(folder, &path, &packed(key, &bytes)) {
            let problem = format!("compiled kernels are not kept: {error}");
            self.note(folder, &problem);
            self.unkept.get_or_init(|| format!("the kernel cache {}: {problem}", folder.display()));
        }
        Ok(bytes)
    }

    /// Returns the first fault, which deserves a warning and no more.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.get().map(String::as_str)
    }

    /// Returns the first fault that left a kernel unkept, for callers that need all kernels kept.
    pub fn unkept(&self) -> Option<&str> {
        self.unkept.get().map(String::as_str)
    }

    fn note(&self, path: &Path, what: &str) {
        self.trouble.get_or_init(|| format!("the kernel cache {}: {what}", path.display()));
    }
}

fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // By its specification, a relative XDG_CACHE_HOME is ignored.
    let of_user = || set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let own =
        || of_user().or_else(|| Some(set("HOME")?.join(".cache"))).map(|caches| caches.join("trainyard"));
    Some(set(FOLDER).or_else(own)?.join("cubins"))
}

fn packed(key: Key, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    [&MAGIC, &key.0.to_le_bytes()[..], &length, &checksum(bytes).to_le_bytes(), bytes].concat()
}

/// Returns the bytes that were packed under this key, if the file has exactly these.
fn unpacked(key: Key, file: &[u8]) -> Option<&[u8]> {
    let (header, bytes) = file.split_at_checked(HEADER)?;
    (packed(key, bytes)[..HEADER] == *header).then_some(bytes)
}

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    let hash = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash)
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(folder)?;
    let readable = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().prefix(".writing").permissions(readable).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests;
