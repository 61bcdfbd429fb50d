//! The ranks of a model: threads of loom. Each has one byte of an operand and one byte of its share of a result.

use crate::at_work::AtWork;
use crate::mail::Route;
use crate::meeting::{Inside, World};
use crate::sync::{self, Byte};
use crate::{CommError, Terms};
use loom::model::Builder;
use loom::thread;
use std::slice::from_ref;
use std::sync::Arc;

/// One rank.
pub(crate) struct Rank {
    pub(crate) number: u64,
    world: Arc<World>,
    memory: Arc<Vec<RankMemory>>,
}

/// The memory of one rank.
struct RankMemory {
    operand: Byte,
    share: Byte,
}

// SAFETY: loom runs one thread at a time, and a `Byte` reports accesses that could happen at the same time.
unsafe impl Sync for RankMemory {}

/// Tries the interleavings of `ranks` ranks that all run `run`; `check` gets the values that they returned. `preemptions` bounds the number
/// of times that an interleaving stops a rank that could go on; `None` tries all.
pub(crate) fn try_all<R: 'static>(
    ranks: u64,
    preemptions: Option<usize>,
    run: impl Fn(&Rank) -> R + Copy + Send + Sync + 'static,
    check: impl Fn(Vec<R>) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(move || {
        let world = Arc::new(World::new(ranks));
        let memory =
            Arc::new((0..ranks).map(|_| RankMemory { operand: Byte::new(0), share: Byte::new(0) }).collect());
        world.begin();
        let of = |number| Rank { number, world: world.clone(), memory: Arc::clone(&memory) };
        let work = |rank: Rank| {
            move || {
                let _at_work = AtWork::new(rank.world.clone(), rank.number);
                run(&rank)
            }
        };
        let others: Vec<_> = (1..ranks).map(|number| thread::spawn(work(of(number)))).collect();
        let mut results = vec![work(of(0))()];
        results.extend(others.into_iter().map(|thread| thread.join().unwrap()));
        check(results);
    });
}

impl Rank {
    /// Meets a group and lends this rank's byte, which is `number + 1` until the meeting ends. Then the rank overwrites it.
    pub(crate) fn meet<R>(
        &self,
        group: &[u64],
        terms: Terms,
        inside: impl FnOnce(&Inside) -> R,
    ) -> Result<R, CommError> {
        let own = &self.memory[self.number as usize];
        write(&own.operand, self.number as u8 + 1);
        let result = self.world.meet(self.number, group, terms, &[from_ref(&own.operand)], inside);
        write(&own.operand, 99);
        result
    }

    /// Meets a group twice, as a reduction in the place of its operand. Each rank first adds the bytes that all lent. Then each lends the
    /// sum, adds those, and overwrites the byte that it lent before.
    pub(crate) fn add(&self, group: &[u64]) -> Result<u8, CommError> {
        let own = &self.memory[self.number as usize];
        write(&own.operand, self.number as u8 + 1);
        let meet = |from: &Byte, to: &Byte| {
            self.world.meet(self.number, group, ADD, &[from_ref(from)], |inside| {
                let sum = sum(&inside.lent(0));
                write(to, sum);
                sum
            })
        };
        let sum = meet(&own.operand, &own.share).and_then(|_| meet(&own.share, &own.operand));
        write(&own.operand, 99);
        write(&own.share, 99);
        sum
    }

    /// Leaves a message of one byte for another rank.
    pub(crate) fn send(&self, to: u64, channel: u32, byte: u8) -> Result<(), CommError> {
        self.world.post(Route { from: self.number, to, channel }, &[byte])
    }

    /// Waits for a message of one byte.
    pub(crate) fn receive(&self, from: u64, channel: u32) -> Result<u8, CommError> {
        let mut byte = [0];
        self.world.take(Route { from, to: self.number, channel }, &mut byte)?;
        Ok(byte[0])
    }

    /// Makes this rank behave as if it unwinds from a panic.
    pub(crate) fn panic(&self) {
        sync::panic();
    }

    /// Ends all ranks because this one failed, as [`AtWork::fail`] does.
    pub(crate) fn fail(&self) {
        AtWork::new(self.world.clone(), self.number).fail();
    }
}

/// The collective that the ranks of most models issue.
pub(crate) const ADD: Terms = Terms("add");

/// Returns the sum of lent bytes.
pub(crate) fn sum(lent: &[&[Byte]]) -> u8 {
    // SAFETY: loom reports a write that could happen at the same time.
    lent.iter().map(|lent| lent[0].with(|byte| unsafe { *byte })).sum()
}

fn write(byte: &Byte, value: u8) {
    // SAFETY: as in `sum`.
    byte.with_mut(|byte| unsafe { *byte = value });
}
