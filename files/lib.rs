//! Reading and writing of files that others may damage, change or lock, and whose contents must not be lost.
//!
//! - [`map`] maps a file that is read during a whole run. A file that changes under the run is noticed ([`changes`]),
//!   and one that is cut off ends the process with a message that names it.
//! - [`Replacement`] writes a file whole: under a temporary name, synced, renamed, its folder synced.
//! - [`disk`] has the single operations that checkpoints and metrics are made of.
//! - [`FolderLock`] gives a folder to one process.
//! - [`scratch`] has a file for bytes that memory has no room for.
//! - [`Checksum`] is the sum that tells damaged bytes from whole ones.
//! - [`memory`] says how much memory this process can take, by the files of the system.
//! - [`fault`] makes operations of [`disk`] fail in tests.

mod checksum;
pub mod disk;
pub mod fault;
mod lock;
mod mapped;
pub mod memory;
mod regular;
mod replacement;
pub mod scratch;
mod spill;

pub use checksum::Checksum;
pub use lock::{FolderLock, LockError};
pub use mapped::{Change, FileChanged, changes, is_as_mapped, is_in_use, map};
pub use regular::open_regular;
pub use replacement::{Replacement, remove_leftovers, temporary_name};
pub use spill::Spill;
