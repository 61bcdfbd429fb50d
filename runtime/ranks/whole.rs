//! Steps with whole tensors: every rank cuts its parts out of them, and the parts of the results are put together.
//!
//! `verify` and tests compare programs this way. A training run has no whole tensors.

use super::{Parts, Rank, Ranks};
use crate::device::{DeviceError, ProgramId, StepOutputs, step};
use crate::program::Program;
use std::borrow::Cow;
use std::sync::Arc;

impl Ranks {
    /// A program of all ranks; those of rank 0.
    pub fn program(&self, id: ProgramId) -> &Arc<Program> {
        self.devices[0].program(id)
    }

    /// Sets a state on all ranks, given the whole state.
    ///
    /// # Errors
    /// Another number of bytes than the state has; what a device refuses.
    pub fn write_state(&mut self, id: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.on_each(|mut rank| rank.write_whole_state(id, state, bytes)).map(drop)
    }

    /// The whole of a state.
    ///
    /// # Errors
    /// There is no such state; what a device refuses.
    pub fn read_state(&mut self, id: ProgramId, state: usize) -> Result<Vec<u8>, DeviceError> {
        let parts = self.on_each(|rank| {
            let program = rank.device.program(id);
            program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
            Ok(rank.device.read_state(id, state)?.into_owned())
        })?;
        let program = self.program(id);
        let slot = &program.states[state];
        together(Parts::of(&slot.name, &slot.ty, &program.mesh)?, parts)
    }

    /// Runs one step, as [`step`] does: `microbatches` has, for each, the bytes of every whole input in the program's order.
    ///
    /// # Errors
    /// Another number of inputs or bytes than the program takes; what a device refuses.
    pub fn step(&mut self, id: ProgramId, microbatches: &[Vec<Vec<u8>>]) -> Result<StepOutputs, DeviceError> {
        let mut ranks = self.on_each(|rank| {
            let program = rank.device.program(id).clone();
            let part = |microbatch: &Vec<Vec<u8>>| {
                let inputs = program.inputs.iter().zip(microbatch).map(|(slot, bytes)| {
                    let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
                    parts.check(bytes)?;
                    Ok(parts.cut(rank.agreement.rank(), bytes).into_owned())
                });
                let excess = microbatch.iter().skip(program.inputs.len()).map(|_| Ok(vec![]));
                inputs.chain(excess).collect::<Result<Vec<_>, DeviceError>>()
            };
            let own = microbatches.iter().map(part).collect::<Result<Vec<_>, DeviceError>>()?;
            step(rank.device, id, &own)
        })?;
        let program = self.program(id);
        let whole = |slot: &crate::program::OutputSlot| {
            let ranks: Vec<Vec<Vec<u8>>> =
                ranks.iter_mut().map(|outputs| outputs.remove(&slot.name).unwrap_or_default()).collect();
            let reports = ranks.first().map_or(0, Vec::len);
            let report = |index: usize| {
                let parts = ranks.iter().map(|reports| reports[index].clone()).collect();
                together(Parts::of(&slot.name, &slot.ty, &program.mesh)?, parts)
            };
            Ok((slot.name.clone(), (0..reports).map(report).collect::<Result<_, DeviceError>>()?))
        };
        program.outputs.iter().map(whole).collect()
    }

    /// Lets every rank do the same.
    fn on_each<R: Send>(
        &mut self,
        work: impl Fn(Rank<'_>) -> Result<R, DeviceError> + Sync,
    ) -> Result<Vec<R>, DeviceError> {
        self.run(vec![(); self.count()], |rank, ()| work(rank))
    }
}

/// The whole tensor, given the parts of all ranks.
fn together(parts: Parts, of_ranks: Vec<Vec<u8>>) -> Result<Vec<u8>, DeviceError> {
    Ok(parts.together(of_ranks.into_iter().map(|part| Ok(Cow::Owned(part))))?.into_owned())
}
