//! The extraction problem of an e-graph: a choice of one candidate for each class, with the least total cost.
//!
//! A class that is used twice is paid once (DAG cost). Costs are integers, and the first of equal candidates wins, so the choice
//! depends only on the graph.

use egg::{Analysis, EGraph, Id, Language};
use std::collections::BTreeMap;

/// A candidate: its cost, the classes that it needs, and the e-node.
pub(crate) struct Candidate<L> {
    pub(crate) cost: u64,
    pub(crate) needs: Vec<usize>,
    pub(crate) node: L,
}

/// The classes that a root can reach with their candidates, and the index of the root's class.
pub(crate) struct Problem<L> {
    pub(crate) ids: Vec<Id>,
    pub(crate) classes: Vec<Vec<Candidate<L>>>,
    pub(crate) root: usize,
}

impl<L: Language> Problem<L> {
    /// Builds the problem below a root. `cost` gives the cost of every e-node of a class, and `None` if the e-node must not be chosen.
    pub(crate) fn new<N: Analysis<L>>(
        graph: &EGraph<L, N>,
        root: Id,
        cost: impl Fn(Id, &L) -> Option<u64>,
    ) -> Self {
        let mut index: BTreeMap<Id, usize> = BTreeMap::new();
        let mut pending = vec![graph.find(root)];
        while let Some(id) = pending.pop() {
            if index.insert(id, 0).is_none() {
                let children = graph[id].nodes.iter().flat_map(|node| node.children());
                pending.extend(
                    children.map(|&child| graph.find(child)).filter(|child| !index.contains_key(child)),
                );
            }
        }
        index.values_mut().enumerate().for_each(|(i, slot)| *slot = i);
        let candidate = |class: Id, node: &L| {
            let mut needs: Vec<usize> =
                node.children().iter().map(|&child| index[&graph.find(child)]).collect();
            needs.sort_unstable();
            needs.dedup();
            Some(Candidate { cost: cost(class, node)?.max(1), needs, node: node.clone() })
        };
        let candidates = |&id: &Id| graph[id].nodes.iter().filter_map(|node| candidate(id, node)).collect();
        let classes = index.keys().map(candidates).collect();
        Self { root: index[&graph.find(root)], ids: index.into_keys().collect(), classes }
    }

    /// Returns the cost of a choice; `u64::MAX` if it has a circle or a gap.
    pub(crate) fn total(&self, choice: &[Option<usize>]) -> u64 {
        let cost = |class: usize| Some(self.classes[class][choice[class]?].cost);
        let order = self.order(choice);
        order.and_then(|order| order.into_iter().map(cost).sum()).unwrap_or(u64::MAX)
    }

    /// Returns the chosen classes, arguments before their readers; `None` if the choice has a circle or a gap.
    pub(crate) fn order(&self, choice: &[Option<usize>]) -> Option<Vec<usize>> {
        let mut state = vec![0u8; self.classes.len()];
        let mut order = Vec::new();
        let mut stack = vec![(self.root, 0)];
        state[self.root] = 1;
        while let Some((class, i)) = stack.pop() {
            let needs = &self.classes[class][choice[class]?].needs;
            match needs.get(i) {
                None => {
                    state[class] = 2;
                    order.push(class);
                }
                Some(&need) => {
                    stack.push((class, i + 1));
                    match state[need] {
                        0 => {
                            state[need] = 1;
                            stack.push((need, 0));
                        }
                        1 => return None,
                        _ => {}
                    }
                }
            }
        }
        Some(order)
    }

    /// Returns for each class the classes with a candidate that needs it.
    pub(super) fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.classes.len()];
        for (class, candidates) in self.classes.iter().enumerate() {
            all_needs(candidates).into_iter().for_each(|need| readers[need].push(class));
        }
        readers
    }
}

/// Returns the classes that the candidates need, each once.
pub(super) fn all_needs<L>(candidates: &[Candidate<L>]) -> Vec<usize> {
    let mut needs: Vec<usize> =
        candidates.iter().flat_map(|candidate| candidate.needs.iter().copied()).collect();
    needs.sort_unstable();
    needs.dedup();
    needs
}
