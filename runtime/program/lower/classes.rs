//! The classes of a program's memory: the bytes of each class at the position where most bytes are alive.

use super::draft::BufferKind;
use crate::MemoryByClass;
use ir::analysis::Lifetime;
use ir::analysis::memory_plan::{Buffer, aligned, busiest};

/// The positions at which the parts of a step begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boundaries {
    /// The first position of the microbatch section.
    pub(super) microbatch: u32,
    /// The first position of backward, or of the update if there is no backward phase.
    pub(super) backward: u32,
    /// The first position of the update section.
    pub(super) update: u32,
}

/// A class of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Parameters,
    Gradients,
    Activations,
    Workspace,
}

impl Boundaries {
    /// Returns the class of a buffer with this lifetime. `carried` tells whether it holds sums over microbatches.
    pub(super) fn class(&self, kind: BufferKind, carried: bool, lifetime: Lifetime) -> Class {
        let Lifetime { first, last } = lifetime;
        if carried {
            Class::Gradients
        } else if first < self.microbatch && last >= self.microbatch {
            Class::Parameters
        } else if first < self.backward && last >= self.backward && !matches!(kind, BufferKind::Input(_)) {
            Class::Activations
        } else if first < self.update && last >= self.update {
            Class::Gradients
        } else {
            Class::Workspace
        }
    }
}

impl MemoryByClass {
    /// Adds the buffers that are alive at the position with the most bytes. `peak` is the size of their plan.
    pub(super) fn add(&mut self, buffers: &[Buffer], classes: &[Class], peak: u64) {
        let (at, before) = (busiest(buffers), self.total());
        for (Buffer { bytes, lifetime }, class) in buffers.iter().zip(classes) {
            if (lifetime.first..=lifetime.last).contains(&at) {
                *self.of(*class) += aligned(*bytes);
            }
        }
        self.workspace += (before + peak).saturating_sub(self.total());
    }

    fn of(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Parameters => &mut self.parameters,
            Class::Gradients => &mut self.gradients,
            Class::Activations => &mut self.activations,
            Class::Workspace => &mut self.workspace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Boundaries = Boundaries { microbatch: 10, backward: 20, update: 30 };

    fn class(first: u32, last: u32) -> Class {
        STEP.class(BufferKind::Result, false, Lifetime { first, last })
    }

    #[test]
    fn a_buffer_belongs_to_the_part_of_the_step_that_it_waits_for() {
        assert_eq!(class(3, 15), Class::Parameters);
        assert_eq!(class(12, 19), Class::Workspace);
        assert_eq!(class(12, 20), Class::Activations);
        assert_eq!(class(21, 29), Class::Workspace);
        assert_eq!(class(21, 30), Class::Gradients);
        assert_eq!(class(31, 35), Class::Workspace);
        assert_eq!(class(3, 5), Class::Workspace);
        let lifetime = Lifetime { first: 11, last: 25 };
        assert_eq!(STEP.class(BufferKind::Input(0), false, lifetime), Class::Workspace);
        assert_eq!(STEP.class(BufferKind::Result, true, lifetime), Class::Gradients);
    }

    #[test]
    fn classes_are_counted_where_most_is_alive_and_add_up_to_the_plan() {
        let buffer = |bytes, first, last| Buffer { bytes, lifetime: Lifetime { first, last } };
        let buffers = [buffer(1024, 11, 22), buffer(2048, 12, 21), buffer(4096, 22, 31), buffer(512, 22, 22)];
        let classes = [Class::Activations, Class::Activations, Class::Gradients, Class::Workspace];
        let mut memory = MemoryByClass { parameters: 256, optimizer: 512, ..MemoryByClass::default() };
        memory.add(&buffers, &classes, 6144);
        // At position 22, 1024 + 4096 + 512 bytes are alive; 512 bytes of the plan are gaps.
        let expected = MemoryByClass {
            parameters: 256,
            optimizer: 512,
            gradients: 4096,
            activations: 1024,
            workspace: 1024,
        };
        assert_eq!(memory, expected);
        assert_eq!(memory.total(), 768 + 6144);
    }
}
