//! Planted faults: samples that fail, that spoil all others of their batch, that hang, and that fail only together with others.

use super::super::samples::{SampleVariant, all};
use super::*;
use ir::DType;

/// The effect of a planted sample on its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    /// It differs.
    Differs,
    /// It ends the process.
    Kills,
    /// It hangs.
    Hangs,
    /// It ends the process together with another sample.
    KillsWith(usize),
}

/// A runner with planted faults. Like a fresh process it has no memory, so only the batch decides.
struct Planted {
    plants: Vec<(usize, Plant)>,
    runs: usize,
}

impl Runner for Planted {
    fn run(&mut self, batch: &Batch) -> Result<Vec<Verdict>, Fault> {
        self.runs += 1;
        let has = |sample: &usize| batch.samples.contains(sample);
        for (sample, plant) in self.plants.iter().filter(|(sample, _)| has(sample)) {
            let fault = |hung| Fault { problem: format!("{plant:?} by {sample}"), hung };
            match plant {
                Plant::Kills => return Err(fault(false)),
                Plant::Hangs => return Err(fault(true)),
                Plant::KillsWith(other) if has(other) => return Err(fault(false)),
                Plant::Differs | Plant::KillsWith(_) => {}
            }
        }
        let differs = |sample: usize| self.plants.contains(&(sample, Plant::Differs));
        let verdict =
            |&sample: &usize| Verdict { sample, problem: differs(sample).then(|| "it differs".to_owned()) };
        Ok(batch.samples.iter().map(verdict).collect())
    }
}

fn batch(samples: std::ops::Range<usize>) -> Batch {
    Batch { way: SampleVariant::ALL[0], dtype: DType::F32, samples: samples.collect() }
}

/// Returns the report of a check of these batches, and the number of runs.
fn checked(batches: &[Batch], plants: &[(usize, Plant)]) -> (Report, usize) {
    let mut runner = Planted { plants: plants.to_vec(), runs: 0 };
    let (samples, mut told) = (all(), Counts::default());
    let report = check(&mut runner, &samples, batches, "gpu:0/", &mut |event| {
        if let Event::Done(_, Counts { passed, failed, skipped }) = event {
            told.passed += passed;
            told.failed += failed;
            told.skipped += skipped;
        }
    });
    let Report { passed, skipped, failures } = &report;
    assert_eq!((told.passed, told.failed, told.skipped), (*passed, failures.len(), *skipped), "all is told");
    let count: usize = batches.iter().map(|batch| batch.samples.len()).sum();
    assert_eq!(passed + skipped + failures.len(), count, "each sample counts once: {report:?}");
    (report, runner.runs)
}

fn parts(report: &Report) -> Vec<&str> {
    report.failures.iter().map(|failure| &*failure.part).collect()
}

#[test]
fn samples_that_spoil_their_batch_are_found_and_all_others_get_their_verdict() {
    let plants = [(3, Plant::Differs), (20, Plant::Kills), (41, Plant::Hangs), (42, Plant::Differs)];
    let (report, runs) = checked(&[batch(0..64), batch(64..80)], &plants);
    assert_eq!((report.passed, report.skipped), (76, 0));
    assert_eq!(parts(&report), [3, 20, 41, 42].map(|sample| format!("gpu:0/f32/inputs/{sample}")));
    let problems: Vec<&str> = report.failures.iter().map(|failure| &*failure.problem).collect();
    assert_eq!(problems, ["it differs", "Kills by 20", "Hangs by 41", "it differs"]);
    assert_eq!(report.failures[1].operator, format!("{:?}", all()[20].op));
    assert!(runs <= 30, "{runs}");
}

#[test]
fn a_batch_that_fails_whole_but_not_in_halves_is_one_failure() {
    let (report, _) = checked(&[batch(0..16)], &[(2, Plant::KillsWith(12))]);
    assert_eq!((report.passed, report.skipped), (15, 0));
    assert_eq!(parts(&report), ["gpu:0/f32/inputs/0-15"]);
    assert_eq!(report.failures[0].problem, "only in one program with 15 other samples: KillsWith(12) by 2");
}

#[test]
fn a_fault_of_every_sample_is_searched_for_only_so_often_and_every_batch_is_tried() {
    let plants: Vec<_> = (0..400).map(|sample| (sample, Plant::Kills)).collect();
    let batches: Vec<Batch> = (0..20).map(|index| batch(10 * index..10 * index + 10)).collect();
    let (report, runs) = checked(&batches, &plants);
    assert!(runs <= batches.len() + MOST_HALVES, "{runs}");
    assert_eq!(report.passed, 0);
    let of_batch = |batch: &Batch| {
        let is_in = |failure: &&Failure| {
            failure.part.rsplit('/').next().is_some_and(|samples| {
                batch.samples.iter().any(|sample| samples.split('-').any(|text| text == sample.to_string()))
            })
        };
        report.failures.iter().filter(is_in).count()
    };
    assert!(batches.iter().all(|batch| of_batch(batch) > 0), "{:?}", parts(&report));
}

#[test]
fn hangs_end_the_search_sooner() {
    let plants: Vec<_> = (0..160).map(|sample| (sample, Plant::Hangs)).collect();
    let batches = [batch(0..80), batch(80..160)];
    let (report, runs) = checked(&batches, &plants);
    assert!(runs <= MOST_HALVES / HANG + batches.len(), "{runs}");
    let last = report.failures.last().expect("the second batch fails too");
    assert!(last.problem.starts_with("this sample or one of 79 other samples"), "{last:?}");
}

#[test]
fn a_fault_of_many_samples_of_a_batch_is_searched_for_in_the_next_batch_again() {
    let plants: Vec<_> = (0..32).chain([100]).map(|sample| (sample, Plant::Kills)).collect();
    let (report, _) = checked(&[batch(0..32), batch(90..120)], &plants);
    assert_eq!(report.failures.len(), MOST_ERRORS + 1, "{:?}", parts(&report));
    assert_eq!((report.passed, report.skipped), (29, 32 - MOST_ERRORS));
}
