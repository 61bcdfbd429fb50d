//! Chooses the algorithm of a multiplication among the proposals of cuBLASLt. Nothing here needs a device.
//!
//! The choice may change only the speed. So an algorithm takes the first proposal's place only if it divides sums in the same way and
//! is measurably faster. A device that was idle runs at a lower clock, and slows down again when it is hot. So the runs begin after a
//! warm-up, the algorithms take turns, and the median of an algorithm's runs counts.

use crate::driver::DriverError;
use std::time::Duration;

/// The number of proposals for which cuBLASLt is asked.
pub(super) const PROPOSALS: usize = 8;

/// The longest time for which the multiplications of one program are timed. After that the first proposal is taken.
pub(super) const BUDGET: Duration = Duration::from_secs(2);

/// The number of timed runs of an algorithm, after one run that is not timed. It is odd, so that one of the runs is the median.
const RUNS: usize = 3;

/// The time without a trial after which the device is assumed to have lowered its clock. A guess, to be measured.
const COLD: Duration = Duration::from_millis(500);

/// The time for which a cold device runs algorithms that are not timed. A guess, to be measured.
const WARM_UP: Duration = Duration::from_millis(100);

/// The share of the time by which another algorithm has to be faster than the first proposal: less may be noise.
const MARGIN: f64 = 0.03;

/// The way in which an algorithm divides a sum into parts and adds them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summation {
    pub(super) parts: u32,
    pub(super) scheme: u32,
}

/// The reason why a run of an algorithm failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// cuBLASLt refused the algorithm, and nothing was run.
    Refused(DriverError),
    /// The device failed. No other algorithm can run after that.
    Device(DriverError),
}

/// A multiplication whose algorithms can be tried.
pub(super) trait Trial {
    /// An algorithm of cuBLASLt.
    type Algorithm: Copy;

    /// Returns the proposed algorithms. The first is the one that cuBLASLt believes to be the fastest.
    fn propose(&mut self) -> Result<Vec<Self::Algorithm>, DriverError>;

    /// Returns the summation of an algorithm, or the reason why cuBLASLt refuses the algorithm for this multiplication.
    fn check(&mut self, algorithm: Self::Algorithm) -> Result<Summation, DriverError>;

    /// Returns whether there is memory to run an algorithm on.
    fn can_run(&self) -> bool;

    /// Runs an algorithm once and returns the seconds.
    fn run(&mut self, algorithm: Self::Algorithm) -> Result<f64, Failure>;

    /// Returns the time since the planning of the program began.
    fn elapsed(&self) -> Duration;

    /// Returns the time since the last run of any trial on this device; `None` if there was no run.
    fn idle(&self) -> Option<Duration>;
}

/// Returns the algorithms for a multiplication: the chosen one first, then the algorithms to try if it is refused.
///
/// # Errors
/// cuBLASLt proposes no algorithm, or refuses to run every one; the device failed.
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
    let is_cold = trial.idle().is_none_or(|idle| idle >= COLD);
    // The first algorithm that runs decides the summation.
    let mut expected: Option<Option<Summation>> = None;
    let mut timings = Timings::new();
    let mut untimed = Vec::new();
    for (algorithm, summation) in accepted {
        let differs = expected.is_some_and(|expected| expected != summation);
        if differs || !trial.can_run() || trial.elapsed() >= BUDGET {
            untimed.push(algorithm);
            continue;
        }
        // The first run loads the kernel.
        match trial.run(algorithm) {
            Ok(_) => {
                expected = Some(summation);
                timings.push((algorithm, Vec::new()));
            }
            Err(Failure::Refused(error)) => refusal = error,
            Err(Failure::Device(error)) => return Err(error),
        }
    }
    let refused = compare(trial, &mut timings, is_cold)?;
    let mut chosen = fastest_first(&timings);
    chosen.extend(untimed);
    if chosen.is_empty() { Err(refused.unwrap_or(refusal)) } else { Ok(chosen) }
}

/// Algorithms with the seconds of their timed runs.
type Timings<A> = Vec<(A, Vec<f64>)>;

