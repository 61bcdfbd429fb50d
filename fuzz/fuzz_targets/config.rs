//! Fuzzes a config file, read, checked and written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("config", bytes));
