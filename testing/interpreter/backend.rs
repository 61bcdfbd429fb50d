//! The interpreter's answers to lowering: its kernels read and write whole tensors in row-major order, and can do nothing else.

use ir::{Diagnostic, Op};
use program::backend::{Backend, ChainLimits};
use program::commands::{Command, CommandList};
use program::kernel_contract::KernelContract;
use program::{Part, Program, Target};
use std::sync::Arc;

/// The interpreter as a backend of lowering.
struct InterpreterBackend;

/// The interpreter.
pub const TARGET: Target = Target::new(&InterpreterBackend);

impl Backend for InterpreterBackend {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn host(&self) -> Target {
        TARGET
    }

    /// The same for every operator: the interpreter has a meaning for each.
    fn kernel_contract<'op>(&self, _: &'op Op, _: usize) -> KernelContract<'op> {
        KernelContract::dense()
    }

    /// No contract has `in_chains`, so there are no chains.
    fn chain_limits(&self) -> ChainLimits {
        ChainLimits { operators: 1, results: 1 }
    }

    /// Each instruction is a command, and they run one after the other.
    fn commands(&self, program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic> {
        let (mesh, adds) = (&program.mesh, microbatches > 1);
        let commands = |(part, _): (Part, _)| {
            let instructions = program.part(part).into_iter();
            instructions.map(|(_, instruction)| Command::of(instruction, mesh, adds)).collect()
        };
        Ok(CommandList { mesh: mesh.clone(), microbatches, parts: Part::ALL.map(commands) })
    }
}
