//! Finds the instruction that made the first number that is not finite, on a GPU.

use super::device::Cuda;
use super::driver::Driver;
use cpu::{Kind, kind_of, worst};
use program::device::{DeviceError, NonFinite, ProgramId};
use program::{Instruction, Part, Section, Turn, View};

/// Runs a microbatch and reads every result until a NaN is found. Returns the instruction that made the NaN, or else the first
/// infinity. An infinity that a mask brought in is no fault: an instruction counts only if its results are worse than its operands,
/// where NaN is worse than infinity.
pub(super) fn first<D: Driver>(cuda: &mut Cuda<D>, id: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
    let program = cuda.lowered(id)?.clone();
    cuda.begin_again(id);
    first_of(cuda, id, program.microbatch())
}

/// As [`first`], for the turn of a pipeline that was begun.
pub(super) fn first_of_turn<D: Driver>(
    cuda: &mut Cuda<D>,
    id: ProgramId,
    turn: &Turn,
) -> Result<Option<NonFinite>, DeviceError> {
    let program = cuda.lowered(id)?.clone();
    let (section, range) = (Section::Microbatch, turn.instructions.clone());
    let instructions = range.clone().zip(&program.section(section)[range]);
    let found = first_of(cuda, id, instructions.map(|(index, instruction)| (section, index, instruction)))?;
    Ok(found.map(|found| NonFinite { turn: Some(turn.task.into()), ..found }))
}

fn first_of<'i, D: Driver>(
    cuda: &mut Cuda<D>,
    id: ProgramId,
    instructions: impl Iterator<Item = (Section, usize, &'i Instruction)>,
) -> Result<Option<NonFinite>, DeviceError> {
    let (mut infinity, mut nan) = (None::<NonFinite>, None);
    for (number, (section, index, instruction)) in instructions.enumerate() {
        let part = Part::from(section);
        let run = |cuda: &mut Cuda<D>| {
            cuda.execute(id, part, index..index + 1)?;
            cuda.join(id)
        };
        // Another rank made the numbers of a message.
        if nan.is_some() || instruction.message().is_some() {
            // Other ranks may wait for this rank in collectives.
            run(cuda)?;
            continue;
        }
        let before = worst_of(cuda, id, &instruction.operands)?;
        run(cuda)?;
        let after = worst_of(cuda, id, &instruction.results)?;
        let Some((kind, value)) = after.filter(|(kind, _)| before.is_none_or(|(before, _)| *kind > before))
        else {
            continue;
        };
        let (operator, origin) = (instruction.name(), instruction.origin.to_string());
        let found = NonFinite {
            instruction: number,
            operator,
            origin,
            value,
            rank: None,
            turn: None,
            infinity: None,
        };
        match kind {
            Kind::NaN => nan = Some(found),
            Kind::Infinity => {
                infinity.get_or_insert(found);
            }
        }
    }
    let infinity_before = infinity.clone().map(Box::new);
    Ok(nan.map(|found| NonFinite { infinity: infinity_before, ..found }).or(infinity))
}

fn worst_of<D: Driver>(
    cuda: &Cuda<D>,
    id: ProgramId,
    views: &[View],
) -> Result<Option<(Kind, f64)>, DeviceError> {
    let kinds = views.iter().map(|view| Ok(kind_of(view, &cuda.read_view(id, view)?)));
    Ok(worst(kinds.collect::<Result<Vec<_>, DeviceError>>()?.into_iter()))
}
