//! Chooses the algorithm of a multiplication among those that cuBLASLt proposes. Nothing here needs a device.
//!
//! The choice shall change speed alone. So an algorithm takes the first proposal's place only if it divides sums in the same
//! way and is measurably faster.

use crate::cuda::driver::DriverError;
use std::time::Duration;

/// How many proposals cuBLASLt is asked for.
pub(super) const PROPOSALS: usize = 8;

/// The time that the multiplications of one program may be timed for. After that the first proposal is taken.
pub(super) const BUDGET: Duration = Duration::from_secs(2);

/// Timed runs of an algorithm, after one that is not timed. The fastest counts.
const RUNS: usize = 3;

/// How much faster than the first proposal another one has to be, as a share of the time: less may be noise.
const MARGIN: f64 = 0.03;

/// How an algorithm divides a sum into parts, and how it adds them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summation {
    pub(super) parts: u32,
    pub(super) scheme: u32,
}

/// Why a run of an algorithm ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// cuBLASLt refused it, and nothing was run.
    Refused(DriverError),
    /// The device failed. No other algorithm can run after that.
    Device(DriverError),
}

/// A multiplication whose algorithms can be tried.
pub(super) trait Trial {
    /// An algorithm of cuBLASLt.
    type Algorithm: Copy;

    /// Returns the proposed algorithms, the one first that cuBLASLt believes to be the fastest.
    fn propose(&mut self) -> Result<Vec<Self::Algorithm>, DriverError>;

    /// Returns why cuBLASLt does not take an algorithm for this multiplication, or its summation.
    fn check(&mut self, algorithm: Self::Algorithm) -> Result<Summation, DriverError>;

    /// Returns whether there is memory to run an algorithm on.
    fn can_run(&self) -> bool;

    /// Runs an algorithm once and returns the seconds.
    fn run(&mut self, algorithm: Self::Algorithm) -> Result<f64, Failure>;

    /// Returns the time since the planning of the program began.
    fn elapsed(&self) -> Duration;
}

/// Returns the algorithms for a multiplication: the chosen one first, then those to be tried if it is refused.
///
/// # Errors
/// cuBLASLt proposes no algorithm, or refuses to run each; the device failed.
pub(super) fn choose<T: Trial>(trial: &mut T) -> Result<Vec<T::Algorithm>, DriverError> {
    let (mut accepted, mut doubtful) = (Vec::new(), Vec::new());
    let mut refusal = DriverError("cuBLASLt proposes no algorithm".into());
    for algorithm in trial.propose()? {
        match trial.check(algorithm) {
            Ok(summation) => accepted.push((algorithm, Some(summation))),
            Err(error) => {
                refusal = error;
                doubtful.push((algorithm, None));
            }
        }
    }
    // If the check accepts no proposal, runs decide.
    if accepted.is_empty() {
        accepted = doubtful;
    }
    // The first algorithm that runs decides the summation.
    let mut expected: Option<Option<Summation>> = None;
    let (mut timed, mut untimed) = (Vec::new(), Vec::new());
    for (algorithm, summation) in accepted {
        let differs = expected.is_some_and(|expected| expected != summation);
        if differs || !trial.can_run() || trial.elapsed() >= BUDGET {
            untimed.push(algorithm);
            continue;
        }
        match time(trial, algorithm) {
            Ok(seconds) => {
                expected = Some(summation);
                timed.push((algorithm, seconds));
            }
            Err(Failure::Refused(error)) => refusal = error,
            Err(Failure::Device(error)) => return Err(error),
        }
    }
    let mut chosen = fastest_first(timed);
    chosen.extend(untimed);
    if chosen.is_empty() { Err(refusal) } else { Ok(chosen) }
}

/// Returns the seconds of an algorithm's fastest run.
fn time<T: Trial>(trial: &mut T, algorithm: T::Algorithm) -> Result<f64, Failure> {
    // The first run loads the kernel.
    trial.run(algorithm)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..RUNS {
        fastest = fastest.min(trial.run(algorithm)?);
    }
    Ok(fastest)
}

