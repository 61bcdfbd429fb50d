//! Choosing the cheapest program out of an e-graph, where what is used twice is paid once (DAG cost).
//!
//! Greedy over sets of classes, as in egg's extraction gym (`faster-greedy-dag`), then descent by single exchanges; the
//! same descent from the program that went in, so that what comes out never costs more.
//! Costs are integers and ties go to the first node, so the choice is a function of the graph.

use super::graph::{ENode, Graph};
use egg::{Id, Language};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A candidate: its cost, the classes it needs, and the e-node.
pub(super) struct Candidate {
    pub(super) cost: u64,
    pub(super) needs: Vec<usize>,
    pub(super) node: ENode,
}

/// What can be reached from a root: the candidates of each class, and the index of the root's class.
pub(super) struct Problem {
    pub(super) ids: Vec<Id>,
    pub(super) classes: Vec<Vec<Candidate>>,
    pub(super) root: usize,
}

impl Problem {
    /// The problem below a root, with a cost for every e-node.
    pub(super) fn new(graph: &Graph, root: Id, cost: impl Fn(&ENode) -> u64) -> Self {
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
        let candidate = |node: &ENode| {
            let mut needs: Vec<usize> =
                node.children().iter().map(|&child| index[&graph.find(child)]).collect();
            needs.sort_unstable();
            needs.dedup();
            Candidate { cost: cost(node).max(1), needs, node: node.clone() }
        };
        let classes = index.keys().map(|&id| graph[id].nodes.iter().map(candidate).collect()).collect();
        Self { root: index[&graph.find(root)], ids: index.into_keys().collect(), classes }
    }

    /// The chosen candidate of every class that the root can reach (others have none). `stood` tells the nodes of the
    /// program that went in.
    pub(super) fn solve(&self, stood: impl Fn(&ENode) -> bool) -> Option<Vec<Option<usize>>> {
        let greedy = self.greedy();
        let original = self.classes.iter().zip(&greedy).map(|(candidates, &greedy)| {
            candidates.iter().position(|candidate| stood(&candidate.node)).or(greedy)
        });
        let starts = [greedy.clone(), original.collect()];
        let ends = starts.into_iter().filter(|start| self.order(start).is_some()).map(|mut choice| {
            self.descend(&mut choice);
            choice
        });
        ends.min_by_key(|choice| self.total(choice))
    }

    /// What a choice costs; the most there is when it goes in circles or has gaps.
    pub(super) fn total(&self, choice: &[Option<usize>]) -> u64 {
        let cost = |class: usize| Some(self.classes[class][choice[class]?].cost);
        let order = self.order(choice);
        order.and_then(|order| order.into_iter().map(cost).sum()).unwrap_or(u64::MAX)
    }

