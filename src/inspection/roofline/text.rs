//! A prediction as text.

use super::{CommandFacts, DeclinedFacts, RooflineFacts};
use crate::inspection::units::{bytes, count, flops, grouped};
use ir::visible;
use std::fmt;

/// Commands that text has; JSON has all.
const LONGEST: usize = 10;

impl fmt::Display for RooflineFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.tokens { "tokens" } else { "samples" };
        let rate = grouped(self.samples_per_s.round() as u64);
        writeln!(
            f,
            "\non {}: {} per step, {rate} {what} per second, MFU {:.1} % of {}",
            self.device,
            milliseconds(self.step_ms),
            100.0 * self.mfu,
            flops(self.model_flops)
        )?;
        let launches = count(self.launches as usize, "launch").replace("hs", "hes");
        let (in_turn, planned) = (milliseconds(self.in_turn_ms), bytes(self.planned));
        writeln!(
            f,
            "  {launches}, {in_turn} if each command waited for the previous one; {planned} of memory"
        )?;
        for section in &self.sections {
            let runs = if section.section == "microbatch" { self.microbatches } else { 1 };
            let (times, ms) = (format!("{runs} x"), milliseconds(section.ms));
            writeln!(f, "    {:10}  {times:>5}  {ms:>9}  {}", section.section, section.launches())?;
        }
        self.write_declined(f)?;
        self.write_kinds(f)?;
        self.write_longest(f)
    }
}

impl RooflineFacts {
    /// A line for each kind and reason. Only attention has kernels besides cuDNN's.
    fn write_declined(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for DeclinedFacts { kind, reason, count } in &self.not_by_cudnn {
            let by = if *kind == "convolution" { "without a library call" } else { "by our own kernels" };
            writeln!(f, "  {kind} {by}: {count} x, {reason}")?;
        }
        Ok(())
    }

    fn write_kinds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.kinds.iter().map(|kind| kind.kind.len()).max().unwrap_or_default();
        for kind in &self.kinds {
            let (ms, moved, done) = (milliseconds(kind.ms), bytes(kind.bytes), flops(kind.flops));
            let launches = format!("{} x", kind.launches);
            writeln!(
                f,
                "  {:width$}  {launches:>6}  {ms:>9}  {moved:>9}  {done:>10}  {}",
                kind.kind,
                kind.bound()
            )?;
        }
        Ok(())
    }

    /// The longest commands; those that are alike once.
    fn write_longest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut alike: Vec<(&CommandFacts, u64)> = Vec::new();
        for command in &self.commands {
            match alike.iter_mut().find(|(first, _)| first.is_like(command)) {
                Some((_, times)) => *times += 1,
                None => alike.push((command, 1)),
            }
        }
        alike.sort_by(|a, b| b.0.us.total_cmp(&a.0.us));
        let rest: u64 = alike.iter().skip(LONGEST).map(|(_, times)| times).sum();
        writeln!(f, "the longest")?;
        for (command, times) in alike.iter().take(LONGEST) {
            let (us, times) = (milliseconds(command.us / 1e3), format!("{times} x"));
            let (moved, done) = (bytes(command.read + command.written), flops(command.flops));
            writeln!(
                f,
                "  {times:>5}  {us:>9}  {moved:>9}  {done:>10}  {:7}  {} {:?}{}",
                command.bound,
                command.kind,
                command.sizes,
                command.place()
            )?;
        }
        if rest > 0 {
            writeln!(f, "  {} with less time; --format json lists all", count(rest as usize, "command"))?;
        }
        Ok(())
    }
}

impl CommandFacts {
    fn is_like(&self, other: &Self) -> bool {
        let facts =
            |command: &Self| (command.section, command.read, command.written, command.flops, command.layers);
        facts(self) == facts(other) && self.kind == other.kind && self.sizes == other.sizes
    }

    fn place(&self) -> String {
        if self.origin.is_empty() { String::new() } else { format!("  at {}", visible(&self.origin)) }
    }
}

/// `1.25 s`, `12.5 ms`, `3.2 µs`
pub(in crate::inspection) fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        _ if ms >= 1.0 => format!("{ms:.2} ms"),
        _ => format!("{:.1} µs", ms * 1e3),
    }
}
