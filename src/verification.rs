//! Verification: compares a step of the compiled program with a step of the untransformed program.
//!
//! The reference is the model after as few passes as possible ([`crate::pipeline::CompilationPlan::reference`]), in f64. It trains the same
//! tensors as the compiled program. Both programs start from the same weights, and run one step on the same inputs ([`inputs`]). Their results
//! are converted to the tensors of the file ([`layout`]) and compared number by number ([`compare`]), and so are their evaluations
//! ([`evaluation`]). [`rounding`] measures the differences between correct programs. [`bisect`] finds the faulty pass. [`against`] compares
//! with the numbers of another program.

pub mod against;
pub mod assumptions;
pub mod bisect;
pub mod compare;
pub mod evaluation;
pub mod execute;
pub mod inputs;
pub mod layout;
mod mode;
pub mod report;
pub mod rounding;
mod update;

pub use mode::Mode;

use crate::compilation::{Compilation, Source};
use crate::failure::Failure;
use crate::memory;
use crate::pipeline::CompilationPlan;
use checkpoint::{StateBytes, check_weights, initial_states};
use compare::Difference;
use execute::{Execution, Machine, Tensors, finite_step, with_tensors};
use ir::interp::{Missing, bytes_of};
use ir::{Diagnostic, Module, Role, Tensor};
use layout::Layout;
use passes::parameters::{ParameterSpec, specs};
use passes::{Manager, Pipeline};

/// A model compiled to be verified.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The options of all passes. The step keeps its gradients.
    pub plan: CompilationPlan,
    /// The compiled programs.
    pub compilation: Compilation,
    /// The places of the compiled program's states in the tensors of the file.
    pub layout: Layout,
    /// The states before step 0, by name.
    pub start: Tensors,
    /// The weights before step 0 as tensors of the file, by name.
    pub tensors: Tensors,
}

/// A program to be compared with the reference.
#[derive(Clone, Copy, Debug)]
pub struct Tested<'a> {
    /// The program: a whole step.
    pub module: &'a Module,
    /// Whether its states are those of the compiled program. Otherwise they are whole tensors of the file.
    pub cut: bool,
}

impl Subject {
    /// Compiles a model to a step that has gradients among its outputs. `after` sees the program after each pass.
    pub fn compile(
        source: &Source,
        mut plan: CompilationPlan,
        manager: &Manager,
        after: impl FnMut(usize, &str, &Module),
    ) -> Result<Compilation, Failure> {
        plan.optimizer.keep_gradients = true;
        source.compile(&plan, manager, after)
    }

    /// A compiled program with its states before step 0: the `given` values, or else those of the file or of its initializers.
    ///
    /// # Errors
    /// Missing weights; a model that is too large to be run in f64.
    pub fn new(
        mut plan: CompilationPlan,
        compilation: Compilation,
        seed: u64,
        given: StateBytes,
    ) -> Result<Self, Failure> {
        plan.optimizer.keep_gradients = true;
        let module = &compilation.training;
        check_weights(module, Missing::Refuse, &given)?;
        check_memory(module)?;
        let bytes = initial_states(module, seed, Missing::Refuse, given)?;
        let mut start = Tensors::new();
        // The machine that runs a step gives earlier versions values of their own.
        for state in module.states.values().filter(|state| state.role != Role::Version) {
            let tensor = bytes.get(&state.name).and_then(|bytes| Tensor::from_bytes(&state.ty, bytes));
            let missing = || Diagnostic::new(format!("state `{}` has no value of {}", state.name, state.ty));
            start.insert(state.name.clone(), tensor.ok_or_else(missing)?);
        }
        let mut tensors = compilation.file_tensors(|name| start.get(name))?;
        let layout = if plan.reference_has_states() {
            Layout::of_states(&compilation.forward, module)
        } else {
            Layout::of(&compilation.reports.parameters)
        };
        if plan.reference_has_states() {
            // States of experts are no tensors of the file, and other states are parts of one.
            for tensor in &layout.tensors {
                let whole = tensor.assemble("", &start)?;
                tensors.extend(whole.map(|whole| (tensor.name.clone(), whole)));
            }
            tensors.extend(of_roles(module, &start, |role| role == Role::Compression));
        }
        plan.delays = layout.delays(module);
        let read = |name: &str| {
            let delay =
                plan.delays.iter().find(|(delayed, _)| delayed == name).map_or(0, |(_, delay)| *delay);
            start.get(name).map(|value| execute::earlier(value, delay))
        };
        tensors.extend(layout.versions(&plan.delays, read)?);
        Ok(Self { plan, compilation, layout, start, tensors })
    }

