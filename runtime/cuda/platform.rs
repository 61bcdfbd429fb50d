//! The GPU backend as its callers have it: the GPUs of this machine, and the ranks of this process on GPUs or on stand-ins.

use crate::TARGET;
use crate::found;
use crate::gpu::{Options, gpu_of_process, gpus};
use crate::host::Order;
use crate::libraries::Folders;
use crate::probe::probe;
use crate::ranks::stand_in;
use ::ranks::platform::{Found, Wanted};
use ::ranks::{Opening, Platform, Ranks};
use ir::machine::DeviceKind;
use ir::{DType, Diagnostic};
use program::device::DeviceError;
use program::{StagePrograms, Target};

/// NVIDIA's GPUs and their stand-in, which open ranks.
#[derive(Debug)]
pub struct Gpus;

impl Platform for Gpus {
    fn target(&self) -> Target {
        TARGET
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    fn help(&self) -> &'static str {
        "An NVIDIA GPU, or one GPU for each rank of the mesh"
    }

    fn find(&self, wanted: &Wanted) -> Result<Found, Diagnostic> {
        found::find(wanted)
    }

    fn offer(&self, _: DType) -> Option<String> {
        found::offered(&probe(&Folders::of_process()))
    }

    fn open(&self, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError> {
        let Opening { process, profiles, folder, warn, .. } = opening;
        let (options, warn) = (Options::of_process(), warn.unwrap_or(&|_| {}));
        let profiles = profiles.map(|profiles| profiles.of_rank(0)).unwrap_or_default();
        match process {
            None => gpus(programs, options, folder, profiles, warn),
            Some(process) => {
                let agreement = process.agreement();
                gpu_of_process(&programs, options, folder, profiles, warn, &agreement, process.local_rank)
            }
        }
    }

    fn rehearse(&self, programs: StagePrograms) -> Result<Ranks, DeviceError> {
        stand_in(vec![programs], Order::default())
    }

    fn rehearsal_help(&self) -> &'static str {
        "The GPU's program, run on the processor: it is slow, and needs a C++ compiler (CXX, or c++)"
    }
}
