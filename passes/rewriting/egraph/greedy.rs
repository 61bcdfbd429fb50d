//! The first choice: greedy over sets of classes, as in egg's extraction gym (`faster-greedy-dag`).
//!
//! For each class the cheapest way to make it that is known, with the set of decisions it takes, until nothing gets
//! cheaper. What every program needs is left out of the sets: its cost decides nothing, and sets are as wide as there are
//! decisions.

use super::problem::{Candidate, Problem, all_needs};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// The candidate of every class that can be made.
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

/// Postorder numbers: children before parents, as far as circles allow.
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

/// The classes that sets range over, the place of each class in them, and which classes every program needs.
struct Decisions {
    classes: Vec<usize>,
    place: Vec<Option<usize>>,
    needed: Vec<bool>,
}

impl Decisions {
    /// The classes that are not in every program as they are, each with its place in a set. A circle goes through one
    /// of those at least.
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
