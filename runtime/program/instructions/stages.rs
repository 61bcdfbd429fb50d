//! The programs of all pipeline ranks.

use super::Program;
use std::sync::Arc;

/// A program for each pipeline rank, or one program without a pipeline.
#[derive(Clone, Debug)]
pub struct StagePrograms(Vec<Arc<Program>>);

impl From<Arc<Program>> for StagePrograms {
    fn from(program: Arc<Program>) -> Self {
        Self(vec![program])
    }
}

impl StagePrograms {
    /// Collects the programs of the pipeline ranks, in their order.
    ///
    /// # Panics
    /// Panics if there is no program.
    pub fn new(programs: Vec<Arc<Program>>) -> Self {
        assert!(!programs.is_empty(), "a pipeline has ranks");
        Self(programs)
    }

    /// Returns the program of the first pipeline rank.
    pub fn first(&self) -> &Arc<Program> {
        &self.0[0]
    }

    /// Returns the program that allocates the most memory.
    pub fn largest(&self) -> &Arc<Program> {
        self.0.iter().max_by_key(|program| program.memory.peak()).unwrap_or(&self.0[0])
    }

    /// Returns the programs in the order of the pipeline ranks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Program>> {
        self.0.iter()
    }

    /// Returns the number of ranks: the devices of a stage, times the number of pipeline ranks.
    pub fn ranks(&self) -> u64 {
        self.0.len() as u64 * self.first().mesh.devices()
    }

    /// Returns the program of a rank. Ranks count stage by stage.
    pub fn of_rank(&self, rank: u64) -> &Arc<Program> {
        &self.0[(rank / self.first().mesh.devices()) as usize]
    }

    /// Returns a number that is equal for equal programs.
    pub fn hash(&self) -> u64 {
        let fold = |hash: u64, program: &Arc<Program>| hash.rotate_left(5) ^ program.hash;
        self.0[1..].iter().fold(self.first().hash, fold)
    }
}
