//! Choosing the cheapest program out of an e-graph: a greedy choice, then the way down from it.
//!
//! The same from the program that went in, so that what comes out never costs more.

use super::descent::Descent;
use super::greedy::greedy;
use super::problem::Problem;
use egg::Language;

impl<L: Language> Problem<L> {
    /// The chosen candidate of every class that the root can reach (others have none). `stood` tells the nodes of the
    /// program that went in.
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
