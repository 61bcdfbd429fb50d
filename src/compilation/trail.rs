//! Passes that several compilations of one program share. The first compilation records its passes; another one continues from the last
//! pass before the first pass whose options differ.

use super::run;
use crate::failure::Failure;
use ir::Module;
use passes::{Manager, Pass, PassContext, Pipeline, Timing};
use std::sync::{Arc, Mutex, PoisonError};

/// A place in the record of a compilation's passes. Clones have the same record, and each a place of its own. A compilation whose options
/// differ, or that shares nothing, has no record.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    passed: Option<Arc<Mutex<Vec<Arc<Passed>>>>>,
    place: usize,
}

/// A pass that has run.
#[derive(Debug)]
struct Passed {
    pass: Pass,
    timings: Vec<Timing>,
    /// The program after the pass.
    module: Module,
    cx: PassContext,
}

impl Trail {
    /// An empty record, which the next compilation fills.
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
        let lock = || passed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ahead = lock()[self.place..].to_vec();
        let alike = ahead.iter().zip(&pipeline.passes).take_while(|(known, pass)| known.pass == **pass);
        let shared = alike.count();
        ahead.truncate(shared);
        let mut timings = vec![];
        for (at, known) in ahead.iter().enumerate() {
            timings.extend_from_slice(&known.timings);
            after(at, known.pass.name(), &known.module);
        }
        if let Some(last) = ahead.last() {
            (*module, *cx) = (last.module.clone(), last.cx.clone());
        }
        self.place += shared;
        for (at, pass) in pipeline.passes.iter().enumerate().skip(shared) {
            let own =
                run(manager, &pass.clone().into(), module, cx, |_, name, module| after(at, name, module))?;
            timings.extend_from_slice(&own);
            let mut passed = lock();
            if self.place == passed.len() {
                let (pass, module, cx) = (pass.clone(), module.clone(), cx.clone());
                passed.push(Arc::new(Passed { pass, timings: own, module, cx }));
                self.place += 1;
            } else {
                self.passed = None;
            }
        }
        Ok(timings)
    }
}
