//! Fuzzes a checkpoint, opened and loaded.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("checkpoint", bytes));
