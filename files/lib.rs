//! Reading and writing of files that other programs may damage, change or lock, and whose contents must not be lost.
//!
//! - [`map`] maps a file that is read during a whole run. [`changes`] reports a file that changed during the run; a file that was
//!   truncated ends the process with a message that names it.
//! - [`Replacement`] writes a whole file: under a temporary name, synced, renamed, and its folder synced.
//! - [`disk`] has the single operations that checkpoints and metrics are made of.
//! - [`parent`] is the folder that has a file's name.
//! - [`FolderLock`] reserves a folder for one process.
//! - [`scratch`] has a file for bytes that do not fit in memory.
//! - [`Checksum`] detects damaged bytes.
//! - [`memory`] says how much memory this process can take, according to the system's files.
//! - [`fault`] makes operations of [`disk`] fail in tests.

mod checksum;
pub mod disk;
pub mod fault;
mod folder;
mod lock;
mod mapped;
pub mod memory;
mod regular;
mod replacement;
pub mod scratch;
mod spill;

pub use checksum::Checksum;
pub use folder::parent;
pub use lock::{FolderLock, LockError};
pub use mapped::{Change, FileChanged, changes, is_as_mapped, is_in_use, map};
pub use regular::open_regular;
pub use replacement::{Replacement, remove_leftovers, temporary_name};
pub use spill::Spill;
