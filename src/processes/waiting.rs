//! The report of the place where a process waits for others, made when a signal arrives.
//!
//! If a process of a run is killed, the launcher sends SIGTERM to the others, and kills them a second later. Until then each of them can
//! report where it waits for the lost process.

use comm::record::FlightRecord;
use ir::visible;
use std::thread;
use std::time::Duration;

/// The time after a signal in which an exchange may still complete: most exchanges take some milliseconds.
const PATIENCE: Duration = Duration::from_millis(300);

/// A process among several, with the record of its exchanges.
pub struct Waiting {
    rank: u64,
    record: FlightRecord,
}

impl Waiting {
    pub(super) fn new(rank: u64, record: FlightRecord) -> Self {
        Self { rank, record }
    }

    /// Reports the exchange in which this process waits. Returns whether there is one: the process is in an exchange now, and does not
    /// complete it soon.
    pub fn tell(&self) -> bool {
        if self.record.open().is_none() {
            return false;
        }
        thread::sleep(PATIENCE);
        let Some(exchange) = self.record.open_for(PATIENCE) else { return false };
        // Rank 0 may be the process that is lost: every rank writes to the terminal.
        let line = format!("rank {} waits in {}; it stops after this step", self.rank, shortened(&exchange));
        write(&format!("{}\n", visible(&line)));
        true
    }
}

/// Writes text to the terminal and to the log, whether this process is rank 0 or not.
pub(super) fn write(text: &str) {
    crate::log::write(text);
    let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes());
}

/// The text of an exchange, without the middle if it has many tensors. The record has all of them.
pub(super) fn shortened(exchange: &str) -> String {
    // The last part has the ranks and the node of the model.
    const FIRST: usize = 80;
    const LAST: usize = 200;
    let characters: Vec<char> = exchange.chars().collect();
    if characters.len() <= FIRST + LAST {
        return exchange.to_owned();
    }
    let (first, last) = (&characters[..FIRST], &characters[characters.len() - LAST..]);
    format!("{} … {}", String::from_iter(first), String::from_iter(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_of_many_tensors_is_told_with_its_first_and_last() {
        let few = "`all_reduce` (sum) of f32[64] among the ranks [0, 1]";
        assert_eq!(shortened(few), few);
        let tensors: Vec<String> = (0..100).map(|size| format!("f32[{size}]")).collect();
        let node = ", for node \"/model/layers.0/mlp/down_proj/MatMul\" (MatMul, opset 20)";
        let many = format!("`all_reduce` (sum) of {} among the ranks [0, 1]{node}", tensors.join(", "));
        let told = shortened(&many);
        assert!(told.starts_with("`all_reduce` (sum) of f32[0], ") && told.contains(" … "), "{told}");
        let last = format!(", f32[99] among the ranks [0, 1]{node}");
        assert!(told.ends_with(&last) && told.len() < 300, "{told}");
    }
}
