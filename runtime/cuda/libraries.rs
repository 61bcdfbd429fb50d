//! Finds CUDA's libraries: in the folders of `TRAINYARD_CUDA_LIBS`, where the system's loader looks, in the packages of a Python
//! environment, and where NVIDIA's installer puts them.
//!
//! The functions of a library are looked up in the file that was opened here (`symbols`), so that the file that is used is the file
//! that `doctor` reports. Only the driver is called through cudarc, which opens it by its name and panics without it. So the driver is
//! opened here first, by its path, and the loader then gives cudarc the open driver.

use super::symbols::function;
use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
use std::collections::BTreeSet;
use std::env;
use std::error::Error as _;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The environment variable with the folders to search first, separated as in `PATH`.
pub const FOLDERS: &str = "TRAINYARD_CUDA_LIBS";

/// A library of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix multiplication.
    CublasLt,
    /// Convolution and attention.
    Cudnn,
    /// Collectives.
    Nccl,
}

impl Library {
    /// Every library.
    pub const ALL: [Self; 5] = [Self::Driver, Self::Nvrtc, Self::CublasLt, Self::Cudnn, Self::Nccl];

    /// Returns NVIDIA's name for the library.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "NVIDIA driver",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
        }
    }

    /// Returns the name of the library's file (its SONAME).
    pub fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Nvrtc => "libnvrtc.so.13",
            Self::CublasLt => "libcublasLt.so.13",
            Self::Cudnn => "libcudnn.so.9",
            Self::Nccl => "libnccl.so.2",
        }
    }

    /// Returns advice on how to install the library.
    pub fn source(self) -> &'static str {
        match self {
            Self::Driver => "install NVIDIA's driver, 580 or newer",
            Self::Nvrtc => "pip install nvidia-cuda-nvrtc==13.0.*",
            Self::CublasLt => "pip install nvidia-cublas==13.0.*",
            Self::Cudnn => "pip install nvidia-cudnn-cu13",
            Self::Nccl => "pip install nvidia-nccl-cu13",
        }
    }

    /// Returns the name of the function that returns the version.
    pub(super) fn version_function(self) -> Option<&'static str> {
        match self {
            Self::Driver => None,
            Self::Nvrtc => Some("nvrtcVersion"),
            Self::CublasLt => Some("cublasLtGetVersion"),
            Self::Cudnn => Some("cudnnGetVersion"),
            Self::Nccl => Some("ncclGetVersion"),
        }
    }

    /// Returns the prefix of the names of the files beside the library that it opens by name itself.
    fn companions(self) -> Option<&'static str> {
        match self {
            Self::Nvrtc => Some("libnvrtc-builtins.so."),
            Self::Cudnn => Some("libcudnn_"),
            Self::Driver | Self::CublasLt | Self::Nccl => None,
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The folders that are searched besides those of the system's loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// The folders that a user names, which are searched before the loader's.
    pub given: Vec<PathBuf>,
    /// The folders of installed packages, which are searched after the loader's.
    pub installed: Vec<PathBuf>,
}

impl Folders {
    /// Returns the folders of this process: [`FOLDERS`]; the active Python environment, and the environment of `python3`; and
    /// `/usr/local/cuda`.
    pub fn of_process() -> Self {
        let listed =
            |name: &str| env::var_os(name).map_or_else(Vec::new, |list| env::split_paths(&list).collect());
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
        let python =
            listed("PATH").into_iter().map(|folder| folder.join("python3")).find(|file| file.exists());
        let of_python = python.iter().filter_map(|file| file.parent()?.parent()).map(Path::to_owned);
        let packages = active.chain(of_python).flat_map(|prefix| of_packages(&prefix));
        let mut seen = BTreeSet::new();
        let installed = packages.chain([PathBuf::from("/usr/local/cuda/lib64")]);
        // In many environments `lib64` is a link to `lib`.
        let installed = installed.filter_map(|folder| folder.canonicalize().ok());
        let installed = installed.filter(|folder| seen.insert(folder.clone())).collect();
        Self { given: listed(FOLDERS), installed }
    }
}

/// Returns `PREFIX/lib/python3.*/site-packages/nvidia/*/lib`, in order of their names.
fn of_packages(prefix: &Path) -> Vec<PathBuf> {
    let children = |folder: &Path| -> BTreeSet<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let pythons = ["lib", "lib64"].into_iter().flat_map(|lib| children(&prefix.join(lib)));
    let packages = pythons.flat_map(|python| {
        ["site-packages", "dist-packages"].map(|packages| python.join(packages).join("nvidia"))
    });
    let folders = packages.flat_map(|nvidia| children(&nvidia)).map(|package| package.join("lib"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// A library that is open, and stays open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The library.
    pub library: Library,
    /// The path of its file, or the file's name alone if the system's loader found it.
    pub path: PathBuf,
    /// Its version, if it tells one.
    pub version: Option<String>,
}

/// The reason why a library is not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// No file of the library was found.
    #[error("{} was not found in the system's folders{}", library.file(), and_in(.looked))]
    Missing {
        /// The library.
        library: Library,
        /// The folders that were searched besides the system's.
        looked: Vec<PathBuf>,
    },
    /// A file of that name does not open.
    #[error("{} cannot be loaded: {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
}

fn and_in(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| format!(", in {}", folder.display())).collect()
}

