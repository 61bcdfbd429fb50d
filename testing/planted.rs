//! Faults planted between passes. A model is compiled, the program after each pass is kept, and bisecting must name the faulty pass.

use crate::models::{Fixture, adamw, done};
use ir::Module;
use passes::{Manager, Pipeline};
use std::collections::BTreeMap;
use trainyard::compilation::{self, Source};
use trainyard::failure::Failure;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::bisect::{Culprit, Expected, Stage, bisect};
use trainyard::verification::compare::Difference;
use trainyard::verification::execute::{Execution, Tensors};
use trainyard::verification::{Subject, Tested, evaluation, inputs};

/// A model, with the results that a planted fault is compared with.
pub struct Planted {
    /// The model as it was imported.
    pub source: Source,
    /// The compiled model.
    pub subject: Subject,
    /// The program after each pass.
    pub stages: Vec<Stage>,
    reference: Module,
    expected: Execution,
    microbatches: Vec<Tensors>,
}

impl Planted {
    /// The model on one device, in f32.
    pub fn new(fixture: &Fixture) -> Self {
        Self::of(fixture, 2, |plan| plan)
    }

    /// The model, compiled with a changed plan, for two microbatches of `batch` samples.
    pub fn of(fixture: &Fixture, batch: u64, change: impl Fn(CompilationPlan) -> CompilationPlan) -> Self {
        let (source, plan) = fixture.source(batch, adamw());
        let plan = change(plan);
        let mut stages = Vec::new();
        let compilation =
            done(Subject::compile(&source, plan.clone(), &Manager::default(), |_, pass, module| {
                stages.push(Stage { pass: pass.to_owned(), module: module.clone() });
            }));
        let subject = done(Subject::new(plan, compilation, 0, BTreeMap::new()));
        let reference = done(subject.reference(&source));
        let microbatches = done(inputs::draw(&reference, 5, 2));
        let expected = done(subject.run_reference(&reference, &microbatches));
        Self { source, subject, stages, reference, expected, microbatches }
    }

    /// The stages of a compiler whose pass of this name also makes `fault`.
    pub fn stages_with(&self, pass: &str, fault: impl Fn(&mut Module)) -> Vec<Stage> {
        let at = self.stages.iter().position(|stage| stage.pass == pass).expect("there is such a pass");
        let mut stages = self.stages[..=at].to_vec();
        let mut module = stages[at].module.clone();
        fault(&mut module);
        stages[at].module = module.clone();
        let mut cx = self.source.context();
        for pass in &self.subject.compilation.pipeline.passes[at + 1..] {
            let one = Pipeline { passes: vec![pass.clone()] };
            done(compilation::run(&Manager::default(), &one, &mut module, &mut cx, |_, _, _| {}));
            stages.push(Stage { pass: pass.name().to_owned(), module: module.clone() });
        }
        stages
    }

    /// The differences of the last stage from the reference, the largest error first.
    pub fn differences(&self, stages: &[Stage], mode: Mode) -> Vec<Difference> {
        let module = &stages.last().expect("a pipeline has passes").module;
        let tested = done(self.subject.run(Tested { module, cut: true }, mode, &self.microbatches));
        done(self.subject.compare(&tested, true, (&self.reference, &self.expected)))
    }

    /// The pass that bisecting finds.
    pub fn culprit(&self, stages: &[Stage], mode: Mode, tolerance: f64) -> Option<Culprit> {
        done(self.bisect(stages, mode, tolerance))
    }

    /// As [`Self::culprit`], with an error if a stage fails.
    pub fn bisect(&self, stages: &[Stage], mode: Mode, tolerance: f64) -> Result<Option<Culprit>, Failure> {
        let (reference, execution, microbatches) = (&self.reference, &self.expected, &self.microbatches[..]);
        let expected = Expected { reference, execution, microbatches };
        let of = (&self.source, &self.subject.plan);
        let (step, batch) = ((reference, Some(execution)), &microbatches[..1]);
        let mut evaluated = evaluation::Expected::new(&self.subject, of, step, batch, tolerance, None)?;
        bisect(&self.subject, stages, mode, tolerance, expected, None, Some(&mut evaluated))
    }

    /// Checks that the fault makes an error above the tolerance of each mode and that bisecting names the pass.
    pub fn check(&self, pass: &str, fault: impl Fn(&mut Module)) -> Vec<Difference> {
        self.check_above(pass, fault, 1e-5)
    }

    /// As [`Self::check`], on the CPU backend with another tolerance.
    pub fn check_above(&self, pass: &str, fault: impl Fn(&mut Module), tolerance: f64) -> Vec<Difference> {
        let stages = self.stages_with(pass, fault);
        for (mode, tolerance) in [(Mode::Exact, 1e-9), (Mode::On(cpu::TARGET), tolerance)] {
            assert!(self.differences(&stages, mode)[0].error > tolerance, "{pass} in mode {}", mode.name());
            let culprit = self.culprit(&stages, mode, tolerance).expect("it is found");
            let number = 1 + self.stages.iter().position(|stage| stage.pass == pass).unwrap();
            assert_eq!((culprit.pass.as_deref(), culprit.number), (Some(pass), number), "{culprit}");
        }
        self.differences(&stages, Mode::Exact)
    }
}
