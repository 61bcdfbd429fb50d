//! Steps with whole tensors: every rank cuts its parts out of them, and the parts of the results are joined.
//!
//! `verify` and tests compare programs this way. A training run has no whole tensors.

use super::{Parts, Rank, Ranks};
use ir::Type;
use program::device::{DeviceError, ProgramId, StepOutputs, step};
use program::{InputSlot, Program, StateSlot};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bytes of the whole inputs of a microbatch, by name.
pub type NamedInputs = BTreeMap<String, Vec<u8>>;

/// The outputs of a step by name, each with its type: the bytes of every microbatch, or one entry for the step.
pub type NamedOutputs = BTreeMap<String, (Type, Vec<Vec<u8>>)>;

impl Ranks {
    /// Returns a program of rank 0.
    pub fn program(&self, id: ProgramId) -> &Arc<Program> {
        self.devices[0].program(id)
    }

    /// Sets a state on all ranks, given the whole state.
    ///
    /// # Errors
    /// The number of bytes is not that of the state; errors of a device.
    pub fn write_state(&mut self, id: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.on_each(|mut rank| rank.write_whole_state(id, state, bytes)).map(drop)
    }

    /// Returns a whole state.
    ///
    /// # Errors
    /// There is no such state; errors of a device.
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

    /// Runs one step, as [`step`] does. `microbatches` has, for each microbatch, the bytes of every whole input in the program's order.
    ///
    /// # Errors
    /// The number of inputs or bytes is not that of the program; errors of a device.
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
        let whole = |slot: &program::OutputSlot| {
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

    /// Returns the states of all ranks, each once. In a pipeline, these are the states of all stages.
    pub fn states(&self) -> Vec<StateSlot> {
        let mut states: BTreeMap<&str, &StateSlot> = BTreeMap::new();
        for device in &self.devices {
            let program = device.program(ProgramId(0));
            states.extend(program.states.iter().map(|state| (state.name.as_str(), state)));
        }
        states.into_values().cloned().collect()
    }

    /// Sets a state of the first program on the ranks that have it, given the whole state.
    ///
    /// # Errors
    /// Those of [`Self::write_state`].
    pub fn write_named_state(&mut self, name: &str, bytes: &[u8]) -> Result<(), DeviceError> {
        self.on_each(|mut rank| {
            let program = rank.device.program(ProgramId(0));
            let index = program.states.iter().position(|state| state.name == name);
            index.map_or(Ok(()), |index| rank.write_whole_state(ProgramId(0), index, bytes))
        })
        .map(drop)
    }

    /// Returns a whole state of the first program.
    ///
    /// # Errors
    /// No rank has a state of that name; errors of a device.
    pub fn read_named_state(&mut self, name: &str) -> Result<Vec<u8>, DeviceError> {
        let parts = self.on_each(|rank| {
            let program = rank.device.program(ProgramId(0)).clone();
            let index = program.states.iter().position(|state| state.name == name);
            let read = |index: usize| {
                let slot = program.states[index].clone();
                Ok((slot, program.clone(), rank.device.read_state(ProgramId(0), index)?.into_owned()))
            };
            index.map(read).transpose()
        })?;
        let found: Vec<_> = parts.into_iter().flatten().collect();
        let (slot, program) = match found.first() {
            Some((slot, program, _)) => (slot.clone(), program.clone()),
            None => return Err(DeviceError::Unknown { what: "state", index: 0 }),
        };
        let count = program.mesh.devices() as usize;
        let of_stage = found.into_iter().take(count).map(|(_, _, part)| part).collect();
        together(Parts::of(&slot.name, &slot.ty, &program.mesh)?, of_stage)
    }

    /// Runs one step of the first program. `microbatches` has, for each microbatch, every whole input by its name. Returns each output with
    /// its type and its value for the step, or for each microbatch.
    ///
    /// # Errors
    /// Those of [`Self::step`].
    pub fn step_named(&mut self, microbatches: &[NamedInputs]) -> Result<NamedOutputs, DeviceError> {
        let id = ProgramId(0);
        let ranks = self.on_each(|rank| {
            let program = rank.device.program(id).clone();
            let place = rank.place(&program);
            let input = |microbatch: &NamedInputs, slot: &InputSlot| {
                let missing = DeviceError::Inputs { given: microbatch.len(), taken: program.inputs.len() };
                let bytes = microbatch.get(&slot.name).ok_or(missing)?;
                let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
                parts.check(bytes)?;
                Ok::<_, DeviceError>(parts.cut(place, bytes).into_owned())
            };
            let part = |microbatch| program.inputs.iter().map(|slot| input(microbatch, slot)).collect();
            let own = microbatches.iter().map(part).collect::<Result<Vec<Vec<Vec<u8>>>, DeviceError>>()?;
            Ok((program.clone(), step(rank.device, id, &own)?))
        })?;
        let mut outputs = NamedOutputs::new();
        for of_stage in ranks.chunks(ranks[0].0.mesh.devices() as usize) {
            let (program, first) = &of_stage[0];
            for slot in
                program.outputs.iter().filter(|slot| !outputs.contains_key(&slot.name)).collect::<Vec<_>>()
            {
                let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
                let reports = first.get(&slot.name).map_or(0, Vec::len);
                let report = |index: usize| {
                    let of_ranks =
                        of_stage.iter().map(|(_, outputs)| Ok(Cow::Borrowed(&*outputs[&slot.name][index])));
                    Ok(parts.together(of_ranks)?.into_owned())
                };
                let values = (0..reports).map(report).collect::<Result<Vec<_>, DeviceError>>()?;
                outputs.insert(slot.name.clone(), (slot.ty.clone(), values));
            }
        }
        Ok(outputs)
    }

    /// Runs the same work on every rank.
    fn on_each<R: Send>(
        &mut self,
        work: impl Fn(Rank<'_>) -> Result<R, DeviceError> + Sync,
    ) -> Result<Vec<R>, DeviceError> {
        self.run(vec![(); self.count()], |rank, ()| work(rank))
    }
}

/// Joins the parts of all ranks to the whole tensor.
fn together(parts: Parts, of_ranks: Vec<Vec<u8>>) -> Result<Vec<u8>, DeviceError> {
    Ok(parts.together(of_ranks.into_iter().map(|part| Ok(Cow::Owned(part))))?.into_owned())
}
