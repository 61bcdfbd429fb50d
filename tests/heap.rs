//! What a step takes from the heap beside the arena: working memory of kernels, which the plan of memory does not have.

#[allow(dead_code)] // each test file uses a part of it
mod models;

use ir::interp::{Missing, initial_states};
use models::{Fixture, adamw, done};
use passes::Manager;
use peak_alloc::PeakAlloc;
use runtime::cpu::Cpu;
use runtime::device::{Device, ProgramId};
use runtime::program::Section;
use runtime::program::Target;
use trainyard::training::Programs;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const THREADS: usize = 2;
/// What a thread may hold at a time, in bytes: blocks of a kernel, and what gemm packs, which the caches bound.
const OF_A_THREAD: usize = 1 << 20;

/// The only test of its file, since the heap is the process's.
#[test]
fn a_step_holds_little_beside_the_arena() {
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

/// The most bytes that a step holds on the heap, beside what was there before it.
fn taken(fixture: &Fixture, batch: u64) -> usize {
    let (source, plan) = fixture.source(batch, adamw());
    let compilation = done(source.compile(&plan, &Manager::default(), |_, _, _| {}));
    let Programs { training: program, .. } = done(Programs::lower(&compilation, 1, Target::Cpu));
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
    // What the first step takes and keeps: the threads and their memory for packed matrices.
    step();
    step();
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    step();
    HEAP.peak_usage() - before
}
