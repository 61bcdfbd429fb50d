//! Lists of the names that pinned wheels export. They stand in for the libraries, which are too large for every test run.

use super::{Symbols, missing};
use crate::libraries::{self, Folders, Library};
use std::collections::BTreeSet;
use std::ffi::c_void;

/// The names that the library of a pinned wheel exports.
pub(crate) struct Exported {
    names: BTreeSet<&'static str>,
}

impl Exported {
    /// Reads the list of a library, which `symbols/list.py` wrote.
    pub(crate) fn of(library: Library) -> Self {
        let list = match library {
            Library::Driver => "",
            Library::Nvrtc => include_str!("nvrtc.txt"),
            Library::CublasLt => include_str!("cublaslt.txt"),
            Library::Cudnn => include_str!("cudnn.txt"),
            Library::Nccl => include_str!("nccl.txt"),
        };
        let names = list.lines().filter(|line| !line.starts_with('#')).collect();
        Self { names }
    }
}

impl Symbols for Exported {
    /// Returns an address that is never called.
    fn address(&self, name: &str) -> Result<*const c_void, String> {
        self.names.get(name).map(|found| found.as_ptr().cast()).ok_or_else(|| missing(name))
    }
}

#[test]
fn a_wrong_name_is_missing() {
    let exported = Exported::of(Library::CublasLt);
    assert!(exported.address("cublasLtMatmul").is_ok());
    assert_eq!(exported.address("cublasLtMatMul"), Err(missing("cublasLtMatMul")));
}

/// `libraries` asks these functions for versions.
#[test]
fn every_library_says_its_version() {
    for library in Library::ALL {
        if let Some(name) = library.version_function() {
            assert!(Exported::of(library).address(name).is_ok(), "{name}");
        }
    }
}

/// The lists are those of the wheels. Other tests look names up in the lists, so those names are in the libraries.
#[test]
#[ignore = "needs the wheels of testdata/requirements-libraries.txt, 1.5 GB"]
fn the_wheels_export_every_name_of_the_lists() {
    let folders = Folders::of_process();
    for library in Library::ALL.into_iter().filter(|library| *library != Library::Driver) {
        let opened = libraries::open(library, &folders).unwrap_or_else(|error| panic!("{error}"));
        let handle = libraries::load(&opened.path).unwrap_or_else(|error| panic!("{error}"));
        for name in &Exported::of(library).names {
            assert!(handle.address(name).is_ok(), "{name} of {}", opened.path.display());
        }
        assert!(handle.address("cudaNothing").is_err());
    }
}
