//! `--memory device=…,host=…`: the times of the machine decide which activations are kept, kept as bits, computed again or copied.

use ir::machine::{Node, Preset};
use passes::Manager;
use passes::recompute::Recompute;
use program::Multiprocessors;
use testing::models::{self, Fixture, adamw, done};
use trainyard::config::memory::{Budget, Budgets, Tiers};
use trainyard::failure::Failure;
use trainyard::fit::{self, Conditions, Fit, Peaks};
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;

/// Bytes per second of two links to the host: over the slow one a copy takes longer than any operator, and over the fast one it takes
/// almost no time.
const SLOW: f64 = 1e3;
const FAST: f64 = 1e13;

/// So many samples that activations take several times the memory of the states.
const SAMPLES: u64 = 32;

/// Makes a model fit a budget of the device, with a host of any size over a link of this bandwidth.
fn fit(fixture: &Fixture, device: u64, bandwidth: f64) -> Result<Fit, Failure> {
    let plan = CompilationPlan { optimizer: adamw(), ..CompilationPlan::default() };
    let mut subject = fixture.compiled(SAMPLES, plan);
    let mut node = Node::of_device(&Preset::Cpu.device());
    (node.host_link.bandwidth, node.host_link.latency) = (bandwidth, 0.0);
    let budgets = Budgets { device: Some(Budget(device)), host: Some(Budget(u64::MAX)), disk: None };
    let tiers = Tiers { offload: Default::default(), is_open: true, budgets };
    let (target, multiprocessors) = (cpu::TARGET, Multiprocessors::default());
    let conditions =
        Conditions { microbatches: 1, target, multiprocessors, may_update_early: false, node: &node };
    let fit = fit::fit(&mut subject.compilation, &Manager::default(), &tiers, conditions, |_, _| {})?;
    // The search has measured the program that it makes, with its evaluation.
    let programs = Programs::lower(&subject.compilation, 1, target)?;
    assert_eq!(fit.peaks, Peaks::of(&programs), "{fit}");
    Ok(fit)
}

#[test]
fn a_slow_link_is_left_alone_and_a_fast_one_spares_the_computing() {
    let model = &models::GPT2_DYNAMO;
    let all = done(fit(model, u64::MAX, SLOW));
    assert_eq!((all.picoseconds, all.tries), (0, 1), "{all}");
    let budget = all.peaks.device * 7 / 10;
    let slow = done(fit(model, budget, SLOW)).candidate;
    assert!(slow.recompute.is_some() && slow.offload.is_none(), "{slow:?}");
    let fast = done(fit(model, budget, FAST)).candidate;
    assert!(fast.recompute.is_none(), "{fast:?}");
    assert!(fast.offload.is_some_and(|offload| offload.classes.activations), "nothing is copied");
}

/// Blocks are decided one by one, so not all of them are alike.
#[test]
fn some_blocks_keep_what_others_compute_again() {
    let model = &models::GPT2_DYNAMO;
    let all = done(fit(model, u64::MAX, SLOW)).peaks.device;
    let near =
        done(fit(model, all * 95 / 100, SLOW)).candidate.recompute.expect("something is computed again");
    let blocks = |options: &Recompute| (options.first, options.price);
    assert!(near.first.is_some() || near.price < Recompute::SELECTIVE.price, "{:?}", blocks(&near));
}

/// With more bytes on the device, fewer activations are computed again and copied, value by value and not by whole classes.
#[test]
fn a_larger_budget_takes_less_time() {
    let model = &models::GPT2_DYNAMO;
    let all = done(fit(model, u64::MAX, FAST)).peaks.device;
    for bandwidth in [SLOW, FAST] {
        let shares = [60, 70, 80, 90, 95];
        let fits = shares.map(|share| done(fit(model, all * share / 100, bandwidth)));
        for (fit, share) in fits.iter().zip(shares) {
            println!("{share} % of {all}: {} ps; {fit}", fit.picoseconds);
            let budget = all * share / 100;
            assert!(fit.peaks.device <= budget, "{fit}");
            if bandwidth == FAST {
                // No value leaves the device if there is room for it.
                assert!(fit.peaks.device >= budget * 9 / 10, "{fit}");
            }
        }
        let times = fits.map(|fit| fit.picoseconds);
        assert!(times.is_sorted_by(|more, less| more >= less) && times[0] > 2 * times[4], "{times:?}");
    }
}

#[test]
fn masks_are_kept_as_bits_before_a_slow_link_or_a_repeated_convolution() {
    let model = &models::RESNET_TRAINMODE;
    let all = done(fit(model, u64::MAX, SLOW)).peaks.device;
    let fit = done(fit(model, all - 1, SLOW));
    let candidate = &fit.candidate;
    assert!(candidate.compress.is_some() && candidate.recompute.is_none(), "{candidate:?}");
    assert!(fit.to_string().contains("activations are compressed without loss"), "{fit}");
}
