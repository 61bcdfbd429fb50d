//! Programs: their text, the verifier, and the interpreter on one device and on ranks.

mod conformance;
mod hostile;
mod random_programs;
mod ranks;
mod text;
mod update_types;
mod verify;
mod verify_lowered;
mod verify_placed;
mod verify_stages;
mod verify_tiers;
