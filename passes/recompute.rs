//! Recompute: drops activations that backward reads, and repeats their forward nodes just before backward reads them.
//!
//! A kept activation costs its bytes times a price; a repeated node costs its time on a device. For one price the cheapest choice
//! is a minimum cut of each block (`cut`). `--recompute` gives a price, and `--memory` searches for the lowest price whose program
//! fits. Blocks are found in the graph (`blocks`). The values between blocks are always kept: without them, all of the
//! forward phase would be repeated at the start of backward, which saves nothing.
//!
//! Invariants: a repeated node is a copy (`copy = 1`) in backward, immediately before its first reader. It reads the same
//! operands, or copies of them. It writes no state. Reductions over devices are never repeated; gathers may be. Random operators
//! are counted, so that a copy draws the same numbers.

mod blocks;
mod choices;
mod copies;
mod cut;
mod explain;
mod rates;
#[cfg(test)]
mod tests;

use crate::arguments::{Options, value_of};
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
pub use choices::{Choices, Decision};
use ir::machine::Device;
use ir::{Changed, Diagnostic, Module, ValueId};
pub use rates::DeviceRates;
use std::collections::BTreeMap;

/// The pass `recompute`. `recompute(price=1536, device=h200)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recompute {
    /// The price of a kept activation: picoseconds for each KiB.
    pub price: u64,
    /// The number of blocks, from the first on, that this price is for. `None`: all of them.
    pub first: Option<u64>,
    /// The price in the blocks after the first ones.
    pub then: u64,
    /// The device whose times are compared with the price. `None`: [`Device::assumed`].
    pub device: Option<DeviceRates>,
}

impl Recompute {
    /// The price of `--recompute selective`, 1.5 ps for a byte. An elementwise operator, a norm, or the scores of an attention
    /// head are cheaper on a GPU; a multiplication by a weight matrix is not.
    pub const SELECTIVE: Self = Self { price: 1536, first: None, then: 0, device: None };

    /// The price of `--recompute full`: more than any time, so that only bytes count.
    pub const FULL: Self = Self { price: 1 << 50, first: None, then: 0, device: None };

    /// Returns the same choice on another device. A price is compared with the time of moving a byte in memory, so it scales with this
    /// time. The price of `full` stays: it is more than any time on any device.
    pub fn on(self, device: &Device) -> Self {
        let rates = DeviceRates::of(device);
        let before = self.rates().memory();
        let scaled = |price: u64| {
            let scaled = u128::from(price) * u128::from(before) / u128::from(rates.memory());
            if price == Self::FULL.price { price } else { u64::try_from(scaled).unwrap_or(u64::MAX) }
        };
        Self { price: scaled(self.price), then: scaled(self.then), device: Some(rates), ..self }
    }

    /// Returns the price in a block, by its index.
    fn price_in(&self, block: usize) -> u64 {
        if self.first.is_none_or(|first| (block as u64) < first) { self.price } else { self.then }
    }

    /// Returns the rates of the device whose times are compared with the price.
    pub fn rates(&self) -> DeviceRates {
        self.device.clone().unwrap_or_else(|| DeviceRates::of(&Device::assumed()))
    }
}

impl Default for Recompute {
    fn default() -> Self {
        Self::SELECTIVE
    }
}

impl Transform for Recompute {
    const NAME: &'static str = "recompute";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        let default = Self::default();
        options.value("price", &mut self.price, default.price);
        options.optional("first", &mut self.first, |text| value_of("first", text));
        options.value("then", &mut self.then, default.then);
        options.optional("device", &mut self.device, str::parse);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let choices = Choices::of(module, &self.rates());
        let decision = choices.decide(self);
        let mut report = choices.report(&decision, self);
        let copies = add_copies(module, &decision)?;
        report.values.iter_mut().for_each(|value| value.copy = copies.get(&value.value).copied());
        cx.reports.recomputed = Some(report);
        Ok(if copies.is_empty() { Changed::No } else { Changed::Yes })
    }
}

/// Chooses the nodes that are repeated.
pub fn decide(module: &Module, options: &Recompute) -> Decision {
    Choices::of(module, &options.rates()).decide(options)
}

/// Adds the copies, makes backward read them, and removes forward nodes that have no reader any more.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let copies = add_copies(module, decision)?;
    Ok(if copies.is_empty() { Changed::No } else { Changed::Yes })
}

/// Applies a decision, and returns the copy of each value.
fn add_copies(module: &mut Module, decision: &Decision) -> Result<BTreeMap<ValueId, ValueId>, Diagnostic> {
    let copies = copies::insert(module, &decision.repeated())?;
    if !copies.is_empty() {
        remove_dead(module, Recompute::NAME);
    }
    Ok(copies)
}
