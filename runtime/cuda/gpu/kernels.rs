//! The programs' kernels on the device. Each kernel is loaded once, however many programs have it.

use super::handles::{Function, Module, Queue, refused};
use crate::cubins::Cubins;
use crate::driver::{DriverError, Loaded};
use crate::program::{CudaProgram, Kernel, Launch};
use cudarc::driver::result;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;

/// The loaded kernels.
pub(super) struct Kernels {
    cubins: Cubins,
    /// The modules, by the kernel's name, which has a hash of its text.
    modules: BTreeMap<String, (Module, Function)>,
    /// The functions of each program.
    programs: Vec<Vec<Function>>,
}

impl Kernels {
    pub(super) fn new(cubins: Cubins) -> Self {
        Self { cubins, modules: BTreeMap::new(), programs: vec![] }
    }

    /// Compiles and loads the kernels that are not loaded yet.
    pub(super) fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError> {
        let mut seen = BTreeSet::new();
        let missing = program.kernels.iter().filter(|kernel| !self.modules.contains_key(&kernel.name));
        let missing: Vec<&Kernel> = missing.filter(|kernel| seen.insert(&kernel.name)).collect();
        let cubins = self.cubins.of_all(&missing).map_err(|error| DriverError(error.to_string()))?;
        for (kernel, cubin) in missing.into_iter().zip(cubins) {
            let module = Module::load(&cubin, &kernel.name)?;
            let function = module.function(&kernel.name)?;
            self.modules.insert(kernel.name.clone(), (module, function));
        }
        let functions = program.kernels.iter().map(|kernel| self.modules[&kernel.name].1).collect();
        self.programs.push(functions);
        Ok(Loaded(self.programs.len() - 1))
    }

    /// Returns the first fault of cubins on disk, which is no error.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.cubins.trouble()
    }

    /// Runs a kernel.
    #[allow(unsafe_code)]
    pub(super) fn launch(
        &self,
        queue: &Queue,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        let function = self.programs.get(loaded.0).and_then(|functions| functions.get(launch.kernel));
        let function = function.ok_or_else(|| DriverError("a kernel that was not loaded".into()))?;
        let [x, y, z] = launch.grid;
        let place = |word: &u64| std::ptr::from_ref(word).cast_mut().cast::<c_void>();
        let mut places: SmallVec<[*mut c_void; 16]> = arguments.iter().map(place).collect();
        // SAFETY: the function's module is alive. It has as many parameters as its launch has arguments, of 8 bytes each, which the
        // driver copies before it returns. Its program decides what it does with addresses.
        let launched = unsafe {
            result::launch_kernel(function.0, (x, y, z), (launch.block, 1, 1), 0, queue.0, &mut places)
        };
        launched.map_err(|error| {
            refused(&format!("a kernel on {:?} blocks of {}", launch.grid, launch.block))(error)
        })
    }
}
