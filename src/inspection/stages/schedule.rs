//! The choice of a schedule: the line that `inspect` and a run tell, and the schedules that were not chosen.

use ir::units::bytes;
use ir::visible;
use passes::reports::{CandidateReport, StageReport};

/// Names the chosen schedule, with the reason.
pub fn chosen_schedule(report: &StageReport) -> String {
    let StageReport { schedule, device, limit, candidates, .. } = report;
    let fitting: Vec<&CandidateReport> = candidates.iter().filter(|one| one.fits).collect();
    let limit = limit.map(bytes).unwrap_or_default();
    let fit = if fitting.len() < candidates.len() { format!(" that fit {limit}") } else { String::new() };
    let is_fastest = fitting.iter().all(|one| one.time >= 1.0);
    let reason = match fitting.len() {
        0 => format!("estimated to be the smallest of {}, of which none fits {limit}", candidates.len()),
        1 if candidates.len() > 1 => {
            format!("the only one of {} that is estimated to fit {limit}", candidates.len())
        }
        count if is_fastest => format!("predicted to be the fastest of {count}{fit}"),
        count => format!("the simplest of those that are predicted to be as fast as any of {count}{fit}"),
    };
    format!("schedule: {schedule}, {reason}, on {}", visible(device))
}

/// Describes the schedules that were not chosen, from the fastest to the slowest: first the schedules that fit, then those that are too large.
pub(in crate::inspection) fn other_schedules(report: &StageReport) -> String {
    let mut others: Vec<&CandidateReport> =
        report.candidates.iter().filter(|candidate| candidate.schedule != report.schedule).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(schedule: &str, limit: Option<u64>, candidates: &[(&str, f64, u64)], expected: Expect) {
        let chosen = candidates.iter().find(|(name, ..)| *name == schedule).expect("the schedule was chosen");
        let candidate = |&(schedule, time, bytes): &(&str, f64, u64)| CandidateReport {
            schedule: schedule.into(),
            time: time / chosen.1,
            bytes: limit.map(|_| bytes),
            fits: limit.is_none_or(|limit| bytes <= limit),
        };
        let report = StageReport {
            schedule: schedule.into(),
            device: "H200 SXM".into(),
            candidates: candidates.iter().map(candidate).collect(),
            limit,
            ..StageReport::default()
        };
        expected.assert_eq(&format!("{}\n{}", chosen_schedule(&report), other_schedules(&report)));
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
