//! The program as a user meets it: its flags and config files, whole runs of the binary and their files, and the answer to every mistake.

mod advice;
mod bad_input;
mod believed;
mod cli;
mod compressed_activations;
mod compressed_gradients;
mod data;
mod deepspeed;
mod doctor;
mod driver;
mod durability;
mod experts;
mod foreign;
mod hostile;
mod indices;
mod inspect;
mod kernels_for;
mod labels;
mod launched;
mod memory_plan;
mod offload;
mod opt;
mod profile;
mod readme;
mod run;
mod samples;
mod sweep;
mod told;
mod walkthrough;

/// The binary.
const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");