    /// The trained tensors, as options of the reference.
    pub fn specs(&self) -> Vec<ParameterSpec> {
        specs(&self.compilation.reports.parameters)
    }

    /// The untransformed program, with the weights of the subject.
    pub fn reference(&self, source: &Source) -> Result<Module, Failure> {
        self.reference_by(source, &self.plan.reference(self.specs()))
    }

    /// The program that other passes make, such as those for another batch, with the weights of the subject.
    pub fn reference_by(&self, source: &Source, pipeline: &Pipeline) -> Result<Module, Failure> {
        Ok(with_tensors(source.run(pipeline)?, &self.tensors))
    }

    /// Runs one exact step of the reference.
    pub fn run_reference(&self, reference: &Module, microbatches: &[Tensors]) -> Result<Execution, Failure> {
        Machine::new(reference, Mode::Exact, microbatches.len(), &self.tensors)?.last_step(microbatches)
    }

    /// Runs one step of a program from the subject's weights, with a loss scale at which no gradient overflows.
    pub fn run(&self, tested: Tested, mode: Mode, microbatches: &[Tensors]) -> Result<Execution, Failure> {
        let module = with_tensors(tested.module.clone(), &self.tensors);
        let start = if tested.cut { &self.start } else { &self.tensors };
        finite_step(
            &module,
            mode,
            microbatches,
            start,
            self.compilation.update,
            self.plan.precision.scaling.backoff,
        )
    }

    /// Compares a program's step with the reference's. The new parameters and the optimizer's states are compared with
    /// the exact update by the program's own gradients (see `update.rs`).
    pub fn compare(
        &self,
        tested: &Execution,
        cut: bool,
        (reference, expected): (&Module, &Execution),
    ) -> Result<Vec<Difference>, Failure> {
        let layout = if cut { self.layout.clone() } else { self.layout.whole() };
        let mut states = other_states(reference, &expected.states);
        states.extend(update::expected(reference, expected, &layout, tested, &self.tensors)?);
        Ok(compare::compare(tested, &layout, &Execution { states, outputs: expected.outputs.clone() }))
    }
}

/// The running statistics, and the counts of samples and steps: the states that are neither trained nor the optimizer's, nor earlier versions,
/// nor the errors of compressed gradients.
fn other_states(module: &Module, states: &Tensors) -> Tensors {
    of_roles(module, states, |role| {
        !matches!(role, Role::Parameter | Role::Optimizer | Role::Scaler | Role::Version | Role::Compression)
    })
}

/// The values of the states of some roles.
fn of_roles(module: &Module, values: &Tensors, is_wanted: impl Fn(Role) -> bool) -> Tensors {
    let states = module.states.values().filter(|state| is_wanted(state.role));
    states.filter_map(|state| Some((state.name.clone(), values.get(&state.name)?.clone()))).collect()
}

/// Refuses a model if the states of two programs in f64 do not fit into this machine's memory.
fn check_memory(module: &Module) -> Result<(), Diagnostic> {
    let states = module.states.values().map(|state| bytes_of(&state.ty)).fold(0, u64::saturating_add);
    memory::check_tensors(
        "the states of two programs need",
        states.saturating_mul(2),
        "a smaller model of the same layers needs less memory",
    )
}
