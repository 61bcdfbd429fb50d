//! The ranks of this process on the processor.

#[cfg(test)]
mod tests;

use crate::rates::peak_gflops;
use crate::{Bf16Products, Cpu};
use comm::Communicator;
use ir::machine::{DeviceKind, Preset};
use ir::{DType, Diagnostic};
use program::device::{Device, DeviceError};
use program::profile::Profiles;
use program::{Multiprocessors, Program, StagePrograms, Target};
use ranks::platform::{Found, OpenedRank, Wanted, count, open, open_threads};
use ranks::{Opening, Platform, Ranks};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// The processor, which opens ranks that multiply so.
#[derive(Debug)]
pub struct Processor(pub Bf16Products);

impl Processor {
    /// The processor as `--device cpu` has it.
    pub const PORTABLE: Self = Self(Bf16Products::Widened);
}

impl Platform for Processor {
    fn target(&self) -> Target {
        self.0.target()
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn help(&self) -> &'static str {
        match self.0 {
            Bf16Products::Widened => "The processor",
            Bf16Products::Amx => "The processor, with products of bf16 by AMX",
            Bf16Products::Avx512 => "The processor, with products of bf16 by AVX-512 (avx512_bf16)",
        }
    }

    fn find(&self, _: &Wanted) -> Result<Found, Diagnostic> {
        if !self.0.is_here() {
            let name = self.target().name();
            let message = format!("--device {name}: this processor has no {}", self.0.instructions());
            return Err(Diagnostic::new(message)
                .note("--device cpu runs on every processor, and sums products of bf16 in f32"));
        }
        let multiprocessors = Multiprocessors::default();
        Ok(Found { multiprocessors, described: self.target().name().into(), preset: Some(Preset::Cpu) })
    }

    /// AMX alone is faster wherever it is. Some processors multiply bf16 by AVX-512 more slowly than f32.
    fn offer(&self, dtype: DType) -> Option<String> {
        let is_faster = self.0 == Bf16Products::Amx && self.0.is_here() && dtype == DType::BF16;
        is_faster.then(|| {
            format!("--device {} multiplies bf16 by AMX, with other rounding errors", self.target().name())
        })
    }

    fn open(&self, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError> {
        let Opening { process, threads, profiles, folder, .. } = opening;
        let ranks = if process.is_some() { 1 } else { count(&programs) };
        open(&programs, process, |rank| device(rank, ranks, threads, profiles.as_ref(), folder))
    }

    fn rehearsal_help(&self) -> &'static str {
        match self.0 {
            Bf16Products::Widened => "The CPU backend",
            Bf16Products::Amx => "The CPU backend with AMX, which is emulated where the processor lacks it",
            Bf16Products::Avx512 => {
                "The CPU backend with AVX-512 for bf16, which is emulated where the processor lacks it"
            }
        }
    }

    fn peak_gflops(&self, threads: Option<usize>) -> Option<f64> {
        Some(peak_gflops(threads))
    }
}

/// Opens as many ranks as the programs' mesh has devices. They share `threads` threads, or as many as there are cores; each gets at
/// least one. Every rank has all programs, which share their states if they were lowered so. Profiles get the times of their
/// programs: on rank 0, or on all ranks of a pipeline. `folder` takes the file of values that rest on the disk.
///
/// # Errors
/// No memory, no threads; programs of different meshes; collectives that would not meet.
pub fn on_processor(
    programs: Vec<impl Into<StagePrograms>>,
    threads: Option<usize>,
    profiles: Option<Profiles>,
    folder: Option<&Path>,
) -> Result<Ranks, DeviceError> {
    let programs = programs.into_iter().map(Into::into).collect();
    Processor::PORTABLE.open(programs, Opening { threads, profiles, folder, ..Opening::default() })
}

/// Opens ranks of which each has programs of its own. `through` makes the communicator that a rank's device uses from the
/// rank's own.
///
/// # Errors
/// Programs that do not meet; a device that cannot be opened.
pub fn with_communicators(
    programs: Vec<Vec<Arc<Program>>>,
    threads: Option<usize>,
    profiles: Option<Profiles>,
    folder: Option<&Path>,
    through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
) -> Result<Ranks, DeviceError> {
    let ranks = programs.len() as u64;
    open_threads(programs, through, |rank| device(rank, ranks, threads, profiles.as_ref(), folder))
}

/// Makes the device of one of `ranks` ranks that share `threads` threads, or as many as there are cores.
fn device(
    rank: OpenedRank,
    ranks: u64,
    threads: Option<usize>,
    profiles: Option<&Profiles>,
    folder: Option<&Path>,
) -> Result<Box<dyn Device + Send>, DeviceError> {
    let OpenedRank { rank, programs, communicator } = rank;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let own = (threads.unwrap_or(cores) / ranks as usize).max(1);
    let measured = profiles.map(|profiles| profiles.for_programs(rank, &programs));
    let mut cpu = Cpu::with(programs, Some(own), communicator, folder)?;
    if ranks > 1 && own * ranks as usize >= cores {
        cpu.exchange_one_by_one();
    }
    if let Some(profiles) = measured {
        cpu.record(profiles);
    }
    Ok(Box::new(cpu))
}
