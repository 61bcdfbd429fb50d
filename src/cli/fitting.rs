//! What would fit on a device that a run is too large for.

use super::compile::Compile;
use super::resuming::Continued;
use crate::hardware::Chosen;
use crate::plan::RunPlan;
use program::device::TooLarge;

impl Compile {
    /// The largest microbatch, of those that halving leads to, whose programs fit, as flags that leave the step what it is;
    /// none if no halving helps. Each is compiled for that.
    pub(super) fn fitting(&self, plan: &RunPlan, device: &Chosen, too_large: &TooLarge) -> Option<String> {
        let ranks = self.settings.compile.parallel.data_ranks();
        let mut smaller = self.clone();
        smaller.settings.data.train = None;
        let global = plan.microbatch * plan.microbatches;
        let mut microbatch = plan.microbatch / ranks;
        while microbatch.is_multiple_of(2) {
            microbatch /= 2;
            smaller.settings.compile.shapes.microbatch = Some(microbatch);
            let peak = smaller.compile(device, Continued::anew(Some(global))).ok()?.programs.peak();
            if peak <= too_large.of_programs {
                let size = TooLarge::size(peak);
                return Some(format!("--microbatch {microbatch} --global-batch {global} takes {size}"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use program::Multiprocessors;

    #[test]
    fn a_smaller_microbatch_that_fits_is_named_with_what_it_takes() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/gpt2-fresh.onnx");
        let words = ["trainyard", "compile", model, "--microbatch", "8"];
        let Ok(Cli { command: Command::Compile(compile), .. }) = Cli::parse_with_config(words) else {
            panic!("not a compile")
        };
        let device = Chosen {
            target: crate::targets::of(ir::machine::DeviceKind::Gpu),
            multiprocessors: Multiprocessors::default(),
            described: String::new(),
            preset: None,
        };
        let ready =
            compile.compile(&device, Continued::default()).unwrap_or_else(|error| panic!("{error:?}"));
        let with = |of_programs| {
            let too_large = TooLarge {
                program: "gpt2".into(),
                device: "GPU 0".into(),
                ranks: 1,
                free: of_programs,
                kinds: vec![],
                largest: vec![],
                of_programs,
            };
            compile.fitting(&ready.plan, &device, &too_large)
        };
        let peak = ready.programs.peak();
        let text = with(peak - 1).unwrap_or_default();
        assert!(text.starts_with("--microbatch 4 --global-batch 8 takes "), "{text}");
        let text = with(peak / 4).unwrap_or_default();
        assert!(
            text.is_empty() || text.starts_with("--microbatch 1 ") || text.starts_with("--microbatch 2 ")
        );
        assert_eq!(with(0), None);
    }
}