/// Puts the fastest algorithm first, unless the first is as fast within the margin. The others keep their order.
fn fastest_first<A: Copy>(timed: Vec<(A, f64)>) -> Vec<A> {
    let fastest = (0..timed.len()).min_by(|&a, &b| timed[a].1.total_cmp(&timed[b].1));
    let mut algorithms: Vec<A> = timed.iter().map(|(algorithm, _)| *algorithm).collect();
    if let Some(index) = fastest.filter(|&index| timed[index].1 < (1.0 - MARGIN) * timed[0].1) {
        let algorithm = algorithms.remove(index);
        algorithms.insert(0, algorithm);
    }
    algorithms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up cuBLASLt with a clock that runs during runs alone.
    #[derive(Default)]
    struct Fake {
        proposals: Vec<Proposal>,
        /// Whether there is no memory.
        no_memory: bool,
        elapsed: f64,
        /// The algorithms that were run, in order.
        runs: Vec<usize>,
    }

    #[derive(Clone, Copy)]
    enum Runs {
        /// In so many seconds.
        In(f64),
        /// cuBLASLt's check refuses it, and so does a run.
        FailsTheCheck,
        /// cuBLASLt's check refuses it, but it runs in so many seconds.
        InDespiteTheCheck(f64),
        Refused,
        BreaksTheDevice,
    }

    #[derive(Clone, Copy)]
    struct Proposal {
        runs: Runs,
        parts: u32,
    }

    impl Fake {
        fn of(runs: &[Runs]) -> Self {
            let proposals = runs.iter().map(|&runs| Proposal { runs, parts: 1 }).collect();
            Self { proposals, ..Self::default() }
        }

        fn choose(&mut self) -> Result<Vec<usize>, String> {
            choose(self).map_err(|error| error.0)
        }
    }

    fn error(algorithm: usize, what: &str) -> DriverError {
        DriverError(format!("{algorithm} {what}"))
    }

    impl Trial for Fake {
        type Algorithm = usize;

        fn propose(&mut self) -> Result<Vec<usize>, DriverError> {
            Ok((0..self.proposals.len()).collect())
        }

        fn check(&mut self, algorithm: usize) -> Result<Summation, DriverError> {
            let Proposal { runs, parts } = self.proposals[algorithm];
            match runs {
                Runs::FailsTheCheck | Runs::InDespiteTheCheck(_) => Err(error(algorithm, "fails the check")),
                _ => Ok(Summation { parts, scheme: 0 }),
            }
        }

        fn can_run(&self) -> bool {
            !self.no_memory
        }

        fn run(&mut self, algorithm: usize) -> Result<f64, Failure> {
            self.runs.push(algorithm);
            match self.proposals[algorithm].runs {
                Runs::In(seconds) | Runs::InDespiteTheCheck(seconds) => {
                    self.elapsed += seconds;
                    Ok(seconds)
                }
                Runs::Refused | Runs::FailsTheCheck => Err(Failure::Refused(error(algorithm, "is refused"))),
                Runs::BreaksTheDevice => Err(Failure::Device(error(algorithm, "broke the device"))),
            }
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs_f64(self.elapsed)
        }
    }

    use Runs::{BreaksTheDevice, FailsTheCheck, In, InDespiteTheCheck, Refused};

    #[test]
    fn the_fastest_is_first_and_the_others_follow_in_their_order() {
        let mut fake = Fake::of(&[In(3e-3), In(2e-3), In(1e-3), In(4e-3)]);
        assert_eq!(fake.choose(), Ok(vec![2, 0, 1, 3]));
        assert_eq!(fake.runs.len(), 4 * (1 + RUNS));
    }

    #[test]
    fn of_equals_the_first_is_taken_and_so_it_is_within_the_margin() {
        assert_eq!(Fake::of(&[In(1e-3), In(1e-3)]).choose(), Ok(vec![0, 1]));
        assert_eq!(Fake::of(&[In(1e-3), In(0.98e-3)]).choose(), Ok(vec![0, 1]));
        assert_eq!(Fake::of(&[In(1e-3), In(0.96e-3)]).choose(), Ok(vec![1, 0]));
    }

    #[test]
    fn without_memory_nothing_is_run_and_the_first_is_taken() {
        let mut fake = Fake { no_memory: true, ..Fake::of(&[FailsTheCheck, In(2e-3), In(1e-3)]) };
        assert_eq!(fake.choose(), Ok(vec![1, 2]));
        assert!(fake.runs.is_empty());
    }

    #[test]
    fn when_the_first_is_refused_the_next_is_taken() {
        assert_eq!(Fake::of(&[Refused, In(2e-3), In(2e-3)]).choose(), Ok(vec![1, 2]));
        assert_eq!(Fake::of(&[FailsTheCheck, Refused, In(2e-3)]).choose(), Ok(vec![2]));
    }

    #[test]
    fn when_all_are_refused_the_last_refusal_is_told() {
        assert_eq!(Fake::of(&[Refused, Refused]).choose(), Err("1 is refused".into()));
        assert_eq!(Fake::of(&[Refused, FailsTheCheck]).choose(), Err("0 is refused".into()));
        assert_eq!(Fake::of(&[FailsTheCheck]).choose(), Err("0 is refused".into()));
        assert_eq!(Fake::of(&[]).choose(), Err("cuBLASLt proposes no algorithm".into()));
    }

    /// The check's word counts less than a run's.
    #[test]
    fn when_the_check_accepts_nothing_runs_decide() {
        let despite = [FailsTheCheck, InDespiteTheCheck(2e-3), InDespiteTheCheck(1e-3)];
        assert_eq!(Fake::of(&despite).choose(), Ok(vec![2, 1]));
        assert_eq!(Fake { no_memory: true, ..Fake::of(&despite) }.choose(), Ok(vec![0, 1, 2]));
        let accepted = [InDespiteTheCheck(1e-3), In(2e-3)];
        assert_eq!(Fake::of(&accepted).choose(), Ok(vec![1]));
    }

    #[test]
    fn after_a_failure_of_the_device_nothing_is_run() {
        let mut fake = Fake::of(&[In(1e-3), BreaksTheDevice, In(1e-3)]);
        assert_eq!(fake.choose(), Err("1 broke the device".into()));
        assert_eq!(fake.runs.last(), Some(&1));
    }

    /// The second algorithm divides sums as the first one that runs does not: it is a last resort, however fast it is.
    #[test]
    fn an_algorithm_that_sums_in_another_order_is_not_timed() {
        let mut fake = Fake::of(&[In(3e-3), In(1e-3), In(2e-3)]);
        fake.proposals[1].parts = 2;
        assert_eq!(fake.choose(), Ok(vec![2, 0, 1]));
        assert!(!fake.runs.contains(&1));
        // The first that runs decides.
        fake.proposals[0].runs = Refused;
        assert_eq!(fake.choose(), Ok(vec![1, 2]));
    }

    #[test]
    fn when_the_budget_has_ended_the_first_proposal_is_taken() {
        // Four runs of the first take 1.6 s, four of the second as much.
        let mut fake = Fake::of(&[In(0.4), In(0.41), In(0.1), In(0.1)]);
        assert_eq!(fake.choose(), Ok(vec![0, 1, 2, 3]));
        assert!(!fake.runs.contains(&2), "the budget has ended");
        let runs = fake.runs.len();
        assert_eq!(fake.choose(), Ok(vec![0, 1, 2, 3]), "the next multiplication of the program");
        assert_eq!(fake.runs.len(), runs);
    }
}
