//! The sequence of NCCL calls of a rank. All ranks must make the same calls in the same order: otherwise NCCL waits for ever or mixes
//! up bytes, and reports nothing. So ranks compare their sequences before the first call.

use super::calls;
use crate::driver::{Address, CollectiveTask, DriverError};
use crate::program::{Collective, CudaProgram, PlacedMessage, Stream, Task};
use comm::agreement::Agreement;
use ir::Diagnostic;
use program::device::DeviceError;
use program::{Message, Part};
use std::fmt::Write as _;
use twox_hash::XxHash3_64;

/// The calls of a rank, in order: one text for each message and each collective, with its part of the step, stream, operations, counts,
/// types and axes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence(pub Vec<String>);

impl Sequence {
    /// Returns the calls that programs make. The calls of each part of a step are listed once.
    ///
    /// # Errors
    /// A collective that NCCL does not support.
    pub fn of(programs: &[CudaProgram]) -> Result<Self, DriverError> {
        let mut calls = vec![];
        for cuda in programs {
            for (part, name) in Part::ALL {
                for command in cuda.part(part) {
                    match &command.task {
                        Task::Collective(collective) => {
                            let ranks = cuda.program.mesh.group(0, &collective.axes).len();
                            calls.push(format!("{name}, {}", text(command.stream, collective, ranks)?));
                        }
                        Task::Message(PlacedMessage { message, bytes, .. }) => {
                            let Message { from, to, channel } = message;
                            calls.push(format!(
                                "{name}, channel {channel}: u8 x {bytes} from stage rank {from} to {to}"
                            ));
                        }
                        Task::Launch(_)
                        | Task::Multiply(_)
                        | Task::Library
                        | Task::Copy(_)
                        | Task::Host
                        | Task::Disk => {}
                    }
                }
            }
        }
        Ok(Self(calls))
    }
}

/// `exchange stream: all_reduce of f32 x 4096 (sum), over [axis0] of 2 ranks`
pub(crate) fn text(stream: Stream, collective: &Collective, ranks: usize) -> Result<String, DriverError> {
    // Ranks differ only in their addresses and in the members of their group.
    let group: Vec<u64> = (0..ranks as u64).collect();
    let places = vec![[Address(0); 2]; collective.tensors.len()];
    let calls = calls::of(&CollectiveTask { collective, group: &group, places: &places })?;
    let mut text = format!("{}: ", stream.described());
    for (index, call) in calls.iter().enumerate() {
        let _ = write!(text, "{}{call}", if index == 0 { "" } else { "; " });
    }
    let _ = write!(text, ", over {:?} of {ranks} ranks", collective.axes.as_slice());
    Ok(text)
}

/// Refuses ranks that make different calls; the sequences are in the order of ranks.
///
/// # Errors
/// The first rank that differs from rank 0, and the first call in which it does.
pub fn check(ranks: &[Sequence]) -> Result<(), Diagnostic> {
    check_stages(ranks, ranks.len())
}

/// Refuses ranks of a stage that make different calls. A stage has `devices` ranks; the ranks of other stages make other calls.
///
/// # Errors
/// The first rank that differs from the first of its stage, and the first call in which it does.
pub(crate) fn check_stages(ranks: &[Sequence], devices: usize) -> Result<(), Diagnostic> {
    for (stage, own) in ranks.chunks(devices.max(1)).enumerate() {
        let Some(place) = own.iter().position(|other| *other != own[0]) else { continue };
        let (start, first, other) = (stage * devices, &own[0], &own[place]);
        let rank = start + place;
        let call = (0..).find(|&call| first.0.get(call) != other.0.get(call)).unwrap_or_default();
        let told = |rank: usize, own: &Sequence| match own.0.get(call) {
            Some(text) => format!("rank {rank} makes: {text}"),
            None => format!("rank {rank} makes no call after the first {call}"),
        };
        let message =
            format!("rank {rank} and rank {start} make different calls of NCCL, from call {call} on");
        return Err(Diagnostic::new(message).note(told(start, first)).note(told(rank, other)));
    }
    Ok(())
}

