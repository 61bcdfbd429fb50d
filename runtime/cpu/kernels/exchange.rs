//! Collectives: the exchange of a device with the others of its group.

use crate::call::Call;
use comm::{CollectiveKind, CommError, Communicator, Exchanged};
use program::Exchange;

pub(super) fn run(
    exchange: &Exchange,
    mut call: Call,
    communicator: Option<&dyn Communicator>,
) -> Result<(), CommError> {
    let communicator = communicator.ok_or(CommError::Alone)?;
    let group = call.device.mesh.group(call.device.rank, &exchange.axes);
    let results = std::mem::take(&mut call.results);
    let tensor = |(index, result)| Exchanged {
        dtype: call.operand_view(index).dtype,
        sizes: &call.operand_view(index).layout.sizes,
        gathered: exchange.dims[index].gathered,
        split: exchange.dims[index].split,
        operand: call.operands[index],
        result,
    };
    let mut tensors: Vec<Exchanged> = results.into_iter().enumerate().map(tensor).collect();
    communicator.comes_from(&call.instruction.origin);
    // A copy of the device's own part is no exchange; lowering writes it as `Kernel::Part`.
    let kind = CollectiveKind::of(exchange.collective, exchange.reduced);
    communicator.collective(kind.expect("an all_slice is no exchange"), &group, &mut tensors)
}
