//! Which operator made the first number that is not finite.

use super::arena::{Arena, Constants};
use super::call::Call;
use super::element::{Element, with_float};
use super::kernels;
use crate::device::NonFinite;
use crate::layout::Layout;
use crate::program::{Chain, Instruction, Kernel, Program, Section, View};
use smallvec::smallvec;
use std::sync::Arc;

/// Runs the microbatch section, looking at every result. An infinity that a mask brought in is no fault: only an
/// operator whose operands have none of a kind can make the first of that kind.
pub(super) fn first(program: &Program, constants: &Constants, arena: &mut Arena) -> Option<NonFinite> {
    let mut infinity = None;
    for instruction in program.section(Section::Microbatch) {
        let before =
            worst(instruction.operands.iter().map(|view| kind_of(view, &arena.read(constants, view))));
        let steps = match &instruction.kernel {
            Kernel::Elementwise(chain) if chain.steps.len() > 1 => {
                steps_of(chain, instruction, constants, arena)
            }
            _ => vec![],
        };
        kernels::run(arena.borrow(constants, instruction, true));
        let results = instruction.results.iter().map(|view| kind_of(view, &arena.read(constants, view)));
        let made = (instruction.name(), instruction.origin.clone(), worst(results));
        let fresh = |kind: Kind| before.is_none_or(|(before, _)| kind > before);
        for (operator, origin, after) in steps.into_iter().chain([made]) {
            let Some((kind, value)) = after.filter(|(kind, _)| fresh(*kind)) else { continue };
            let found = NonFinite { operator, origin, value, infinity: None };
            match kind {
                Kind::NaN => return Some(NonFinite { infinity: infinity.map(Box::new), ..found }),
                Kind::Infinity => drop(infinity.get_or_insert(found)),
            }
        }
    }
    infinity
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Infinity,
    NaN,
}

fn worst(kinds: impl Iterator<Item = Option<(Kind, f64)>>) -> Option<(Kind, f64)> {
    kinds.flatten().reduce(|a, b| if b.0 > a.0 { b } else { a })
}

/// The worst number, among these bytes, that is not finite.
fn kind_of(view: &View, bytes: &[u8]) -> Option<(Kind, f64)> {
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

/// An operator, its node, and the worst number it made.
type Made = (String, Arc<str>, Option<(Kind, f64)>);

/// What each step of a chain makes. Runs the chain up to each step in turn,
/// into memory beside the arena.
fn steps_of(chain: &Chain, instruction: &Instruction, constants: &Constants, arena: &Arena) -> Vec<Made> {
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
        kernels::run(Call {
            instruction: &part,
            operands: part.operands.iter().map(|view| Some(arena.span(constants, view))).collect(),
            results: smallvec![&mut bytemuck::cast_slice_mut(&mut memory)[..bytes]],
            scratch: &mut [],
            add: false,
        });
        let kind = kind_of(&view, &bytemuck::cast_slice(&memory)[..bytes]);
        (last.op.name().to_string(), last.origin.clone(), kind)
    };
    (0..chain.steps.len()).map(step).collect()
}
