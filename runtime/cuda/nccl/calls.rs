//! A collective as calls of NCCL, without a GPU.

use crate::driver::{Address, CollectiveTask, DriverError};
use ir::ops::collective::Collective as Kind;
use ir::{DType, PartialKind};
use std::fmt;

/// NCCL's numbers of element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
}

/// NCCL's numbers of reductions. Its maximum and its minimum ignore NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Sum = 0,
    Max = 2,
    Min = 3,
}

/// A call. All calls of a collective go together. Counts are of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    AllReduce {
        from: Address,
        to: Address,
        count: usize,
        ty: Element,
        operation: Operation,
    },
    /// `count` is that of a rank's result.
    ReduceScatter {
        from: Address,
        to: Address,
        count: usize,
        ty: Element,
        operation: Operation,
    },
    /// `count` is that of a rank's operand.
    AllGather {
        from: Address,
        to: Address,
        count: usize,
        ty: Element,
    },
    /// Sends to a rank of the group, by its place there.
    Send {
        from: Address,
        count: usize,
        ty: Element,
        peer: i32,
    },
    /// Receives from a rank of the group, by its place there.
    Receive {
        to: Address,
        count: usize,
        ty: Element,
        peer: i32,
    },
}

/// `f32`
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// `sum`
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// `all_reduce of f32 x 4096 (sum)`, without the addresses.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce { count, ty, operation, .. } => {
                write!(f, "all_reduce of {ty} x {count} ({operation})")
            }
            Self::ReduceScatter { count, ty, operation, .. } => {
                write!(f, "reduce_scatter of {ty} x {count} ({operation})")
            }
            Self::AllGather { count, ty, .. } => write!(f, "all_gather of {ty} x {count}"),
            Self::Send { count, ty, peer, .. } => write!(f, "send of {ty} x {count} to place {peer}"),
            Self::Receive { count, ty, peer, .. } => {
                write!(f, "receive of {ty} x {count} from place {peer}")
            }
        }
    }
}

/// Returns the calls of a collective.
///
/// # Errors
/// NCCL does not reduce the type.
pub(crate) fn of(task: &CollectiveTask) -> Result<Vec<Call>, DriverError> {
    let CollectiveTask { collective, group, places } = *task;
    let mut calls = vec![];
    for (pieces, &[from, to]) in collective.tensors.iter().zip(places) {
        // Tensors that are only moved are sent as bytes.
        let bytes = pieces.count * pieces.dtype.bytes() as usize;
        let combined = || {
            let operation = operation(collective.reduced.expect("a reduction has a kind"));
            Ok::<_, DriverError>((pieces.count, element(pieces.dtype)?, operation))
        };
        match collective.kind {
            Kind::AllReduce => {
                let (count, ty, operation) = combined()?;
                calls.push(Call::AllReduce { from, to, count, ty, operation });
            }
            Kind::ReduceScatter => {
                let (count, ty, operation) = combined()?;
                calls.push(Call::ReduceScatter { from, to, count, ty, operation });
            }
            Kind::AllGather => calls.push(Call::AllGather { from, to, count: bytes, ty: Element::U8 }),
            Kind::AllToAll => {
                for place in 0..group.len() {
                    let at = |start: Address| Address(start.0 + (place * bytes) as u64);
                    let (count, ty, peer) = (bytes, Element::U8, place as i32);
                    calls.push(Call::Send { from: at(from), count, ty, peer });
                    calls.push(Call::Receive { to: at(to), count, ty, peer });
                }
            }
            Kind::AllSlice => return Err(DriverError("an all_slice is not an exchange".into())),
        }
    }
    Ok(calls)
}

fn element(dtype: DType) -> Result<Element, DriverError> {
    Ok(match dtype {
        DType::F64 => Element::F64,
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::BF16,
        DType::I64 => Element::I64,
        DType::I32 => Element::I32,
        DType::I8 => Element::I8,
        DType::U64 => Element::U64,
        DType::U32 => Element::U32,
        // Bools are added as bytes: at most one of the parts is not zero.
        DType::U8 | DType::Bool => Element::U8,
        DType::I16 | DType::U16 => return Err(DriverError(format!("NCCL does not reduce {dtype}"))),
    })
}

fn operation(kind: PartialKind) -> Operation {
    match kind {
        PartialKind::Sum => Operation::Sum,
        PartialKind::Max => Operation::Max,
        PartialKind::Min => Operation::Min,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Collective, Pieces, ValueStart};
    use program::Region;
    use smallvec::SmallVec;

    fn calls(kind: Kind, reduced: Option<PartialKind>, dtype: DType) -> Result<Vec<Call>, DriverError> {
        let start = ValueStart { region: Region::Arena, byte: 0 };
        let tensors = vec![Pieces { dtype, count: 10, from: start, to: start }];
        let collective = Collective { kind, axes: SmallVec::new(), reduced, tensors };
        let places = [[Address(1000), Address(5000)]];
        of(&CollectiveTask { collective: &collective, group: &[4, 6], places: &places })
    }

    /// The numbers of nccl.h.
    #[test]
    fn types_and_operations_have_nccls_numbers() {
        let all = [(DType::I8, 0), (DType::U8, 1), (DType::Bool, 1), (DType::I32, 2), (DType::U32, 3)];
        let others = [(DType::I64, 4), (DType::U64, 5), (DType::F16, 6), (DType::F32, 7)];
        let wide = [(DType::F64, 8), (DType::BF16, 9)];
        for (dtype, number) in all.into_iter().chain(others).chain(wide) {
            assert_eq!(element(dtype).map(|element| element as i32), Ok(number), "{dtype}");
        }
        assert!(element(DType::I16).is_err() && element(DType::U16).is_err());
        let kinds = [PartialKind::Sum, PartialKind::Max, PartialKind::Min];
        assert_eq!(kinds.map(|kind| operation(kind) as i32), [0, 2, 3]);
    }

    #[test]
    fn what_is_combined_is_counted_in_elements_and_what_is_moved_in_bytes() {
        let (from, to) = (Address(1000), Address(5000));
        let (ty, operation) = (Element::BF16, Operation::Max);
        let reduced = calls(Kind::AllReduce, Some(PartialKind::Max), DType::BF16);
        assert_eq!(reduced, Ok(vec![Call::AllReduce { from, to, count: 10, ty, operation }]));
        let scattered = calls(Kind::ReduceScatter, Some(PartialKind::Max), DType::BF16);
        assert_eq!(scattered, Ok(vec![Call::ReduceScatter { from, to, count: 10, ty, operation }]));
        let gathered = calls(Kind::AllGather, None, DType::I16);
        assert_eq!(gathered, Ok(vec![Call::AllGather { from, to, count: 20, ty: Element::U8 }]));
        assert!(calls(Kind::AllReduce, Some(PartialKind::Sum), DType::I16).is_err());
    }

    /// A peer is given by its place in the group.
    #[test]
    fn an_all_to_all_sends_each_its_piece_and_receives_one_of_each() {
        let (count, ty) = (40, Element::U8);
        let expected = vec![
            Call::Send { from: Address(1000), count, ty, peer: 0 },
            Call::Receive { to: Address(5000), count, ty, peer: 0 },
            Call::Send { from: Address(1040), count, ty, peer: 1 },
            Call::Receive { to: Address(5040), count, ty, peer: 1 },
        ];
        assert_eq!(calls(Kind::AllToAll, None, DType::F32), Ok(expected));
    }
}
