//! `--kernels-for`: a program's kernels compiled for a GPU that need not be here, and kept where a run looks for them.

use super::Compile;
use crate::cli::report::{Outcome, tell};
use crate::cli::resuming::Continued;
use crate::config::DeviceChoice;
use crate::failure::Failure;
use crate::hardware::Chosen;
use crate::targets;
use crate::training;
use cuda::cache::{Cache, FOLDER};
use cuda::cubins::Cubins;
use cuda::libraries::Folders;
use cuda::lower::lower;
use cuda::nvrtc::Nvrtc;
use cuda::program::{CudaProgram, Kernel};
use ir::Diagnostic;
use ir::machine::{DeviceKind, Preset};
use program::Multiprocessors;
use std::str::FromStr;

/// A GPU whose kernels can be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTarget(Preset);

/// The presets of these GPUs, with their compute capability.
const CAPABILITIES: [(Preset, (i32, i32)); 4] =
    [(Preset::H200, (9, 0)), (Preset::H100, (9, 0)), (Preset::A100, (8, 0)), (Preset::A100With40, (8, 0))];

impl FromStr for KernelTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = |preset: Preset| CAPABILITIES.iter().any(|(of_gpu, _)| *of_gpu == preset);
        Preset::find(text).filter(|preset| known(*preset)).map(Self).ok_or_else(|| {
            format!("`{text}` is not a GPU that kernels are compiled for; write h200, h100, a100 or a100-40")
        })
    }
}

impl KernelTarget {
    fn capability(self) -> (i32, i32) {
        let found = CAPABILITIES.iter().find(|(preset, _)| *preset == self.0);
        found.expect("only these presets are parsed").1
    }

    /// The GPU as a device that programs are lowered for.
    fn chosen(self) -> Chosen {
        let device = self.0.device();
        Chosen {
            target: targets::of(DeviceKind::Gpu),
            multiprocessors: Multiprocessors(device.multiprocessors),
            described: device.name,
            preset: Some(self.0),
        }
    }
}

impl Compile {
    /// Compiles the kernels of a run for this GPU. Attention and convolutions are compiled too, though a GPU with cuDNN may
    /// leave them to it: which of them it leaves is only known there.
    ///
    /// # Errors
    /// A model or flags that cannot be compiled; NVRTC is missing or refuses a kernel; kernels that cannot be kept.
    pub(super) fn compile_kernels(&self, gpu: KernelTarget) -> Result<Outcome, Failure> {
        let refused = |error: &dyn std::fmt::Display| Diagnostic::new(format!("--kernels-for: {error}"));
        if self.settings.device.device == DeviceChoice::Of(targets::of(DeviceKind::Cpu)) {
            return Err(refused(&"kernels are compiled for a GPU, and --device cpu asks for the processor; leave --device out").into());
        }
        let nvrtc = Nvrtc::open(&Folders::of_process()).map_err(|error| refused(&error))?;
        let architecture = nvrtc.architecture(gpu.capability()).map_err(|error| refused(&error))?;
        let version = nvrtc.version().to_owned();
        let (device, continued) = (gpu.chosen(), Continued::anew(self.settings.compile.shapes.global_batch));
        let ready = self.compile(&device, continued).map_err(|stopped| self.advised(stopped, &device))?;
        let stages = training::all_programs(&ready.jobs);
        let programs = stages.iter().flat_map(|stages| stages.iter()).map(|program| lower(program.clone()));
        let programs = programs.collect::<Result<Vec<CudaProgram>, _>>()?;
        let kernels: Vec<&Kernel> = programs.iter().flat_map(|program| &program.kernels).collect();
        let cubins = Cubins::new(nvrtc, Cache::of_process(), architecture.clone());
        cubins.of_all(&kernels).map_err(|error| refused(&error))?;
        if let Some(trouble) = cubins.unkept() {
            let error = refused(&trouble);
            return Err(error
                .note(format!("{FOLDER}=FOLDER names another folder for compiled kernels"))
                .into());
        }
        tell!("{} kernels for {architecture}, compiled by NVRTC {version}", kernels.len());
        Ok(Outcome::Done)
    }
}
