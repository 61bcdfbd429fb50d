//! cuBLASLt's functions, as its header declares them.
//!
//! They are looked up in the file that was opened, and not through cudarc, which opens a library by its name and panics if a
//! function is missing. Enums and the type of an algorithm are cudarc's; statuses are numbers, because a status of a newer
//! cuBLASLt would be no value of a Rust enum.

use crate::driver::DriverError;
use crate::libraries::{self, Folders, Library, Opened};
use crate::symbols::functions;
use cudarc::cublaslt::sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A status of cuBLASLt; 0 is success.
pub(super) type Status = c_int;
/// A handle of cuBLASLt, a description, a layout or a preference.
pub(super) type Raw = *mut c_void;
/// An algorithm, which cuBLASLt allows to be copied.
pub(super) type Algorithm = sys::cublasLtMatmulAlgo_t;

/// The oldest cuBLASLt that is accepted, in cuBLASLt's form of versions.
const OLDEST: usize = 120_000;

/// `cublasLtMatmulHeuristicResult_t`: an algorithm that cuBLASLt proposes, or its answer about one.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Proposal {
    pub(super) algorithm: Algorithm,
    /// Bytes of workspace that it needs.
    pub(super) workspace: usize,
    /// Whether the other fields are valid.
    pub(super) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Proposal {
    /// A proposal that cuBLASLt has not written yet.
    pub(super) const EMPTY: Self = Self {
        algorithm: Algorithm { data: [0; 8] },
        workspace: 0,
        state: c_int::MAX,
        waves: 0.0,
        reserved: [0; 4],
    };
}

functions! {
    /// The opened library cuBLASLt.
    pub(super) struct Functions {
        pub(super) create: "cublasLtCreate" fn(*mut Raw) -> Status,
        pub(super) destroy: "cublasLtDestroy" fn(Raw) -> Status,
        pub(super) create_description: "cublasLtMatmulDescCreate" fn(*mut Raw, c_uint, c_uint) -> Status,
        pub(super) destroy_description: "cublasLtMatmulDescDestroy" fn(Raw) -> Status,
        pub(super) set_description: "cublasLtMatmulDescSetAttribute"
            fn(Raw, c_uint, *const c_void, usize) -> Status,
        pub(super) create_layout: "cublasLtMatrixLayoutCreate" fn(*mut Raw, c_uint, u64, u64, i64) -> Status,
        pub(super) destroy_layout: "cublasLtMatrixLayoutDestroy" fn(Raw) -> Status,
        pub(super) set_layout: "cublasLtMatrixLayoutSetAttribute"
            fn(Raw, c_uint, *const c_void, usize) -> Status,
        pub(super) create_preference: "cublasLtMatmulPreferenceCreate" fn(*mut Raw) -> Status,
        pub(super) destroy_preference: "cublasLtMatmulPreferenceDestroy" fn(Raw) -> Status,
        pub(super) set_preference: "cublasLtMatmulPreferenceSetAttribute"
            fn(Raw, c_uint, *const c_void, usize) -> Status,
        pub(super) propose: "cublasLtMatmulAlgoGetHeuristic"
            fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Proposal, *mut c_int) -> Status,
        pub(super) check_algorithm: "cublasLtMatmulAlgoCheck"
            fn(Raw, Raw, Raw, Raw, Raw, Raw, *const Algorithm, *mut Proposal) -> Status,
        /// Reads an attribute of an algorithm.
        pub(super) algorithm: "cublasLtMatmulAlgoConfigGetAttribute"
            fn(*const Algorithm, c_uint, *mut c_void, usize, *mut usize) -> Status,
        pub(super) multiply: "cublasLtMatmul"
            fn(
                Raw, Raw, *const c_void, *const c_void, Raw, *const c_void, Raw, *const c_void, *const c_void, Raw,
                *mut c_void, Raw, *const Algorithm, *mut c_void, usize, *mut c_void,
            ) -> Status,
        version: "cublasLtGetVersion" fn() -> usize,
        name: "cublasLtGetStatusName" fn(Status) -> *const c_char,
        text: "cublasLtGetStatusString" fn(Status) -> *const c_char,
    }
}

