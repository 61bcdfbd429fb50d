//! Opening of regular files only: no pipes or devices, which may block or never end.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

/// Opens a regular file, or a link to one. Pipes and devices are refused: opening a pipe waits for its writer, a device has no
/// end, and neither can be read twice.
///
/// # Errors
/// The file is missing, may not be read, or is not a regular file.
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

/// Returns the name of a kind of file.
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
