//! Extracts the cheapest program from an e-graph: a greedy choice, and a local search from it.
//!
//! A second local search starts from the original program, so the result never costs more than the original.

use super::descent::Descent;
use super::greedy::greedy;
use super::problem::Problem;
use egg::Language;

impl<L: Language> Problem<L> {
    /// Returns the chosen candidate of every class that the root can reach; other classes have none. `stood` says whether a node belongs to
    /// the original program.
    pub(crate) fn solve(&self, stood: impl Fn(&L) -> bool) -> Option<Vec<Option<usize>>> {
        let greedy = greedy(self);
        let original = self.classes.iter().zip(&greedy).map(|(candidates, &greedy)| {
            candidates.iter().position(|candidate| stood(&candidate.node)).or(greedy)
        });
        let starts = [greedy.clone(), original.collect()].into_iter();
        let ends = starts.filter_map(|start| Some(Descent::new(self, start)?.end()));
        ends.min_by_key(|choice| self.total(choice))
    }
}
