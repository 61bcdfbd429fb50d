//! When commands begin, if each takes as long as said: after the one before on its stream, and after what it waits for.

use crate::cuda::program::{Command, Event};
use std::collections::BTreeMap;

/// The beginning of each command of a section, in the same unit as `lasting`, whose beginning is 0 on every stream.
pub(super) fn begins(commands: &[Command], lasting: &[f64]) -> Vec<f64> {
    let mut free = [0.0_f64; 2];
    let mut marked: BTreeMap<Event, f64> = BTreeMap::new();
    let mut begins = Vec::with_capacity(commands.len());
    for (command, lasts) in commands.iter().zip(lasting) {
        let own = &mut free[command.stream as usize];
        let waited = command.waits.iter().filter_map(|event| marked.get(event));
        let begin = waited.copied().fold(*own, f64::max);
        *own = begin + lasts;
        marked.extend(command.records.map(|event| (event, *own)));
        begins.push(begin);
    }
    begins
}
