//! Collectives: the exchange of a device with the others of its group.

use crate::call::Call;
use comm::{CommError, Communicator, Exchanged};
use ir::PartialKind;
use ir::ops::collective::Collective;
use program::Exchange;

pub(super) fn run(
    exchange: &Exchange,
    mut call: Call,
    communicator: Option<&dyn Communicator>,
) -> Result<(), CommError> {
    let communicator = communicator.ok_or(CommError::Alone)?;
    let group = call.place.mesh.group(call.place.rank, &exchange.axes);
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
    let kind = exchange.reduced.unwrap_or(PartialKind::Sum);
    match exchange.collective {
        Collective::AllReduce => communicator.all_reduce(&group, kind, &mut tensors),
        Collective::AllGather => communicator.all_gather(&group, &mut tensors),
        Collective::ReduceScatter => communicator.reduce_scatter(&group, kind, &mut tensors),
        Collective::AllToAll => communicator.all_to_all(&group, &mut tensors),
        // A copy of the device's own part; lowering writes it as `Kernel::Part`.
        Collective::AllSlice => unreachable!("an all_slice is no exchange"),
    }
}
