//! Work that a library of this GPU refused, for warnings: each reason once, with a count.

use std::collections::BTreeMap;

/// The reasons of each decision, with their counts.
#[derive(Debug, Default)]
pub(super) struct Notes(BTreeMap<&'static str, BTreeMap<String, usize>>);

impl Notes {
    /// Counts a reason.
    pub(super) fn add(&mut self, decided: &'static str, reason: String) {
        *self.0.entry(decided).or_default().entry(reason).or_default() += 1;
    }

    /// Returns a warning for each decision, and forgets them.
    pub(super) fn take(&mut self) -> Vec<String> {
        let warning = |(decided, reasons): (&str, BTreeMap<String, usize>)| {
            let reasons = reasons.into_iter().map(|(reason, count)| match count {
                1 => reason,
                _ => format!("{count} x {reason}"),
            });
            format!("{decided}: {}", reasons.collect::<Vec<_>>().join("; "))
        };
        std::mem::take(&mut self.0).into_iter().map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_with_its_count() {
        let mut notes = Notes::default();
        for reason in ["no plan", "too large", "no plan"] {
            notes.add("our kernels attend", reason.into());
        }
        notes.add("kernels do it", "a sum".into());
        assert_eq!(notes.take(), ["kernels do it: a sum", "our kernels attend: 2 x no plan; too large"]);
        assert!(notes.take().is_empty());
    }
}
