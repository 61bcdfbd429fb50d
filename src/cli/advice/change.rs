//! Changes of flags that may make a run fit, with estimates of the bytes that they leave.

use std::fmt;

use ir::DType;
use passes::optimizer::{Algorithm, Moments};
use program::{MemoryByClass, UpdateTime};

use crate::cli::compile::Ready;
use crate::config::CompileFlags;
use crate::config::memory::AUTO;

/// A change of the flags of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// A higher stage of ZeRO.
    Zero(u64),
    /// Fewer samples of a microbatch on each data rank, in a step of the same samples.
    Microbatch {
        /// The samples of a microbatch.
        size: u64,
        /// The samples of a step.
        global: u64,
        /// The microbatches of a step.
        count: u64,
    },
    /// Updates during backward.
    EarlyUpdates,
    /// Values on the host.
    Offload,
    /// Steps in bf16.
    Bf16,
    /// Moments of the optimizer in another form.
    Moments(Moments),
}

/// A run that does not fit, as it is with more memory.
#[derive(Clone, Debug)]
pub(super) struct Unfit {
    /// Samples of a microbatch on each data rank.
    microbatch: u64,
    microbatches: u64,
    data_ranks: u64,
    /// The bytes of the rank that takes most.
    memory: MemoryByClass,
}

impl Unfit {
    pub(super) fn of(ready: &Ready, flags: &CompileFlags) -> Self {
        let data_ranks = flags.parallel.data_ranks();
        Self {
            microbatch: ready.plan.microbatch / data_ranks,
            microbatches: ready.plan.microbatches,
            data_ranks,
            memory: ready.last().programs.training.largest().memory.by_class,
        }
    }
}

impl Change {
    /// The changes that may help a run with these flags: those that leave its numbers as they are first, and of these the fastest to
    /// compile.
    pub(super) fn of(flags: &CompileFlags, unfit: &Unfit) -> Vec<Self> {
        let higher = flags.parallel.zero + 1..=if unfit.data_ranks > 1 { 3 } else { 0 };
        let mut all: Vec<Self> = higher.map(Self::Zero).collect();
        all.extend(smaller_microbatches(unfit));
        if flags.memory.update == UpdateTime::Late && unfit.microbatches == 1 {
            all.push(Self::EarlyUpdates);
        }
        if flags.memory.offload.is_empty() {
            all.push(Self::Offload);
        }
        if flags.precision.dtype() == DType::F32 {
            all.push(Self::Bf16);
        }
        if let Algorithm::Adam { moments: Moments::Full, .. } = flags.optimizer.optimizer {
            all.extend([Moments::Bf16, Moments::EightBit].map(Self::Moments));
        }
        all
    }

    /// Sets the flags of the change.
    pub(super) fn apply(self, flags: &mut CompileFlags) {
        match self {
            Self::Zero(stage) => flags.parallel.zero = stage,
            Self::Microbatch { size, global, .. } => {
                (flags.shapes.microbatch, flags.shapes.global_batch) = (Some(size), Some(global));
            }
            Self::EarlyUpdates => flags.memory.update = UpdateTime::Early,
            Self::Offload => flags.memory.offload = vec![AUTO],
            Self::Bf16 => (flags.precision.precision, flags.precision.bf16) = (None, true),
            Self::Moments(form) => flags.optimizer.optimizer = with_moments(flags.optimizer.optimizer, form),
        }
    }

    /// Whether the run has other losses, beyond the order of sums. A smaller microbatch depends on the model.
    pub(super) fn changes_numbers(self) -> bool {
        matches!(self, Self::Bf16 | Self::Moments(_))
    }

    /// Whether another change sets the same flags.
    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl fmt::Display for Change {
    /// The effect, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divided = |states: &str| format!("{states} are divided over the data ranks");
        f.write_str(&match self {
            Self::Zero(0 | 1) => divided("optimizer states"),
            Self::Zero(2) => divided("optimizer states and gradients"),
            Self::Zero(_) => divided("all states and gradients"),
            Self::Microbatch { count, .. } => format!("a step has {count} microbatches"),
            Self::EarlyUpdates => {
                "updates run in backward; a gradient that is not finite ends the run".into()
            }
            Self::Offload => "values rest on the host".into(),
            Self::Bf16 => "steps compute in bf16".into(),
            Self::Moments(Moments::Bf16) => "moments are kept in bf16".into(),
            Self::Moments(Moments::EightBit) => "moments are kept in 8 bits".into(),
            Self::Moments(Moments::Full) => "moments are kept in full".into(),
        })
    }
}

/// The halves of a microbatch: the first two, and the last.
fn smaller_microbatches(unfit: &Unfit) -> Vec<Change> {
    let half = |size: &u64| size.is_multiple_of(2).then_some(size / 2);
    let halves: Vec<u64> = std::iter::successors(half(&unfit.microbatch), half).collect();
    let sizes = halves.iter().take(2).chain(halves.last().filter(|_| halves.len() > 2));
    let global = unfit.microbatch * unfit.microbatches * unfit.data_ranks;
    sizes
        .map(|&size| Change::Microbatch { size, global, count: global / (size * unfit.data_ranks) })
        .collect()
}

/// The optimizer with moments in another form. Numbers that are defaults become those of that form: the second decay of moments in bf16
/// has a limit, and a default of its own.
fn with_moments(mut algorithm: Algorithm, form: Moments) -> Algorithm {
    let mut default = algorithm.default_of();
    let Algorithm::Adam { moments, .. } = &mut algorithm else { return algorithm };
    *moments = form;
    let mut changed = algorithm.default_of();
    let numbers = algorithm.hyperparameters().into_iter().zip(default.hyperparameters());
    for ((own, default), changed) in numbers.zip(changed.hyperparameters()) {
        let is_too_large = own.name == "beta2" && *own.value > form.largest_decay();
        if *own.value != *default.value && !is_too_large {
            *changed.value = *own.value;
        }
    }
    changed
}

