//! The list of a rank's tasks while it is written.

use ir::Phase;
use ir::timetable::{TASK_PHASES, Task};
use std::collections::VecDeque;

/// The tasks of a rank, written one after another. Each part takes its microbatches in ascending order, so a schedule names
/// only the part.
#[derive(Debug, Default)]
pub(super) struct TaskList {
    tasks: Vec<Task>,
    /// The next microbatch by phase, then by chunk of the rank.
    next: [Vec<u32>; TASK_PHASES.len()],
    /// The chunks with delayed weight tasks, in the order of their backward tasks.
    delayed: VecDeque<usize>,
    /// The chunks of the rank, in ascending order.
    chunks: Vec<u32>,
}

impl TaskList {
    /// Makes the empty list of a rank with these chunks. The functions below count the chunks from 0.
    pub(super) fn new(chunks: Vec<u32>) -> Self {
        let next = TASK_PHASES.map(|_| vec![0; chunks.len()]);
        Self { chunks, next, ..Self::default() }
    }

    /// Adds the next forward task of a chunk.
    pub(super) fn forward(&mut self, chunk: usize) {
        self.push(0, chunk);
    }

    /// Adds the next backward task of a chunk, for a schedule that does not split backward.
    pub(super) fn whole_backward(&mut self, chunk: usize) {
        self.push(1, chunk);
    }

    /// Adds the next backward task of a chunk, and delays its weight task.
    pub(super) fn backward(&mut self, chunk: usize) {
        self.push(1, chunk);
        self.delayed.push_back(chunk);
    }

    /// Adds the next backward task of a chunk and its weight task.
    pub(super) fn backward_and_weight(&mut self, chunk: usize) {
        self.push(1, chunk);
        self.push(2, chunk);
    }

    /// Adds the weight task that has been delayed the longest, if there is one.
    pub(super) fn weight(&mut self) {
        if let Some(chunk) = self.delayed.pop_front() {
            self.push(2, chunk);
        }
    }

    /// Adds the weight task of a chunk that has been delayed the longest. Returns whether there was one.
    pub(super) fn weight_of(&mut self, chunk: usize) -> bool {
        let at = self.delayed.iter().position(|&other| other == chunk);
        if let Some(at) = at {
            self.delayed.remove(at);
            self.push(2, chunk);
        }
        at.is_some()
    }

    /// Returns the number of forward tasks of a chunk so far.
    pub(super) fn forwards(&self, chunk: usize) -> u32 {
        self.next[0][chunk]
    }

    /// Returns the number of delayed weight tasks.
    pub(super) fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Returns the list, with all delayed weight tasks at its end.
    pub(super) fn finish(mut self) -> Vec<Task> {
        while self.delayed() > 0 {
            self.weight();
        }
        self.tasks
    }

    fn push(&mut self, phase: usize, chunk: usize) {
        let next = &mut self.next[phase][chunk];
        let phase: Phase = TASK_PHASES[phase].0;
        self.tasks.push(Task::new(phase, self.chunks[chunk], *next));
        *next += 1;
    }
}
