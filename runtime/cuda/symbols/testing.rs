//! Lists of the names that pinned wheels export, in the place of the libraries, which are too large for every test run.

use super::Symbols;
use crate::cuda::libraries::Library;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::c_void;

/// The names that the library of a pinned wheel exports.
pub(in crate::cuda) struct Exported {
    names: BTreeSet<&'static str>,
    /// The names that were looked up.
    pub(in crate::cuda) asked: RefCell<Vec<String>>,
}

impl Exported {
    /// Reads the list of a library, which `symbols/list.py` wrote.
    pub(in crate::cuda) fn of(library: Library) -> Self {
        let list = match library {
            Library::Driver => "",
            Library::Nvrtc => include_str!("nvrtc.txt"),
            Library::CublasLt => include_str!("cublaslt.txt"),
            Library::Cudnn => include_str!("cudnn.txt"),
            Library::Nccl => include_str!("nccl.txt"),
        };
        let names = list.lines().filter(|line| !line.starts_with('#')).collect();
        Self { names, asked: RefCell::default() }
    }
}

impl Symbols for Exported {
    /// An address that is never called.
    fn address(&self, name: &str) -> Result<*const c_void, String> {
        self.asked.borrow_mut().push(name.to_owned());
        let missing = || format!("no symbol {name}");
        self.names.get(name).map(|found| found.as_ptr().cast()).ok_or_else(missing)
    }
}

#[test]
fn a_wrong_name_is_missing() {
    let exported = Exported::of(Library::CublasLt);
    assert!(exported.address("cublasLtMatmul").is_ok());
    assert_eq!(exported.address("cublasLtMatMul"), Err("no symbol cublasLtMatMul".into()));
}

/// The names by which `libraries` asks for versions.
#[test]
fn every_library_says_its_version() {
    for library in Library::ALL {
        if let Some(name) = library.version_function() {
            assert!(Exported::of(library).address(name).is_ok(), "{name}");
        }
    }
}
