//! NCCL's functions, as its header declares them. cudarc has bindings, but looks for the library under a name that its file does not
//! have.

use crate::driver::DriverError;
use crate::libraries::{self, Folders, Library};
use crate::symbols::functions;
use cudarc::driver::sys::CUstream;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

/// A status of NCCL; 0 is success.
pub(super) type Status = c_int;
/// The status of a call in progress.
pub(super) const IN_PROGRESS: Status = 7;

/// A communicator: a rank's place in a group.
pub(super) type Communicator = *mut c_void;

/// The id by which the ranks of a group find each other.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId([c_char; 128]);

impl UniqueId {
    /// Returns the id as bytes, which are sent to other processes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|byte| *byte as u8).collect()
    }

    /// Returns the id that another process sent. `None` if there are not as many bytes as an id has.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 128] = bytes.try_into().ok()?;
        Some(Self(bytes.map(|byte| byte as c_char)))
    }
}

/// The configuration of a communicator, as in NCCL 2.17. Later versions accept it, and choose the options that they have in addition.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cluster_size: c_int,
    fewest_blocks: c_int,
    most_blocks: c_int,
    network: *const c_char,
    shares: c_int,
}

/// The version of `Config`.
const CONFIG_VERSION: c_uint = 21_700;
/// The number that marks a configuration, and the value of an option that is left to NCCL.
const MAGIC: c_uint = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;

/// The oldest NCCL that is accepted, in NCCL's form of versions.
const OLDEST: c_int = 21_800;

impl Config {
    /// Returns the configuration of a communicator whose calls return before they are done, so that another rank's failure can end
    /// them.
    pub(super) fn of_calls_that_return() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cluster_size: UNDEFINED,
            fewest_blocks: UNDEFINED,
            most_blocks: UNDEFINED,
            network: ptr::null(),
            shares: UNDEFINED,
        }
    }
}

functions! {
    /// The function that is asked before the others: an older NCCL may lack some of them.
    struct Version {
        version: "ncclGetVersion" fn(*mut c_int) -> Status,
    }
}

functions! {
    /// NCCL's functions that are used here.
    pub(super) struct Functions {
        pub(super) unique_id: "ncclGetUniqueId" fn(*mut UniqueId) -> Status,
        pub(super) join: "ncclCommInitRankConfig"
            fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> Status,
        pub(super) split: "ncclCommSplit"
            fn(Communicator, c_int, c_int, *mut Communicator, *mut Config) -> Status,
        pub(super) abort: "ncclCommAbort" fn(Communicator) -> Status,
        pub(super) state: "ncclCommGetAsyncError" fn(Communicator, *mut Status) -> Status,
        pub(super) begin: "ncclGroupStart" fn() -> Status,
        pub(super) end: "ncclGroupEnd" fn() -> Status,
        pub(super) all_reduce: "ncclAllReduce"
            fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, CUstream) -> Status,
        pub(super) all_gather: "ncclAllGather"
            fn(*const c_void, *mut c_void, usize, c_int, Communicator, CUstream) -> Status,
        pub(super) reduce_scatter: "ncclReduceScatter"
            fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, CUstream) -> Status,
        pub(super) send: "ncclSend" fn(*const c_void, usize, c_int, c_int, Communicator, CUstream) -> Status,
        pub(super) receive: "ncclRecv" fn(*mut c_void, usize, c_int, c_int, Communicator, CUstream) -> Status,
        text: "ncclGetErrorString" fn(Status) -> *const c_char,
        last_error: "ncclGetLastError" fn(Communicator) -> *const c_char,
    }
}

impl Functions {
    /// Opens NCCL.
    ///
    /// # Errors
    /// NCCL is not installed, or is too old.
    #[allow(unsafe_code)]
    pub(super) fn open(folders: &Folders) -> Result<Self, DriverError> {
        let missing = |error: &dyn std::fmt::Display| {
            DriverError(format!("{error}; several GPUs exchange tensors with it: {}", Library::Nccl.source()))
        };
        let opened = libraries::open(Library::Nccl, folders).map_err(|error| missing(&error))?;
        let handle = libraries::load(&opened.path).map_err(|error| missing(&error))?;
        let version = Version::of(&*handle).map_err(|error| missing(&error))?;
        let mut number = 0;
        // SAFETY: the function writes a number.
        unsafe { (version.version)(&mut number) };
        if number < OLDEST {
            let path = opened.path.display();
            return Err(missing(&format!("NCCL {number} of {path} is older than {OLDEST}")));
        }
        Self::of(&*handle).map_err(|error| missing(&error))
    }

    /// Turns a status into an error in NCCL's own words. `what` names the call.
    #[allow(unsafe_code)]
    pub(super) fn refused(&self, what: &str, status: Status) -> DriverError {
        let told = |text: *const c_char| {
            if text.is_null() {
                return String::new();
            }
            // SAFETY: NCCL's texts end with zero and live as long as NCCL or the thread.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        };
        // SAFETY: the functions return texts, for any number, and without a communicator.
        let (text, last) = unsafe { (told((self.text)(status)), told((self.last_error)(ptr::null_mut()))) };
        let last = if last.is_empty() { last } else { format!(": {last}") };
        DriverError(format!("NCCL, {what}: {text}{last}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::testing::Exported;

    #[test]
    fn the_pinned_wheel_exports_every_function() {
        assert_eq!(Functions::of(&Exported::of(Library::Nccl)).map(drop), Ok(()));
    }

    /// The layout of `ncclConfig_v21700` in nccl.h.
    #[test]
    fn a_configuration_lies_as_nccl_reads_it() {
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, network), 32);
        assert_eq!(std::mem::offset_of!(Config, shares), 40);
        assert_eq!(size_of::<UniqueId>(), 128);
    }

    #[test]
    fn an_id_reaches_other_processes_unchanged() {
        let bytes: Vec<u8> = (100..228).collect();
        assert_eq!(UniqueId::of_bytes(&bytes).map(|id| id.bytes()), Some(bytes));
        assert!(UniqueId::of_bytes(&[1; 127]).is_none());
    }

    /// A machine with NCCL and one without get an answer, and no panic.
    #[test]
    fn every_machine_has_an_answer() {
        match Functions::open(&Folders::of_process()) {
            Ok(functions) => assert!(functions.refused("testing", 4).0.contains("invalid argument")),
            Err(error) => assert!(error.0.contains("nccl"), "{error}"),
        }
    }
}
