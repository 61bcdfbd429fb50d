//! Improves a choice by local search: exchanges of single candidates, and exchanges at all readers of a class at once, as long as
//! the total cost falls.
//!
//! Reference counts give the change of cost that an exchange makes. Positions (arguments before their readers) make it
//! cheap to see that an exchange makes no circle: only classes that come into use are visited, unless the order has to change.

use super::problem::Problem;
use egg::Language;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Classes to visit, without an allocation: most exchanges touch a few.
type Stack = SmallVec<[usize; 8]>;

/// The distance between neighbours' positions in a new order.
const GAP: u64 = 1 << 32;

/// A choice that is being improved.
pub(super) struct Descent<'p, L> {
    problem: &'p Problem<L>,
    choice: Vec<Option<usize>>,
    /// The number of chosen candidates that need each class; the root has one more.
    count: Vec<u32>,
    /// The position of each class in use, higher than those of the classes that it needs.
    position: Vec<Option<u64>>,
    /// Classes that went out of use in the current try.
    gone: Vec<usize>,
    /// Classes that the current try moved, with their old positions.
    moved: Vec<(usize, Option<u64>)>,
    /// Whether the current try gave all classes new positions.
    renumbered: bool,
}

impl<'p, L: Language> Descent<'p, L> {
    /// Starts from a choice. Returns `None` if it has a circle or a gap.
    pub(super) fn new(problem: &'p Problem<L>, choice: Vec<Option<usize>>) -> Option<Self> {
        let count = vec![0; choice.len()];
        let position = vec![None; choice.len()];
        let (gone, moved) = Default::default();
        let mut descent = Self { problem, choice, count, position, gone, moved, renumbered: false };
        descent.take(problem.root);
        let possible = descent.number();
        descent.renumbered = false;
        possible.then_some(descent)
    }

    /// Improves the choice until no exchange makes it cheaper, and returns it.
    pub(super) fn end(mut self) -> Vec<Option<usize>> {
        // Far more rounds than any descent has taken.
        const ROUNDS: usize = 100;
        let readers = self.problem.readers();
        for _ in 0..ROUNDS {
            let mut improved = false;
            for (class, readers) in readers.iter().enumerate() {
                for other in 0..self.problem.classes[class].len() {
                    improved |= self.count[class] > 0 && self.exchange(class, other);
                }
                improved |= self.count[class] > 0 && self.bypass(class, readers);
            }
            if !improved {
                break;
            }
        }
        self.choice
    }

    fn exchange(&mut self, class: usize, other: usize) -> bool {
        let Some(current) = self.choice[class].filter(|&current| current != other) else { return false };
        if !self.is_possible(class, other) {
            return false;
        }
        let change = self.replace(class, current, other);
        self.choice[class] = Some(other);
        // A class that comes into use may lead back to this one. Then the counts are wrong.
        if change < 0 && self.keeps_order(class) {
            self.keep();
            return true;
        }
        self.choice[class] = Some(current);
        self.replace(class, other, current);
        self.forget();
        false
    }

    /// Makes all readers of a class do without it at once, each by its cheapest other candidate, if that makes the whole
    /// cheaper. A single reader gains nothing alone: the other readers still pay for the class.
    fn bypass(&mut self, class: usize, readers: &[usize]) -> bool {
        let reads = |reader: usize| self.needs(reader).is_some_and(|needs| needs.contains(&class));
        let readers: Vec<usize> =
            readers.iter().copied().filter(|&reader| self.count[reader] > 0 && reads(reader)).collect();
        let others = |descent: &Self, reader: usize| -> Vec<usize> {
            let candidates = &descent.problem.classes[reader];
            let without = |other: &usize| !candidates[*other].needs.contains(&class);
            let possible = |other: &usize| without(other) && descent.is_possible(reader, *other);
            (0..candidates.len()).filter(possible).collect()
        };
        if readers.len() < 2 || readers.iter().any(|&reader| others(self, reader).is_empty()) {
            return false;
        }
        let (mut change, mut done) = (0, Vec::new());
        for &reader in &readers {
            let Some(current) = self.choice[reader].filter(|_| self.count[reader] > 0) else { break };
            let cheapest = others(self, reader).into_iter().min_by_key(|&other| {
                let change = self.replace(reader, current, other);
                self.replace(reader, other, current);
                change
            });
            let Some(other) = cheapest else { break };
            change += self.replace(reader, current, other);
            self.choice[reader] = Some(other);
            done.push((reader, current, other));
        }
        let mut changed = done.iter().map(|&(reader, ..)| reader);
        if done.len() == readers.len()
            && change < 0
            && changed.all(|reader| self.count[reader] == 0 || self.keeps_order(reader))
        {
            self.keep();
            return true;
        }
        for (reader, current, other) in done.into_iter().rev() {
            self.choice[reader] = Some(current);
            self.replace(reader, other, current);
        }
        self.forget();
        false
    }