/// Times the algorithms in turns, after a warm-up if the device is cold. Returns the last refusal: an algorithm that is refused
/// is left out. When the budget ends, the runs stop.
///
/// # Errors
/// The device failed.
fn compare<T: Trial>(
    trial: &mut T,
    timings: &mut Timings<T::Algorithm>,
    is_cold: bool,
) -> Result<Option<DriverError>, DriverError> {
    let mut refusal = None;
    let begin = trial.elapsed();
    let mut warms_up = is_cold;
    // There is nothing to compare one algorithm with.
    while timings.len() > 1 {
        warms_up = warms_up && trial.elapsed() < begin + WARM_UP;
        let is_done = timings.iter().all(|(_, runs)| runs.len() == RUNS);
        if is_done || trial.elapsed() >= BUDGET {
            break;
        }
        let mut run = |(algorithm, runs): &mut (T::Algorithm, Vec<f64>)| match trial.run(*algorithm) {
            Ok(seconds) => {
                if !warms_up {
                    runs.push(seconds);
                }
                Ok(true)
            }
            Err(Failure::Refused(error)) => {
                refusal = Some(error);
                Ok(false)
            }
            Err(Failure::Device(error)) => Err(error),
        };
        let kept = timings.iter_mut().map(&mut run).collect::<Result<Vec<bool>, _>>()?;
        let mut kept = kept.into_iter();
        timings.retain(|_| kept.next() == Some(true));
    }
    Ok(refusal)
}

/// Returns the median of an algorithm's runs; `None` if there are too few.
fn median(runs: &[f64]) -> Option<f64> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted.len() == RUNS).then(|| sorted[RUNS / 2])
}

