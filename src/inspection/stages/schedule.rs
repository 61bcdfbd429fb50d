//! The choice of a schedule: the line that `inspect` and a run tell, and the schedules that were not chosen.

use crate::inspection::units::bytes;
use ir::visible;
use passes::reports::{CandidateReport, StageReport};
use serde::Serialize;
use std::fmt;

/// A schedule that the compiler chose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleFacts {
    /// The schedule.
    pub schedule: String,
    /// The device whose rates the times follow from.
    pub device: String,
    /// Bytes that a device has, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// All schedules that were compared, the chosen one too; the simplest first.
    pub candidates: Vec<CandidateFacts>,
}

/// A schedule that was compared with others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateFacts {
    /// The schedule.
    pub schedule: String,
    /// The predicted time of the microbatches of a step, as a multiple of the chosen schedule's.
    pub time: f64,
    /// Bytes that the largest pipeline rank is estimated to take on each device, if the limit is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether these fit.
    pub fits: bool,
}

impl ScheduleFacts {
    /// The facts of a choice by the rates of a device. `None` if a flag named the schedule.
    pub fn of(report: &StageReport, device: &str) -> Option<Self> {
        let chosen = report.chosen()?;
        let facts = |candidate: &CandidateReport| CandidateFacts {
            schedule: candidate.schedule.clone(),
            time: candidate.time / chosen.time,
            bytes: report.limit.map(|_| candidate.bytes),
            fits: candidate.fits,
        };
        let candidates = report.candidates.iter().map(facts).collect();
        let (schedule, device) = (report.schedule.clone(), device.to_owned());
        Some(Self { schedule, device, limit: report.limit, candidates })
    }

    /// The schedules that were not chosen, the fastest first, and those that do not fit behind them.
    pub fn others(&self) -> String {
        let mut others: Vec<&CandidateFacts> =
            self.candidates.iter().filter(|candidate| candidate.schedule != self.schedule).collect();
        if others.is_empty() {
            return "  no other schedule takes these stages and microbatches".into();
        }
        others.sort_by(|one, other| one.time.total_cmp(&other.time));
        let told = |fits: bool| {
            let of_kind = others.iter().filter(|one| one.fits == fits);
            let told = of_kind.map(|one| match one.bytes.filter(|_| !fits) {
                Some(size) => format!("{} {:.2} with {}", one.schedule, one.time, bytes(size)),
                None => format!("{} {:.2}", one.schedule, one.time),
            });
            told.collect::<Vec<_>>().join(", ")
        };
        let kinds = [("", told(true)), ("too large: ", told(false))];
        let kinds = kinds.into_iter().filter(|(_, told)| !told.is_empty());
        let kinds: Vec<String> = kinds.map(|(kind, told)| format!("{kind}{told}")).collect();
        format!("  other schedules, in multiples of its time: {}", kinds.join("; "))
    }
}

impl fmt::Display for ScheduleFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, device, limit, candidates } = self;
        write!(f, "schedule: {schedule}, ")?;
        let fitting: Vec<&CandidateFacts> = candidates.iter().filter(|one| one.fits).collect();
        let limit = limit.map(bytes).unwrap_or_default();
        let fit = if fitting.len() < candidates.len() { format!(" that fit {limit}") } else { String::new() };
        let is_fastest = fitting.iter().all(|one| one.time >= 1.0);
        match fitting.len() {
            0 => {
                write!(f, "estimated to be the smallest of {}, of which none fits {limit}", candidates.len())
            }
            1 if candidates.len() > 1 => {
                write!(f, "the only one of {} that is estimated to fit {limit}", candidates.len())
            }
            count if is_fastest => write!(f, "predicted to be the fastest of {count}{fit}"),
            count => {
                write!(f, "the simplest of those that are predicted to be as fast as any of {count}{fit}")
            }
        }?;
        write!(f, ", on {}", visible(device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(schedule: &str, limit: Option<u64>, candidates: &[(&str, f64, u64)], expected: Expect) {
        let candidate = |&(schedule, time, bytes): &(&str, f64, u64)| CandidateReport {
            schedule: schedule.into(),
            time,
            bytes,
            fits: limit.is_none_or(|limit| bytes <= limit),
        };
        let report = StageReport {
            schedule: schedule.into(),
            candidates: candidates.iter().map(candidate).collect(),
            limit,
            ..StageReport::default()
        };
        let facts = ScheduleFacts::of(&report, "H200 SXM").expect("the schedule was chosen");
        expected.assert_eq(&format!("{facts}\n{}", facts.others()));
    }

    #[test]
    fn a_choice_is_told_with_its_reason_and_the_others() {
        let all = [("1f1b", 1.2, 3 << 20), ("zb-h1", 1.01, 4 << 20), ("zb-v", 1.0, 5 << 20)];
        check(
            "zb-v",
            None,
            &[all[0], all[2]],
            expect![[r#"
                schedule: zb-v, predicted to be the fastest of 2, on H200 SXM
                  other schedules, in multiples of its time: 1f1b 1.20"#]],
        );
        check(
            "zb-h1",
            None,
            &all,
            expect![[r#"
                schedule: zb-h1, the simplest of those that are predicted to be as fast as any of 3, on H200 SXM
                  other schedules, in multiples of its time: zb-v 0.99, 1f1b 1.19"#]],
        );
        check(
            "zb-h1",
            Some(4 << 20),
            &all,
            expect![[r#"
                schedule: zb-h1, predicted to be the fastest of 2 that fit 4.00 MiB, on H200 SXM
                  other schedules, in multiples of its time: 1f1b 1.19; too large: zb-v 0.99 with 5.00 MiB"#]],
        );
        check(
            "1f1b",
            Some(3 << 20),
            &all,
            expect![[r#"
                schedule: 1f1b, the only one of 3 that is estimated to fit 3.00 MiB, on H200 SXM
                  other schedules, in multiples of its time: too large: zb-v 0.83 with 5.00 MiB, zb-h1 0.84 with 4.00 MiB"#]],
        );
        check(
            "1f1b",
            Some(1 << 20),
            &all[..1],
            expect![[r#"
                schedule: 1f1b, estimated to be the smallest of 1, of which none fits 1.00 MiB, on H200 SXM
                  no other schedule takes these stages and microbatches"#]],
        );
    }
}
