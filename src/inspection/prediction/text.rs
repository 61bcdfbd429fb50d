//! A prediction as text.

use super::{CommandFacts, ExchangeFacts, KindFacts, MemoryClassFacts, PredictionFacts, Throughput};
use ir::units::{bytes, count, flops, grouped, milliseconds, sizes};
use ir::visible;
use program::MemoryByClass;
use program::backend::Declined;
use std::fmt;

/// Joules of a kilowatt-hour.
const JOULES_PER_KWH: f64 = 3.6e6;

/// Commands that text has; JSON has all.
const LONGEST: usize = 10;

impl fmt::Display for PredictionFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Throughput { samples_per_s, model_flops, .. } = self.throughput;
        let (step, rate) = (milliseconds(self.step_ms), self.throughput.rate(samples_per_s.round()));
        writeln!(f, "\non {}: {step} per step, {rate} of {}", self.device, flops(model_flops))?;
        let launches = count(self.launches as usize, "launch").replace("hs", "hes");
        let in_turn = milliseconds(self.in_turn_ms);
        writeln!(f, "  {launches}, {in_turn} if each command waited for the previous one")?;
        writeln!(f, "  {}", self.throughput.price())?;
        let width = self.sections.iter().map(|section| section.section.len()).max().unwrap_or(0);
        for section in &self.sections {
            let (times, ms) = (format!("{} x", section.runs), milliseconds(section.ms));
            writeln!(f, "    {:width$}  {times:>5}  {ms:>9}  {}", section.section, section.commands())?;
        }
        writeln!(f, "  memory of each device: {} ({})", bytes(self.planned), self.memory)?;
        for ExchangeFacts { kind, axes, count, ms, not_hidden_ms } in &self.exchanges {
            let (axes, share) = (axes.join("*"), 100.0 * not_hidden_ms / self.step_ms);
            let [ms, not_hidden] = [ms, not_hidden_ms].map(|ms| milliseconds(*ms));
            writeln!(
                f,
                "  {kind} over {}: {count} x, {ms}, of which {not_hidden} are not hidden, {share:.1} % of the step",
                visible(&axes)
            )?;
        }
        for Declined { kind, reason, count } in &self.not_by_cudnn {
            // Only attention has kernels besides cuDNN's.
            let by = if *kind == "convolution" { "without a library call" } else { "by our own kernels" };
            writeln!(f, "  {kind} {by}: {count} x, {reason}")?;
        }
        let width = self.kinds.iter().map(|kind| kind.kind.len()).max().unwrap_or_default();
        for facts in &self.kinds {
            let KindFacts { kind, launches, bytes: moved, flops: done, ms, .. } = facts;
            let (ms, moved, done) = (milliseconds(*ms), bytes(*moved), flops(*done));
            let launches = format!("{launches} x");
            write!(f, "  {kind:width$}  {launches:>6}  {ms:>9}  {moved:>9}  {done:>10}")?;
            writeln!(f, "  {}", facts.bound())?;
        }
        self.write_longest(f)
    }
}

impl Throughput {
    /// The samples or tokens per second, and the share of the peak: `12,300 tokens per second, MFU 41.2 %`. The fraction of `samples_per_s`
    /// is cut off; the caller may round it before.
    pub(in crate::inspection) fn rate(&self, samples_per_s: f64) -> String {
        let unit = if self.tokens { "tokens" } else { "samples" };
        format!("{} {unit} per second, MFU {:.1} %", grouped(samples_per_s as u64), 100.0 * self.mfu)
    }

    /// Energy and cost of a step, and of a billion tokens or a million samples.
    pub(in crate::inspection) fn price(&self) -> String {
        let Self { samples, tokens, joules, dollars, .. } = *self;
        let (amount, many) = if tokens { (1e9, "billion tokens") } else { (1e6, "million samples") };
        let steps = amount / samples as f64;
        format!(
            "energy and cost: {joules:.3e} J and {dollars:.3e} dollars per step; {:.3} kWh and {:.3} dollars per {many}",
            joules * steps / JOULES_PER_KWH,
            dollars * steps
        )
    }
}

impl PredictionFacts {
    /// Writes the longest commands. Equal commands have one line.
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

impl fmt::Display for MemoryClassFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { classes, constants } = *self;
        let MemoryByClass { parameters, optimizer, gradients, activations, workspace } = classes;
        f.write_str(&sizes([
            ("parameters", parameters),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("saved activations", activations),
            ("workspace", workspace),
            ("constants", constants),
        ]))
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
