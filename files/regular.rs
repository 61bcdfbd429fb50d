//! Files that are read: regular ones, and nothing that waits or never ends.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

/// Opens a regular file, or a link to one. A pipe would wait for its writer while it is opened, and a device has no end;
/// neither can be read twice.
///
/// # Errors
/// A file that is missing, may not be read, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !metadata.is_file() {
        let found = kind(&metadata);
        let reason =
            format!("it is {found}, and a regular file is needed; write the contents to a regular file");
        return Err(io::Error::other(reason));
    }
    File::open(path)
}

/// A kind of file in words.
fn kind(metadata: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let found = metadata.file_type();
        if found.is_fifo() {
            return "a pipe";
        }
        if found.is_socket() {
            return "a socket";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
    }
    let _ = metadata;
    "not a regular file"
}