    /// The chosen classes, arguments before their readers; `None` when the choice goes in circles or has gaps.
    pub(super) fn order(&self, choice: &[Option<usize>]) -> Option<Vec<usize>> {
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

    /// Postorder numbers: children before parents, as far as circles allow.
    fn ranks(&self) -> Vec<usize> {
        let needs: Vec<Vec<usize>> = self.classes.iter().map(|candidates| all_needs(candidates)).collect();
        let (mut ranks, mut next) = (vec![0; self.classes.len()], 0);
        let mut seen = vec![false; self.classes.len()];
        let mut stack = vec![(self.root, 0)];
        seen[self.root] = true;
        while let Some((class, i)) = stack.pop() {
            let Some(&need) = needs[class].get(i) else {
                ranks[class] = next;
                next += 1;
                continue;
            };
            stack.push((class, i + 1));
            if !std::mem::replace(&mut seen[need], true) {
                stack.push((need, 0));
            }
        }
        ranks
    }

    fn greedy(&self) -> Vec<Option<usize>> {
        let count = self.classes.len();
        let mut parents: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (class, candidates) in self.classes.iter().enumerate() {
            all_needs(candidates).into_iter().for_each(|need| parents[need].push(class));
        }
        let ranks = self.ranks();
        let mut class_at = vec![0; count];
        ranks.iter().enumerate().for_each(|(class, &rank)| class_at[rank] = class);
        let ready = |class: &usize| self.classes[*class].iter().any(|candidate| candidate.needs.is_empty());
        let mut heap: BinaryHeap<Reverse<usize>> =
            (0..count).filter(ready).map(|c| Reverse(ranks[c])).collect();
        let mut queued: Vec<bool> = (0..count).map(|class| ready(&class)).collect();
        let mut best: Vec<Option<Best>> = (0..count).map(|_| None).collect();
        while let Some(Reverse(rank)) = heap.pop() {
            let class = class_at[rank];
            queued[class] = false;
            let mut improved = false;
            for (i, candidate) in self.classes[class].iter().enumerate() {
                if let Some(better) = better(&best, class, i, candidate) {
                    best[class] = Some(better);
                    improved = true;
                }
            }
            for &parent in parents[class].iter().filter(|_| improved) {
                if !std::mem::replace(&mut queued[parent], true) {
                    heap.push(Reverse(ranks[parent]));
                }
            }
        }
        best.into_iter().map(|best| best.map(|best| best.choice)).collect()
    }

    /// Exchanges single choices while that makes the whole cheaper. Reference counts make the price of an exchange
    /// what it changes.
    fn descend(&self, choice: &mut [Option<usize>]) {
        let mut count = vec![0u32; self.classes.len()];
        self.take(choice, &mut count, self.root);
        let mut improved = true;
        while std::mem::take(&mut improved) {
            for class in 0..self.classes.len() {
                for other in 0..self.classes[class].len() {
                    if count[class] > 0 && self.exchange(choice, &mut count, class, other) {
                        improved = true;
                    }
                }
            }
        }
    }

    fn exchange(&self, choice: &mut [Option<usize>], count: &mut [u32], class: usize, other: usize) -> bool {
        let Some(current) = choice[class].filter(|&current| current != other) else { return false };
        let (old, new) = (&self.classes[class][current], &self.classes[class][other]);
        if new.needs.iter().any(|&need| choice[need].is_none()) {
            return false;
        }
        let mut change = new.cost as i64 - old.cost as i64;
        change += new.needs.iter().map(|&need| self.take(choice, count, need)).sum::<i64>();
        change += old.needs.iter().map(|&need| self.drop(choice, count, need)).sum::<i64>();
        if change < 0 {
            choice[class] = Some(other);
            // A class that was unused may lead back here; then the counts deceive.
            if self.order(choice).is_some() {
                return true;
            }
            choice[class] = Some(current);
        }
        for &need in &old.needs {
            self.take(choice, count, need);
        }
        for &need in &new.needs {
            self.drop(choice, count, need);
        }
        false
    }

    /// One more use of a class: what that adds to the cost.
    fn take(&self, choice: &[Option<usize>], count: &mut [u32], class: usize) -> i64 {
        let (mut change, mut stack) = (0, vec![class]);
        while let Some(class) = stack.pop() {
            count[class] += 1;
            if let (1, Some(chosen)) = (count[class], choice[class]) {
                let candidate = &self.classes[class][chosen];
                change += candidate.cost as i64;
                stack.extend(&candidate.needs);
            }
        }
        change
    }

    /// One use of a class less: what that takes from the cost, negative.
    fn drop(&self, choice: &[Option<usize>], count: &mut [u32], class: usize) -> i64 {
        let (mut change, mut stack) = (0, vec![class]);
        while let Some(class) = stack.pop() {
            count[class] -= 1;
            if let (0, Some(chosen)) = (count[class], choice[class]) {
                let candidate = &self.classes[class][chosen];
                change -= candidate.cost as i64;
                stack.extend(&candidate.needs);
            }
        }
        change
    }
}

/// The cheapest way found so far to make a class: every class it takes as a bitset, and what they cost together.
struct Best {
    total: u64,
    own: u64,
    set: Vec<u64>,
    choice: usize,
}

/// The way to make `class` by `candidate`, if it is possible by now and cheaper than what is known.
fn better(best: &[Option<Best>], class: usize, choice: usize, candidate: &Candidate) -> Option<Best> {
    let mut set = vec![0u64; best.len().div_ceil(64)];
    for &need in &candidate.needs {
        set.iter_mut().zip(&best[need].as_ref()?.set).for_each(|(word, other)| *word |= other);
    }
    if set[class / 64] >> (class % 64) & 1 == 1 {
        return None; // in a circle
    }
    let bound = best[class].as_ref().map_or(u64::MAX, |best| best.total);
    let mut total = candidate.cost;
    for (i, &word) in set.iter().enumerate() {
        let mut bits = word;
        while bits != 0 {
            total += best[i * 64 + bits.trailing_zeros() as usize].as_ref()?.own;
            bits &= bits - 1;
        }
        if total >= bound {
            return None;
        }
    }
    set[class / 64] |= 1 << (class % 64);
    (total < bound).then_some(Best { total, own: candidate.cost, set, choice })
}

/// Every class that some candidate needs, once.
fn all_needs(candidates: &[Candidate]) -> Vec<usize> {
    let mut needs: Vec<usize> =
        candidates.iter().flat_map(|candidate| candidate.needs.iter().copied()).collect();
    needs.sort_unstable();
    needs.dedup();
    needs
}
