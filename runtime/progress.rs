//! What a user sees of a run: a progress bar on a terminal, plain lines elsewhere.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::metrics::StepMetrics;

/// Between two plain lines, unless a step was evaluated, was skipped, or is the first or last one.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The weight of the newest step in the smoothed step time.
const NEWEST: f64 = 0.1;

/// Shows the steps of one run, on standard error.
pub struct Progress {
    total: u64,
    display: Display,
    /// Smoothed milliseconds a step, once there was one.
    step_ms: Option<f64>,
    eval_loss: Option<f64>,
    /// Steps that were skipped, of those seen.
    skipped: u64,
}

enum Display {
    Bar(ProgressBar),
    Lines { out: Box<dyn Write + Send>, every: Duration, last: Option<Instant> },
}

impl Progress {
    /// For steps `first..total`: a bar if standard error is a terminal, else lines.
    pub fn new(first: u64, total: u64) -> Self {
        if !io::stderr().is_terminal() {
            return Self::lines(Box::new(io::stderr()), total, LINE_EVERY);
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} step {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        bar.set_position(first);
        Self { total, display: Display::Bar(bar), step_ms: None, eval_loss: None, skipped: 0 }
    }

    /// Lines to `out`, one at most every `every` but for the steps that always have one.
    pub fn lines(out: Box<dyn Write + Send>, total: u64, every: Duration) -> Self {
        Self {
            total,
            display: Display::Lines { out, every, last: None },
            step_ms: None,
            eval_loss: None,
            skipped: 0,
        }
    }

    /// A step is done.
    pub fn step(&mut self, metrics: &StepMetrics) {
        let newest = metrics.step_ms;
        self.step_ms = Some(self.step_ms.map_or(newest, |mean| mean + NEWEST * (newest - mean)));
        self.eval_loss = metrics.eval_loss.or(self.eval_loss);
        self.skipped += u64::from(metrics.skipped);
        let done = metrics.step + 1;
        let text = self.describe(metrics);
        match &mut self.display {
            Display::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(text);
            }
            Display::Lines { out, every, last } => {
                let due = last.is_none_or(|last| last.elapsed() >= *every);
                if due || done == self.total || metrics.eval_loss.is_some() || metrics.skipped {
                    // A progress line that nobody can read any more must not end a training run.
                    let _ = writeln!(out, "step {done}/{}  {text}", self.total).and_then(|()| out.flush());
                    *last = Some(Instant::now());
                }
            }
        }
    }

    /// Prints a line of its own, above the bar.
    pub fn message(&mut self, text: &str) {
        match &mut self.display {
            Display::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            Display::Lines { out, .. } => {
                let _ = writeln!(out, "{text}").and_then(|()| out.flush());
            }
        }
    }

    /// Leaves the last state on the screen.
    pub fn finish(self) {
        if let Display::Bar(bar) = self.display {
            bar.abandon();
        }
    }

    fn describe(&self, metrics: &StepMetrics) -> String {
        let mut text = format!("loss {:.4}", metrics.loss);
        if let Some(loss) = self.eval_loss {
            let _ = write!(text, "  eval {loss:.4}");
        }
        let _ = write!(text, "  lr {:.2e}  {} tokens/s", metrics.lr, rounded(metrics.tokens_per_s));
        let left =
            self.total.saturating_sub(metrics.step + 1) as f64 * self.step_ms.unwrap_or_default() / 1e3;
        let _ = write!(text, "  {} left", clock(left));
        if self.skipped > 0 {
            let _ = write!(text, "  {} skipped", self.skipped);
        }
        if metrics.skipped {
            text.push_str(": the gradient is not finite");
        }
        text
    }
}

/// Three digits or so, with a unit.
fn rounded(number: f64) -> String {
    match number {
        number if number >= 999_500.0 => format!("{:.2}M", number / 1e6),
        number if number >= 9_995.0 => format!("{:.1}k", number / 1e3),
        number => format!("{number:.0}"),
    }
}

/// `m:ss`, or `h:mm:ss`.
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

    fn shown(every: Duration) -> String {
        let screen = Screen::default();
        let mut progress = Progress::lines(Box::new(screen.clone()), 100, every);
        for step in [0, 1, 2, 3, 99] {
            let (eval_loss, skipped) = ((step == 2).then_some(1.25), step == 3);
            let (loss, lr, grad_norm) = (2.0, 3e-3, 1.0);
            let (tokens_per_s, step_ms) = (12_345.0, 1000.0);
            progress.step(&StepMetrics {
                step,
                loss,
                lr,
                grad_norm,
                tokens_per_s,
                step_ms,
                skipped,
                eval_loss,
            });
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
step 4/100  loss 2.0000  eval 1.2500  lr 3.00e-3  12.3k tokens/s  1:36 left  1 skipped: the gradient is not finite
step 100/100  loss 2.0000  eval 1.2500  lr 3.00e-3  12.3k tokens/s  0:00 left  1 skipped
saved
";
        assert_eq!(shown(Duration::from_secs(1000)), expected);
        assert_eq!(shown(Duration::ZERO).lines().count(), 6);
    }

    #[test]
    fn times_and_rates_are_short() {
        assert_eq!(clock(3725.4), "1:02:05");
        assert_eq!(clock(-1.0), "0:00");
        assert_eq!([rounded(950.0), rounded(12_000.0), rounded(2.5e6)], ["950", "12.0k", "2.50M"]);
    }
}
