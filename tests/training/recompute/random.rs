//! Random programs with random budgets. A program that fits has the same results, bit by bit, as the program that keeps all activations,
//! and its arena is within the budget. The error for a budget that is refused names one that is accepted.

use super::{layers, named_budget};
use ir::interp::{self, Missing};
use ir::machine::{self, Preset};
use ir::testing::{microbatch, program};
use ir::{DType, Module, Tensor, random};
use passes::recompute::{Recompute, apply, decide};
use passes::{Manager, PassContext, Pipeline};
use program::Multiprocessors;
use program::UpdateTime;
use std::collections::BTreeMap;
use std::env;
use testing::models::done;
use trainyard::config::memory::Tiers;
use trainyard::failure::Failure;
use trainyard::fit::{self, Candidate, Conditions, Peaks};
use trainyard::lowering::Lowering;
use trainyard::training::lower_step;
use trainyard::verification::Mode;
use trainyard::verification::execute::{Machine, Tensors};

/// The passes before recomputation.
const PASSES: [&str; 6] = [
    "autodiff optimizer(sgd, lr=0.05) simplify",
    "autodiff optimizer(adamw, lr=0.05) simplify",
    "autodiff precision(bf16) optimizer(adamw, lr=0.05) simplify",
    "autodiff precision(fp16) optimizer(sgd, lr=0.05) simplify",
    "autodiff optimizer(sgd, lr=0.05) simplify spmd(mesh=dp:2, zero=3) collectives buckets",
    "autodiff optimizer(adamw, lr=0.05) simplify spmd(mesh=tp:2) collectives buckets",
];

/// The first of these passes need no mesh.
const ON_ONE_DEVICE: u64 = 4;

/// One case in this many also runs on the CPU backend.
const ON_BACKEND: u64 = 8;

/// The outcomes of cases.
#[derive(Debug, Default)]
struct Counts {
    cases: usize,
    recomputed: usize,
    on_backend: usize,
    refused: usize,
}

/// A step before recomputation.
struct Case {
    seed: u64,
    step: Module,
    microbatches: u64,
}