    /// Returns the classes that the chosen candidate of a class needs.
    fn needs(&self, class: usize) -> Option<&'p [usize]> {
        Some(&self.problem.classes[class][self.choice[class]?].needs)
    }

    /// Whether all classes that a candidate needs have a candidate themselves.
    fn is_possible(&self, class: usize, candidate: usize) -> bool {
        self.problem.classes[class][candidate].needs.iter().all(|&need| self.choice[need].is_some())
    }

    /// Updates the counts as if the candidate `new` were chosen instead of `old`. Returns the change of cost.
    fn replace(&mut self, class: usize, old: usize, new: usize) -> i64 {
        let (old, new) = (&self.problem.classes[class][old], &self.problem.classes[class][new]);
        let mut change = new.cost as i64 - old.cost as i64;
        change += new.needs.iter().map(|&need| self.take(need)).sum::<i64>();
        change + old.needs.iter().map(|&need| self.drop(need)).sum::<i64>()
    }

    /// Ends a try that is kept. Classes that went out of use lose their positions.
    fn keep(&mut self) {
        for gone in std::mem::take(&mut self.gone) {
            if self.count[gone] == 0 {
                self.position[gone] = None;
            }
        }
        self.moved.clear();
        self.renumbered = false;
    }

    /// Ends a try that was undone, and restores the positions.
    fn forget(&mut self) {
        self.gone.clear();
        for (class, position) in std::mem::take(&mut self.moved).into_iter().rev() {
            self.position[class] = position;
        }
        if self.renumbered {
            self.number();
        }
        self.renumbered = false;
    }

    /// Moves the classes that a class needs below it, after another candidate was chosen for it; `false` if it needs itself. Classes
    /// above it or newly in use are put right below it, in order; their other readers are higher still.
    fn keeps_order(&mut self, class: usize) -> bool {
        let Some(above) = self.position[class] else { return self.number() };
        // Arguments come before their readers, as in `Problem::order`.
        let (mut order, mut below) = (Vec::new(), 0);
        let mut path = vec![(class, 0)];
        let (mut on_path, mut seen) = (BTreeSet::from([class]), BTreeSet::from([class]));
        while let Some((reader, i)) = path.pop() {
            let Some(&need) = self.needs(reader).and_then(|needs| needs.get(i)) else {
                on_path.remove(&reader);
                order.push(reader);
                continue;
            };
            path.push((reader, i + 1));
            match self.position[need] {
                Some(position) if position < above => below = below.max(position),
                _ if on_path.contains(&need) => return false,
                _ if seen.insert(need) => {
                    on_path.insert(need);
                    path.push((need, 0));
                }
                _ => {}
            }
        }
        order.pop();
        let step = (above - below) / (order.len() as u64 + 1);
        for (i, class) in (1..).zip(order) {
            self.moved.push((class, self.position[class].replace(below + i * step)));
        }
        step > 0 || self.number()
    }

    /// Gives every class in use a position; `false` if the choice has a circle or a gap.
    fn number(&mut self) -> bool {
        let Some(order) = self.problem.order(&self.choice) else { return false };
        self.renumbered = true;
        self.position.fill(None);
        order.iter().zip(1..).for_each(|(&class, i)| self.position[class] = Some(i * GAP));
        true
    }

    /// Counts one more use of a class. Returns the change of cost.
    fn take(&mut self, class: usize) -> i64 {
        let (mut change, mut stack) = (0, Stack::from_slice(&[class]));
        while let Some(class) = stack.pop() {
            self.count[class] += 1;
            if let (1, Some(chosen)) = (self.count[class], self.choice[class]) {
                let candidate = &self.problem.classes[class][chosen];
                change += candidate.cost as i64;
                stack.extend_from_slice(&candidate.needs);
            }
        }
        change
    }

    /// Counts one use of a class less. Returns the change of cost, which is not positive.
    fn drop(&mut self, class: usize) -> i64 {
        let (mut change, mut stack) = (0, Stack::from_slice(&[class]));
        while let Some(class) = stack.pop() {
            self.count[class] -= 1;
            if let (0, Some(chosen)) = (self.count[class], self.choice[class]) {
                let candidate = &self.problem.classes[class][chosen];
                change -= candidate.cost as i64;
                self.gone.push(class);
                stack.extend_from_slice(&candidate.needs);
            }
        }
        change
    }
}
