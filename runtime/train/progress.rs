//! The display of a run: a progress bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::metrics::StepMetrics;

/// The time between two plain lines. Steps that were evaluated or skipped, and the first and last steps, always have a line.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The weight of the newest step in the smoothed step time.
const NEWEST: f64 = 0.1;

/// The number of columns of a line, which every terminal has.
const COLUMNS: usize = 80;

/// Shows the steps of one run, on standard error.
pub struct Progress {
    total: u64,
    display: Display,
    /// Smoothed milliseconds per step, after the first step.
    step_ms: Option<f64>,
    eval_loss: Option<f64>,
    /// The number of steps seen that were skipped.
    skipped: u64,
}

enum Display {
    Bar(ProgressBar),
    Lines { out: Box<dyn Write + Send>, every: Duration, last: Option<Instant> },
}

impl Progress {
    /// Makes a display for steps `first..total`: a bar if standard error is a terminal, else lines.
    pub fn new(first: u64, total: u64) -> Self {
        if !io::stderr().is_terminal() {
            return Self::lines(Box::new(io::stderr()), total, LINE_EVERY);
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        // The bar fills the part of a line that the text leaves.
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar}") {
            bar.set_style(style);
        }
        bar.set_position(first);
        Self { total, display: Display::Bar(bar), step_ms: None, eval_loss: None, skipped: 0 }
    }

    /// Makes a display with lines to `out`, at most one per `every`, except for the steps that always have one.
    pub fn lines(out: Box<dyn Write + Send>, total: u64, every: Duration) -> Self {
        Self {
            total,
            display: Display::Lines { out, every, last: None },
            step_ms: None,
            eval_loss: None,
            skipped: 0,
        }
    }

    /// Shows that a step is completed. A step that was evaluated or skipped leaves a line.
    pub fn step(&mut self, metrics: &StepMetrics) {
        let newest = metrics.step_ms;
        self.step_ms = Some(self.step_ms.map_or(newest, |mean| mean + NEWEST * (newest - mean)));
        self.eval_loss = metrics.eval_loss.or(self.eval_loss);
        self.skipped += u64::from(metrics.skipped);
        let done = metrics.step;
        let text = self.describe(metrics);
        let matters = metrics.eval_loss.is_some() || metrics.skipped;
        match &mut self.display {
            Display::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(text.clone());
                // The last line stays on the screen anyway.
                if matters && done != self.total {
                    bar.suspend(|| write_line(&mut io::stderr(), &text));
                }
            }
            Display::Lines { out, every, last } => {
                let due = last.is_none_or(|last| last.elapsed() >= *every);
                if due || done == self.total || matters {
                    write_line(out, &text);
                    *last = Some(Instant::now());
                }
            }
        }
    }

    /// Prints a line of its own, above the bar.
    pub fn message(&mut self, text: &str) {
        match &mut self.display {
            Display::Bar(bar) => bar.suspend(|| write_line(&mut io::stderr(), text)),
            Display::Lines { out, .. } => write_line(out, text),
        }
    }

    /// Leaves the last state on the screen.
    pub fn finish(self) {
        if let Display::Bar(bar) = self.display {
            bar.abandon();
        }
    }

    /// Returns the line of a step. If it would be too wide for a terminal, its least important parts are left out.
    fn describe(&self, metrics: &StepMetrics) -> String {
        let done = metrics.step;
        let left = self.total.saturating_sub(done) as f64 * self.step_ms.unwrap_or_default() / 1e3;
        let rate = match (metrics.tokens_per_s, metrics.samples_per_s) {
            (Some(rate), _) => format!("{} tokens/s", rounded(rate)),
            (None, Some(rate)) => format!("{} samples/s", rounded(rate)),
            (None, None) => String::new(),
        };
        let skipped = match (metrics.skipped, self.skipped) {
            (_, 0) => String::new(),
            (true, count) => format!("{count} skipped: the gradient is not finite"),
            (false, count) => format!("{count} skipped"),
        };
        // Each part with its rank. Parts with the highest rank are left out first.
        let parts = [
            (0, format!("step {done}/{}", self.total)),
            (0, format!("loss {}", short(metrics.loss))),
            (2, self.eval_loss.map_or_else(String::new, |loss| format!("eval {}", short(loss)))),
            (5, format!("lr {:.2e}", metrics.lr)),
            (4, rate),
            (3, format!("{} left", clock(left))),
            (1, skipped),
        ];
        let line = |most: u32| {
            let kept = parts.iter().filter(|(rank, part)| *rank <= most && !part.is_empty());
            kept.map(|(_, part)| part.as_str()).collect::<Vec<_>>().join("  ")
        };
        let fits = |line: &String| line.len() < COLUMNS;
        (0..=5).rev().map(line).find(fits).unwrap_or_else(|| line(0))
    }
}