impl Case {
    /// The case of a seed. `None` if the loss of its program depends on no parameter.
    fn of(seed: u64) -> Option<Self> {
        // The batch of a random program, unlike that of a model, may be 1, which no mesh divides.
        let (mut step, passes) = match seed % 4 {
            0 => (program(seed, DType::F32, 12 + draw(seed, 0, 20) as usize), ON_ONE_DEVICE),
            _ => (layers::program(seed, 2 + draw(seed, 0, 3) as usize), PASSES.len() as u64),
        };
        let passes = PASSES[draw(seed, 1, passes) as usize];
        let pipeline: Pipeline = format!("dropout {passes}").parse().expect("these are passes");
        match Manager::default().run(&pipeline, &mut step, &mut PassContext::default(), |_, _, _| {}) {
            Ok(_) => Some(Self { seed, step, microbatches: 1 + draw(seed, 2, 2) }),
            Err(failure) if !failure.fault => None,
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }

    /// Bytes of the lowered program.
    fn peak(&self, step: Module) -> Result<u64, Failure> {
        let manager = Manager::default();
        let lowering = &mut Lowering::new(&manager, 0);
        let (target, size) = (cpu::TARGET, Multiprocessors::default());
        let program = lower_step(lowering, step, self.microbatches, UpdateTime::Late, target, size)?;
        let memory = program.first().memory;
        Ok(memory.arena + memory.constants)
    }

    /// Searches for a program of at most `budget` bytes.
    fn fit(&self, budget: u64) -> Result<Option<Recompute>, Failure> {
        let lower = &mut |step: Module, _: &Candidate| -> Result<Peaks, Failure> {
            Ok(Peaks { device: self.peak(step)?, ..Peaks::default() })
        };
        let conditions = Conditions {
            microbatches: self.microbatches,
            target: cpu::TARGET,
            multiprocessors: Multiprocessors::default(),
            may_update_early: false,
            node: &machine::Node::of_device(&Preset::Cpu.device()),
        };
        // Activations are compressed already, so that recomputation alone is tried.
        let given = (&"compress_activations".parse().expect("a pass"), UpdateTime::Late);
        let fit = fit::search(&self.step, given, &Tiers::within(Some(budget)), conditions, lower)?;
        let numbers = fit.on_device.expect("no value may leave the device");
        assert!(fit.peaks.device <= budget, "seed {}: {fit:?}", self.seed);
        assert!(numbers.least_time <= numbers.time, "seed {}: {fit:?}", self.seed);
        Ok(fit.candidate.recompute)
    }

    /// The bits of the results of a step, by name.
    fn run(&self, module: &Module, mode: Mode) -> BTreeMap<String, Vec<u64>> {
        let start = done(interp::initial_states(&self.step, self.seed, Missing::Draw));
        let name = |id| self.step.states[id].name.clone();
        let start: Tensors = start.into_iter().map(|(id, value)| (name(id), value)).collect();
        let inputs: Vec<Tensors> =
            (0..self.microbatches).map(|index| microbatch(&self.step, self.seed, index)).collect();
        let ended = done(done(Machine::new(module, mode, inputs.len(), &start)).last_step(&inputs));
        let states = ended.states.into_iter().map(|(name, value)| (name, vec![value]));
        let bits = |tensor: &Tensor| tensor.numbers().into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let all = ended.outputs.into_iter().chain(states);
        all.map(|(name, values)| (name, values.iter().flat_map(bits).collect())).collect()
    }

    /// Recomputes, and compares the results. Returns whether a node was repeated.
    fn check(&self, options: &Recompute, budget: u64, modes: &[Mode]) -> bool {
        let seed = self.seed;
        let mut module = self.step.clone();
        done(apply(&mut module, &decide(&self.step, options)));
        ir::verify::verify(&module).unwrap_or_else(|faults| panic!("seed {seed}: {}", faults[0]));
        let peak = done(self.peak(module.clone()));
        assert!(peak <= budget, "seed {seed}: {peak} bytes of {budget}");
        for &mode in modes {
            let (expected, given) = (self.run(&self.step, mode), self.run(&module, mode));
            assert!(given == expected, "seed {seed}, {options:?}: other results in mode {}", mode.name());
        }
        module.nodes().any(|(_, node)| node.copy > 0)
    }
}

/// A number below `count`.
fn draw(seed: u64, place: u32, count: u64) -> u64 {
    u64::from(random::philox(seed, [place, 0, 0, 7])[0]) % count
}

fn check_seed(seed: u64, counts: &mut Counts) {
    let Some(case) = Case::of(seed) else { return };
    let all = done(case.peak(case.step.clone()));
    let kept = |options: Recompute| decide(&case.step, &options).kept();
    let saved = kept(Recompute { price: 0, ..Recompute::FULL }) - kept(Recompute::FULL);
    let mut budget = all - saved * draw(seed, 3, 800) / 1000;
    let options = match case.fit(budget) {
        Ok(options) => options,
        Err(failure) => {
            counts.refused += 1;
            budget = named_budget(&failure);
            done(case.fit(budget))
        }
    };
    counts.cases += 1;
    let on_backend = seed.is_multiple_of(ON_BACKEND);
    let modes = if on_backend { &[Mode::Typed, Mode::On(cpu::TARGET)][..] } else { &[Mode::Typed] };
    if options.is_some_and(|options| case.check(&options, budget, modes)) {
        counts.recomputed += 1;
        counts.on_backend += usize::from(on_backend);
    }
}

/// Checks `wanted` cases, and that some of them recompute.
fn check_cases(wanted: usize) {
    let mut counts = Counts::default();
    let mut seed = 0;
    while counts.cases < wanted {
        check_seed(seed, &mut counts);
        seed += 1;
    }
    println!("{counts:?}");
    let Counts { recomputed, on_backend, refused, .. } = counts;
    assert!(recomputed * 4 >= wanted && on_backend > 0 && refused > 0, "{counts:?}");
}

#[test]
fn programs_within_a_budget_have_the_same_results() {
    check_cases(200);
}

/// `TRAINYARD_CASES` gives the number of cases; CI's nightly run checks 2000.
#[test]
#[ignore = "longer: random"]
fn more_programs_within_a_budget_have_the_same_results() {
    check_cases(env::var("TRAINYARD_CASES").map_or(600, |cases| cases.parse().expect("a number")));
}
