//! A prediction as text.

use super::{CommandFacts, DeclinedFacts, ExchangeFacts, MemoryClassFacts, PredictionFacts};
use crate::inspection::units::{bytes, count, flops, grouped};
use ir::visible;
use std::fmt;

/// Joules of a kilowatt-hour.
const JOULES_PER_KWH: f64 = 3.6e6;

/// Commands that text has; JSON has all.
const LONGEST: usize = 10;

impl fmt::Display for PredictionFacts {
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
        let in_turn = milliseconds(self.in_turn_ms);
        writeln!(f, "  {launches}, {in_turn} if each command waited for the previous one")?;
        writeln!(f, "  {}", price((self.samples, self.tokens), self.joules, self.dollars))?;
        let width = self.sections.iter().map(|section| section.section.len()).max().unwrap_or(0);
        for section in &self.sections {
            let (times, ms) = (format!("{} x", section.runs), milliseconds(section.ms));
            writeln!(f, "    {:width$}  {times:>5}  {ms:>9}  {}", section.section, section.commands())?;
        }
        self.write_memory(f)?;
        self.write_exchanges(f)?;
        self.write_declined(f)?;
        self.write_kinds(f)?;
        self.write_longest(f)
    }
}

/// Energy and cost, of a step of so many samples, which may be tokens, and of a billion tokens or a million samples.
pub(in crate::inspection) fn price((samples, are_tokens): (u64, bool), joules: f64, dollars: f64) -> String {
    let (amount, many) = if are_tokens { (1e9, "billion tokens") } else { (1e6, "million samples") };
    let steps = amount / samples as f64;
    format!(
        "energy and cost: {joules:.3e} J and {dollars:.3e} dollars per step; {:.3} kWh and {:.3} dollars per {many}",
        joules * steps / JOULES_PER_KWH,
        dollars * steps
    )
}

impl PredictionFacts {
    /// The memory of a device by class.
    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  memory of each device: {} ({})", bytes(self.planned), self.memory)
    }

    /// A line for the collectives of each kind and axes.
    fn write_exchanges(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ExchangeFacts { kind, axes, count, ms, not_hidden_ms } in &self.exchanges {
            let (axes, share) = (axes.join("*"), 100.0 * not_hidden_ms / self.step_ms);
            let [ms, not_hidden] = [ms, not_hidden_ms].map(|ms| milliseconds(*ms));
            writeln!(
                f,
                "  {kind} over {}: {count} x, {ms}, of which {not_hidden} are not hidden, {share:.1} % of the step",
                visible(&axes)
            )?;
        }
        Ok(())
    }

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

impl fmt::Display for MemoryClassFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, optimizer, gradients, activations, workspace, constants } = *self;
        let classes = [
            ("parameters", parameters),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("saved activations", activations),
            ("workspace", workspace),
            ("constants", constants),
        ];
        let classes = classes.iter().filter(|(_, size)| *size > 0);
        let classes: Vec<String> = classes.map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
        f.write_str(&classes.join(", "))
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
pub(crate) fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        _ if ms >= 1.0 => format!("{ms:.2} ms"),
        _ => format!("{:.1} µs", ms * 1e3),
    }
}
