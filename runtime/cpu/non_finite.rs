//! Finds the operator that made the first number that is not finite.

use super::arena::Arena;
use super::call::Call;
use super::element::{Element, with_float};
use super::{Loaded, kernels};
use comm::Communicator;
use program::device::{DeviceError, NonFinite};
use program::layout::Layout;
use program::{Chain, Instruction, Kernel, Section, Turn, View};
use smallvec::smallvec;
use std::sync::Arc;

/// Runs a microbatch and checks every result until a NaN is found. Returns the instruction that made it. An infinity from a mask is no
/// fault: an operator is reported only if its operands have no number of the kind (infinity or NaN) that its result has.
pub(super) fn first(
    loaded: &Loaded,
    arena: &mut Arena,
    communicator: Option<&dyn Communicator>,
) -> Result<Option<NonFinite>, DeviceError> {
    let instructions = loaded.program.microbatch().map(|(_, _, instruction)| instruction);
    first_of(instructions, loaded, arena, communicator)
}

/// Does the same as [`first`] for a turn of a pipeline.
pub(super) fn first_of_turn(
    loaded: &Loaded,
    turn: &Turn,
    arena: &mut Arena,
    communicator: Option<&dyn Communicator>,
) -> Result<Option<NonFinite>, DeviceError> {
    let instructions = &loaded.program.section(Section::Microbatch)[turn.instructions.clone()];
    let found = first_of(instructions.iter(), loaded, arena, communicator)?;
    Ok(found.map(|found| NonFinite { turn: Some(turn.task.into()), ..found }))
}

fn first_of<'i>(
    instructions: impl Iterator<Item = &'i Instruction>,
    loaded: &Loaded,
    arena: &mut Arena,
    communicator: Option<&dyn Communicator>,
) -> Result<Option<NonFinite>, DeviceError> {
    let mut infinity = None;
    let mut nan = None;
    for (index, instruction) in instructions.enumerate() {
        // The numbers of a message come from another rank.
        if nan.is_some() || matches!(instruction.kernel, Kernel::Message(_)) {
            // The instruction still runs: other ranks may need this rank's part of later collectives.
            loaded.issue(arena, instruction, true, communicator)?;
            continue;
        }
        for found in made_by(loaded, arena, instruction, communicator)? {
            let found = NonFinite { instruction: index, ..found };
            if found.value.is_nan() {
                nan = Some(found);
                break;
            }
            infinity.get_or_insert(found);
        }
    }
    let infinity_before = infinity.clone().map(Box::new);
    Ok(nan.map(|found| NonFinite { infinity: infinity_before, ..found }).or(infinity))
}

/// Runs an instruction. Returns the numbers that are not finite and of a kind that its operands do not have, in the order in which the
/// instruction makes them.
fn made_by(
    loaded: &Loaded,
    arena: &mut Arena,
    instruction: &Instruction,
    communicator: Option<&dyn Communicator>,
) -> Result<Vec<NonFinite>, DeviceError> {
    let worst_of = |arena: &Arena, views: &[View]| {
        let kind = |view: &View| Ok(kind_of(view, &arena.read(&loaded.constants, view, &loaded.bases)?));
        let kinds = views.iter().map(kind).collect::<Result<Vec<_>, DeviceError>>()?;
        Ok::<_, DeviceError>(worst(kinds.into_iter()))
    };
    let before = worst_of(arena, &instruction.operands)?;
    let mut made = match &instruction.kernel {
        Kernel::Elementwise(chain) if chain.steps.len() > 1 => {
            steps_of(chain, instruction, loaded, arena, communicator)?
        }
        _ => vec![],
    };
    loaded.issue(arena, instruction, true, communicator)?;
    made.push((instruction.name(), instruction.origin.clone(), worst_of(arena, &instruction.results)?));
    let fresh = |kind: Kind| before.is_none_or(|(before, _)| kind > before);
    let found = |(operator, origin, after): StepResult| {
        let (_, value) = after.filter(|(kind, _)| fresh(*kind))?;
        let origin = origin.to_string();
        Some(NonFinite { instruction: 0, operator, origin, value, rank: None, turn: None, infinity: None })
    };
    Ok(made.into_iter().filter_map(found).collect())
}

/// The kind of a number that is not finite. The worse kind is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An infinity of either sign.
    Infinity,
    /// Not a number.
    NaN,
}

/// Returns the worst of several numbers.
pub fn worst(kinds: impl Iterator<Item = Option<(Kind, f64)>>) -> Option<(Kind, f64)> {
    kinds.flatten().reduce(|a, b| if b.0 > a.0 { b } else { a })
}

/// Returns the worst number that is not finite in these bytes of a view.
pub fn kind_of(view: &View, bytes: &[u8]) -> Option<(Kind, f64)> {
    let worst_of = |numbers: &mut dyn Iterator<Item = f64>| {
        let kind = |x: f64| if x.is_nan() { Kind::NaN } else { Kind::Infinity };
        worst(numbers.filter(|x| !x.is_finite()).map(|x| Some((kind(x), x))))
    };
    if !view.dtype.is_float() {
        return None;
    }
    with_float!(view.dtype, S => {
        let numbers = bytes.chunks_exact(size_of::<S>()).map(bytemuck::pod_read_unaligned::<S>);
        worst_of(&mut numbers.map(Element::to_f64))
    })
}

/// An operator, its ONNX node, and the worst number in its result.
type StepResult = (String, Arc<str>, Option<(Kind, f64)>);

/// Returns the results of a chain's steps. Runs the chain up to each step in turn, into memory beside the arena.
fn steps_of(
    chain: &Chain,
    instruction: &Instruction,
    loaded: &Loaded,
    arena: &mut Arena,
    communicator: Option<&dyn Communicator>,
) -> Result<Vec<StepResult>, DeviceError> {
    let step = |index: usize| {
        let last = &chain.steps[index];
        let layout = Layout { offset: 0, ..instruction.results[0].layout.clone() };
        let view = View { dtype: last.dtype, layout, ..instruction.results[0].clone() };
        let upto = Chain { steps: chain.steps[..=index].to_vec(), stores: smallvec![index as u32] };
        let part = Instruction {
            kernel: Kernel::Elementwise(upto),
            results: vec![view.clone()],
            scratch: None,
            in_place: smallvec![],
            ..instruction.clone()
        };
        let bytes = view.layout.len() * view.dtype.bytes() as usize;
        let mut memory = vec![0u64; bytes.div_ceil(8)];
        let operands =
            part.operands.iter().map(|view| Some(arena.span(&loaded.constants, view, &loaded.bases)));
        let call = Call {
            instruction: &part,
            operands: operands.collect(),
            results: smallvec![&mut bytemuck::cast_slice_mut(&mut memory)[..bytes]],
            scratch: &mut [],
            add: false,
            device: loaded.device(communicator),
        };
        kernels::run(call, communicator)?;
        let kind = kind_of(&view, &bytemuck::cast_slice(&memory)[..bytes]);
        Ok((last.op.name().to_string(), last.origin.clone(), kind))
    };
    (0..chain.steps.len()).map(step).collect()
}
