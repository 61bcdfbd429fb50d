//! The log of a process that a launcher started: everything that this process tells, in a file of the run's folder.
//!
//! Rank 0 alone writes to the terminal. The log of another rank has the warnings, the progress and the error that the terminal does
//! not show. Until the folder is there, the text is kept.

use files::disk::OpenFile;
use std::io::{self, Write};
use std::mem;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of the logs.
pub const LOGS: &str = "logs";

static LOG: Mutex<Log> = Mutex::new(Log::Off);

/// The destination of this process's text beside the terminal.
enum Log {
    /// No destination, because the process is alone.
    Off,
    /// Memory, until the file is opened.
    Kept(String),
    File(OpenFile),
}

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps all text of this process from now on.
pub fn keep() {
    *log() = Log::Kept(String::new());
}

/// Opens the log file, and creates its folder. A heading and the kept text are added to the end of the file, and all further text after them.
/// Does nothing for a process that is alone.
///
/// # Errors
/// The file cannot be written.
pub fn open(path: &Path, heading: &str) -> io::Result<()> {
    let mut log = log();
    let Log::Kept(kept) = &mut *log else { return Ok(()) };
    files::disk::create_folders(files::parent(path))?;
    let mut file = files::disk::append(path)?;
    file.write_all(format!("{heading}\n{}", mem::take(kept)).as_bytes())?;
    *log = Log::File(file);
    Ok(())
}

/// Adds text to the log. An error of the log does not end the run.
pub fn write(text: &str) {
    match &mut *log() {
        Log::Off => {}
        Log::Kept(kept) => kept.push_str(text),
        Log::File(file) => drop(file.write_all(text.as_bytes())),
    }
}

/// Adds the last text to the log.
pub fn end(text: &str) {
    write(text);
    *log() = Log::Off;
}

/// A writer of lines that only the log gets. `None` for a process without a log.
pub fn lines() -> Option<Box<dyn Write + Send>> {
    match &*log() {
        Log::Off => None,
        Log::Kept(_) | Log::File(_) => Some(Box::new(Lines)),
    }
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
