//! The memory plan: nothing alive is overwritten, states are updated in place, and a broken slot is caught.

use crate::compare::{bytes, device};
use crate::training::{seed_with_parameters, training_program};
use ir::analysis::Lifetime;
use ir::analysis::memory_plan::{self, Buffer};
use ir::interp::{self, Missing};
use ir::ops::elementwise::Unary;
use ir::{At, Builder, DType, Initializer, Module, Phase, Role, Type, testing};
use program::device::{ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::{Kernel, Microbatches, Program, Section};
use proptest::prelude::*;

fn buffers() -> impl Strategy<Value = Vec<Buffer>> {
    let buffer = (0u64..5000, 0u32..60, 0u32..20).prop_map(|(bytes, first, length)| Buffer {
        bytes,
        lifetime: Lifetime { first, last: first + length },
    });
    proptest::collection::vec(buffer, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn buffers_alive_together_never_share_a_byte(buffers in buffers()) {
        let placement = memory_plan::place(&buffers);
        prop_assert_eq!(memory_plan::check(&buffers, &placement.offsets), Ok(()));
        prop_assert!(placement.offsets.iter().all(|offset| offset % memory_plan::ALIGNMENT == 0));
        prop_assert!(placement.peak >= placement.lower_bound);
        prop_assert!(placement.peak <= placement.lower_bound + placement.lower_bound / 4, "{placement:?}");
        prop_assert_eq!(placement, memory_plan::place(&buffers));
    }

    /// Whatever one pair that overlaps in time is moved onto, the check says so.
    #[test]
    fn a_broken_slot_is_caught(buffers in buffers(), pick in any::<prop::sample::Index>()) {
        let mut placement = memory_plan::place(&buffers);
        let meets = |i: usize, j: usize| i != j && buffers[i].bytes > 0 && buffers[j].bytes > 0 && buffers[i].lifetime.overlaps(&buffers[j].lifetime);
        let pairs: Vec<(usize, usize)> =
            (0..buffers.len()).flat_map(|i| (0..buffers.len()).map(move |j| (i, j))).filter(|&(i, j)| meets(i, j)).collect();
        prop_assume!(!pairs.is_empty());
        let (moved, onto) = pairs[pick.index(pairs.len())];
        placement.offsets[moved] = placement.offsets[onto];
        prop_assert!(memory_plan::check(&buffers, &placement.offsets).is_err());
    }

    #[test]
    fn the_arena_of_a_random_program_is_as_large_as_the_plan_says(seed in any::<u64>()) {
        let module = training_program(seed, DType::F32, true);
        for target in [cpu::TARGET, cuda::TARGET] {
            let program = lower(&module, &LowerOptions::of(target));
            assert_plan_is_exact(&program.expect("it lowers"));
        }
    }
}

#[test]
fn optimizers_write_their_states_in_place() {
    let module = training_program(seed_with_parameters(11), DType::F32, true);
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).expect("it lowers");
    let updates: Vec<_> = program.section(Section::Update).iter().filter(|i| i.name() == "adam").collect();
    assert!(!updates.is_empty());
    assert!(updates.iter().all(|update| update.in_place.as_slice() == [(0, 0), (2, 1), (3, 2)]));
    assert!(program.section(Section::Update).iter().all(|i| !matches!(i.kernel, Kernel::Copy)));
}

/// A prepared value and the microbatch's input make a result of their size: with one microbatch it takes the place of the
/// prepared value, which the next of several would read again.
#[test]
fn what_was_prepared_ends_with_the_last_reader_of_the_only_microbatch() {
    let mut module = Module::new("prepared");
    let ty = Type::of(DType::F32, &[1024]);
    let x = module.add_input("x", ty.clone(), true);
    let state = module.add_state("w", ty, Role::Parameter, Initializer::Zeros);
    let w = module.states[state].input;
    let mut b = Builder::new(&mut module, "test");
    b.at(At::End(Phase::Prepare));
    let prepared = b.one(Unary::Neg, &[w]).expect("a number has a negative");
    b.at(At::End(Phase::Forward));
    let result = b.build(prepared + x).expect("the shapes are equal");
    b.tables().add_output("result", result);
    b.finish();
    let besides_states = |microbatches| {
        let options = LowerOptions { microbatches, ..LowerOptions::of(cpu::TARGET) };
        let memory = lower(&module, &options).expect("it lowers").memory;
        (memory.arena - memory.states, memory.lower_bound - memory.states)
    };
    assert_eq!(besides_states(Microbatches::One), (8192, 8192));
    assert_eq!(besides_states(Microbatches::Many), (12288, 12288));
}

#[test]
fn the_arena_is_as_large_as_the_plan_says() {
    let module = testing::program(3, DType::F32, 40);
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).expect("it lowers");
    assert_plan_is_exact(&program);
}

/// Asserts that what instructions touch ends where the plan says.
pub(crate) fn assert_plan_is_exact(program: &Program) {
    let instructions = program.sections.iter().flatten();
    let views = instructions.flat_map(|i| i.operands.iter().chain(&i.results).chain(&i.scratch));
    let ends = views.filter(|view| view.region == program::Region::Arena).map(|view| view.bytes().end);
    let high_water = ends.max().unwrap_or(0);
    assert!(high_water <= program.memory.arena && program.memory.arena < high_water + memory_plan::ALIGNMENT);
    assert!(program.memory.lower_bound <= program.memory.arena);
}

/// Moves the result of every instruction in turn, with its readers unchanged, onto something else: either the arena
/// refuses, or the numbers differ from those of the sound program.
#[test]
fn a_result_written_to_the_wrong_slot_is_caught() {
    let module = training_program(seed_with_parameters(5), DType::F64, false);
    let sound = lower(&module, &LowerOptions::of(cpu::TARGET)).expect("it lowers");
    let run = |program: Program| {
        let states = interp::initial_states(&module, 1, Missing::Draw).expect("states can be drawn");
        let inputs: Vec<_> = (0..2).map(|i| bytes(&program, &testing::microbatch(&module, 9, i))).collect();
        let mut cpu = device(program, &states, 1);
        let outputs = step(&mut cpu, ProgramId(0), &inputs).expect("the step runs");
        (outputs, crate::compare::states(&cpu, &module))
    };
    let expected = run(sound.clone());
    let mut caught = 0;
    for index in 0..sound.section(Section::Microbatch).len() {
        let mut broken = sound.clone();
        let instruction = &mut broken.sections[Section::Microbatch as usize][index];
        instruction.results[0].base = if instruction.results[0].base == 0 { 64 } else { 0 };
        let given = std::panic::catch_unwind(|| run(broken));
        assert!(
            given.is_err() || given.is_ok_and(|given| given != expected),
            "instruction {index}: {}",
            sound.section(Section::Microbatch)[index]
        );
        caught += 1;
    }
    assert!(caught > 10);
}
