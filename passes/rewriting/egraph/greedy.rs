//! The first choice: greedy over sets of classes, as in egg's extraction gym (`faster-greedy-dag`).
//!
//! For each class the search keeps the cheapest known candidate, with the set of decisions that it needs, until no class gets cheaper.
//! Classes that every program needs are left out of the sets: their cost decides nothing, and a set has one bit for each decision.

use super::problem::{Candidate, Problem, all_needs};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Returns the candidate of every class that has a possible one.
pub(super) fn greedy<L: egg::Language>(problem: &Problem<L>) -> Vec<Option<usize>> {
    let count = problem.classes.len();
    let parents = problem.readers();
    let ranks = ranks(problem);
    let mut class_at = vec![0; count];
    ranks.iter().enumerate().for_each(|(class, &rank)| class_at[rank] = class);
    let ready = |class: &usize| problem.classes[*class].iter().any(|candidate| candidate.needs.is_empty());
    let mut heap: BinaryHeap<Reverse<usize>> = (0..count).filter(ready).map(|c| Reverse(ranks[c])).collect();
    let mut queued: Vec<bool> = (0..count).map(|class| ready(&class)).collect();
    let mut best: Vec<Option<Best>> = (0..count).map(|_| None).collect();
    let decisions = Decisions::of(problem);
    while let Some(Reverse(rank)) = heap.pop() {
        let class = class_at[rank];
        queued[class] = false;
        let mut improved = false;
        for (i, candidate) in problem.classes[class].iter().enumerate() {
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

/// Returns postorder numbers: children before parents, except in circles.
fn ranks<L>(problem: &Problem<L>) -> Vec<usize> {
    let needs: Vec<Vec<usize>> = problem.classes.iter().map(|candidates| all_needs(candidates)).collect();
    let (mut ranks, mut next) = (vec![0; problem.classes.len()], 0);
    let mut seen = vec![false; problem.classes.len()];
    let mut stack = vec![(problem.root, 0)];
    seen[problem.root] = true;
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

/// The classes that the sets contain, the index of each class in a set, and whether every program needs a class.
struct Decisions {
    classes: Vec<usize>,
    place: Vec<Option<usize>>,
    needed: Vec<bool>,
}

impl Decisions {
    /// Finds the classes that have several candidates or are not in every program, and gives each an index in the sets. Every circle goes
    /// through at least one of them.
    fn of<L>(problem: &Problem<L>) -> Self {
        let mut needed = vec![false; problem.classes.len()];
        let mut pending = vec![problem.root];
        while let Some(class) = pending.pop() {
            if !std::mem::replace(&mut needed[class], true)
                && let [only] = &problem.classes[class][..]
            {
                pending.extend(&only.needs);
            }
        }
        let classes: Vec<usize> =
            (0..needed.len()).filter(|&class| !needed[class] || problem.classes[class].len() > 1).collect();
        let mut place = vec![None; needed.len()];
        classes.iter().enumerate().for_each(|(i, &class)| place[class] = Some(i));
        Self { classes, place, needed }
    }

    fn none(&self) -> Rc<[u64]> {
        vec![0; self.classes.len().div_ceil(64)].into()
    }

    /// Adds a set to another. Returns the cost of the classes that were not in it.
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

/// The cheapest known way to make a class: its decisions as a bitset, and the total cost.
struct Best {
    total: u64,
    /// The cost that it adds to its readers: nothing if every program needs it.
    own: u64,
    /// The cost of its decisions.
    carried: u64,
    set: Rc<[u64]>,
    choice: usize,
}

/// Returns the way to make `class` by `candidate`, if it is possible already and cheaper than the known way.
fn better<L>(
    best: &[Option<Best>],
    decisions: &Decisions,
    class: usize,
    choice: usize,
    candidate: &Candidate<L>,
) -> Option<Best> {
    let needs = candidate.needs.iter().map(|&need| best[need].as_ref());
    let mut needs = needs.collect::<Option<Vec<&Best>>>()?;
    // The most expensive set contains most of the other sets, so only the remaining classes are counted.
    needs.sort_by_key(|need| Reverse(need.carried));
    let (mut set, mut carried) =
        needs.first().map_or_else(|| (decisions.none(), 0), |first| (first.set.clone(), first.carried));
    for other in needs.iter().skip(1) {
        carried += decisions.join(&mut set, &other.set, best)?;
    }
    let place = decisions.place[class];
    if place.is_some_and(|place| set[place / 64] >> (place % 64) & 1 == 1) {
        return None; // a circle
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
