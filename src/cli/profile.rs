//! The profile of a run, for people: a timeline, and the times of kernels.

use super::compile::Ready;
use super::report;
use crate::failure::Failure;
use crate::output::Folder;
use runtime::profile::{Profile, Share};
use runtime::target::Target;

/// Writes the timeline of a run into its folder, and tells the times of its kernels. The run had so many threads, or one for each
/// core.
pub(super) fn write(
    profile: &Profile,
    ready: &Ready,
    threads: Option<usize>,
    folder: &Folder,
) -> Result<(), Failure> {
    let training = ready.programs.training.first();
    let timeline = profile.timeline(training).to_string();
    folder.write(&[("timeline.json", timeline.as_bytes())])?;
    let shares = profile.shares(training, ready.plan.microbatches);
    let peak = (training.target == Target::Cpu).then(|| runtime::cpu::peak_gflops(threads));
    report::tell_lines(&table(&shares, peak));
    Ok(())
}

/// The time of a step by kind of kernel, and how fast those are that multiply matrices. `peak` is what a large matrix
/// reaches, in billions of floating-point operations a second, where that is known.
fn table(shares: &[Share], peak: Option<f64>) -> String {
    // Exchanges take the time of a step only where nothing else runs.
    let counted = |share: &Share| share.not_hidden.unwrap_or(share.milliseconds);
    let total: f64 = shares.iter().map(counted).sum();
    let percent = |part: f64| 100.0 * part / total.max(f64::MIN_POSITIVE);
    let mut table =
        format!("{:>10}  {:>6}  {:>6}  {:>8}  kernel\n", "ms a step", "share", "calls", "GFLOP/s");
    for share in shares {
        let speed = if share.flops > 0 { format!("{:.1}", share.gflops()) } else { String::new() };
        let Share { kernel, milliseconds, instructions, .. } = share;
        let hidden = share.not_hidden.map(|own| format!(", of which {own:.3} ms are not hidden"));
        table += &format!(
            "{milliseconds:>10.3}  {:>5.1}%  {instructions:>6}  {speed:>8}  {kernel}{}\n",
            percent(counted(share)),
            hidden.unwrap_or_default()
        );
    }
    let products = shares.iter().filter(|share| share.flops > 0);
    let (time, flops) =
        products.fold((0.0, 0), |(time, flops), share| (time + share.milliseconds, flops + share.flops));
    let speed = flops as f64 / time.max(f64::MIN_POSITIVE) / 1e6;
    let reached =
        peak.map_or_else(String::new, |peak| format!(" of the {peak:.1} GFLOP/s of a large multiplication"));
    table
        + &format!(
            "{total:.3} ms per step; matrix multiplications take {:.1}% of it, at {speed:.1} \
             GFLOP/s{reached}\n",
            percent(time)
        )
}