/// Opens a library, for the rest of the process.
///
/// # Errors
/// There is no file of its name, or none that opens. Then the error is that of the first such file.
pub fn open(library: Library, folders: &Folders) -> Result<Opened, NotOpened> {
    let within = |folders: &[PathBuf]| -> Vec<PathBuf> {
        let files = folders.iter().map(|folder| folder.join(library.file()));
        files.filter(|file| file.exists()).collect()
    };
    let by_name = PathBuf::from(library.file());
    let mut refused = None;
    for path in within(&folders.given).into_iter().chain([by_name.clone()]).chain(within(&folders.installed))
    {
        match load(&path) {
            Ok(handle) => {
                load_companions(library, &path);
                return Ok(Opened { library, version: version(library, &handle), path });
            }
            // The loader does not say whether the file is missing or bad.
            Err(_) if path == by_name => {}
            Err(reason) => refused = refused.or(Some(NotOpened::Refused { path, reason })),
        }
    }
    let looked = folders.given.iter().chain(&folders.installed).cloned().collect();
    Err(refused.unwrap_or(NotOpened::Missing { library, looked }))
}

/// A library that is never closed, because addresses in it are kept.
pub(super) type OpenLibrary = std::mem::ManuallyDrop<Handle>;

#[allow(unsafe_code)]
pub(super) fn load(path: &Path) -> Result<OpenLibrary, String> {
    // SAFETY: opening a library runs its initialisers; CUDA's initialisers only set up the library itself.
    let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    // The error's cause is the loader's message.
    handle
        .map(OpenLibrary::new)
        .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
}

/// Opens the companions of a library that lie beside it. A companion that does not open is missed only when the library needs it.
fn load_companions(library: Library, path: &Path) {
    let (Some(start), Some(folder)) = (library.companions(), path.parent()) else { return };
    let is_companion = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(start));
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let companions: BTreeSet<PathBuf> =
        files.filter(|file| file.file_name().is_some_and(is_companion)).collect();
    for companion in companions {
        let _ = load(&companion);
    }
}

/// Asks a library for its version, such as `13.0` or `9.19.1`.
#[allow(unsafe_code)]
fn version(library: Library, handle: &Handle) -> Option<String> {
    let in_hundreds =
        |version: usize| format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
    let name = library.version_function()?;
    // SAFETY: each function has this type in NVIDIA's headers, and only tells a version.
    unsafe {
        match library {
            Library::Driver => None,
            Library::Nvrtc => {
                let ask: unsafe extern "C" fn(*mut i32, *mut i32) -> i32 = function(handle, name).ok()?;
                let (mut major, mut minor) = (0, 0);
                (ask(&mut major, &mut minor) == 0).then(|| format!("{major}.{minor}"))
            }
            Library::CublasLt | Library::Cudnn => {
                let ask: unsafe extern "C" fn() -> usize = function(handle, name).ok()?;
                Some(in_hundreds(ask()))
            }
            Library::Nccl => {
                let ask: unsafe extern "C" fn(*mut i32) -> i32 = function(handle, name).ok()?;
                let mut version = 0;
                (ask(&mut version) == 0).then(|| in_hundreds(version as usize))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_missed_with_the_folders_looked_in() {
        let folders = Folders { given: vec!["/nowhere/a".into()], installed: vec!["/nowhere/b".into()] };
        let error = open(Library::Nccl, &folders).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "libnccl.so.2 was not found in the system's folders, in /nowhere/a, in /nowhere/b");
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(Library::Cudnn.file());
        fs::write(&file, "not a library").unwrap();
        let folders = Folders { given: vec![folder.path().into()], installed: vec![] };
        let Err(NotOpened::Refused { path, reason }) = open(Library::Cudnn, &folders) else { panic!() };
        assert_eq!(path, file);
        assert!(reason.contains("file too short") || reason.contains("ELF"), "{reason}");
    }

    #[test]
    fn packages_of_a_python_environment_are_found_in_order() {
        let prefix = tempfile::tempdir().unwrap();
        let nvidia = prefix.path().join("lib/python3.12/site-packages/nvidia");
        for package in ["cudnn/lib", "cu13/lib", "cu13/include"] {
            fs::create_dir_all(nvidia.join(package)).unwrap();
        }
        assert_eq!(of_packages(prefix.path()), [nvidia.join("cu13/lib"), nvidia.join("cudnn/lib")]);
    }
}