impl Functions {
    /// Opens cuBLASLt.
    ///
    /// # Errors
    /// cuBLASLt is not there, is too old, or lacks a function; the error names the file.
    pub(super) fn open(folders: &Folders) -> Result<Self, DriverError> {
        let missing = |error: &dyn std::fmt::Display| {
            DriverError(format!("{error}; it multiplies matrices: {}", Library::CublasLt.source()))
        };
        let opened = libraries::open(Library::CublasLt, folders).map_err(|error| missing(&error))?;
        let unfit = |reason: String| missing(&format!("{} cannot be used: {reason}", opened.path.display()));
        let functions = libraries::load(&opened.path).and_then(|handle| Self::of(&*handle)).map_err(unfit)?;
        functions.check_version(&opened).map_err(unfit)?;
        Ok(functions)
    }

    /// Returns the version, in cuBLASLt's form.
    #[allow(unsafe_code)]
    pub(super) fn version(&self) -> usize {
        // SAFETY: the function returns a number.
        unsafe { (self.version)() }
    }

    fn check_version(&self, opened: &Opened) -> Result<(), String> {
        if self.version() < OLDEST {
            let version = opened.version.as_deref().unwrap_or("unknown");
            return Err(format!("it is version {version}, and 12.0 is the oldest supported version"));
        }
        Ok(())
    }

    /// Turns a status into an error in cuBLASLt's own words. `what` names the call.
    #[allow(unsafe_code)]
    pub(super) fn check(&self, what: &str, status: Status) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        let told = |text: *const c_char| {
            if text.is_null() {
                return "unknown".into();
            }
            // SAFETY: the text is part of the library and ends with zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        // SAFETY: both functions return a text, or null, for any number.
        let (name, text) = unsafe { (told((self.name)(status)), told((self.text)(status))) };
        Err(DriverError(format!("cuBLASLt, {what}: {name} ({status}), {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::testing::Exported;

    #[test]
    fn the_pinned_wheel_exports_every_function() {
        assert_eq!(Functions::of(&Exported::of(Library::CublasLt)).map(drop), Ok(()));
    }

    #[test]
    fn a_proposal_lies_as_cublaslt_writes_it() {
        type Theirs = sys::cublasLtMatmulHeuristicResult_t;
        assert_eq!(size_of::<Proposal>(), size_of::<Theirs>());
        assert_eq!(std::mem::offset_of!(Proposal, workspace), std::mem::offset_of!(Theirs, workspaceSize));
        assert_eq!(std::mem::offset_of!(Proposal, state), std::mem::offset_of!(Theirs, state));
        assert_eq!(std::mem::offset_of!(Proposal, waves), std::mem::offset_of!(Theirs, wavesCount));
    }

    /// A machine with cuBLASLt and one without get an answer, and no panic.
    #[test]
    fn every_machine_has_an_answer() {
        match Functions::open(&Folders::of_process()) {
            Ok(functions) => {
                let error = functions.check("testing", 7).unwrap_err().0;
                assert!(error.contains("testing: CUBLAS_STATUS_INVALID_VALUE (7)"), "{error}");
            }
            Err(error) => assert!(error.0.contains("libcublasLt.so.13"), "{error}"),
        }
    }

    /// A file of cuBLASLt's name without its functions: the error names the file and the function.
    #[test]
    #[ignore = "needs a C compiler"]
    fn a_library_without_a_function_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = folder.path().join(Library::CublasLt.file());
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let source = folder.path().join("empty.c");
        std::fs::write(&source, "int cublasLtCreate(void) { return 0; }\n").expect("a file");
        let mut compile = std::process::Command::new(compiler);
        let made = compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(made.expect("a C compiler").success());
        let folders = Folders { given: vec![folder.path().into()], installed: vec![] };
        let error = Functions::open(&folders).map(drop).unwrap_err().0;
        let parts = [library.display().to_string(), "cublasLtDestroy".into()];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
