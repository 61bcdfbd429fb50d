//! The heap of a step: the working memory of kernels beside the arena, which the memory plan does not include, and the values of the
//! interpreter, which are estimated before a step.

use cpu::Cpu;
use ir::interp::{self, Missing, Mode, initial_states};
use ir::{Module, Tensor};
use passes::Manager;
use peak_alloc::PeakAlloc;
use program::Section;
use program::device::{Device, ProgramId};
use std::collections::BTreeMap;
use testing::models::{self, Fixture, adamw, done};
use trainyard::training::Programs;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const THREADS: usize = 2;
/// Bytes that a thread may hold at a time: blocks of a kernel, and the matrices that gemm packs, whose size the caches bound.
const OF_A_THREAD: usize = 1 << 20;

/// The steps that are measured.
const STEPS: usize = 8;

/// There is one test, since the process has one heap. The threads of a device free their memory some time after the device is gone, while
/// another test would measure.
#[test]
fn a_step_takes_the_heap_that_is_planned() {
    the_interpreter_takes_at_least_the_estimated_memory_and_at_most_twice_as_much();
    a_step_on_the_processor_holds_little_beside_the_arena();
}

/// An estimate above the actual heap of a step would refuse a model that fits.
fn the_interpreter_takes_at_least_the_estimated_memory_and_at_most_twice_as_much() {
    let fixtures =
        [&models::MLP_DYNAMO, &models::GPT2_DYNAMO, &models::BERT_DYNAMO, &models::RESNET_TRAINMODE];
    for (fixture, microbatches) in fixtures.iter().flat_map(|fixture| [(fixture, 1), (fixture, 3)]) {
        let (estimated, taken) = interpreted(fixture, microbatches);
        let file = fixture.file;
        assert!(estimated <= taken, "{file}: {estimated} bytes estimated, {taken} taken");
        assert!(estimated * 2 >= taken, "{file}: {estimated} bytes estimated, {taken} taken");
    }
}

/// The bytes that are estimated for a step in the interpreter, and the most that it takes.
fn interpreted(fixture: &Fixture, microbatches: usize) -> (u64, u64) {
    let (source, plan) = fixture.source(fixture.batch, adamw());
    let module = done(source.compile(&plan, &Manager::default(), |_, _, _| {})).training;
    // On first use, the gemm crate allocates memory of a cache's size for each thread, and keeps it.
    step(&module, 1);
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    step(&module, microbatches);
    (interp::memory(&module, microbatches).peak, (HEAP.peak_usage() - before) as u64)
}

/// A step in the interpreter, with inputs of zeros.
fn step(module: &Module, microbatches: usize) {
    let mut states = done(initial_states(module, 0, Missing::Draw));
    let zeros = |ty: &ir::Type| {
        let sizes = ty.sizes().expect("all dims are bound");
        Tensor::splat(ty.dtype, sizes.into_iter().map(|size| size as usize).collect(), 0.0)
    };
    let inputs = module.inputs.iter().map(|input| (input.name.clone(), zeros(module.ty(input.value))));
    let inputs: BTreeMap<String, Tensor> = inputs.collect();
    done(interp::step(module, Mode::Exact, &mut states, &vec![inputs; microbatches]));
}

fn a_step_on_the_processor_holds_little_beside_the_arena() {
    let fixtures = [
        &models::MLP_DYNAMO,
        &models::GPT2_DYNAMO,
        &models::LLAMA_DYNAMO,
        &models::BERT_DYNAMO,
        &models::MIXTRAL_DYNAMO,
        &models::RESNET_TRAINMODE,
    ];
    let batches =
        fixtures.iter().flat_map(|fixture| [(fixture, fixture.batch), (fixture, 4 * fixture.batch)]);
    let found: Vec<_> =
        batches.map(|(fixture, batch)| (fixture.file, batch, taken(fixture, batch))).collect();
    println!("{found:#?}");
    for (file, batch, taken) in found {
        assert!(taken <= THREADS * OF_A_THREAD, "{file}, {batch} samples: {taken} bytes");
    }
}

/// The most bytes that a step adds to the heap.
fn taken(fixture: &Fixture, batch: u64) -> usize {
    let (source, plan) = fixture.source(batch, adamw());
    let compilation = done(source.compile(&plan, &Manager::default(), |_, _, _| {}));
    let program = done(Programs::lower(&compilation, 1, cpu::TARGET)).training.first().clone();
    let mut cpu = Cpu::new(vec![program.clone()], Some(THREADS)).expect("there is memory for it");
    let id = ProgramId(0);
    let states = done(initial_states(&compilation.training, 0, Missing::Draw));
    for (index, state) in states.values().enumerate() {
        cpu.write_state(id, index, &state.to_bytes()).expect("the state fits");
    }
    for (index, input) in program.inputs.iter().enumerate() {
        let zeros = vec![0; input.ty.bytes().expect("all dims are bound") as usize];
        cpu.write_input(id, index, &zeros).expect("the input fits");
    }
    let mut step = || {
        for (section, _) in Section::ALL {
            cpu.run(id, section).expect("a step runs");
        }
    };
    let mut taken = || {
        HEAP.reset_peak_usage();
        let before = HEAP.current_usage();
        step();
        HEAP.peak_usage() - before
    };
    // A thread keeps memory of a cache's size from its first matrix on. Chance decides the step in which a thread gets its first matrix, so
    // the least of several steps counts.
    (0..STEPS).map(|_| taken()).min().expect("there are steps")
}
