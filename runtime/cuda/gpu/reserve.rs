//! The memory that a GPU's libraries take after programs have been found to fit. It is kept free for them.

use super::splits::Split;
use super::{cudnn, matmul};
use crate::program::{Collective, CudaProgram, Task};
use ir::ops::collective::Collective as Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that the driver takes for kernels, for graphs, and for the modules that cuBLASLt and cuDNN load at their first call. This is a
/// guess until it is measured, and a generous guess: too small a reserve ends a run in its first or second step.
pub(super) const KERNELS: u64 = 512 << 20;

/// Bytes that NCCL takes on a GPU for each of its groups. A guess, to be measured: others report 544 MiB for two A100 and 688 MiB for
/// four (NCCL's issue 964); newer GPUs have more channels.
const GROUP: u64 = 1 << 30;

/// Bytes that NCCL takes in addition for each other GPU to which this GPU sends and from which it receives. A guess, to be measured:
/// others report 3.3 GB for the first all-to-all of eight H100 (NCCL's issue 1685).
const PEER: u64 = 512 << 20;

/// Bytes that NCCL takes for a channel between two pipeline ranks. A guess, to be measured: two GPUs that exchange only messages have
/// the buffers of one connection.
const CHANNEL: u64 = 128 << 20;

/// Returns the most bytes that the libraries take, on each rank.
pub(super) fn reserve(programs: &[CudaProgram]) -> u64 {
    let by_cudnn = programs.iter().any(|cuda| cuda.for_libraries().next().is_some());
    let workspace = if by_cudnn { cudnn::MOST_ROOM } else { 0 };
    KERNELS + matmul::WORKSPACES + workspace + exchanges(programs) + channels(programs)
}

/// Returns the bytes that collectives take. Every rank is in as many groups as the first rank, of the same sizes.
fn exchanges(programs: &[CudaProgram]) -> u64 {
    let mut groups: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
    for cuda in programs {
        for command in cuda.sections.iter().flatten() {
            if let Task::Collective(collective) = &command.task {
                let group = cuda.program.mesh.group(0, &collective.axes);
                let bytes = GROUP + peers(collective, group.len() as u64) * PEER;
                let known = groups.entry(group).or_default();
                *known = bytes.max(*known);
            }
        }
    }
    groups.into_values().sum()
}

/// Returns the bytes that NCCL takes for the channels of messages to and from other stages.
fn channels(programs: &[CudaProgram]) -> u64 {
    let splits: BTreeSet<Split> = programs.iter().flat_map(Split::all).collect();
    splits.iter().filter(|split| matches!(split, Split::Channel { .. })).count() as u64 * CHANNEL
}

/// Returns the number of other ranks to which each rank of a group sends separately.
fn peers(collective: &Collective, ranks: u64) -> u64 {
    if collective.kind == Kind::AllToAll { ranks - 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::lower::{LowerOptions, lower};
    use std::sync::Arc;

    /// Returns the reserve beyond the bytes that every program has.
    fn beyond(text: &str) -> u64 {
        let module = ir::text::parse(&format!("trainyard-ir 1\n{text}")).unwrap();
        let options = LowerOptions::of(crate::TARGET);
        let program = Arc::new(lower(&module, &options).unwrap());
        let cuda = crate::lower::lower(program).unwrap();
        // Programs of one device share the reserve.
        reserve(&[cuda.clone(), cuda]) - KERNELS - matmul::WORKSPACES
    }

    #[test]
    fn cudnn_has_its_workspace_where_something_goes_to_it() {
        let alone = r#"module @m placed {
              func @train(%0 "x" : f32[8]) {
                %1 = tanh %0 : f32[8]
              }
              output "y" = %1
            }"#;
        assert_eq!(beyond(alone), 0);
        let convolution = r#"module @m placed {
              func @train(%0 "x" : f32[1, 2, 8, 8], %1 "w" : f32[3, 2, 3, 3]) {
                %2 = conv %0, %1 {strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]} : f32[1, 3, 6, 6]
              }
              output "y" = %2
            }"#;
        assert_eq!(beyond(convolution), cudnn::MOST_ROOM);
    }

    /// A group over `dp` with two collectives, a group over both axes, and a group over `tp` in which each rank sends to every other.
    #[test]
    fn nccl_has_room_for_each_group_of_a_rank_and_for_those_that_it_sends_to() {
        let text = r#"module @m placed mesh [dp=2, tp=4] {
              func @train(%0 "x" : f32[8, 8] {dp, -}, %1 "y" : f32[8] {dp*tp}, %2 "z" : f32[8, 8] {tp, -}) {
                %3 = all_gather %0 : f32[8, 8]
                %4 = tanh %0 : f32[8, 8] {dp, -}
                %5 = all_gather %4 : f32[8, 8]
                %6 = all_gather %1 : f32[8]
                %7 = all_to_all %2 : f32[8, 8] {-, tp}
              }
              output "a" = %3
              output "b" = %5
              output "c" = %6
              output "d" = %7
            }"#;
        assert_eq!(beyond(text), 3 * GROUP + 3 * PEER);
    }
}
