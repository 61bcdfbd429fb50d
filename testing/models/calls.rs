//! A model as one rank of two on the stand-in of a GPU, and the calls of NCCL that the rank makes.

use super::{Fixture, adamw, done, split};
use comm::Communicator;
use cuda::host::{Notes, Order};
use cuda::ranks::stand_in_of_process;
use program::device::{DeviceError, ProgramId};
use program::lower::LowerOptions;
use program::{Program, Section};
use std::sync::Arc;
use trainyard::lowering::lower;
use trainyard::pipeline::CompilationPlan;

/// The program of a rank that compiles by itself.
pub fn program(fixture: &Fixture, spmd: &str) -> Arc<Program> {
    let plan = CompilationPlan { optimizer: adamw(), spmd: split(spmd), ..CompilationPlan::default() };
    let subject = fixture.compiled(fixture.batch, plan);
    let options = LowerOptions::of(cuda::TARGET);
    Arc::new(done(lower(&subject.compilation.training, &options)))
}

/// The calls that a rank on the stand-in of a GPU makes in three steps: one by one, captured, and replayed.
pub fn run(program: Arc<Program>, communicator: Arc<dyn Communicator>) -> Result<Vec<String>, DeviceError> {
    let notes = Notes::default();
    let order = Order::default();
    let mut ranks = stand_in_of_process(&[program.into()], order, &communicator, 2, notes.clone())?;
    ranks.run(vec![()], |rank, ()| {
        for _ in 0..3 {
            for (section, _) in Section::ALL {
                rank.device.run(ProgramId(0), section)?;
            }
        }
        rank.device.settle()
    })?;
    let notes = notes.lock().expect("no rank panicked");
    Ok(notes.clone())
}
