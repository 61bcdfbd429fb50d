//! Ways to split a program over devices, and short lists of them with every pair of options.

use super::split;
use passes::spmd::Spmd;

/// One way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Data ranks.
    pub dp: u64,
    /// Tensor ranks.
    pub tp: u64,
    /// The stage of ZeRO.
    pub zero: u64,
    /// Whether activations between the regions of tensor parallelism are split along the sequence.
    pub sequence_parallel: bool,
    /// Microbatches of a step.
    pub microbatches: u64,
}

impl Configuration {
    /// The options as numbers, for pairing.
    fn options(self) -> [u64; 5] {
        [self.dp, self.tp, self.zero, self.sequence_parallel.into(), self.microbatches]
    }

    /// The pass that splits a program this way.
    pub fn spmd(self) -> Spmd {
        let sequence = if self.sequence_parallel && self.tp > 1 { ", sequence-parallel" } else { "" };
        split(&format!("mesh=dp:{}*tp:{}, zero={}{sequence}", self.dp, self.tp, self.zero))
    }
}

/// All configurations of at most `ranks` ranks.
pub fn all(ranks: u64) -> Vec<Configuration> {
    let mut all = Vec::new();
    for dp in [1, 2, 4, 8] {
        for tp in [1, 2, 4].into_iter().filter(|tp| (2..=ranks).contains(&(dp * tp))) {
            for zero in 0..4 {
                for sequence_parallel in [false, true] {
                    for microbatches in [1, 3] {
                        all.push(Configuration { dp, tp, zero, sequence_parallel, microbatches });
                    }
                }
            }
        }
    }
    all
}

/// Few configurations of at most so many ranks, with every pair of options that occurs in [`all`] of them.
pub fn pairwise(ranks: u64) -> Vec<Configuration> {
    let pairs = |configuration: &Configuration| {
        let options = configuration.options();
        let places = (0..options.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        places.map(|(i, j)| (i, options[i], j, options[j])).collect::<Vec<_>>()
    };
    let all = all(ranks);
    let mut open: Vec<_> = all.iter().flat_map(pairs).collect();
    open.sort_unstable();
    open.dedup();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let covers = |c: &&Configuration| pairs(c).iter().filter(|pair| open.contains(pair)).count();
        // The first of the best.
        let best = *all.iter().rev().max_by_key(covers).expect("there are configurations");
        open.retain(|pair| !pairs(&best).contains(pair));
        chosen.push(best);
    }
    chosen
}
