//! Passes that several compilations of one program share. The first compilation leaves a trail; another one continues from the last pass
//! before the first pass whose options differ.

use super::run;
use crate::failure::Failure;
use ir::Module;
use passes::{Manager, Pass, PassContext, Pipeline, Timing};
use std::sync::{Arc, Mutex, PoisonError};

/// A place in the passes of a compilation. Clones have the same passes, and each a place of its own. A compilation that has left the trail,
/// or that shares nothing, has none.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    passed: Option<Arc<Mutex<Vec<Passed>>>>,
    place: usize,
}

/// A pass that has run.
#[derive(Clone, Debug)]
struct Passed {
    pass: Pass,
    timings: Vec<Timing>,
    /// The program after the pass.
    module: Module,
    cx: PassContext,
}

impl Trail {
    /// A trail that the next compilation leaves.
    pub(super) fn begin() -> Self {
        Self { passed: Some(Arc::default()), place: 0 }
    }

    /// Runs a pipeline on the program of this place, as [`run`] does. `after` sees shared passes too.
    pub(super) fn run(
        &mut self,
        manager: &Manager,
        pipeline: &Pipeline,
        module: &mut Module,
        cx: &mut PassContext,
        mut after: impl FnMut(usize, &str, &Module),
    ) -> Result<Vec<Timing>, Failure> {
        let Some(passed) = self.passed.clone() else { return run(manager, pipeline, module, cx, after) };
        let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut timings, ahead) = (vec![], passed[self.place..].iter().zip(&pipeline.passes));
        let shared = ahead.take_while(|(known, pass)| known.pass == **pass).count();
        let known = &passed[self.place..][..shared];
        for (at, known) in known.iter().enumerate() {
            timings.extend_from_slice(&known.timings);
            after(at, known.pass.name(), &known.module);
        }
        if let Some(last) = known.last() {
            (*module, *cx) = (last.module.clone(), last.cx.clone());
        }
        self.place += shared;
        for (at, pass) in pipeline.passes.iter().enumerate().skip(shared) {
            let own =
                run(manager, &pass.clone().into(), module, cx, |_, name, module| after(at, name, module))?;
            timings.extend_from_slice(&own);
            if self.place == passed.len() {
                let (pass, module, cx) = (pass.clone(), module.clone(), cx.clone());
                passed.push(Passed { pass, timings: own, module, cx });
                self.place += 1;
            } else {
                self.passed = None;
            }
        }
        Ok(timings)
    }
}
