//! Fuzzes a file of training data, opened and read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("data", bytes));