/// Puts the algorithm with the lowest median first, unless the first is as fast within the margin, or there are too few runs. The
/// others keep their order.
fn fastest_first<A: Copy>(timings: &Timings<A>) -> Vec<A> {
    let mut algorithms: Vec<A> = timings.iter().map(|(algorithm, _)| *algorithm).collect();
    let medians: Option<Vec<f64>> = timings.iter().map(|(_, runs)| median(runs)).collect();
    let Some(medians) = medians else { return algorithms };
    let fastest = (0..medians.len()).min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
    if let Some(index) = fastest.filter(|&index| medians[index] < (1.0 - MARGIN) * medians[0]) {
        let algorithm = algorithms.remove(index);
        algorithms.insert(0, algorithm);
    }
    algorithms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake cuBLASLt, with a clock that advances only during runs.
    struct Fake {
        proposals: Vec<Proposal>,
        /// Whether there is no memory.
        no_memory: bool,
        elapsed: f64,
        idle: Option<Duration>,
        /// The time of a run as a multiple of its time on a warm device, by the seconds and the runs before it.
        slowness: Box<dyn Fn(f64, usize) -> f64>,
        /// The algorithms that were run, in order.
        runs: Vec<usize>,
    }

    #[derive(Clone, Copy)]
    enum Runs {
        /// The run takes this number of seconds.
        In(f64),
        /// cuBLASLt's check refuses it, and so does a run.
        FailsTheCheck,
        /// cuBLASLt's check refuses it, but its run takes this number of seconds.
        InDespiteTheCheck(f64),
        /// The run takes a thousandth of a second. After this number of runs of any algorithm, it is refused.
        RefusedFrom(usize),
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
            let (idle, slowness) = (Some(Duration::ZERO), Box::new(|_, _| 1.0));
            Self { proposals, no_memory: false, elapsed: 0.0, idle, slowness, runs: vec![] }
        }

        /// Returns the fake with another speed of its runs.
        fn slowed(self, slowness: impl Fn(f64, usize) -> f64 + 'static) -> Self {
            Self { slowness: Box::new(slowness), ..self }
        }

        /// Returns the fake after this time without a trial.
        fn after(self, idle: Option<Duration>) -> Self {
            Self { idle, ..self }
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
                    let seconds = seconds * (self.slowness)(self.elapsed, self.runs.len() - 1);
                    self.elapsed += seconds;
                    Ok(seconds)
                }
                Runs::RefusedFrom(run) if self.runs.len() <= run => {
                    self.elapsed += 1e-3;
                    Ok(1e-3)
                }
                Runs::RefusedFrom(_) | Runs::Refused | Runs::FailsTheCheck => {
                    Err(Failure::Refused(error(algorithm, "is refused")))
                }
                Runs::BreaksTheDevice => Err(Failure::Device(error(algorithm, "broke the device"))),
            }
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs_f64(self.elapsed)
        }

        fn idle(&self) -> Option<Duration> {
            self.idle
        }
    }

    use Runs::{BreaksTheDevice, FailsTheCheck, In, InDespiteTheCheck, Refused, RefusedFrom};

    #[test]
    fn the_fastest_is_first_and_the_others_follow_in_their_order() {
        let mut fake = Fake::of(&[In(3e-3), In(2e-3), In(1e-3), In(4e-3)]);
        assert_eq!(fake.choose(), Ok(vec![2, 0, 1, 3]));
        assert_eq!(fake.runs, [0, 1, 2, 3].repeat(1 + RUNS), "they take turns");
    }

    /// The clock rises while the algorithms take their turns, so each looks faster than the one before it.
    #[test]
    fn runs_on_a_cold_clock_do_not_decide() {
        let rising = |elapsed: f64, _| 1.0 + 2.0 * (1.0 - elapsed / 0.1).max(0.0);
        let cold = || Fake::of(&[In(10e-3), In(10.2e-3)]).slowed(rising);
        for idle in [None, Some(COLD)] {
            let mut fake = cold().after(idle);
            assert_eq!(fake.choose(), Ok(vec![0, 1]), "idle for {idle:?}");
            assert!(fake.elapsed > WARM_UP.as_secs_f64());
        }
        assert_eq!(cold().choose(), Ok(vec![1, 0]), "without a warm-up the cold clock decides");
    }

    #[test]
    fn a_device_that_ran_a_trial_just_now_needs_no_warm_up_and_neither_does_a_single_algorithm() {
        let mut fake = Fake::of(&[In(1e-3), In(1e-3)]);
        fake.choose().unwrap();
        assert_eq!(fake.runs.len(), 2 * (1 + RUNS));
        let mut fake = Fake::of(&[In(1e-3)]).after(None);
        assert_eq!(fake.choose(), Ok(vec![0]));
        assert_eq!(fake.runs, [0], "there is nothing to compare it with");
    }

    /// One run of the best algorithm takes ten times as long, or one run of the other algorithm takes a tenth of its time.
    #[test]
    fn a_single_run_does_not_decide() {
        for outlier in 0..2 * (1 + RUNS) {
            for factor in [10.0, 0.1] {
                let mut fake = Fake::of(&[In(1e-3), In(1.1e-3)])
                    .slowed(move |_, run| if run == outlier { factor } else { 1.0 });
                assert_eq!(fake.choose(), Ok(vec![0, 1]), "run {outlier} takes {factor} times as long");
            }
        }
    }

    /// Each run takes 1 % longer than the one before it. One algorithm after the other, the last would lose 8 %.
    #[test]
    fn a_device_that_slows_down_does_so_for_all_algorithms() {
        let mut fake = Fake::of(&[In(1e-3), In(1e-3), In(0.9e-3)]).slowed(|_, run| 1.01_f64.powi(run as i32));
        assert_eq!(fake.choose(), Ok(vec![2, 0, 1]));
    }

    #[test]
    fn an_algorithm_that_is_refused_after_its_first_run_is_left_out() {
        let mut fake = Fake::of(&[In(1e-3), RefusedFrom(4), In(2e-3)]);
        assert_eq!(fake.choose(), Ok(vec![0, 2]));
        assert_eq!(fake.runs, [0, 1, 2, 0, 1, 2, 0, 2, 0, 2]);
        let mut fake = Fake::of(&[RefusedFrom(2), RefusedFrom(2)]);
        assert_eq!(fake.choose(), Err("1 is refused".into()));
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

    /// A run counts more than the check.
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

    /// The second algorithm divides sums in another way than the first one that runs. So it is a last resort, however fast it is.
    #[test]
    fn an_algorithm_that_sums_in_another_order_is_not_timed() {
        let mut fake = Fake::of(&[In(3e-3), In(1e-3), In(2e-3)]);
        fake.proposals[1].parts = 2;
        assert_eq!(fake.choose(), Ok(vec![2, 0, 1]));
        assert!(!fake.runs.contains(&1));
        // The first algorithm that runs decides.
        fake.proposals[0].runs = Refused;
        assert_eq!(fake.choose(), Ok(vec![1, 2]));
    }

    #[test]
    fn when_the_budget_has_ended_the_first_proposal_is_taken() {
        // A turn of both takes 1.1 s: the second turn ends beyond the budget.
        let mut fake = Fake::of(&[In(0.8), In(0.3)]);
        assert_eq!(fake.choose(), Ok(vec![0, 1]), "two runs of each are too few");
        assert_eq!(fake.runs, [0, 1, 0, 1]);
        assert_eq!(fake.choose(), Ok(vec![0, 1]), "the next multiplication of the program");
        assert_eq!(fake.runs.len(), 4);
        // The budget ends in the first turn.
        let mut fake = Fake::of(&[In(1.2), In(1.1), In(0.1)]);
        assert_eq!(fake.choose(), Ok(vec![0, 1, 2]));
        assert!(!fake.runs.contains(&2), "the budget has ended");
    }
}