/// The combinations that are tried, of the strongest change of each kind: first all pairs, those that leave the numbers as they are before
/// the others; then all changes that leave the numbers as they are, and all changes.
pub(super) fn combinations(changes: &[Change]) -> Vec<Vec<Change>> {
    // The last change of a kind is the strongest. Early updates save nothing with several microbatches.
    let later = |at: usize| changes[at + 1..].iter();
    let is_strongest = |at: &usize| !later(*at).any(|other| other.is_like(changes[*at]));
    let strongest: Vec<Change> = (0..changes.len()).filter(is_strongest).map(|at| changes[at]).collect();
    let smaller = |change: &Change| matches!(change, Change::Microbatch { .. });
    let is_early = |change: &Change| *change == Change::EarlyUpdates;
    let go_together = |pair: &Vec<Change>| !(pair.iter().any(is_early) && pair.iter().any(smaller));
    let pairs = (0..strongest.len()).flat_map(|first| {
        let strongest = &strongest;
        strongest[first + 1..].iter().map(move |&second| vec![strongest[first], second])
    });
    let mut all: Vec<Vec<Change>> = pairs.filter(go_together).collect();
    all.sort_by_key(|pair| pair.iter().any(|change| change.changes_numbers()));
    let many: Vec<Change> = strongest.iter().copied().filter(|change| !is_early(change)).collect();
    let exact: Vec<Change> = many.iter().copied().filter(|change| !change.changes_numbers()).collect();
    all.extend([exact, many].into_iter().filter(|changes| changes.len() > 2));
    all
}

/// Bytes of the device that no program of some changes goes without: those of its states.
pub(super) fn least(
    changes: &[Change],
    unfit: &Unfit,
    flags: &CompileFlags,
    is_shared_with_host: bool,
) -> u64 {
    let may_leave = flags.memory.tiers().is_some() || changes.contains(&Change::Offload);
    if may_leave && !is_shared_with_host {
        return 0;
    }
    let memory = left_by(changes, unfit, flags);
    // The fullest position of a program may have casts of weights beside them, which another program makes later.
    let is_half = flags.precision.dtype() != DType::F32;
    memory.optimizer + if is_half { memory.parameters / 2 } else { memory.parameters }
}

/// Bytes that a run with some changes takes of its device, if all activations are kept: as if they followed the flags alone.
pub(super) fn estimated(changes: &[Change], unfit: &Unfit, flags: &CompileFlags) -> u64 {
    if changes.contains(&Change::Offload) { 0 } else { left_by(changes, unfit, flags).total() }
}

/// The bytes by class that some changes leave on the device.
fn left_by(changes: &[Change], unfit: &Unfit, flags: &CompileFlags) -> MemoryByClass {
    let mut memory = unfit.memory;
    let is_half = flags.precision.dtype() != DType::F32 || changes.contains(&Change::Bf16);
    for change in changes {
        match *change {
            Change::Zero(stage) => {
                let divide = |bytes: &mut u64| *bytes = bytes.div_ceil(unfit.data_ranks);
                if flags.parallel.zero == 0 {
                    divide(&mut memory.optimizer);
                }
                if stage >= 2 && flags.parallel.zero < 2 {
                    divide(&mut memory.gradients);
                }
                // In half precision, ZeRO divides the f32 weights too.
                if stage == 3 || is_half {
                    divide(&mut memory.parameters);
                }
            }
            Change::Microbatch { size, .. } => {
                let part = |bytes: u64| bytes / unfit.microbatch * size;
                (memory.activations, memory.workspace) = (part(memory.activations), part(memory.workspace));
            }
            Change::EarlyUpdates => memory.gradients = 0,
            Change::Offload => {}
            Change::Bf16 => memory.activations /= 2,
            Change::Moments(Moments::EightBit) => memory.optimizer /= 4,
            Change::Moments(_) => memory.optimizer /= 2,
        }
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_take_the_strongest_change_of_each_kind() {
        let smaller = |size| Change::Microbatch { size, global: 8, count: 8 / size };
        let (early, offload, bf16) = (Change::EarlyUpdates, Change::Offload, Change::Bf16);
        let changes = [smaller(4), smaller(2), early, offload, bf16];
        let expected: [&[Change]; 6] = [
            &[smaller(2), offload],
            &[early, offload],
            &[smaller(2), bf16],
            &[early, bf16],
            &[offload, bf16],
            &[smaller(2), offload, bf16],
        ];
        assert_eq!(combinations(&changes), expected);
    }

    #[test]
    fn moments_of_another_form_keep_the_other_numbers() {
        let Some(Algorithm::Adam { beta1, beta2, eps, decoupled, .. }) = Algorithm::named("adamw") else {
            panic!("there is adamw")
        };
        let adam = |beta1, beta2, moments| Algorithm::Adam { beta1, beta2, eps, decoupled, moments };
        let full = |beta1, beta2| adam(beta1, beta2, Moments::Full);
        let eight = adam(beta1, beta2, Moments::EightBit);
        assert_eq!(with_moments(full(beta1, beta2), Moments::EightBit), eight);
        let own = full(0.8, 0.97);
        assert_eq!(with_moments(own, Moments::EightBit), adam(0.8, 0.97, Moments::EightBit));
        assert_eq!(with_moments(own, Moments::Bf16), adam(0.8, 0.97, Moments::Bf16));
        assert_eq!(with_moments(full(0.8, 0.999), Moments::Bf16), adam(0.8, 0.95, Moments::Bf16));
    }
}
