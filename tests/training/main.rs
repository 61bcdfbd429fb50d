//! The models of `testdata`, compiled and trained: compared with PyTorch, in half precision, in microbatches, on ranks and by a third
//! backend; and their memory, collectives and launches.

mod backends;
mod bytes_per_rank;
mod collective_counts;
mod compressed_gradients;
mod delays;
mod faults;
mod half;
mod initialization;
mod launches;
mod losses;
mod memory;
mod microbatches;
mod parity;
mod patrickstar;
mod precision;
mod published_steps;
mod ranks;
mod recompute;
mod searches;
mod sharding;
mod skipped_steps;
mod tiers;
mod update;

/// The binary.
const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");
