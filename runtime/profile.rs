//! Where the time of a step goes, instruction by instruction, and how far contractions are from what the machine can do.

use crate::program::{Instruction, Kernel, Program, Section, View};
use ir::{Operator, Signature, Type};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Times of a program's instructions, added up while it runs. The first step is left out: it meets cold caches and pages
/// that were never touched.
#[derive(Clone, Debug, Default)]
pub struct Profile(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    steps: u64,
    sections: [Vec<Duration>; 3],
}

/// What the instructions of one kind took, of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The kernel's name; `elementwise` for chains.
    pub kernel: String,
    /// Time, in milliseconds.
    pub milliseconds: f64,
    /// Instructions of the program.
    pub instructions: usize,
    /// Floating-point operations of those that multiply matrices; 0 for others.
    pub flops: u64,
}

impl Share {
    /// Billions of floating-point operations a second.
    pub fn gflops(&self) -> f64 {
        self.flops as f64 / self.milliseconds / 1e6
    }
}

impl Profile {
    /// Counts a step.
    pub(crate) fn begin_step(&self) {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.steps += 1;
        if times.steps == 2 {
            times.sections = Default::default();
        }
    }

    /// Adds the time of an instruction.
    pub(crate) fn add(&self, section: Section, instruction: usize, time: Duration) {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let section = &mut times.sections[section as usize];
        if section.len() <= instruction {
            section.resize(instruction + 1, Duration::ZERO);
        }
        section[instruction] += time;
    }

    /// The kinds of kernels of `program`, whose steps these are, by falling time; of a step of `microbatches`.
    pub fn shares(&self, program: &Program, microbatches: u64) -> Vec<Share> {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = times.steps.saturating_sub(1).max(1) as f64;
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        for (section, _) in Section::ALL {
            let runs = if section == Section::Microbatch { microbatches } else { 1 };
            for (instruction, time) in program.section(section).iter().zip(&times.sections[section as usize])
            {
                let kernel = kind(instruction);
                let share = shares.entry(kernel.clone()).or_insert(Share {
                    kernel,
                    milliseconds: 0.0,
                    instructions: 0,
                    flops: 0,
                });
                share.milliseconds += time.as_secs_f64() * 1e3 / steps;
                share.instructions += 1;
                share.flops += matrix_flops(instruction) * runs;
            }
        }
        let mut shares: Vec<Share> = shares.into_values().collect();
        shares.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
        shares
    }
}

/// The operator's name, and one name for all chains.
fn kind(instruction: &Instruction) -> String {
    match &instruction.kernel {
        Kernel::Elementwise(_) => "elementwise".into(),
        _ => instruction.name(),
    }
}

/// The operations of an instruction that multiplies matrices of more than one row and column.
fn matrix_flops(instruction: &Instruction) -> u64 {
    use ir::Op;
    let Kernel::Op(op) = &instruction.kernel else { return 0 };
    match op {
        Op::Contract(contract) => {
            let roles = contract.roles();
            if roles.rows.is_empty() || roles.columns.is_empty() {
                return 0;
            }
        }
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => {}
        Op::Attention(_) | Op::AttentionGrad(_) => {}
        _ => return 0,
    }
    let types = |views: &[View]| {
        let ty = |view: &View| {
            let sizes: Vec<u64> = view.layout.sizes.iter().map(|&size| size as u64).collect();
            Type::of(view.dtype, &sizes)
        };
        views.iter().map(ty).collect()
    };
    let signature =
        Signature { operands: types(&instruction.operands), results: types(&instruction.results) };
    op.cost(&signature).flops
}
