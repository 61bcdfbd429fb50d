//! The text for people of the bytes that each device of a mesh holds.

use ir::analysis::{Share, Shares};
use ir::units::bytes;
use std::fmt;

/// A table of the bytes that a device holds, by kind of tensor. Each row also has the bytes that each kind of axis saves.
pub(super) struct SharesText<'a>(pub(super) &'a Shares);

impl fmt::Display for SharesText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\neach device holds")?;
        for (name, share) in self.0.named() {
            let Share { one_device, device, saved_by_tensor, saved_by_expert, saved_by_data } = share;
            let by_data = if name == "activations" { "dp" } else { "ZeRO" };
            let saved = [("tp", saved_by_tensor), ("ep", saved_by_expert), (by_data, saved_by_data)];
            let saved = saved.iter().filter(|(_, saved)| *saved > 0);
            let saved = saved.map(|(by, saved)| format!("{by} saves {}", bytes(*saved))).collect::<Vec<_>>();
            let saved = if saved.is_empty() { String::new() } else { format!(": {}", saved.join(", ")) };
            writeln!(f, "  {name:11}  {:>10} of {:>10}{saved}", bytes(device), bytes(one_device))?;
        }
        Ok(())
    }
}