/// Refuses to begin unless all ranks of each stage, which has `devices` ranks, make the same calls. Ranks send checksums, and the calls
/// themselves only if these differ.
///
/// # Errors
/// The same as those of [`check_stages`], on all ranks; a rank failed.
pub(crate) fn agree(agreement: &Agreement, own: &Sequence, devices: u64) -> Result<(), DeviceError> {
    let devices = devices.max(1) as usize;
    let sums = agreement.gather(XxHash3_64::oneshot(own.0.join("\n").as_bytes()))?;
    if sums.chunks(devices).all(|stage| stage.iter().all(|sum| *sum == stage[0])) {
        return Ok(());
    }
    let all: Vec<Sequence> = agreement.gather(own.0.clone())?.into_iter().map(Sequence).collect();
    check_stages(&all, devices).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::lower;
    use comm::agreement::on_ranks;
    use program::lower::{LowerOptions, lower as lower_module};
    use std::sync::Arc;

    /// Returns a program that gathers a tensor over `tp`, and sums the gradient of a weight over `dp`.
    fn program() -> CudaProgram {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=2, tp=2] {
              state @w : f32[4] parameter = zeros
              func @train(%0 = @w, %1 "x" : f32[8, 4] {dp, -}, %2 "y" : f32[8, 6] {tp, -}) {
                %3 = mul %1, %0 : f32[8, 4] {dp, -}
                %4 = all_gather %2 : f32[8, 6]
                %5 = reduce %3 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
                %6 = all_reduce %5 : f32[4] !{bwd}
                %7 = accumulate %6 : f32[4] !{update}
                %8 = add %0, %7 : f32[4] !{update}
              }
              output "y" = %4
              update @w = %8
            }"#;
        let module = ir::text::parse(text).unwrap();
        let options = LowerOptions::of(crate::TARGET);
        lower(Arc::new(lower_module(&module, &options).unwrap())).unwrap()
    }

    #[test]
    fn a_sequence_has_every_call_with_its_type_and_group() {
        let mut calls = Sequence::of(&[program()]).unwrap().0;
        calls.sort();
        assert_eq!(
            calls,
            [
                "microbatch, exchange stream: all_gather of u8 x 96, over [axis1] of 2 ranks",
                "microbatch, exchange stream: all_reduce of f32 x 4 (sum), over [axis0] of 2 ranks",
            ]
        );
    }

    #[test]
    fn a_swapped_pair_and_a_missing_call_are_refused_with_both_sides() {
        let own = Sequence::of(&[program()]).unwrap();
        check(&[own.clone(), own.clone()]).unwrap();
        let mut swapped = own.clone();
        swapped.0.swap(0, 1);
        let error = check(&[own.clone(), own.clone(), swapped]).unwrap_err();
        assert_eq!(error.message, "rank 2 and rank 0 make different calls of NCCL, from call 0 on");
        assert!(error.notes[0].starts_with("rank 0 makes: ") && error.notes[1].starts_with("rank 2 makes: "));
        let short = Sequence(own.0[..1].to_vec());
        let error = check(&[own, short]).unwrap_err();
        assert_eq!(error.notes[1], "rank 1 makes no call after the first 1");
    }

    #[test]
    fn every_rank_learns_that_two_differ() {
        let own = Sequence::of(&[program()]).unwrap();
        let agreed = on_ranks(3, |agreement| agree(&agreement, &own, 3).is_ok());
        assert_eq!(agreed, [true; 3]);
        let errors = on_ranks(3, |agreement| {
            let mut own = own.clone();
            if agreement.rank() == 1 {
                own.0.swap(0, 1);
            }
            agree(&agreement, &own, 3).unwrap_err().to_string()
        });
        let told = "rank 1 and rank 0 make different calls of NCCL, from call 0 on";
        assert!(errors.iter().all(|error| error.contains(told)), "{errors:?}");
    }
}
