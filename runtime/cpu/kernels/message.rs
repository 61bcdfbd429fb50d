//! Messages between the ranks of a pipeline.

use crate::call::Call;
use comm::{CommError, Communicator};
use program::Message;

pub(super) fn run(
    message: Message,
    mut call: Call,
    communicator: Option<&dyn Communicator>,
) -> Result<(), CommError> {
    let communicator = communicator.ok_or(CommError::Alone)?;
    let rank_on = |stage: u32| u64::from(stage) * call.device.mesh.devices() + call.device.rank;
    communicator.comes_from(&call.instruction.origin);
    match call.results.first_mut() {
        Some(result) => communicator.receive(rank_on(message.from), message.channel, result),
        None => {
            let operand = call.operands[0].expect("a message that is sent has an operand of its own");
            communicator.send(rank_on(message.to), message.channel, operand)
        }
    }
}
