//! NVRTC's functions and programs.

use crate::symbols::functions;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// A status of NVRTC; 0 is success.
pub(super) type Status = c_int;
type Program = *mut c_void;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> Status;
type GetBytes = unsafe extern "C" fn(Program, *mut c_char) -> Status;

functions! {
    /// Functions of NVRTC, as its header declares them.
    pub(super) struct Functions {
        create: "nvrtcCreateProgram"
            fn(
                *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
            ) -> Status,
        compile: "nvrtcCompileProgram" fn(Program, c_int, *const *const c_char) -> Status,
        destroy: "nvrtcDestroyProgram" fn(*mut Program) -> Status,
        log_size: "nvrtcGetProgramLogSize" fn(Program, *mut usize) -> Status,
        log: "nvrtcGetProgramLog" fn(Program, *mut c_char) -> Status,
        cubin_size: "nvrtcGetCUBINSize" fn(Program, *mut usize) -> Status,
        cubin: "nvrtcGetCUBIN" fn(Program, *mut c_char) -> Status,
        ptx_size: "nvrtcGetPTXSize" fn(Program, *mut usize) -> Status,
        ptx: "nvrtcGetPTX" fn(Program, *mut c_char) -> Status,
        text: "nvrtcGetErrorString" fn(Status) -> *const c_char,
        count_architectures: "nvrtcGetNumSupportedArchs" fn(*mut c_int) -> Status,
        architectures: "nvrtcGetSupportedArchs" fn(*mut c_int) -> Status,
    }
}

impl Functions {
    /// Returns the architectures that NVRTC compiles for: 90 is sm_90.
    #[allow(unsafe_code)]
    pub(super) fn architectures(&self) -> Result<Vec<u32>, Status> {
        let mut count = 0;
        // SAFETY: the function writes one number.
        succeeded(unsafe { (self.count_architectures)(&mut count) })?;
        let mut all = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: the function writes as many numbers as it has just counted.
        succeeded(unsafe { (self.architectures)(all.as_mut_ptr()) })?;
        Ok(all.into_iter().filter_map(|architecture| u32::try_from(architecture).ok()).collect())
    }

    /// Returns NVRTC's text for an error.
    #[allow(unsafe_code)]
    pub(super) fn text(&self, error: Status) -> &str {
        // SAFETY: the function returns a text of the library for any number; null is handled.
        let text = unsafe {
            let text = (self.text)(error);
            if text.is_null() { None } else { CStr::from_ptr(text).to_str().ok() }
        };
        text.unwrap_or("an unknown error")
    }
}

fn succeeded(status: Status) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// `NVRTC_ERROR_INVALID_INPUT`, for a text that C cannot represent.
const INVALID_INPUT: Status = 3;

/// A program of NVRTC, which is destroyed when it is dropped.
pub(super) struct Compilation<'a> {
    functions: &'a Functions,
    program: Program,
    /// The source, to which the program may point.
    _source: CString,
}

impl<'a> Compilation<'a> {
    /// Creates a program from its source.
    #[allow(unsafe_code)]
    pub(super) fn new(functions: &'a Functions, source: &str) -> Result<Self, Status> {
        let source = CString::new(source).map_err(|_| INVALID_INPUT)?;
        let mut program = ptr::null_mut();
        // SAFETY: the texts end with zeros and outlive the program; there are no headers.
        let status = unsafe {
            let (name, none) = (c"kernel.cu".as_ptr(), ptr::null());
            (functions.create)(&mut program, source.as_ptr(), name, 0, none, none)
        };
        succeeded(status)?;
        Ok(Self { functions, program, _source: source })
    }

    /// Compiles the program.
    #[allow(unsafe_code)]
    pub(super) fn run(&self, options: &[String]) -> Result<(), Status> {
        let options = options.iter().map(|option| CString::new(option.as_str()));
        let options: Vec<CString> = options.collect::<Result<_, _>>().map_err(|_| INVALID_INPUT)?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; `pointers` has that many options, which end with zeros.
        succeeded(unsafe {
            (self.functions.compile)(self.program, pointers.len() as c_int, pointers.as_ptr())
        })
    }

    #[allow(unsafe_code)]
    fn bytes(&self, (size_of, bytes_of): (GetSize, GetBytes)) -> Result<Vec<u8>, Status> {
        let mut size = 0;
        // SAFETY: the program is alive; the function writes one number.
        succeeded(unsafe { size_of(self.program, &mut size) })?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: the function writes as many bytes as it has just counted.
        succeeded(unsafe { bytes_of(self.program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    /// Returns a text, without the zero at its end.
    fn text(&self, functions: (GetSize, GetBytes)) -> Result<String, Status> {
        let bytes = self.bytes(functions)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\0', '\n']).to_owned())
    }

    /// Returns the compiler's log.
    pub(super) fn log(&self) -> Result<String, Status> {
        self.text((self.functions.log_size, self.functions.log))
    }

    /// Returns the program's PTX.
    pub(super) fn ptx(&self) -> Result<String, Status> {
        self.text((self.functions.ptx_size, self.functions.ptx))
    }

    /// Returns the program's cubin.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, Status> {
        self.bytes((self.functions.cubin_size, self.functions.cubin))
    }
}

impl Drop for Compilation<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the program is alive, and nothing uses it any more.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::Library;
    use crate::symbols::testing::Exported;

    #[test]
    fn the_pinned_wheel_exports_every_function() {
        assert_eq!(Functions::of(&Exported::of(Library::Nvrtc)).map(drop), Ok(()));
    }
}
