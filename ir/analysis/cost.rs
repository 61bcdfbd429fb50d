//! FLOPs and bytes of each phase of a step, summed over the costs of its operators.

use crate::ops::Cost;
use crate::{Module, Operator, Phase};

/// The cost of one run of each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    phases: [Cost; Phase::ALL.len()],
}

impl StepCost {
    /// Sums the cost of every phase of a program. For phases that run once per microbatch this is the cost of one microbatch. Sums
    /// saturate at the largest number.
    pub fn of(module: &Module) -> Self {
        let mut total = Self::default();
        for (_, node) in module.nodes() {
            let phase = &mut total.phases[node.phase as usize];
            *phase = sum(*phase, node.op.cost(&module.signature(node)));
        }
        total
    }

    /// Returns the cost of one run of a phase.
    pub fn phase(&self, phase: Phase) -> Cost {
        self.phases[phase as usize]
    }

    /// Returns the cost of a whole step with so many microbatches.
    pub fn step(&self, microbatches: u64) -> Cost {
        Phase::ALL.into_iter().fold(Cost::default(), |total, (phase, _)| {
            let runs = if phase.is_microbatch() { microbatches } else { 1 };
            let cost = self.phase(phase);
            let times = |count: u64| count.saturating_mul(runs);
            sum(
                total,
                Cost { flops: times(cost.flops), read: times(cost.read), written: times(cost.written) },
            )
        })
    }
}

fn sum(a: Cost, b: Cost) -> Cost {
    Cost {
        flops: a.flops.saturating_add(b.flops),
        read: a.read.saturating_add(b.read),
        written: a.written.saturating_add(b.written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::contract::Contract;
    use crate::ops::elementwise::Unary;
    use crate::ops::step::Accumulate;
    use crate::{At, Builder, DType, Type};

    #[test]
    fn a_step_counts_its_microbatches_and_its_update_once() {
        let mut module = Module::new("cost");
        let x = module.add_input("x", Type::of(DType::F32, &[4, 8]), true);
        let mut b = Builder::new(&mut module, "test");
        let square = b.one(Contract::new("ik,jk->ij"), &[x, x]).unwrap();
        b.at(At::End(Phase::Update));
        let sum = b.one(Accumulate, &[square]).unwrap();
        let root = b.one(Unary::Neg, &[sum]).unwrap();
        b.tables().add_output("root", root);
        b.finish();
        let cost = StepCost::of(&module);
        assert_eq!(cost.phase(Phase::Forward).flops, 2 * 4 * 4 * 8);
        assert_eq!(cost.phase(Phase::Forward).written, 4 * 4 * 4);
        let update = cost.phase(Phase::Update).flops;
        assert!(update > 0);
        assert_eq!(cost.step(3).flops, 3 * 256 + update);
    }
}
