//! Choosing the cheapest program out of an e-graph, where what is used twice is paid once (DAG cost).
//!
//! Greedy over sets of classes, as in egg's extraction gym (`faster-greedy-dag`), then a [`Descent`]; the
//! same from the program that went in, so that what comes out never costs more. What every program needs is left out of
//! the sets: its cost decides nothing, and sets are as wide as there are decisions.
//! Costs are integers and ties go to the first node, so the choice is a function of the graph.

use super::descent::Descent;
use egg::{Analysis, EGraph, Id, Language};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

/// A candidate: its cost, the classes it needs, and the e-node.
pub(crate) struct Candidate<L> {
    pub(crate) cost: u64,
    pub(crate) needs: Vec<usize>,
    pub(crate) node: L,
}

/// What can be reached from a root: the candidates of each class, and the index of the root's class.
pub(crate) struct Problem<L> {
    pub(crate) ids: Vec<Id>,
    pub(crate) classes: Vec<Vec<Candidate<L>>>,
    pub(crate) root: usize,
}

impl<L: Language> Problem<L> {
    /// The problem below a root, with a cost for every e-node of a class; without one it may not be chosen.
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

    /// The chosen candidate of every class that the root can reach (others have none). `stood` tells the nodes of the
    /// program that went in.
    pub(crate) fn solve(&self, stood: impl Fn(&L) -> bool) -> Option<Vec<Option<usize>>> {
        let greedy = self.greedy();
        let original = self.classes.iter().zip(&greedy).map(|(candidates, &greedy)| {
            candidates.iter().position(|candidate| stood(&candidate.node)).or(greedy)
        });
        let starts = [greedy.clone(), original.collect()].into_iter();
        let ends = starts.filter_map(|start| Some(Descent::new(self, start)?.end()));
        ends.min_by_key(|choice| self.total(choice))
    }

    /// What a choice costs; the most there is when it goes in circles or has gaps.
    pub(crate) fn total(&self, choice: &[Option<usize>]) -> u64 {
        let cost = |class: usize| Some(self.classes[class][choice[class]?].cost);
        let order = self.order(choice);
        order.and_then(|order| order.into_iter().map(cost).sum()).unwrap_or(u64::MAX)
    }

    /// The chosen classes, arguments before their readers; `None` when the choice goes in circles or has gaps.
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

    /// The classes that are not in every program as they are, each with its place in a set. A circle goes through one
    /// of those at least.
    fn decisions(&self) -> Decisions {
        let mut needed = vec![false; self.classes.len()];
        let mut pending = vec![self.root];
        while let Some(class) = pending.pop() {
            if !std::mem::replace(&mut needed[class], true)
                && let [only] = &self.classes[class][..]
            {
                pending.extend(&only.needs);
            }
        }
        let classes: Vec<usize> =
            (0..needed.len()).filter(|&class| !needed[class] || self.classes[class].len() > 1).collect();
        let mut place = vec![None; needed.len()];
        classes.iter().enumerate().for_each(|(i, &class)| place[class] = Some(i));
        Decisions { classes, place, needed }
    }

    /// For each class those of which some candidate needs it.
    pub(super) fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.classes.len()];
        for (class, candidates) in self.classes.iter().enumerate() {
            all_needs(candidates).into_iter().for_each(|need| readers[need].push(class));
        }
        readers
    }

    fn greedy(&self) -> Vec<Option<usize>> {
        let count = self.classes.len();
        let parents = self.readers();
        let ranks = self.ranks();
        let mut class_at = vec![0; count];
        ranks.iter().enumerate().for_each(|(class, &rank)| class_at[rank] = class);
        let ready = |class: &usize| self.classes[*class].iter().any(|candidate| candidate.needs.is_empty());
        let mut heap: BinaryHeap<Reverse<usize>> =
            (0..count).filter(ready).map(|c| Reverse(ranks[c])).collect();
        let mut queued: Vec<bool> = (0..count).map(|class| ready(&class)).collect();
        let mut best: Vec<Option<Best>> = (0..count).map(|_| None).collect();
        let decisions = self.decisions();
        while let Some(Reverse(rank)) = heap.pop() {
            let class = class_at[rank];
            queued[class] = false;
            let mut improved = false;
            for (i, candidate) in self.classes[class].iter().enumerate() {
                if let Some(better) = better(&best, &decisions, class, i, candidate) {
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
}

/// The classes that sets range over, the place of each class in them, and which classes every program needs.
struct Decisions {
    classes: Vec<usize>,
    place: Vec<Option<usize>>,
    needed: Vec<bool>,
}

impl Decisions {
    fn none(&self) -> Rc<[u64]> {
        vec![0; self.classes.len().div_ceil(64)].into()
    }

    /// Adds a set to another, and says what it has cost that was not in there.
    fn join(&self, set: &mut Rc<[u64]>, other: &Rc<[u64]>, best: &[Option<Best>]) -> Option<u64> {
        let mut cost = 0;
        for (i, &word) in other.iter().enumerate() {
            let mut bits = word & !set[i];
            if bits != 0 {
                Rc::make_mut(set)[i] |= bits;
            }
            while bits != 0 {
                cost += best[self.classes[i * 64 + bits.trailing_zeros() as usize]].as_ref()?.own;
                bits &= bits - 1;
            }
        }
        Some(cost)
    }
}

/// The cheapest way found so far to make a class: the decisions it takes as a bitset, and what all cost together.
struct Best {
    total: u64,
    /// What it adds to the cost of what needs it: nothing if everything does.
    own: u64,
    /// The cost of the decisions.
    carried: u64,
    set: Rc<[u64]>,
    choice: usize,
}

/// The way to make `class` by `candidate`, if it is possible by now and cheaper than what is known.
fn better<L>(
    best: &[Option<Best>],
    decisions: &Decisions,
    class: usize,
    choice: usize,
    candidate: &Candidate<L>,
) -> Option<Best> {
    let needs = candidate.needs.iter().map(|&need| best[need].as_ref());
    let mut needs = needs.collect::<Option<Vec<&Best>>>()?;
    // Most of what the others take, the dearest takes as well: only the rest is counted.
    needs.sort_by_key(|need| Reverse(need.carried));
    let (mut set, mut carried) =
        needs.first().map_or_else(|| (decisions.none(), 0), |first| (first.set.clone(), first.carried));
    for other in needs.iter().skip(1) {
        carried += decisions.join(&mut set, &other.set, best)?;
    }
    let place = decisions.place[class];
    if place.is_some_and(|place| set[place / 64] >> (place % 64) & 1 == 1) {
        return None; // in a circle
    }
    let total = candidate.cost + carried;
    if best[class].as_ref().is_some_and(|best| best.total <= total) {
        return None;
    }
    let own = if decisions.needed[class] { 0 } else { candidate.cost };
    if let Some(place) = place {
        Rc::make_mut(&mut set)[place / 64] |= 1 << (place % 64);
    }
    Some(Best { total, own, carried: carried + own, set, choice })
}

/// Every class that some candidate needs, once.
fn all_needs<L>(candidates: &[Candidate<L>]) -> Vec<usize> {
    let mut needs: Vec<usize> =
        candidates.iter().flat_map(|candidate| candidate.needs.iter().copied()).collect();
    needs.sort_unstable();
    needs.dedup();
    needs
}
