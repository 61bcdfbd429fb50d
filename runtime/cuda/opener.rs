//! The GPU backend as its callers have it: the ranks of this process on GPUs, or on stand-ins.

use crate::TARGET;
use crate::gpu::{Options, gpu_of_process, gpus};
use crate::host::Order;
use crate::ranks::stand_in;
use ::ranks::{Opening, RankOpener, Ranks};
use ir::machine::DeviceKind;
use program::device::DeviceError;
use program::{StagePrograms, Target};

/// NVIDIA's GPUs and their stand-in, which open ranks.
#[derive(Debug)]
pub struct Gpus;

impl RankOpener for Gpus {
    fn target(&self) -> Target {
        TARGET
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    fn open(&self, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError> {
        let Opening { process, profiles, folder, warn, .. } = opening;
        let (options, warn) = (Options::of_process(), warn.unwrap_or(&|_| {}));
        let profile = profiles.map(|profiles| profiles.of_rank(0));
        match process {
            None => gpus(programs, options, folder, profile, warn),
            Some(process) => {
                let agreement = process.agreement();
                gpu_of_process(&programs, options, folder, profile, warn, &agreement, process.local_rank)
            }
        }
    }

    fn rehearse(&self, programs: StagePrograms) -> Result<Ranks, DeviceError> {
        stand_in(vec![programs], Order::default())
    }
}
