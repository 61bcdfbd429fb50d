//! Checks whether programs fit on a GPU, with everything that they need besides their arena and constants.

use super::driver::Room;
use super::program::{Command, CudaProgram, PlacedMessage, Task};
use program::device::TooLarge;
use program::room::{self, DeviceMemory};
use std::collections::BTreeMap;

/// Returns the bytes that programs with a common arena need besides the arena and their constants: tables, two buffers for each input
/// on its way, and the mailboxes of messages.
fn beside(programs: &[CudaProgram]) -> u64 {
    let of = |cuda: &CudaProgram| {
        let views = cuda.program.inputs.iter().filter_map(|input| input.view.as_ref());
        let inputs: u64 = views.map(|view| view.bytes().end - view.bytes().start).sum();
        8 * cuda.tables.len() as u64 + 2 * inputs + mailboxes(cuda)
    };
    programs.iter().map(of).sum()
}

/// Returns the bytes of the mailboxes: one message for each channel.
fn mailboxes(cuda: &CudaProgram) -> u64 {
    let message = |command: &Command| match command.task {
        Task::Message(PlacedMessage { message, bytes, .. }) => Some((message.channel, bytes)),
        _ => None,
    };
    let channels: BTreeMap<u32, u64> = cuda.sections.iter().flatten().filter_map(message).collect();
    channels.into_values().sum()
}

/// Refuses programs that do not fit.
pub(super) fn check(programs: &[CudaProgram], room: &Room) -> Result<(), TooLarge> {
    let beside = beside(programs).saturating_add(room.reserve);
    let place =
        DeviceMemory { device: room.device.clone(), free: room.free, beside, ranks: 1, is_host: false };
    room::check(programs.iter().map(|cuda| &*cuda.program), &place)
}
