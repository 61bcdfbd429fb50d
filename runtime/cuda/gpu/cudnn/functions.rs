//! cuDNN's functions, as its headers declare them.
//!
//! They are taken from the very library that was opened, and not through cudarc: its bindings return a status as a Rust enum, of which
//! a status of a newer cuDNN would be no value. The names of attributes and types are cudarc's.

use crate::driver::DriverError;
use crate::libraries::{self, Folders, Library, Opened};
use crate::symbols::functions;
use std::ffi::{CStr, c_char, c_int, c_void};

/// A status of cuDNN; 0 is success.
type Status = c_int;
/// A handle of cuDNN on a device.
pub(super) type RawHandle = *mut c_void;
/// A descriptor of cuDNN.
pub(super) type RawDescriptor = *mut c_void;

/// The oldest cuDNN that is accepted, in cuDNN's form of versions: the first one for CUDA 13.
const OLDEST: usize = 91_200;
/// The CUDA for which cuDNN must have been built, in CUDA's form of versions.
const CUDA: usize = 13_000;

functions! {
    /// The opened library cuDNN.
    pub(super) struct Functions {
        pub(super) create: "cudnnCreate" fn(*mut RawHandle) -> Status,
        pub(super) destroy: "cudnnDestroy" fn(RawHandle) -> Status,
        pub(super) set_stream: "cudnnSetStream" fn(RawHandle, *mut c_void) -> Status,
        pub(super) create_descriptor: "cudnnBackendCreateDescriptor" fn(c_int, *mut RawDescriptor) -> Status,
        pub(super) destroy_descriptor: "cudnnBackendDestroyDescriptor" fn(RawDescriptor) -> Status,
        pub(super) set: "cudnnBackendSetAttribute"
            fn(RawDescriptor, c_int, c_int, i64, *const c_void) -> Status,
        pub(super) get: "cudnnBackendGetAttribute"
            fn(RawDescriptor, c_int, c_int, i64, *mut i64, *mut c_void) -> Status,
        pub(super) finalize: "cudnnBackendFinalize" fn(RawDescriptor) -> Status,
        pub(super) execute: "cudnnBackendExecute" fn(RawHandle, RawDescriptor, RawDescriptor) -> Status,
        text: "cudnnGetErrorString" fn(Status) -> *const c_char,
        last_error: "cudnnGetLastErrorString" fn(*mut c_char, usize),
        version: "cudnnGetVersion" fn() -> usize,
        cuda: "cudnnGetCudartVersion" fn() -> usize,
    }
}

impl Functions {
    /// Opens cuDNN, and the libraries that it opens by name.
    pub(super) fn open(folders: &Folders) -> Result<Self, DriverError> {
        let wanted = |error: &dyn std::fmt::Display, library: Library| {
            DriverError(format!(
                "{error}; the program has convolutions, which need cuDNN: {}; or use --device cpu, which \
                 runs every operator",
                library.source()
            ))
        };
        // Without these libraries, cuDNN ends the process when it first needs them.
        for library in [Library::CublasLt, Library::Nvrtc] {
            libraries::open(library, folders).map_err(|error| wanted(&error, library))?;
        }
        let opened =
            libraries::open(Library::Cudnn, folders).map_err(|error| wanted(&error, Library::Cudnn))?;
        let strange = |reason: String| {
            wanted(&format!("{} cannot be used: {reason}", opened.path.display()), Library::Cudnn)
        };
        let functions = libraries::load(&opened.path).and_then(|open| Self::of(&*open)).map_err(strange)?;
        functions.check(&opened).map_err(strange)?;
        Ok(functions)
    }

    #[allow(unsafe_code)]
    fn check(&self, opened: &Opened) -> Result<(), String> {
        // SAFETY: each function returns a number.
        let (version, cuda) = unsafe { ((self.version)(), (self.cuda)()) };
        if version < OLDEST {
            let version = opened.version.as_deref().unwrap_or("unknown");
            return Err(format!("it is version {version}, and 9.12 is the oldest supported version"));
        }
        if cuda < CUDA {
            return Err(format!("it is for CUDA {}.{}, not 13", cuda / 1000, cuda % 1000 / 10));
        }
        Ok(())
    }

    /// Turns a status into an error in cuDNN's own words. `what` names the call.
    #[allow(unsafe_code)]
    pub(super) fn check_status(&self, what: &str, status: Status) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        let mut message = [0 as c_char; 512];
        // SAFETY: the first function returns a text of the library, for any number. The second writes at most this number of bytes, the
        // last of which is 0.
        let (text, message) = unsafe {
            let text = (self.text)(status);
            (self.last_error)(message.as_mut_ptr(), message.len());
            (text, CStr::from_ptr(message.as_ptr()).to_string_lossy().trim().to_owned())
        };
        let name = if text.is_null() {
            "an unknown error".into()
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(DriverError(format!("cuDNN, {what}: {name} ({status}), {message}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::testing::Exported;

    #[test]
    fn the_pinned_wheel_exports_every_function() {
        assert_eq!(Functions::of(&Exported::of(Library::Cudnn)).map(drop), Ok(()));
    }
}
