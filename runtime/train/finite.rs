//! The search of a session's states for numbers that are not finite: while a checkpoint is written, and for the cause of a loss that is not
//! finite.

use super::non_finite::NotFiniteState;
use super::session::Session;
use checkpoint::{StateSource, unpadded_type};
use ir::{Module, State};
use program::device::DeviceError;
use ranks::Parts;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::OnceLock;

/// The rank's parts of a session's states, as a checkpoint takes them. The first state that training made infinite or NaN has no value, so
/// the checkpoint is not written. Every part is read and checked once, just before it is written.
pub(super) struct FiniteStates<'a, 'd> {
    module: &'a Module,
    session: &'a Session<'d>,
    refused: OnceLock<Refused>,
}

/// The reason why a state has no value.
pub(super) enum Refused {
    /// Training made it infinite or NaN.
    NotFinite(NotFinite),
    /// The device could not read it.
    Device(DeviceError),
}

/// A state that is not finite, as a message to other ranks: its index, and the bits of its first number that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct NotFinite {
    state: usize,
    bits: u64,
}

impl NotFinite {
    /// Returns the state with its name.
    pub(super) fn named(self, module: &Module) -> Option<NotFiniteState> {
        let state = module.states.values().nth(self.state)?;
        let value = f64::from_bits(self.bits);
        Some(NotFiniteState { name: state.name.clone(), role: state.role, value })
    }
}

impl<'a, 'd> FiniteStates<'a, 'd> {
    pub(super) fn of(module: &'a Module, session: &'a Session<'d>) -> Self {
        Self { module, session, refused: OnceLock::new() }
    }

    /// Returns the reason why a state had no value.
    pub(super) fn refused(self) -> Option<Refused> {
        self.refused.into_inner()
    }

    /// Returns the rank's part of a state.
    fn part(&self, index: usize, state: &State) -> Result<Option<Cow<'a, [u8]>>, Refused> {
        let Some(part) = self.session.read_state(&state.name) else { return Ok(None) };
        let part = part.map_err(Refused::Device)?;
        match made(self.module, self.session, state, &part).map_err(Refused::Device)? {
            None => Ok(Some(part)),
            Some(bits) => Err(Refused::NotFinite(NotFinite { state: index, bits })),
        }
    }
}

impl StateSource for FiniteStates<'_, '_> {
    fn state(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut states = self.module.states.values().enumerate();
        let (index, state) = states.find(|(_, state)| state.name == name)?;
        match self.part(index, state) {
            Ok(part) => part,
            Err(refused) => {
                let _ = self.refused.set(refused);
                None
            }
        }
    }
}

/// Returns the first state that training made infinite or NaN on any rank.
pub(super) fn find(module: &Module, session: &Session) -> Result<Option<NotFiniteState>, DeviceError> {
    let states = FiniteStates::of(module, session);
    let mut own = None;
    for (index, state) in module.states.values().enumerate() {
        match states.part(index, state) {
            Ok(_) => {}
            Err(Refused::NotFinite(found)) => {
                own = Some(found);
                break;
            }
            Err(Refused::Device(error)) => return Err(error),
        }
    }
    let first = session.agreement().gather(own)?.into_iter().flatten().min();
    Ok(first.and_then(|found| found.named(module)))
}

/// Returns the bits of the first number in the rank's part of a state that training made infinite or NaN. A state that no step changes
/// comes from the file.
fn made(module: &Module, session: &Session, state: &State, part: &[u8]) -> Result<Option<u64>, DeviceError> {
    if state.output.is_none() {
        return Ok(None);
    }
    let parts = Parts::of(&state.name, &state.ty, &module.mesh)?;
    let sizes = unpadded_type(state).and_then(|ty| ty.sizes()).unwrap_or_default();
    let place = module.place_in_mesh(session.agreement().rank());
    let unpadded = |part: &[u8]| parts.within(place, part.into(), &sizes).into_owned();
    Ok(session.began().made(state, part, unpadded).map(f64::to_bits))
}