/// Writes a line that is only for people. A failure to write it must not end a training run.
fn write_line(out: &mut dyn Write, text: &str) {
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Formats a loss with four decimals, unless it is too large for a line.
fn short(loss: f64) -> String {
    if loss.abs() < 1e6 { format!("{loss:.4}") } else { format!("{loss:.3e}") }
}

/// Formats a number with about three digits and a unit.
fn rounded(number: f64) -> String {
    match number {
        number if number >= 999_500.0 => format!("{:.2}M", number / 1e6),
        number if number >= 9_995.0 => format!("{:.1}k", number / 1e3),
        number => format!("{number:.0}"),
    }
}

/// Formats a time as `m:ss` or `h:mm:ss`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            loss: 2.0,
            lr: 3e-3,
            grad_norm: 1.0,
            tokens_per_s: Some(12_345.0),
            samples_per_s: None,
            step_ms: 1000.0,
            skipped: false,
            eval_loss: None,
            loads: Default::default(),
            outputs: Default::default(),
        }
    }

    fn shown(every: Duration) -> String {
        let screen = Screen::default();
        let mut progress = Progress::lines(Box::new(screen.clone()), 100, every);
        for step in [1, 2, 3, 4, 100] {
            let (eval_loss, skipped) = ((step == 3).then_some(1.25), step == 4);
            progress.step(&StepMetrics { eval_loss, skipped, ..metrics(step) });
        }
        progress.message("saved");
        progress.finish();
        let bytes = screen.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_come_when_they_are_due_and_for_every_step_that_matters() {
        let expected = "\
step 1/100  loss 2.0000  lr 3.00e-3  12.3k tokens/s  1:39 left
step 3/100  loss 2.0000  eval 1.2500  lr 3.00e-3  12.3k tokens/s  1:37 left
step 4/100  loss 2.0000  eval 1.2500  1 skipped: the gradient is not finite
step 100/100  loss 2.0000  eval 1.2500  12.3k tokens/s  0:00 left  1 skipped
saved
";
        assert_eq!(shown(Duration::from_secs(1000)), expected);
        assert_eq!(shown(Duration::ZERO).lines().count(), 6);
    }

    #[test]
    fn a_line_leaves_out_what_would_make_it_wider_than_a_terminal() {
        let mut progress = Progress::lines(Box::new(io::sink()), 2_000_000, Duration::ZERO);
        progress.step(&StepMetrics { eval_loss: Some(1.25), ..metrics(1) });
        let line = progress.describe(&metrics(1_000_001));
        assert_eq!(line, "step 1000001/2000000  loss 2.0000  eval 1.2500  12.3k tokens/s  277:46:39 left");
        assert!(line.len() < COLUMNS);
        progress.skipped = 1;
        let huge = StepMetrics { loss: 1e60, skipped: true, ..metrics(1_000_001) };
        let line = progress.describe(&huge);
        assert_eq!(line, "step 1000001/2000000  loss 1.000e60  1 skipped: the gradient is not finite");
    }

    #[test]
    fn a_model_without_tokens_has_samples_a_second() {
        let progress = Progress::lines(Box::new(io::sink()), 10, Duration::ZERO);
        let of_samples = StepMetrics { tokens_per_s: None, samples_per_s: Some(320.0), ..metrics(1) };
        assert!(
            progress.describe(&of_samples).contains("  320 samples/s  "),
            "{}",
            progress.describe(&of_samples)
        );
    }

    #[test]
    fn times_and_rates_are_short() {
        assert_eq!(clock(3725.4), "1:02:05");
        assert_eq!(clock(-1.0), "0:00");
        assert_eq!([rounded(950.0), rounded(12_000.0), rounded(2.5e6)], ["950", "12.0k", "2.50M"]);
    }
}
